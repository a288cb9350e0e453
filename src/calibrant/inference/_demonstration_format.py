"""Demonstrations as a prompt shows them: a text, and the answer in the form the model must write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from calibrant.core._composite import CompositeLabels, FieldLabels
from calibrant.core._labels import LabelSet

_EXAMPLES: Final = "\n\nExamples:\n\n"
_BETWEEN: Final = "\n\n"
_TEXT: Final = "Text: "
_ANSWER: Final = "\nAnswer: "


def one_line(text: str) -> str:
    """Return `text` with every run of white space as one space."""
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A training text, on one line, with its label."""

    text: str
    label: str


class DemonstrationFormat:
    """Writes demonstrations below an instruction, and tells them from it.

    A demonstration shows the answer as the JSON object the model is to write: small models
    copy the form, and a bare label teaches them the wrong one.

    Parameters
    ----------
    field : str
        JSON path of the label in the answer.
    labels : LabelSet, optional
        Only `CompositeLabels` matter: they say what a whole answer holds.
    """

    def __init__(self, *, field: str, labels: LabelSet | None = None) -> None:
        self._field = field
        self._composite = labels if isinstance(labels, CompositeLabels) else None

    def answer(self, label: str) -> str:
        """Return a label, or a whole answer, as the JSON text that the model is to write."""
        return json.dumps(_document(self._field, label, self._composite), ensure_ascii=False)

    def render(self, demonstrations: Sequence[Demonstration]) -> str:
        """Return the text below the instruction; empty without demonstrations."""
        if not demonstrations:
            return ""
        blocks = [f"{_TEXT}{shown.text}{_ANSWER}{self.answer(shown.label)}" for shown in demonstrations]
        return _EXAMPLES + _BETWEEN.join(blocks)

    @staticmethod
    def split(prompt: str) -> tuple[str, list[tuple[str, str]]]:
        """Return a prompt without its demonstrations, and the text and the answer of each.

        A prompt that does not end with demonstrations is returned as it is.
        """
        rest, found, tail = prompt.rpartition(_EXAMPLES)
        blocks = [block.rpartition(_ANSWER) for block in tail.split(_BETWEEN)] if found else []
        if not all(between and text.startswith(_TEXT) for text, between, _ in blocks):
            return prompt, []
        return (
            (rest, [(text.removeprefix(_TEXT), answer) for text, _, answer in blocks])
            if found
            else (prompt, [])
        )


def _document(field: str, label: str, composite: CompositeLabels | None) -> Any:  # noqa: ANN401  (JSON)
    """Return the smallest JSON document of a label or answer, in the model's output form."""
    if isinstance(composite, FieldLabels):
        values = composite.values(label)
        return reduce(
            _merged_value, (_nested_value(one.path or one.name, values[one.name]) for one in composite.fields)
        )
    if composite is None:
        return _nested_value(field, label)
    array, several, inside = field.rpartition("[]")
    held: list[Any] = [name for name in composite if name in composite.decisions(label)]
    if inside:
        held = [_nested_value(inside.removeprefix("."), name) for name in held] if several else held
    place = array if several else field
    return _nested_value(place, held) if place else held


def _merged_value(one: Any, other: Any) -> Any:  # noqa: ANN401  (JSON)
    """Merge two JSON values, key by key."""
    if isinstance(one, list) and isinstance(other, list):
        return [_merged_value(one[0], other[0])]
    if isinstance(one, dict) and isinstance(other, dict):
        shared = {name: _merged_value(one[name], other[name]) for name in one.keys() & other.keys()}
        return {**one, **other, **shared}
    return other


def _nested_value(field: str, label: Any) -> Any:  # noqa: ANN401  (JSON)
    """Return the smallest JSON value that holds `label` at the path `field`."""
    value: Any = label
    for part in reversed(field.split(".")):
        key, bracket, _ = part.partition("[")
        if bracket:
            value = [value]
        if key:
            value = {key: value}
    return value
