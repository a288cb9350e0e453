"""Which texts a prompt shows."""

from __future__ import annotations

import re
from typing import Final

from calibrant.core import Task
from calibrant.optimization._prompt_parts import PromptFormat, one_line

__all__ = ["ShownTexts"]

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
