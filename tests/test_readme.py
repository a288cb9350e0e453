"""Tests of README's code and commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from calibrant.cli._app import app
from embedded import EMBEDDED

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
CONSOLE = "\n".join(re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL))

pytestmark = EMBEDDED


def test_the_quick_start_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """README's Python blocks run in order, in one namespace, and print their output."""
    assert len(BLOCKS) >= 2
    namespace: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, str(README), "exec"), namespace)  # noqa: S102  (our own README)
    printed = capsys.readouterr().out
    assert re.search(r"^(negative|positive) 0\.\d+$", printed, re.MULTILINE)
    assert re.search(r"^On held-out rows log loss goes from 0\.\d+ to 0\.\d+", printed, re.MULTILINE)


def test_readme_commands_exist() -> None:
    """Each `calibrant` command in README exists."""
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    named = set(re.findall(r"^calibrant (\w+)", CONSOLE, re.MULTILINE))
    assert named
    assert named <= known
