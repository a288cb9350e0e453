"""Tests of the examples whose answers hold several labels: their files and rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calibrant.core import FieldLabels, MultiLabels, OrdinalLabels, Task
from calibrant.evaluation import BatchEvaluator
from calibrant.feedback import build_composite_feedback
from calibrant.inference import Classifier
from calibrant.testing import FakeClient

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SPLITS = ("train", "validation", "test")


@pytest.fixture(params=["topics", "helpdesk"])
def name(request: pytest.FixtureRequest) -> str:
    """Return one of the examples."""
    return str(request.param)


@pytest.fixture
def task(name: str, caplog: pytest.LogCaptureFixture) -> Task:
    """Return the example's task; no row is in two splits."""
    found = Task.from_file(EXAMPLES / name / "task.toml")
    assert caplog.messages == []
    return found


def test_label_sets_are_what_the_examples_are_about(name: str, task: Task) -> None:
    """The topics are label sets; the other example has fields, with urgency on a scale."""
    if name == "topics":
        assert isinstance(task.labels, MultiLabels)
        assert task.field == "labels"
    else:
        assert isinstance(task.labels, FieldLabels)
        assert isinstance(task.labels.labels_of("urgency"), OrdinalLabels)


def test_every_label_is_there_in_every_split(task: Task) -> None:
    """Every label occurs in every split."""
    assert isinstance(task.labels, MultiLabels | FieldLabels)
    for split in SPLITS:
        held = {name for row in getattr(task, split) for name in task.labels.decisions(row.answer)}
        assert held == set(task.labels), split


def test_the_readme_counts_the_rows(name: str, task: Task) -> None:
    """The README's numbers of rows equal those of the files."""
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    counts = dict(re.findall(r"`(\w+)\.\w+` \| (\d+) \|", text))
    assert {split: len(getattr(task, split)) for split in SPLITS} == {
        split: int(counts[split]) for split in SPLITS
    }
    total = re.search(r"^(\d+) made-up", text, re.MULTILINE)
    assert total is not None
    assert int(total[1]) == sum(map(int, counts.values()))


def test_a_model_that_knows_the_answers_gets_full_marks(task: Task) -> None:
    """A model with the right answers has full credit, and every row is correct."""
    assert isinstance(task.labels, MultiLabels | FieldLabels)
    known = {row.input: (row.answer, 0.999) for row in task.test}
    fake = FakeClient(task.labels, known, field=task.field)
    result = BatchEvaluator(Classifier.from_task(task, client=fake)).evaluate(task.test)
    assert result.metrics.composite is not None
    assert result.metrics.composite.credit == 1.0
    assert result.metrics.correct == len(task.test)
    for row, prediction in zip(task.test, result.predictions, strict=True):
        text = build_composite_feedback(prediction, row.answer, labels=task.labels, low=0.5)
        assert text == "Correct."
