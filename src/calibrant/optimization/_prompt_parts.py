"""Parts of a prompt: instruction, notes and demonstrations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LABEL_DESCRIPTIONS, LabelSet, label_list, normalise_label
from calibrant.core._reported import counted, one_line
from calibrant.core._rows import Example
from calibrant.core._task import Task
from calibrant.inference._demonstrations import Demonstration, DemonstrationFormat, answer_form
from calibrant.scoring import is_higher

if TYPE_CHECKING:
    from gepa.core.state import GEPAState
    from gepa.proposer.base import CandidateProposal

CandidateTexts: TypeAlias = Mapping[str, str]
"""Texts of one candidate of a search, by component, as in GEPA."""

COMPONENT: Final = "system_prompt"
DESCRIBED: Final = "prompt with label descriptions"


_FORM = "\n\nLabels: "
_NOTES = "\n\nNotes:\n"
_BULLET = "- "
# A shorter text, such as "ok", may stand in an instruction without having been copied from a row.
_COPIED: Final = 12  # characters
_QUOTED: Final = re.compile(
    r"""["\u201c\u201e]([^"\u201c\u201d\u201e]+)["\u201c\u201d]|(?<!\w)['`]([^'`]+)['`](?!\w)"""
)


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of `text`, rather too high: UTF-8 bytes / 3.5, rounded up."""
    return math.ceil(len(text.encode()) / 3.5)


@dataclass(frozen=True, kw_only=True)
class PromptParts:
    """Parts of a prompt: instruction, notes and demonstrations, which `ExemplarProposer` edits.

    Attributes
    ----------
    instruction : str
        The text the user, or a reflection model, wrote; never edited.
    form : bool
        True if the labels and the form of the answer are named.
    notes : tuple of str
        One-line notes.
    demonstrations : tuple of Demonstration
        Labelled examples, in order.
    """

    instruction: str
    form: bool
    notes: tuple[str, ...] = ()
    demonstrations: tuple[Demonstration, ...] = ()


class PromptFormat:
    """Format of prompts: renders `PromptParts` as text and parses the text.

    Parameters
    ----------
    labels : iterable of str
        The labels a demonstration may have; whole answers where these hold several labels.
    field : str
        JSON path of the label in the answer.
    label_set : LabelSet, optional
        What an answer holds; one label by default.
    """

    def __init__(self, labels: Iterable[str], *, field: str, label_set: LabelSet | None = None) -> None:
        self._demonstrations = DemonstrationFormat(field=field, labels=label_set)
        self._labels = {self._demonstrations.answer(label): label for label in labels}
        is_single = label_set is None or not label_set.holds_several
        self._write = answer_form(field)
        self._form = f"{_FORM}{', '.join(self._labels.values())}.{self._write}" if is_single else ""

    def render(self, parts: PromptParts) -> str:
        """Return `parts` as a prompt, which `parse` converts back."""
        return parts.instruction + self.added(parts)

    def added(self, parts: PromptParts) -> str:
        """Return the text after the instruction: label list, notes and demonstrations, where present."""
        text = self._form if parts.form else ""
        if parts.notes:
            text += _NOTES + "\n".join(_BULLET + note for note in parts.notes)
        return text + self._demonstrations.render(parts.demonstrations)

    def described(self, prompt: str, descriptions: Mapping[str, str]) -> str:
        """Return the prompt with a list of label descriptions after its instruction.

        Parameters
        ----------
        prompt : str
            The prompt; one that holds all these descriptions is returned as it is.
        descriptions : mapping of str to str
            By label; a label without one is listed alone.
        """
        if all(one_line(text) in prompt for text in descriptions.values()):
            return prompt
        parts = self.parse(prompt)
        listed = (
            parts.instruction + label_list(descriptions, LabelSet(tuple(self._labels.values()))) + self._write
        )
        return self.render(replace(parts, instruction=listed, form=False))

    def names_all(self, instruction: str) -> bool:
        """Return True if an instruction names all labels, or answers hold several labels."""
        return not self._form or all(label in instruction for label in self._labels.values())

    def parse(self, prompt: str) -> PromptParts:
        """Parse a prompt; text that is not in this format becomes part of the instruction."""
        rest, shown = self._demonstrations.split(prompt)
        if not all(answer in self._labels for _, answer in shown):
            rest = prompt
            shown = []
        demonstrations = tuple(Demonstration(text, self._labels[answer]) for text, answer in shown)
        before, heading, tail = rest.rpartition(_NOTES)
        lines = tail.split("\n")
        notes: tuple[str, ...] = ()
        if heading and all(line.startswith(_BULLET) for line in lines):
            rest = before
            notes = tuple(line.removeprefix(_BULLET) for line in lines)
        form = bool(self._form) and rest.endswith(self._form)
        instruction = rest.removesuffix(self._form) if form else rest
        return PromptParts(instruction=instruction, form=form, notes=notes, demonstrations=demonstrations)


def given_prompts(task: Task) -> dict[str, str]:
    """Return the task's other candidate prompts, by display name."""
    prompts = {f"other prompt {number}": prompt for number, prompt in enumerate(task.other_prompts, 1)}
    if task.label_descriptions and not task.labels.holds_several:
        form = PromptFormat(task.labels, field=task.field)
        prompts[DESCRIBED] = form.described(task.prompt, task.label_descriptions)
    return {name: prompt for name, prompt in prompts.items() if prompt != task.prompt}


