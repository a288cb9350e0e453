"""Tests of the documentation's code blocks, commands, paths and public names."""

from __future__ import annotations

import ast
import importlib
import itertools
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pydantic
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import calibrant
from calibrant.cascade import CascadeSettings
from calibrant.cli import app
from calibrant.core._task import TaskFile
from calibrant.routing import RoutingSettings
from embedded import WHY_MISSING
from public_types import types_in_signatures

sys.path.insert(0, str(Path(__file__).parent))
from _pages import PAGES, ROOT, Block, blocks, name_of

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
MODEL_IS_MISSING = bool(WHY_MISSING)


def asks_a_model(block: Block) -> bool:
    """Return whether running the block needs the embedded model."""
    asking = ("local/", "examples/transactions", "examples/ratings", "examples/topics", "examples/helpdesk")
    return block.executed and any(text in block.code for text in asking)


def executed_pages() -> list[object]:
    """Return the pages with executed blocks, and the marks that they need."""
    found = []
    for page in PAGES:
        if not any(block.executed for block in blocks(page)):
            continue
        marks = [pytest.mark.timeout(300)]
        if any(asks_a_model(block) for block in blocks(page)):
            marks += [pytest.mark.real_model, pytest.mark.skipif(MODEL_IS_MISSING, reason="no weights")]
        found.append(pytest.param(page, id=name_of(page), marks=marks))
    return found


def run_command(words: list[str]) -> str:
    """Run a command of calibrant or an example, and return its output; skip make and pip."""
    if words[0] == "python":
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=True)  # noqa: S603
        return done.stdout
    if words[0] != "calibrant":
        return ""
    result = CliRunner().invoke(app, words[1:], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0, f"{words}: {result.output}"
    return re.sub(r"(?<!\S)/\S+/(?=[\w.-]+)", "", result.output)  # the folders of this machine


def lines_of(text: str, *, masked: bool) -> list[str]:
    """Return lines with single spaces, and without digits where these differ between machines."""
    if masked:
        text = re.sub(r"[-+]?\d[\d.,e+-]*", "0", text)
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.parametrize("page", executed_pages())
def test_the_blocks_of_a_page_run_in_order_and_print_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of a page run in order, and print the lines shown, where `...` skips lines."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_API_BASE", "_BASE_URL"))]:
        monkeypatch.delenv(name)
    namespace: dict[str, object] = {}
    printed = ""
    masked = True
    fakes = not any(block.language == "python" and asks_a_model(block) for block in blocks(page))
    for block in blocks(page):
        if block.executed:
            masked = not (fakes and block.language == "python")
            if block.language == "python":
                exec(compile(block.code, str(page), "exec"), namespace)  # noqa: S102  (our own page)
                printed = capsys.readouterr().out
            else:
                printed = "".join(run_command(words) for words in block.commands)
        elif block.language == "text" and printed:
            lines = lines_of(printed, masked=masked)
            for line in lines_of(block.code, masked=masked):
                assert line in {"...", *lines}, f"{line!r} is not among {lines}"
        else:
            printed = ""


def test_every_command_is_shown_with_its_output() -> None:
    """The page of commands has an example of every command, followed by what it prints."""
    shown = blocks(ROOT / "docs" / "commands.md")
    printing = {
        " ".join(words[1:])
        for block, following in itertools.pairwise(shown)
        if block.language == "sh" and following.language == "text"
        for words in block.commands
    }
    names = {" ".join(words) for words in leaves(get_command(app))}
    assert {name for name in names if not any(words.startswith(name) for words in printing)} == set()


