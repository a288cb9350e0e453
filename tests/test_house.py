"""The limits of the house: what counts as code and as a riddle, and that new breaks and paid debts fail."""

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
    """Return the script as a module."""
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
    """Return a function that reads one module of a package `house`, with the text it is given."""

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
    """Alone, or behind a verb."""
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
def test_sentences_are_none(check: ModuleType, line: str) -> None:
    """A predicate, a moment and a relative clause are plain English."""
    assert not check.house.is_riddle(line)


def test_code_lines_leave_words_out(read: Read, check: ModuleType) -> None:
    """Docstrings, comments and blank lines are none; every line of another text is one."""
    source = '"""Title.\n\nMore.\n"""\n\n# why\nTEXT = """a\nb\n"""\n\n\ndef f():  # here\n    """Do it."""\n'
    assert check.house.code_lines(read(source)) == 4


def test_parameters_do_not_make_a_function_long(read: Read, check: ModuleType) -> None:
    """The body counts: 40 lines pass, 41 do not."""
    parameters = ",\n    ".join(f"p{n}" for n in range(60))
    passing = f"def wide(\n    {parameters},\n):\n" + "    pass\n" * 40
    assert [place.name for place in check.house.long_functions(read(passing + LONG))] == ["house.room.long"]


def test_a_new_break_fails(read: Read, check: ModuleType) -> None:
    """Each rule names the place."""
    none = dict.fromkeys(check.RULES, ())
    for source in (LONG, "\n" * 501, '"""What it is."""\n'):
        (message,) = check.failures(read(source), none)
        assert "room.py:1  house.room" in message


def test_a_debt_excuses_until_it_is_paid(read: Read, check: ModuleType) -> None:
    """Then it fails where it still stands on the list; shrinking deletes it, and no other."""
    text = 'long_modules = []\nlong_functions = [\n    "house.room.long",\n]\nriddles = [\n    "house.room",\n]\n'
    debts = check.tomllib.loads(text)
    assert check.failures(read('"""What it is."""\n' + LONG), debts) == []
    modules = read(LONG)
    (message,) = check.failures(modules, debts)
    assert message.startswith("riddles: house.room ")
    assert check.shrunk(text, modules) == text.replace('    "house.room",\n', "")


def test_a_list_cannot_be_left_out(read: Read, check: ModuleType) -> None:
    """Nor one be added that no rule reads."""
    assert check.failures(read(""), dict.fromkeys([*check.RULES, "other"], ())) != []
    assert check.failures(read(""), {}) != []
