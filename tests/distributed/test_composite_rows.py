"""Tests of rows with several labels on a worker: its lines equal those of one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from calibrant.core import Example, Field, FieldLabels, LabelSet, Limits
from calibrant.distributed._ledger import Ledger
from calibrant.distributed._worker import Worker
from calibrant.evaluation import BatchEvaluator
from calibrant.evaluation._metrics import Tally
from calibrant.inference import Classifier
from calibrant.testing import FakeClient
from in_process import LocalBook

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


def lasting(lines: list[bytes]) -> list[dict[str, Any]]:
    """Return rows without the fields that differ from run to run."""
    return [
        {name: value for name, value in json.loads(line).items() if name != "latency_seconds"}
        for line in lines
    ]


def test_a_block_counts_like_one_machine(tmp_path: Path) -> None:
    """The metrics of a worker's block, parts included, equal those of one machine."""
    rows = [(number, f"text {number}", HIGH if number % 3 else LOW, None, None, None) for number in range(9)]
    book = LocalBook(Limits(), workers=1)
    answered = Worker(opening, Limits(), 1, None, book).answer(0, rows)
    book.ask(Ledger.close, "over", at_once=True)  # ends the worker's thread
    examples = [Example(input=text, answer=answer) for _, text, answer, *_ in rows]
    result = BatchEvaluator(opening(limits=Limits())).evaluate(examples, out=tmp_path)
    here = (tmp_path / "predictions.jsonl").read_bytes().splitlines()
    assert lasting(answered.lines.splitlines()) == lasting(here)
    tally = Tally(FIELDS)
    for line in answered.lines.splitlines():
        tally.add(json.loads(line))
    found = tally.metrics(expected=9, stopped="", seconds=0.0, session_rows=9)
    assert found.composite == result.metrics.composite