def without_texts_of(rows: Iterable[Example], others: Iterable[Example]) -> list[Example]:
    """Return the rows whose texts are none of the others', but for case and white space."""
    taken = {normalise_label(row.input) for row in others}
    return [row for row in rows if normalise_label(row.input) not in taken]


class ShownTexts:
    """Row texts that a prompt contains, tested with ``text in shown``; white space is normalised.

    A demonstration shows its text and no other. A reflection model may copy rows in any other form: a text of 12
    characters or more is shown where it stands between word boundaries, a shorter one where it is quoted, or has a line
    to itself, after a bullet or a word and a colon at most.

    Parameters
    ----------
    prompt : str
        The system prompt.
    task : Task
        Says how demonstrations are written.
    """

    def __init__(self, prompt: str, task: Task) -> None:
        parts = PromptFormat(task.labels, field=task.field).parse(prompt)
        rest = "\n".join([parts.instruction, *parts.notes])
        self._rest = one_line(rest)
        self._alone = {one_line(shown.text) for shown in parts.demonstrations}
        for line in map(one_line, rest.splitlines()):
            self._alone |= {line, line.lstrip("-*\u2022 "), line.partition(": ")[2]}
        for quoted in _QUOTED.finditer(rest):
            self._alone.add(one_line(quoted[1] or quoted[2]))
        self._alone.discard("")

    def __contains__(self, text: str) -> bool:
        """Return True if the prompt contains a row's text."""
        text = one_line(text)
        if text in self._alone:
            return True
        if len(text) < _COPIED:
            return False
        pattern = re.escape(text)
        if text[0].isalnum():
            pattern = r"(?<!\w)" + pattern
        if text[-1].isalnum():
            pattern += r"(?!\w)"
        return re.search(pattern, self._rest) is not None


class NewAndBetter:
    """Acceptance criterion for GEPA: a candidate that is not there yet and scores above its parent on the minibatch."""

    @property
    def sentence(self) -> str:
        """Sentence on better proposals that were rejected, and why; empty without any."""
        return ""

    def should_accept(self, proposal: CandidateProposal, state: GEPAState) -> bool:
        """Return True if the proposal is new and its score on the minibatch is higher than its parent's."""
        if proposal.candidate in state.program_candidates:
            return False
        before = proposal.subsample_scores_before or []
        after = proposal.subsample_scores_after or []
        return is_higher(math.fsum(after), math.fsum(before))


class NoCopies(NewAndBetter):
    """Acceptance criterion for GEPA that also rejects texts of rows: of any split, but for training rows as examples.

    A model that writes prompts sees training rows, and may repeat them as if they were rules. It may know rows of the
    other splits by heart: a prompt that shows them is not judged by them.

    Parameters
    ----------
    task : Task
        Its rows and its prompts, which may show any of them; a text has one label.

    Attributes
    ----------
    n_copies : int
        Better proposals that were rejected for a text.
    """

    def __init__(self, task: Task) -> None:
        own = [ShownTexts(prompt, task) for prompt in (task.prompt, *given_prompts(task).values())]
        self._task = task
        # Shorter ones, such as the name of a label, may stand in any instruction.
        self._texts = [
            row.input
            for row in (*task.train, *task.validation, *task.test)
            if len(one_line(row.input)) >= _COPIED and not any(row.input in shown for shown in own)
        ]
        self._held_out = {_plain(row.input) for row in (*task.validation, *task.test)}
        self.n_copies = 0

    @property
    def sentence(self) -> str:
        """Sentence on better proposals that were rejected, and why; empty without any."""
        if not self.n_copies:
            return ""
        return (
            f"{counted(self.n_copies, 'better proposal was', 'better proposals were')} rejected for the text of a row: "
            "that of a training row may stand among the examples of a prompt, and nowhere else."
        )

    def should_accept(self, proposal: CandidateProposal, state: GEPAState) -> bool:
        """Return True if a proposal is new, scores above its parent on the minibatch, and copies no texts."""
        if not super().should_accept(proposal, state):
            return False
        task = self._task
        written = PromptFormat(task.labels, field=task.field).parse(proposal.candidate[COMPONENT])
        descriptions = proposal.candidate.get(LABEL_DESCRIPTIONS, "")
        shown = ShownTexts("\n".join([written.instruction, *written.notes, descriptions]), task)
        examples = {_plain(demonstration.text) for demonstration in written.demonstrations}
        is_copy = any(text in shown for text in self._texts) or not self._held_out.isdisjoint(examples)
        self.n_copies += is_copy
        return not is_copy


def check_given_prompts(task: Task) -> None:
    """Refuse other prompts and descriptions that contain validation or test texts.

    Raises
    ------
    ConfigurationError
        A prompt or description repeats the text of a validation or test row that the task's own prompt does not show.
    """
    own = ShownTexts(task.prompt, task)
    for name, prompt in given_prompts(task).items():
        shown = ShownTexts(prompt, task)
        for row in (*task.validation, *task.test):
            if len(one_line(row.input)) >= _COPIED and row.input in shown and row.input not in own:
                raise ConfigurationError(
                    f"Expected other_prompts and label_descriptions that show no validation or test row, got the text "
                    f"{row.input!r:.80} in {name}: leave it out there, or take the row out of these splits."
                )


def _plain(text: str) -> str:
    return normalise_label(one_line(text))
