"""Tests of the quoted messages on the page of troubleshooting."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from _pages import DOCS, ROOT, blocks

MESSAGES = [
    block.code.rstrip("\n") for block in blocks(DOCS / "troubleshooting.md") if block.language == "text"
]
_VARIABLE = "\x00"


@cache
def literals() -> tuple[str, ...]:
    """Return every text in the source, with a mark in the place of each value."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else _VARIABLE
                        for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[-.\d]*[sdrfg]", _VARIABLE, node.value))
    return tuple(dict.fromkeys(found))


@pytest.mark.parametrize("message", MESSAGES)
def test_a_quoted_message_is_still_in_the_source(message: str) -> None:
    """The fixed parts of a quoted message stand in one text of the source, in order."""
    parts = message.split("…")
    pattern = re.compile(rf".*{_VARIABLE}.*".join(map(re.escape, parts)), re.DOTALL)
    if not message.strip("…"):
        pytest.fail("The message has no fixed part.")
    candidates = [text for text in literals() if all(part in text for part in parts)]
    assert any(pattern.search(text + _VARIABLE) for text in candidates), message


def test_enough_messages_are_explained_and_each_once() -> None:
    """At least 40 messages are explained, and none twice."""
    assert len(MESSAGES) >= 40
    assert len(set(MESSAGES)) == len(MESSAGES)
