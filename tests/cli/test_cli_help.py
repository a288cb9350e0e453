"""Tests of the help of every command: examples, groups and the names of options."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from calibrant.cli import app
from command_line import command

ROOT: Any = typer.main.get_command(app)


def commands(group: Any = ROOT, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with its name in words."""
    for name, found in group.commands.items():
        if hasattr(found, "commands"):
            yield from commands(found, *words, name)
        else:
            yield (*words, name), found


COMMANDS = dict(commands())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_help_ends_with_an_example(words: tuple[str, ...]) -> None:
    """The help of a command ends with one example, whose arguments and options the command takes."""
    found = COMMANDS[words]
    title, *example = shlex.split(found.epilog)
    assert (title, example[0], tuple(example[1 : 1 + len(words)])) == ("Example:", "calibrant", words)
    found.make_context(" ".join(words), example[1 + len(words) :])


def test_long_helps_are_in_groups() -> None:
    """The options of evaluate, optimize and label stand in groups, and only --help in none."""
    for name in ("evaluate", "optimize", "label"):
        groups = {one.name: getattr(one, "rich_help_panel", None) for one in COMMANDS[name,].params}
        assert {option for option, group in groups.items() if group is None} <= {"task", "source", "data"}
        shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"}).stdout
        assert max(map(len, shown.splitlines())) <= 80
        assert "─ Model and prompt ─" in shown


def test_text_means_one_thing() -> None:
    """--text is a text to classify wherever it exists; columns are named by --text-column and --label-column."""
    options = {
        words: {name for one in found.params for name in one.opts} for words, found in COMMANDS.items()
    }
    assert {words for words, names in options.items() if "--text" in names} == {
        ("classify",),
        ("cascade", "run"),
    }
    assert {words for words, names in options.items() if "--text-column" in names} == {("init",), ("label",)}
    assert not any("--label" in names for names in options.values())


def test_texts_by_position_are_refused() -> None:
    """A text beside the task is an error that names --text."""
    result = command("classify")("task.toml", "some text")
    assert result.exit_code == 2
    assert "Expected texts by --text, got 'some text' by position" in " ".join(result.stderr.split())
