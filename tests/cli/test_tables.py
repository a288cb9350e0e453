"""Tests of plain tables, sentences and amounts of money, as commands print them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrant.cli import app
from calibrant.evaluation import EvaluationHistory
from calibrant.testing import FakeClient, fake_response
from command_line import command, done, recorded_rows, write_rows

ROUTING = """
[routing]
[[routing.providers]]
name = "fake/first"
[[routing.providers]]
name = "fake/second"
"""


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (None, "-"),
        (0.0, "$0"),
        (2.13e-6, "$0.0000021"),
        (9.99e-5, "$0.0001"),
        (1e-4, "$0.0001"),
        (0.0123, "$0.0123"),
        (12.0, "$12.0000"),
    ],
)
def test_small_amounts_are_not_nothing(
    write_task: Callable[..., Path], use_model: Any, tmp_path: Path, cost: float | None, text: str
) -> None:
    """Amounts below a ten-thousandth of a dollar keep their digits, and an unknown amount is a dash."""
    answer = {**fake_response("cat", ["cat", "dog"]), "_hidden_params": {"response_cost": cost}}
    for name in ("fake/first", "fake/second"):
        use_model(FakeClient(["cat", "dog"], {}, default=answer, name=name), name)
    task = write_task(extra=ROUTING, test=[{"input": "purrs", "answer": "cat"}])
    printed = done(command("evaluate")(task, "--out", tmp_path / "out")).stdout
    first, second = (line.split() for line in printed.splitlines() if line.startswith("fake/"))
    assert (first[-1], second[-1]) == (text, "-")


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Return a function that runs a command, and returns the lines."""

    def run(*arguments: object) -> list[str]:
        app(list(map(str, arguments)), standalone_mode=False)
        return capsys.readouterr().out.splitlines()

    return run


def narrow(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Make standard output a terminal of so many columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))


def test_a_table_wraps_on_a_narrow_terminal(
    printed: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are wrapped to a narrow terminal's width, and stay unwrapped elsewhere."""
    monkeypatch.chdir(tmp_path)
    runs = ("long " * 20 + ".", "a\nb")
    for name in runs:
        write_rows(Path(name), recorded_rows([True, False] * 10, [0.8] * 20))
    wide = printed("compare", *runs)
    cells = zip(wide[:3], ("accuracy", "0.500", "0.500"), strict=True)
    assert [line.index(cell) for line, cell in cells] == [103] * 3
    assert wide[2].startswith("a b  ")
    narrow(monkeypatch, 80)
    wrapped = printed("compare", *runs)
    assert max(map(len, wrapped)) <= 80
    assert wrapped[0].split()[:2] == ["run", "accuracy"]
    assert sum(line.count("long") for line in wrapped) == 40


def test_sentences_break_between_words_on_a_terminal(
    printed: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line wider than the terminal is broken between words, and is left as it is elsewhere."""
    names = ("The test rows show no difference:", "0.0 / 58 rows, and", "a longer-hyphened-word at the end.")
    keys = ("account_id", "evaluator_id", "profile_name")
    history = EvaluationHistory(tmp_path / "h.sqlite")
    history.record(**dict(zip(keys, names, strict=True)), score_raw=0.5)
    line, short = printed("history", "list", "--history", tmp_path / "h.sqlite")
    assert line == "  ".join(names)
    narrow(monkeypatch, 26)
    lines = printed("history", "list", "--history", tmp_path / "h.sqlite")
    assert max(map(len, lines)) <= 26
    assert " ".join(lines).split() == [*line.split(), *short.split()]