def leaves(command: Any, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the words of every command without subcommands."""
    children = getattr(command, "commands", {})
    return [leaf for name in children for leaf in leaves(children[name], (*words, name))] or [words]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_their_options_exist(page: Path) -> None:
    """Every command on a page exists in the program, the Makefile or pip, with its options."""
    commands = [words for block in blocks(page) if block.language == "sh" for words in block.commands]
    assert {tuple(words): problem for words in commands if (problem := problem_of(words))} == {}


@pytest.mark.parametrize(
    "words",
    [
        ["calibrant", "evaluat"],
        ["calibrant", "evaluate", "task.toml", "--outt", "x"],
        ["make", "tests"],
        ["rm"],
    ],
    ids=" ".join,
)
def test_a_command_that_does_not_exist_is_a_problem(words: list[str]) -> None:
    """A command that does not exist has a problem."""
    assert problem_of(words)


def problem_of(words: list[str]) -> str:
    """Return the problem of a command, or an empty value."""
    try:
        check_command(words)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  (whatever the parser raises)
        return str(error) or repr(error)
    return ""


def check_command(words: list[str]) -> None:
    """Parse a command with the program's own parser, without running it."""
    program, *rest = words
    if program == "calibrant":
        command: Any = get_command(app)
        while hasattr(command, "commands"):
            assert rest, f"{words}: expected a command"
            assert rest[0] in command.commands, f"{words}: no command {rest[0]}"
            name, *rest = rest
            command = command.commands[name]
        command.make_context(name, rest)
    elif program == "make":
        assert {word for word in rest if "=" not in word} <= TARGETS, words
    elif program == "python":
        assert (ROOT / rest[0]).exists(), words
    elif program == "pip":
        named = re.findall(r"(?:calibrant|\.)\[(\w+)\]", " ".join(rest))
        assert set(named) <= set(EXTRAS), words
    elif program == "source":
        assert rest == [".venv/bin/activate"], words  # of the environment that make builds
    else:
        pytest.fail(f"{words}: no way to check this command")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_that_is_not_executed_is_valid(page: Path) -> None:
    """Blocks of Python and TOML that are not executed are valid, and their imports exist."""
    assert [fault for block in blocks(page) for fault in faults_of(block.language, block.code)] == []


def test_code_that_is_wrong_is_noticed() -> None:
    """An unknown import, broken Python and an unknown key of a task file are faults."""
    assert faults_of("python", "from calibrant import Classifyer")
    assert faults_of("py", "from calibrant import")
    assert faults_of("toml", 'nam = "x"')
    assert not faults_of("toml", 'name = "x"')  # a part of a file is enough
    assert not faults_of("python", "from calibrant.inference import Classifier")


def faults_of(language: str, code: str) -> list[str]:
    """Return the faults of code that is not executed."""
    if language == "toml":
        return faults_of_task(code)
    if language not in {"py", "python"}:
        return []
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        return [str(error)]
    return [
        f"{node.module} has no {alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("calibrant")
        for alias in node.names
        if not hasattr(importlib.import_module(str(node.module)), alias.name)
    ]


def faults_of_task(code: str) -> list[str]:
    """Return the mistakes of a part of a task file, apart from missing keys."""
    document = tomllib.loads(code)
    sections: dict[str, type[pydantic.BaseModel]] = {"cascade": CascadeSettings, "routing": RoutingSettings}
    faults = []
    parts = [(kind, document[name]) for name, kind in sections.items() if name in document]
    for kind, given in [(TaskFile, document), *parts]:
        try:
            kind.model_validate(given)
        except pydantic.ValidationError as error:
            faults += [str(problem) for problem in error.errors() if problem["type"] != "missing"]
    return faults


def test_paths_into_the_repository_exist() -> None:
    """Every path to an example, benchmark or notebook on a page exists."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"\b(?:examples|benchmarks|notebooks)/[\w./-]+\w", text):
            assert (ROOT / path).exists(), f"{name_of(page)}: {path}"


def test_every_public_name_is_on_a_page() -> None:
    """Every public name is on a page, in a notebook, in an example or in the signature of another public name."""
    files = [ROOT / "README.md", *PAGES, *ROOT.glob("notebooks/*"), *ROOT.glob("examples/**/*.py")]
    shown = {word for path in files if path.is_file() for word in re.findall(r"\w+", path.read_text("utf-8"))}
    packages = [
        f"calibrant.{found.name}" for found in pkgutil.iter_modules(calibrant.__path__) if found.ispkg
    ]
    names = {name for package in packages for name in importlib.import_module(package).__all__}
    assert names - shown - types_in_signatures() == set()


def test_figures_name_the_command_behind_them() -> None:
    """The page of benchmarks names all `bench-` targets of the Makefile, and no others."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    named = set(re.findall(r"make (bench-[\w-]+)", text))
    assert named <= TARGETS
    assert {target for target in TARGETS if target.startswith("bench-")} <= named


def test_figures_name_their_commit() -> None:
    """Every command on the page of benchmarks says at which commit its figures were taken, or that there are none."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `make (bench-[\w-]+)`.*\| ([^|]+) \|$", text, flags=re.MULTILINE)
    assert len(rows) > 20
    without = {name for name, measured in rows if not re.search(r"\b[0-9a-f]{8}\b", measured)}
    assert without <= {"bench-adapter", "bench-house"}
