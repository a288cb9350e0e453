"""Tests of recorded runs: their sources, their pairing and their faults."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calibrant.cascade import RecordedRun, plan_cascade, recorded_run, replay
from calibrant.core import ConfigurationError, DataError


def lines(count: int = 4, **changes: Any) -> list[dict[str, Any]]:
    """Return rows as an evaluation writes them."""
    return [
        {
            "index": row,
            "input": f"text {row}",
            "answer": "cat",
            "label": "cat",
            "confidence": 0.5 + row / 10,
            "correct": True,
            "outcome": "ok",
            "cost": 0.25,
            **changes,
        }
        for row in range(count)
    ]


def test_all_sources_are_read_alike(tmp_path: Path) -> None:
    """The same four rows are read from a file, a directory, lines, a mapping and an object."""
    path = tmp_path / "predictions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines()))
    plain = SimpleNamespace(confidence=[0.5, 0.6, 0.7, 0.8], correct=[1, 1, 1, 1], ids=[0, 1, 2, 3])
    for source in (path, str(tmp_path), lines(), iter(lines()), plain, vars(plain)):
        found = recorded_run(source)
        assert np.asarray(found.confidence).tolist() == pytest.approx([0.5, 0.6, 0.7, 0.8])
        assert np.asarray(found.correct).tolist() == [1, 1, 1, 1]
        assert tuple(found.ids or ()) == (0, 1, 2, 3)
        assert recorded_run(found) is found


P, Y = [0.5, 0.25, 1.0], [1, 0, 1]


@pytest.mark.parametrize(
    "source",
    [
        (P, Y),
        [np.array(P), np.array(Y, dtype=bool)],
        np.array([P, Y]),
        np.rec.fromarrays([P, Y], names="confidence,correct"),
    ],
    ids=["pair", "pair of arrays", "(2, n)", "record array"],
)
def test_two_columns_are_enough(source: Any) -> None:
    """A pair of confidences and correctness is a run in any form of array."""
    found = recorded_run(source, name="it")
    assert np.asarray(found.confidence).tolist() == P
    assert np.asarray(found.correct).tolist() == Y
    assert found.name == "it"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        *((one, "Expected a recorded run") for one in (3, {"confidence": [1]}, ["ab", "cd"], [(0.5, 1)] * 3)),
        ((Y, P), "Expected correct to be 1, 0"),
    ],
)
def test_other_sources_are_refused(source: Any, message: str) -> None:
    """Any other source, and columns the wrong way round, raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match=message):
        recorded_run(source)


def test_broken_lines_are_numbered() -> None:
    """A broken line raises DataError with its number, counted from 1."""
    broken = lines()
    broken[2]["confidence"] = 7
    with pytest.raises(DataError, match="3"):
        recorded_run(broken)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"confidence": [0.5, 1.2]}, "confidence.*1.2 in row 1"),
        ({"confidence": []}, "at least one row"),
        ({"correct": [1, 0.5]}, "correct.*0.5 in row 1"),
        ({"correct": [1]}, "one entry per row"),
        ({"cost": [1, -1]}, "cost.*-1.0 in row 1"),
    ],
)
def test_bad_values_are_refused_by_row(bad: dict[str, Any], message: str) -> None:
    """A value out of range, or a column too short, raises ConfigurationError with the row."""
    with pytest.raises(ConfigurationError, match=message):
        RecordedRun(**{"confidence": [0.5, 0.6], "correct": [1, 0], **bad})


def test_unknown_values_are_none_or_nan() -> None:
    """None and NaN mean no confidence and no known correctness, and a failed row has neither."""
    run = RecordedRun(
        confidence=[None, 0.5, 0.5, 0.5],  # type: ignore[list-item]
        correct=[1, None, -1, 1],  # type: ignore[list-item]
        failed=[False, False, False, True],
    )
    assert np.isnan(np.asarray(run.confidence)).tolist() == [True, False, False, False]
    assert np.asarray(run.correct).tolist() == [1, -1, -1, -1]


