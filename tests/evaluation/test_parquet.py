"""Tests of `write_parquet`: the rows of ``predictions.jsonl`` in columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.core import (
    Example,
    LabelDistribution,
    LogprobSpace,
    Outcome,
    Part,
    Prediction,
    StateError,
    Step,
    Usage,
    Verdict,
)
from calibrant.evaluation import BatchEvaluator, _parquet
from calibrant.evaluation._parquet import write_parquet
from calibrant.inference import Classifier
from calibrant.runs import SavedRows
from calibrant.runs._rows import row_line
from calibrant.testing import FakeClient

parquet = pytest.importorskip("pyarrow.parquet")


def predictions() -> Iterator[Prediction]:
    """Yield predictions with every field, and with every field missing."""
    sure = LabelDistribution(
        labels=("cat", "dog"),
        logprobs=np.log([0.75, 0.25]),
        measured=np.array([True, True]),
        joint_logprob=None,
        label_mass=0.5,
        unresolved_mass=0.0,
        space=LogprobSpace.RAW,
    )
    for number in range(20):
        if number == 1:
            step = Step(model="m", verdict=Verdict.ACCEPTED, label="cat", confidence=0.75)
            part = Part(name="cat", label="yes", confidence=0.75)
            yield Prediction(label='["cat"]', confidence=0.75, steps=(step,), accepted=True, parts=(part,))
        elif number % 5 == 0:
            yield Prediction(label=None, outcome=Outcome.ERROR, reason="503", attempts=3)
        else:
            usage = Usage(prompt_tokens=7, completion_tokens=number, cost=None if number % 2 else 0.5)
            yield Prediction(
                label="cat", outcome=Outcome.OK, distribution=sure, usage=usage, model="m", attempts=1
            )


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Return the file of twenty rows, of which one holds half a surrogate pair."""
    path = tmp_path / "predictions.jsonl"
    texts = [f"row {n} \u2028 \U0001f600" for n in range(19)] + ["half \ud83d"]
    rows = zip(texts, predictions(), strict=True)
    path.write_bytes(
        b"".join(
            row_line(n, Example(input=text, answer="cat", source=f"rows.csv:{n + 2}", row_id=str(n)), found)
            for n, (text, found) in enumerate(rows)
        )
    )
    return path


def test_columns_equal_the_lines(lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns equal the lines over several row groups; half a surrogate pair becomes "?"."""
    monkeypatch.setattr(_parquet, "_GROUP", 7)
    write_parquet(lines, tmp_path / "predictions.parquet")
    file = parquet.ParquetFile(tmp_path / "predictions.parquet")
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [7, 7, 6]
    expected = [json.loads(line) for line in lines.read_bytes().splitlines()]
    expected[-1]["input"] = "half ?"
    found = file.read().to_pylist()
    for row in found:
        for name in ("probabilities", "steps", "parts"):
            row[name] = None if row[name] is None else json.loads(row[name])
    absent: dict[str, Any] = dict.fromkeys(("steps", "accepted", "parts"))
    assert found == [absent | row for row in expected]


def test_tools_that_read_saved_predictions_read_it(lines: Path, tmp_path: Path) -> None:
    """SavedRows.load reads the same confidences and labels from Parquet as from the lines."""
    write_parquet(lines, tmp_path / "predictions.parquet")
    from_lines, from_columns = (SavedRows.load(path) for path in (lines, tmp_path / "predictions.parquet"))
    np.testing.assert_array_equal(from_lines.confidence, from_columns.confidence)
    assert from_lines.labels == from_columns.labels


def test_every_field_of_a_line_has_a_column(lines: Path) -> None:
    """Every field of a line has a column."""
    fields = {name for line in lines.read_bytes().splitlines() for name in json.loads(line)}
    assert fields == set(_parquet._COLUMNS)


def test_no_file_is_half_written(lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk raises StateError, and the old file stays."""
    path = tmp_path / "predictions.parquet"
    path.write_text("old")
    seen: list[str] = []

    def groups(found: Any) -> Iterator[list[dict[str, Any]]]:
        yield [json.loads(next(found))]
        seen.append(path.read_text())
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(_parquet, "_groups", groups)
        with pytest.raises(StateError, match=r"predictions.parquet: cannot be written \(No space left"):
            write_parquet(lines, path)
    assert seen == ["old"]
    assert path.read_text() == "old"
    assert {file.name for file in tmp_path.iterdir()} == {lines.name, path.name}
    with path.open() as reader:
        write_parquet(lines, path)
        assert reader.read() == "old"  # it is another file that has the name now


def test_resuming_removes_the_outdated_parquet_file(tmp_path: Path) -> None:
    """A resumed run removes the old Parquet file."""
    fake = FakeClient(["cat", "dog"], {"purrs": "cat"})
    stale = tmp_path / "out" / "predictions.parquet"
    for rows in (1, 2):
        classifier = Classifier(model=fake, labels=["cat", "dog"], field="category")
        BatchEvaluator(classifier).evaluate(
            [Example(input="purrs", answer="cat")] * rows, out=tmp_path / "out"
        )
        assert not stale.exists()
        stale.touch()
