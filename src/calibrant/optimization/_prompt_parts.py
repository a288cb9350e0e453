"""A prompt taken apart: instruction, notes and demonstrations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from calibrant.core import CompositeLabels, FieldLabels

__all__ = ["Demonstration", "PromptFormat", "PromptParts", "estimate_tokens", "one_line"]

_FORM = "\n\nLabels: "
_WRITE = "\nAnswer with JSON of this form: "
_PLACEHOLDER = "..."
_NOTES = "\n\nNotes:\n"
_EXAMPLES = "\n\nExamples:\n\n"
_BULLET = "- "
_TEXT = "Text: "
_ANSWER = "\nAnswer: "


def one_line(text: str) -> str:
    """Return `text` with every run of white space as one space."""
    return " ".join(text.split())


def estimate_tokens(text: str) -> int:
    """Return a cautious guess of the number of tokens of `text`: 3.5 UTF-8 bytes each, rounded up."""
    return math.ceil(len(text.encode()) / 3.5)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A training text, on one line, with its label."""

    text: str
    label: str


@dataclass(frozen=True, kw_only=True)
class PromptParts:
    """The parts of a prompt that `ExemplarProposer` edits.

    Attributes
    ----------
    instruction : str
        The text the user, or a reflection model, wrote; never edited.
    form : bool
        Whether the labels and the form of the answer are named.
    notes : tuple of str
        One-line notes.
    demonstrations : tuple of Demonstration
        Labelled examples, in order.
    """

    instruction: str
    form: bool = False
    notes: tuple[str, ...] = ()
    demonstrations: tuple[Demonstration, ...] = ()


class PromptFormat:
    """Writes `PromptParts` as a prompt and reads them back.

    A demonstration shows the answer as the JSON object the model is to write: small models
    copy the form, and a bare label teaches them the wrong one.

    Parameters
    ----------
    labels : iterable of str
        The labels a demonstration may have; whole answers where `composite` is given.
    field : str
        JSON path of the label in the answer.
    composite : CompositeLabels, optional
        What answers hold, where they hold several labels.
    """

    def __init__(
        self, labels: Iterable[str], *, field: str, composite: CompositeLabels | None = None
    ) -> None:
        self._answers = {
            label: json.dumps(_document(field, label, composite), ensure_ascii=False) for label in labels
        }
        self._labels = {answer: label for label, answer in self._answers.items()}
        # Never a real label in the form: small models copy it.
        shown = json.dumps(_nest(field, _PLACEHOLDER)) if composite is None else ""
        self._form = f"{_FORM}{', '.join(self._answers)}.{_WRITE}{shown}" if shown else ""

    def render(self, parts: PromptParts) -> str:
        """Return the prompt; ``parse`` of it gives `parts` again."""
        return parts.instruction + self.added(parts)

    def added(self, parts: PromptParts) -> str:
        """Return what follows the instruction; empty where there is nothing."""
        text = self._form if parts.form else ""
        if parts.notes:
            text += _NOTES + "\n".join(_BULLET + note for note in parts.notes)
        if parts.demonstrations:
            text += _EXAMPLES + "\n\n".join(
                f"{_TEXT}{shown.text}{_ANSWER}{self._answers[shown.label]}" for shown in parts.demonstrations
            )
        return text

    def names_all(self, instruction: str) -> bool:
        """Return whether an instruction names all labels already, or answers hold several."""
        return not self._form or all(label in instruction for label in self._answers)

    def parse(self, prompt: str) -> PromptParts:
        """Take a prompt apart; what is not in this format stays part of the instruction."""
        rest, found, tail = prompt.rpartition(_EXAMPLES)
        shown = [self._parse_demonstration(block) for block in tail.split("\n\n")] if found else []
        demonstrations = tuple(item for item in shown if item is not None)
        if not found or len(demonstrations) < len(shown):
            rest, demonstrations = prompt, ()
        before, found, tail = rest.rpartition(_NOTES)
        lines = tail.split("\n")
        notes: tuple[str, ...] = ()
        if found and all(line.startswith(_BULLET) for line in lines):
            rest, notes = before, tuple(line.removeprefix(_BULLET) for line in lines)
        form = bool(self._form) and rest.endswith(self._form)
        instruction = rest.removesuffix(self._form) if form else rest
        return PromptParts(instruction=instruction, form=form, notes=notes, demonstrations=demonstrations)

    def _parse_demonstration(self, block: str) -> Demonstration | None:
        text, found, answer = block.rpartition(_ANSWER)
        if not found or not text.startswith(_TEXT) or answer not in self._labels:
            return None
        return Demonstration(text.removeprefix(_TEXT), self._labels[answer])


def _document(field: str, label: str, composite: CompositeLabels | None) -> Any:  # noqa: ANN401  (JSON)
    """Return the smallest JSON value that is a label's, or a whole answer's, in the form the model must write."""
    if isinstance(composite, FieldLabels):
        values = composite.values(label)
        return reduce(_joined, (_nest(one.path or one.name, values[one.name]) for one in composite.fields))
    if composite is None:
        return _nest(field, label)
    array, several, inside = field.rpartition("[]")
    held: list[Any] = [name for name in composite if name in composite.decisions(label)]
    if inside:
        held = [_nest(inside.removeprefix("."), name) for name in held] if several else held
    place = array if several else field
    return _nest(place, held) if place else held


def _joined(one: Any, other: Any) -> Any:  # noqa: ANN401  (JSON)
    """Return one JSON value that holds what both hold, as objects with keys of their own."""
    if isinstance(one, list) and isinstance(other, list):
        return [_joined(one[0], other[0])]
    if isinstance(one, dict) and isinstance(other, dict):
        shared = {name: _joined(one[name], other[name]) for name in one.keys() & other.keys()}
        return {**one, **other, **shared}
    return other


def _nest(field: str, label: Any) -> Any:  # noqa: ANN401  (JSON)
    """Return the smallest JSON value that holds `label` at the path `field`."""
    value: Any = label
    for part in reversed(field.split(".")):
        key, bracket, _ = part.partition("[")
        if bracket:
            value = [value]
        if key:
            value = {key: value}
    return value
