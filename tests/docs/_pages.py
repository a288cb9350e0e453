"""Helpers that cut the documentation's pages into blocks of code."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

_BLOCK = re.compile(
    r"(?:^<!-- not executed: (?P<why>[^\n]+) -->\n)?^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block.

    Attributes
    ----------
    language : str
        What stands behind the fence: ``python``, ``sh``, ``text``, ``toml``, ...
    code : str
        What is in it.
    executed : bool
        Whether the tests run it; others of ``python`` and ``sh`` are read by the parser only.
    """

    language: str
    code: str
    executed: bool

    @property
    def commands(self) -> list[list[str]]:
        """Return the commands of a ``sh`` block as lists of arguments, comments left out."""
        joined = self.code.replace("\\\n", " ")
        split = [shlex.split(line, comments=True) for line in joined.splitlines()]
        return [words for words in split if words]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [
        Block(
            language=found["language"],
            code=found["code"],
            executed=found["why"] is None and found["language"] in {"python", "sh"},
        )
        for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def name_of(page: Path) -> str:
    """Return a page's path below the folder of pages."""
    return page.relative_to(DOCS).as_posix()
