"""Texts that a prompt shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import normalise_label
from calibrant.core._task import Task
from calibrant.inference._demonstration_format import one_line
from calibrant.optimization._plan import COMPONENT, given_prompts
from calibrant.optimization._prompt_parts import PromptFormat

if TYPE_CHECKING:
    from gepa.core.state import GEPAState
    from gepa.proposer.base import CandidateProposal

# A shorter text, such as "ok", may stand in an instruction without having been copied from a row.
_COPIED: Final = 12  # characters
_QUOTED: Final = re.compile(
    r"""["\u201c\u201e]([^"\u201c\u201d\u201e]+)["\u201c\u201d]|(?<!\w)['`]([^'`]+)['`](?!\w)"""
)


class ShownTexts:
    """The texts that a prompt shows; ``text in shown``, on one line.

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
        """Return whether the prompt shows a text."""
        text = one_line(text)
        if text in self._alone:
            return True
        if len(text) < _COPIED:
            return False
        before, after = (r"(?<!\w)" if text[0].isalnum() else ""), (r"(?!\w)" if text[-1].isalnum() else "")
        return re.search(before + re.escape(text) + after, self._rest) is not None


class NoCopies:
    """GEPA's acceptance criterion, for prompts that repeat no training text but as a demonstration.

    A model that writes prompts sees training rows, and may repeat them as if they were rules.

    Parameters
    ----------
    task : Task
        Its training rows and its prompts, which may show any of them; a text has one label.
    """

    def __init__(self, task: Task) -> None:
        own = [ShownTexts(prompt, task) for prompt in (task.prompt, *given_prompts(task).values())]
        self._task = task
        # Shorter ones, such as the name of a label, may stand in any instruction.
        self._texts = [
            one.input
            for one in task.train
            if len(one_line(one.input)) >= _COPIED and not any(one.input in shown for shown in own)
        ]
        self._held_out = {_plain(one.input) for one in (*task.validation, *task.test)}

    def should_accept(self, proposal: CandidateProposal, state: GEPAState) -> bool:  # noqa: ARG002 (GEPA's signature)
        """Return whether a proposal scores more than its parent on the minibatch, and copies nothing."""
        if sum(proposal.subsample_scores_after or []) <= sum(proposal.subsample_scores_before or []):
            return False
        task = self._task
        written = PromptFormat(task.labels, field=task.field).parse(proposal.candidate[COMPONENT])
        shown = ShownTexts("\n".join([written.instruction, *written.notes]), task)
        copies = any(text in shown for text in self._texts)
        return not copies and self._held_out.isdisjoint(_plain(one.text) for one in written.demonstrations)


def check_given_prompts(task: Task) -> None:
    """Refuse other prompts and descriptions that show rows which are to compare them with the prompt.

    Raises
    ------
    ConfigurationError
        One repeats the text of a validation or test row that the task's own prompt does not show.
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
