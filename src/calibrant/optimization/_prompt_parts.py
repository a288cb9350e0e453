"""A prompt taken apart: instruction, notes and demonstrations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from calibrant.core._composite import CompositeLabels
from calibrant.inference._demonstration_format import Demonstration, DemonstrationFormat, one_line

_FORM = "\n\nLabels: "
_LISTED = "\n\nLabels:\n"
_WRITE = "\nAnswer with JSON of this form: "
_PLACEHOLDER = "..."
_NOTES = "\n\nNotes:\n"
_BULLET = "- "


def estimate_tokens(text: str) -> int:
    """Return a cautious guess of the number of tokens of `text`: 3.5 UTF-8 bytes each, rounded up."""
    return math.ceil(len(text.encode()) / 3.5)


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
        self._demonstrations = DemonstrationFormat(field=field, labels=composite)
        self._labels = {self._demonstrations.answer(label): label for label in labels}
        # Never a real label in the form: small models copy it.
        shown = self._demonstrations.answer(_PLACEHOLDER) if composite is None else ""
        self._write = _WRITE + shown
        self._form = f"{_FORM}{', '.join(self._labels.values())}.{self._write}" if shown else ""

    def render(self, parts: PromptParts) -> str:
        """Return the prompt; ``parse`` of it gives `parts` again."""
        return parts.instruction + self.added(parts)

    def added(self, parts: PromptParts) -> str:
        """Return the text that follows the instruction, or an empty one."""
        text = self._form if parts.form else ""
        if parts.notes:
            text += _NOTES + "\n".join(_BULLET + note for note in parts.notes)
        return text + self._demonstrations.render(parts.demonstrations)

    def described(self, prompt: str, descriptions: Mapping[str, str]) -> str:
        """Return a prompt that lists the labels with their descriptions, before its notes and demonstrations.

        Parameters
        ----------
        prompt : str
            The prompt; one that holds all these descriptions is returned as it is.
        descriptions : mapping of str to str
            By label; a label without one is listed alone.
        """
        sentences = {label: one_line(text) for label, text in descriptions.items()}
        if all(sentence in prompt for sentence in sentences.values()):
            return prompt
        lines = (
            f"{_BULLET}{label}: {sentences[label]}" if label in sentences else f"{_BULLET}{label}"
            for label in self._labels.values()
        )
        parts = self.parse(prompt)
        listed = parts.instruction + _LISTED + "\n".join(lines) + self._write
        return self.render(replace(parts, instruction=listed, form=False))

    def names_all(self, instruction: str) -> bool:
        """Return whether an instruction names all labels already, or answers hold several."""
        return not self._form or all(label in instruction for label in self._labels.values())

    def parse(self, prompt: str) -> PromptParts:
        """Take a prompt apart; what is not in this format stays part of the instruction."""
        rest, shown = self._demonstrations.split(prompt)
        if not all(answer in self._labels for _, answer in shown):
            rest, shown = prompt, []
        demonstrations = tuple(Demonstration(text, self._labels[answer]) for text, answer in shown)
        before, found, tail = rest.rpartition(_NOTES)
        lines = tail.split("\n")
        notes: tuple[str, ...] = ()
        if found and all(line.startswith(_BULLET) for line in lines):
            rest, notes = before, tuple(line.removeprefix(_BULLET) for line in lines)
        form = bool(self._form) and rest.endswith(self._form)
        instruction = rest.removesuffix(self._form) if form else rest
        return PromptParts(instruction=instruction, form=form, notes=notes, demonstrations=demonstrations)
