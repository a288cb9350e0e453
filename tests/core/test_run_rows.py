"""Tests of rows of saved predictions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from calibrant.core import Outcome
from calibrant.runs._rows import UNKNOWN, RunRow


def test_texts_of_csv_files_are_parsed() -> None:
    """Numbers and truth values are read from texts, and an empty text is None."""
    row = RunRow.checked({"index": " 7", "correct": "True", "confidence": "0.5", "cost": "", "label": ""})
    assert (row.index, row.correct, row.confidence, row.label) == (7, 1, 0.5, None)
    assert math.isnan(row.cost)


def test_correctness_follows_from_the_labels() -> None:
    """`correct` follows from the labels; a stated value wins, and a failed row is UNKNOWN."""
    row = {"label": "cat", "answer": "cat"}
    assert RunRow.checked(row).correct == 1
    assert RunRow.checked({**row, "answer": "dog"}).correct == 0
    assert RunRow.checked({**row, "answer": None}).correct == UNKNOWN
    assert RunRow.checked({**row, "correct": False}).correct == 0
    assert RunRow.checked({**row, "outcome": "error"}).correct == UNKNOWN


def test_rounding_is_forgiven() -> None:
    """A confidence outside [0, 1] by a rounding error is read."""
    assert RunRow.checked({"correct": 1, "confidence": 1.0 + 1e-9}).confidence == 1.0
    assert RunRow.checked({"correct": 1, "confidence": -1e-9}).confidence == 0.0


def test_search_rows_have_prompt_and_usage() -> None:
    """Rows of a search are read, with their own name for the number, a prompt and usage."""
    row = RunRow.checked({"row": 2, "prompt": "best", "correct": True, "usage": {"cost": 0.25}})
    assert (row.index, row.prompt, row.cost) == (2, "best", 0.25)
    assert RunRow.checked({"correct": True, "cost": 0.5}).cost == 0.5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "expected correct, or label and answer"),
        ({"label": "cat"}, "expected correct, or label and answer, got only 'label'"),
        ({"correct": "perhaps"}, "correct to be true, false or null, got 'perhaps'"),
        ({"correct": True, "index": None}, "index to be a whole number from 0, got None"),
        ({"correct": True, "index": True}, "index to be a whole number from 0, got True"),
        ({"correct": True, "confidence": math.inf}, r"a probability in \[0, 1\] or null, got inf"),
        ({"correct": True, "cost": -1}, "cost to be a number of at least 0 or null, got -1"),
        ({"correct": True, "latency_seconds": "soon"}, "latency_seconds to be a number of at least 0"),
        ({"correct": True, "label": 3}, "label to be text, got int"),
        ({"correct": True, "outcome": "lost"}, "outcome to be one of ok, error, refusal, unparsed"),
    ],
)
def test_broken_values_are_named(values: dict[str, Any], message: str) -> None:
    """A wrong value raises an error with its name and the expected type."""
    with pytest.raises(ValueError, match=message):
        RunRow.checked(values)


def test_foreign_columns_are_ignored() -> None:
    """A label mass that is no number is ignored."""
    row = RunRow.checked({"correct": True, "label_mass": "heavy", "unresolved_mass": []})
    assert not row.has_low_label_mass
    assert row.outcome is Outcome.OK
