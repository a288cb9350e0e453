"""Tests of commands that find the answers which a search has paid for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from calibrant.testing import Answer, FakeClient
from command_line import command, done, prediction_rows

WriteTask = Callable[..., Path]
Fake = Callable[..., FakeClient]

SEED = "Which animal?"


def learns(text: str, prompt: str) -> Answer:
    """Answer cat to everything under the seed prompt, and rightly under any other."""
    if prompt == SEED:
        return ("cat", 0.6)
    return ("cat" if "meow" in text else "dog", 0.9)


@pytest.fixture
def searched(write_task: WriteTask, fake: Fake, tmp_path: Path) -> tuple[Path, Path, FakeClient]:
    """Return the file of a task, the directory of its search, and the model that answered."""
    client = fake(learns, name="local/smollm2-135m")
    task, run = write_task(), tmp_path / "run"
    budget = ("--max-metric-calls", 30, "--minibatch-size", 4)
    done(command("optimize")(task, "--out", run, *budget))
    return task, run, client


def test_later_commands_find_the_answers_of_a_search(
    searched: tuple[Path, Path, FakeClient], tmp_path: Path
) -> None:
    """Commands about a search ask nothing about the rows that it has asked about."""
    task, run, client = searched
    asked = len(client.requests)
    rows = task.parent / "test.jsonl"
    found = done(command("evaluate")(task, "--run", run, "--out", tmp_path / "named"))
    assert "0 calls, 4 rows without a call" in found.stdout
    found = done(command("evaluate")(run, "--file", rows, "--out", tmp_path / "check"))
    assert "0 calls, 4 rows without a call" in found.stdout
    found = done(command("label")(run, rows, "--out", tmp_path / "labels"))
    assert "0 calls, 4 rows without a call" in found.stdout
    for source in ((task, "--run", run), (run,)):
        found = done(command("classify")(*source, "--file", rows))
        assert found.stdout.startswith("cat\t0.9")
    assert len(client.requests) == asked
    final = [row for row in prediction_rows(run) if row["prompt"] == "final"]
    for directory in ("named", "check"):
        again = prediction_rows(tmp_path / directory)
        answers = [(row["label"], row["confidence"]) for row in again]
        assert answers == [(row["label"], row["confidence"]) for row in final]


def test_no_cache_asks_the_rows_of_a_search_again(
    searched: tuple[Path, Path, FakeClient], tmp_path: Path
) -> None:
    """With --no-cache the model is asked about every row, whatever a search has asked."""
    task, run, client = searched
    asked = len(client.requests)
    done(command("evaluate")(task, "--run", run, "--no-cache", "--out", tmp_path / "check"))
    assert len(client.requests) == asked + 4


def test_answers_under_another_model_are_not_taken(
    searched: tuple[Path, Path, FakeClient], tmp_path: Path, use_model: Callable[..., FakeClient]
) -> None:
    """A model that the search has not asked is asked about every row."""
    task, run, client = searched
    for name in ("head.json", "calibrator.json", "calibration.json"):
        (run / name).unlink(missing_ok=True)  # which belong to the model of the search
    other = use_model(FakeClient(["cat", "dog"], learns, name="fake/other"), "fake/other")
    asked = len(client.requests)
    done(
        command("evaluate")(task, "--run", run, "--model", "fake/other", "--out", tmp_path / "check"),
    )
    assert (len(client.requests), len(other.requests)) == (asked, 4)


def test_damaged_answers_of_a_search_are_asked_again(
    searched: tuple[Path, Path, FakeClient], tmp_path: Path
) -> None:
    """A line that a kill has cut off, or that holds no prediction, counts as missing."""
    task, run, client = searched
    asked = len(client.requests)
    journal = run / "journal.jsonl"
    lines = journal.read_text().splitlines()
    key = json.loads(lines[-2])["key"]
    journal.write_text("\n".join([*lines[:-2], json.dumps({"key": key, "value": 7}), lines[-1][:-9]]))
    done(command("evaluate")(task, "--run", run, "--out", tmp_path / "check"))
    assert len(client.requests) == asked + 2
