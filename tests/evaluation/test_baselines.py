"""Tests of baselines beside a finished evaluation: rows they use, and the record they write."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from calibrant.core import Example, LabelSet, MultiLabels, StateError
from calibrant.evaluation import _learned
from calibrant.evaluation._learned import add_baselines

LABELS = LabelSet(["cat", "dog"])
LABELLED = [
    Example(input=f"seen {n} {('meow', 'woof')[n % 2]}", answer=LABELS.labels[n % 2]) for n in range(8)
]


def evaluation(
    directory: Path, *, count: int = 20, failed: Sequence[int] = (), wrong: Sequence[int] = ()
) -> Path:
    """Write the files of a finished evaluation."""
    directory.mkdir(exist_ok=True)
    lines = []
    for n in range(count):
        answer = LABELS.labels[n % 2]
        line = {
            "input": f"new {n} {('meow', 'woof')[n % 2]}",
            "answer": answer,
            "label": None if n in failed or n in wrong else answer,
            "outcome": "error" if n in failed else "ok",
        }
        lines.append(json.dumps(line) + "\n")
    (directory / "predictions.jsonl").write_text("".join(lines))
    outcomes = {"ok": count - len(failed), "error": len(failed)}
    record = {"schema_version": 1, "rows": count, "outcomes": outcomes}
    (directory / "metrics.json").write_text(json.dumps(record))
    return directory


def test_the_comparison_is_added_to_the_metrics(tmp_path: Path) -> None:
    """The baselines are added to metrics.json, and a repetition writes the same text."""
    directory = evaluation(tmp_path / "run")
    found = add_baselines(directory, LABELLED, labels=LABELS)
    text = (directory / "metrics.json").read_text()
    record = json.loads(text)
    baselines = json.loads(json.dumps(found.to_record()))
    assert record == {
        "schema_version": 1,
        "rows": 20,
        "outcomes": {"ok": 20, "error": 0},
        "baselines": baselines,
    }
    add_baselines(directory, iter(LABELLED), labels=LABELS)
    assert (directory / "metrics.json").read_text() == text


def test_rows_that_failed_are_not_judged(tmp_path: Path) -> None:
    """Rows with a transport error are left out; the other rows are judged."""
    found = add_baselines(evaluation(tmp_path / "run", failed=[0, 5], wrong=[1]), LABELLED, labels=LABELS)
    assert (found.rows, found.scores[0].accuracy.estimate) == (18, pytest.approx(17 / 18))


def test_of_many_rows_some_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 300 rows are judged and 5 learned from, and repetitions draw the same rows."""
    monkeypatch.setattr(_learned, "_JUDGED", 300)
    monkeypatch.setattr(_learned, "_LEARNED", 5)
    directory = evaluation(tmp_path / "run", count=2000, wrong=range(1000))
    found = add_baselines(directory, LABELLED, labels=LABELS)
    assert (found.rows, found.labelled_rows) == (300, 5)
    assert 0.4 < found.scores[0].accuracy.estimate < 0.6  # the first half is wrong
    assert add_baselines(directory, LABELLED, labels=LABELS) == found


def test_fewer_rows_are_drawn_where_texts_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows to learn from are limited by their number of characters in all."""
    monkeypatch.setattr(_learned, "_LEARNED", 10)
    long = [Example(input=f"{n} " + "meow " * 200, answer=LABELS.labels[n % 2]) for n in range(40)]
    found = add_baselines(evaluation(tmp_path / "run"), long, labels=LABELS)
    assert found.labelled_rows == 10 * 500 // 1002


@pytest.mark.parametrize(("least", "n_learned"), [(2, 12), (15, 15), (30, 24)])
def test_fewer_rows_are_drawn_where_each_teaches_several_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, n_learned: int
) -> None:
    """The parts of an answer share the rows to learn from, down to a fewest number, which never adds rows."""
    monkeypatch.setattr(_learned, "_LEARNED", 24)
    monkeypatch.setattr(_learned, "_LEAST_LEARNED", least)
    labels = MultiLabels(["cat", "dog"])
    directory = evaluation(tmp_path / "run")
    predictions = directory / "predictions.jsonl"
    predictions.write_text(re.sub('"(cat|dog)"', r'"[\\"\1\\"]"', predictions.read_text()))
    known = [Example(input=f"seen {n} meow", answer='["cat"]') for n in range(40)]
    assert add_baselines(directory, known, labels=labels).labelled_rows == n_learned


@pytest.mark.parametrize("lines", ["{", "[]\n", '{"outcome": "ok"}\n', None])
def test_damaged_rows_are_named(tmp_path: Path, lines: str | None) -> None:
    """Broken, incomplete and missing rows raise StateError."""
    directory = evaluation(tmp_path / "run")
    predictions = directory / "predictions.jsonl"
    predictions.unlink() if lines is None else predictions.write_text(lines)
    with pytest.raises(StateError, match=r"predictions\.jsonl: expected the rows of a finished run"):
        add_baselines(directory, LABELLED, labels=LABELS)
