"""Tests of the house's checks: code lines, unclear sentences, and lists of exceptions."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Read = Callable[[str], Any]

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
LONG = "def long():\n" + "    pass\n" * 41


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """Return the script of the checks as a module."""
    if not BENCHMARKS.is_dir():
        pytest.skip("benchmarks/ is not part of this installation")
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("check_house", BENCHMARKS / "check_house.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["check_house"] = module  # where its dataclass looks its annotations up
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


@pytest.fixture
def read(check: ModuleType, tmp_path: Path) -> Read:
    """Return a function that reads a module of a package `house` with the given text."""

    def written(source: str) -> Any:
        folder = tmp_path / "house"
        folder.mkdir(exist_ok=True)
        (folder / "room.py").write_text(source, encoding="utf-8")
        return check.house.read(folder)

    return written


@pytest.mark.parametrize(
    "line",
    [
        "What is held.",
        "How many rows.",
        "Whether it holds.",
        "Return what is held.",
        "Return why.",
        "Say how.",
    ],
)
def test_questions_are_riddles(check: ModuleType, line: str) -> None:
    """A sentence that begins with a question, or has one behind its verb, is found."""
    assert check.house.is_riddle(line)


@pytest.mark.parametrize(
    "line",
    [
        "Return the prior.",
        "Return whether it holds.",
        "Return when all is stored.",
        "Rows whose label is known.",
    ],
)
def test_plain_sentences_are_no_riddles(check: ModuleType, line: str) -> None:
    """Plain sentences with "when" or a relative clause are not found."""
    assert not check.house.is_riddle(line)


def test_code_lines_leave_words_out(read: Read, check: ModuleType) -> None:
    """Docstrings, comments and blank lines are not code lines; other lines of text are."""
    source = '"""Title.\n\nMore.\n"""\n\n# why\nTEXT = """a\nb\n"""\n\n\ndef f():  # here\n    """Do it."""\n'
    assert check.house.code_lines(read(source)) == 4


def test_parameters_do_not_count(read: Read, check: ModuleType) -> None:
    """A function's parameters do not count: a body of 40 lines passes, one of 41 does not."""
    parameters = ",\n    ".join(f"p{n}" for n in range(60))
    passing = f"def wide(\n    {parameters},\n):\n" + "    pass\n" * 40
    assert [place.name for place in check.house.long_functions(read(passing + LONG))] == ["house.room.long"]


def test_new_breaks_fail(read: Read, check: ModuleType) -> None:
    """A new break of each rule fails with its place."""
    none = dict.fromkeys(check.RULES, ())
    for source in (LONG, '"""What it is."""\n'):
        (message,) = check.failures(read(source), none)
        assert "room.py:1  house.room" in message


def test_paid_debts_fail(read: Read, check: ModuleType) -> None:
    """An exception that is not needed any more fails, until shrinking deletes it."""
    text = 'long_functions = [\n    "house.room.long",\n]\nriddles = [\n    "house.room",\n]\n'
    debts = check.tomllib.loads(text)
    assert check.failures(read('"""What it is."""\n' + LONG), debts) == []
    modules = read(LONG)
    (message,) = check.failures(modules, debts)
    assert message.startswith("riddles: house.room ")
    assert check.shrunk(text, modules) == text.replace('    "house.room",\n', "")


def test_lists_match_the_rules(read: Read, check: ModuleType) -> None:
    """A missing list, and a list without a rule, fail."""
    assert check.failures(read(""), dict.fromkeys([*check.RULES, "other"], ())) != []
    assert check.failures(read(""), {}) != []