def right(threshold: float, *runs: RecordedRun) -> float:
    """Return the share of right answers if the second model answers below a threshold."""
    return replay(threshold, *runs, costs=[1.0, 2.0]).accuracy.estimate


def test_rows_are_paired_by_id() -> None:
    """Runs in another order are paired by their ids."""
    first = RecordedRun(confidence=[0.1, 0.2, 0.3], correct=[0, 0, 0], ids=["a", "b", "c"])
    other = RecordedRun(confidence=[0.9, 0.8, 0.7], correct=[0, 1, 1], ids=["c", "a", "b"])
    assert [right(threshold, first, other) * 3 for threshold in (0.15, 0.25, 0.35)] == pytest.approx(
        [1, 2, 2]
    )


def test_rows_with_other_numbers_are_paired_by_text() -> None:
    """Runs with other ids are paired by texts that occur once."""
    first = RecordedRun(confidence=[0.1, 0.2], correct=[0, 0], ids=[0, 1], inputs=["a", "b"])
    other = RecordedRun(confidence=[0.9, 0.8], correct=[0, 1], ids=[5, 7], inputs=["b", "a"])
    assert right(0.15, first, other) == 0.5


def test_failed_rows_are_counted() -> None:
    """Rows that failed in a run, or have no label, are left out and counted apart."""
    small, large = lines(6), lines(6)
    small[0] |= {"outcome": "error", "correct": None, "label": None, "confidence": None}
    large[1] |= {"outcome": "error", "correct": None, "label": None, "confidence": None}
    small[2] |= {"correct": None, "answer": None}
    small[3] |= {"outcome": "refusal", "correct": False, "label": None, "confidence": None}
    rows = plan_cascade(small, large, small_cost=1, large_cost=2).rows
    assert (rows.given, rows.paired, rows.failed, rows.unlabelled) == (6, 3, 2, 1)
    alone, kept = (replay(policy, small, large) for policy in (1.0, 0.0))
    assert (alone.accuracy.estimate, kept.share_small.estimate) == (1.0, pytest.approx(2 / 3))


TWO = RecordedRun(confidence=[0.1, 0.2], correct=[1, 0])
FAILED = RecordedRun(confidence=[0.1], correct=[-1], failed=[True])


@pytest.mark.parametrize(
    ("small", "large", "message"),
    [
        (lines(4), lines(3), "text 3|index 3|'3'"),
        (lines(3), lines(4), "'3'.*but not in"),
        (lines(3), lines(3, input="other"), "Expected the same text in the row with index 0"),
        (TWO, RecordedRun(confidence=[0.1], correct=[1]), "in model 1 but not in model 2"),
        (replace(TWO, ids=["a", "a"]), replace(TWO, ids=["a", "a"]), "'a' again"),
        (FAILED, FAILED, "none of 1"),
    ],
)
def test_runs_of_other_rows_are_refused(small: Any, large: Any, message: str) -> None:
    """Runs of different, repeated or unknown rows raise DataError with the first one."""
    with pytest.raises(DataError, match=message):
        replay(0.5, *map(recorded_run, (small, large)), costs=[1.0, 2.0])


def test_costs_default_to_the_recorded_mean() -> None:
    """The price of a model is the one given, or the mean of its recorded costs."""
    priced = RecordedRun(confidence=[0.1, 0.2, 0.3], correct=[1, 0, 1], cost=[1, 3, np.nan], name="priced")
    plain = RecordedRun(confidence=[0.1, 0.2, 0.3], correct=[1, 0, 1], name="plain")
    assert plan_cascade(priced, plain, large_cost=7.0).prices.models == (2.0, 7.0)
    with pytest.raises(ConfigurationError, match="plain"):
        replay(0.5, priced, plain)
    with pytest.raises(ConfigurationError, match="each of 2 models"):
        replay(0.5, priced, plain, costs=[1.0])
