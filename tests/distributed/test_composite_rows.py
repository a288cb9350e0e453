"""Tests of rows with several labels on several workers: they equal those of one machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import in_process
from calibrant.core import DataSource, Example, Field, FieldLabels, LabelSet, Limits
from calibrant.distributed import Cluster, evaluate
from calibrant.evaluation import BatchEvaluator, Dataset
from calibrant.inference import Classifier
from calibrant.testing import FakeClient
from command_line import lasting_rows

FIELDS = FieldLabels(
    [
        Field(name="category", labels=LabelSet(["Bills", "Food"])),
        Field(name="urgency", labels=LabelSet(["low", "high"])),
    ]
)
HIGH = FIELDS.answer_of({"category": "Bills", "urgency": "high"})
LOW = FIELDS.answer_of({"category": "Bills", "urgency": "low"})


def opening(*, limits: Limits) -> Classifier:
    """Open a classifier over a fake."""
    return Classifier(model=FakeClient(FIELDS, lambda _: (HIGH, 0.8)), labels=FIELDS, limits=limits)


def test_blocks_count_like_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows and metrics of blocks from several workers, parts included, equal those of one machine."""
    in_process.install(monkeypatch)
    rows = [Example(input=f"text {number}", answer=HIGH if number % 3 else LOW) for number in range(9)]
    cluster = Cluster(workers=2, block_rows=2)
    lines = (json.dumps({"input": row.input, "answer": row.answer}) for row in rows)
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    dataset = Dataset(source=DataSource(path=tmp_path / "rows.jsonl"), labels=FIELDS)
    shared = evaluate(dataset, opening=opening, out=tmp_path / "shared", cluster=cluster)
    alone = BatchEvaluator(opening(limits=Limits())).evaluate(dataset, out=tmp_path / "alone")
    assert lasting_rows(tmp_path / "shared") == lasting_rows(tmp_path / "alone")
    assert shared.metrics.composite == alone.metrics.composite
    assert shared.metrics.composite is not None
