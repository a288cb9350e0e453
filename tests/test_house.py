"""Tests of the house's checks: size, imports, private names, unclear sentences, and lists of exceptions."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Read = Callable[[str], Any]
ReadFiles = Callable[[dict[str, str]], Any]

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


@pytest.fixture
def read_files(check: ModuleType, tmp_path: Path) -> ReadFiles:
    """Return a function that reads a package `house` of several modules, given their texts by path."""

    def written(files: dict[str, str]) -> Any:
        for name, text in {"__init__.py": "", **files}.items():
            path = tmp_path / "house" / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text, encoding="utf-8")
        return check.house.read(tmp_path / "house")

    return written


def test_tokens_are_counted_in_code_alone(read: Read, check: ModuleType) -> None:
    """Names, operators, numbers and texts count; comments, docstrings and line ends do not."""
    modules = read('"""Title."""\n\nX = f(1, "a b")  # why\n\n\ndef g():\n    """Do it."""\n')
    assert check.house.tokens(modules) == 8 + 5
    assert check.house.tokens_a_line(modules) == 6.5
    assert check.house.tokens_a_line(read("")) == 0


def test_uses_of_a_name_leave_docstrings_out(read: Read, check: ModuleType) -> None:
    """A name counts where code uses it, alone or behind a dot, not where text mentions it."""
    source = '"""With Folder()."""\nimport os\n\nwith Folder() as a, os.Folder() as b:\n    pass\n'
    assert [place.where[-1] for place in check.house.uses(read(source), "Folder")] == ["4", "4"]


def test_functions_are_found_by_their_whole_names(read: Read, check: ModuleType) -> None:
    """A pattern must match the whole name of a function or method."""
    source = "class A:\n    def settle_all(self): ...\n\n\ndef unsettle(): ...\n"
    found = [place.name for place in check.house.definitions_like(read(source), r"settle\w*")]
    assert found == ["house.room.A.settle_all"]


def test_imports_in_functions_close_circles(read_files: ReadFiles, check: ModuleType) -> None:
    """An import inside a function counts if the imported module leads back, be it through a third one."""
    modules = read_files(
        {
            "a.py": "def f():\n    from house import b\n    from house.d import D\n",
            "b.py": "from house.c import C\n",
            "c.py": "import house.a\n",
            "d.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from house.a import f\n",
        }
    )
    assert [place.name for place in check.house.circular_imports(modules)] == ["house.a -> house.b"]


def test_packages_do_not_close_circles(read_files: ReadFiles, check: ModuleType) -> None:
    """The `__init__` of a package, which re-exports names, is no part of a circle."""
    modules = read_files(
        {
            "__init__.py": "from house.a import f\n",
            "a.py": "def f():\n    import house\n    from house import g\n",
        }
    )
    assert list(check.house.circular_imports(modules)) == []


def test_checks_of_label_kinds_are_counted_outside_core(read_files: ReadFiles, check: ModuleType) -> None:
    """`isinstance` with a class of labels counts, alone or in a union, outside `core` alone."""
    kinds = "class LabelSet: ...\n\n\nclass Ordered(LabelSet): ...\n\n\nisinstance(x, Ordered)\n"
    other = "isinstance(x, str | core.Ordered)\nisinstance(x, LabelSet)\nisinstance(x, str)\n"
    modules = read_files({"core/__init__.py": "", "core/kinds.py": kinds, "room.py": other})
    places = check.house.label_kind_checks(modules)
    assert [place.name for place in places] == [
        "isinstance(x, str | core.Ordered)",
        "isinstance(x, LabelSet)",
    ]


def test_private_names_in_tests_are_counted(read_files: ReadFiles, check: ModuleType, tmp_path: Path) -> None:
    """A name that no public module exports counts, however it is imported; a public one never does."""
    modules = read_files(
        {
            "__init__.py": 'from house._room import door\n\n__all__ = ["door"]\n',
            "_room.py": "def door(): ...\n\n\ndef cellar(): ...\n",
        }
    )
    (tmp_path / "tests").mkdir()
    source = "import house\nimport house._room\nfrom house import _room, door\nfrom house._room import cellar, door\n"
    (tmp_path / "tests" / "test_room.py").write_text(source, encoding="utf-8")
    found = check.house.private_uses(check.house.read(tmp_path / "tests"), modules)
    assert [place.name for place in found] == ["house._room", "house._room", "house._room.cellar"]


def recorded(**raised: dict[str, float]) -> str:
    """Return a file of figures that a module with two tokens on one line holds, and of what raises them."""
    lines = "".join(
        f'"{name}" = {{ {", ".join(f"{k} = {v}" for k, v in by.items())} }}\n' for name, by in raised.items()
    )
    return f"[most]\nmodules = 1\ntokens = 2\ntokens_a_line = 2.0\n\n[raised]\n{lines}"


def test_growth_fails(read: Read, check: ModuleType) -> None:
    """A figure above the recorded one fails, one at it or below does not."""
    content = check.tomllib.loads(recorded())
    assert check.grown(read("-1\n"), content) == []
    assert check.grown(read("x\n"), content) == []
    messages = check.grown(read("x = 1\n"), content)
    assert [message.partition(":")[0] for message in messages] == ["tokens", "tokens_a_line"]
    assert "expected at most 2, got 3" in messages[0]


def test_named_lines_raise_figures(read: Read, check: ModuleType) -> None:
    """A named line raises the figures that it names."""
    content = check.tomllib.loads(recorded(Answer={"tokens": 1}, More={"tokens_a_line": 1}))
    assert check.grown(read("x = 1\n"), content) == []
    assert check.grown(read("x = -1\n"), content) != []


def test_figures_shrink_and_never_grow(read: Read, check: ModuleType) -> None:
    """Shrinking lowers figures to those of today, less what named lines stand for, and raises none."""
    text = recorded(Answer={"tokens": 1})
    assert check.shrunk(text, read("x = (1, 2)\n")) == text
    shrunk = check.shrunk(text, read("x\n"))
    assert shrunk == text.replace("tokens = 2\n", "tokens = 0\n").replace("line = 2.0", "line = 1.0")


def test_figures_match_the_recorded_ones(read: Read, check: ModuleType) -> None:
    """A figure that is not recorded, and a recorded one that nobody counts, fail."""
    assert len(check.grown(read(""), {"most": {"tokens": 9, "other": 1}})) == 3
