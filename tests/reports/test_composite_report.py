"""Tests of ``report.html`` about answers that hold several labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import Example, Field, FieldLabels, LabelSet, MultiLabels, StateError
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import Classifier
from calibrant.reports import write_report
from calibrant.testing import FakeClient

EVIL = "<img src=x onerror='window.hit = 1'>"
TOPICS = MultiLabels(["Bills", "Food", EVIL])
FIELDS = FieldLabels(
    [
        Field(name="category", labels=LabelSet(["Bills", "Food"])),
        Field(name="urgency", labels=LabelSet(["low", "high"])),
    ]
)
HIGH = FIELDS.answer_of({"category": "Bills", "urgency": "high"})
LOW = FIELDS.answer_of({"category": "Bills", "urgency": "low"})


def topics(text: str) -> Any:
    """Miss a label where the text is long, and answer nonsense for some texts."""
    if "babble" in text:
        return '["horse"]'
    return ('["Bills"]', 0.8) if len(text) % 2 else (TOPICS.answer_with(["Bills", EVIL]), 0.7)


def evaluated(
    directory: Path, labels: MultiLabels | FieldLabels, answers: Any, examples: list[Example]
) -> Path:
    """Evaluate a fake into a directory."""
    asked = Classifier(model=FakeClient(labels, answers, field="labels"), labels=labels, field="labels")
    BatchEvaluator(asked).evaluate(examples, out=directory)
    return directory


@pytest.fixture
def of_topics(tmp_path: Path) -> Path:
    """Return the directory of a run about sets of labels."""
    texts = [*("x" * (3 + number % 4) + str(number % 10) for number in range(30)), "babble"]
    truth = '["Bills", "Food"]'
    return evaluated(tmp_path / "run", TOPICS, topics, [Example(input=text, answer=truth) for text in texts])


def words(page: Path) -> str:
    """Return the text of a page without tags, with single spaces."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.read_text()).split())


def test_labels_of_sets_have_a_table_and_no_square(of_topics: Path) -> None:
    """A page about label sets has a table of the labels and no confusion matrix."""
    page = write_report(of_topics)
    shown = words(page)
    for said in ("Each label of the set", "Jaccard index", "Hamming loss", "missed Food", "right Bills"):
        assert said in shown
    assert "horse" in shown  # the reason of the row that cannot be read
    for unsaid in ("True label by row, given label by column", "Look at these first"):
        assert unsaid not in shown


def test_fields_have_a_table_of_their_own(tmp_path: Path) -> None:
    """A page about fields has a table of the fields, and names the wrong field of a mistake."""
    examples = [Example(input=f"{number}", answer=HIGH if number % 3 else LOW) for number in range(12)]
    page = write_report(evaluated(tmp_path / "run", FIELDS, lambda _: (HIGH, 0.8), examples))
    shown = words(page)
    assert "Each field" in shown
    assert "8 of 12 answered rows; all parts right" in shown
    assert "urgency: high, not low" in shown
    assert "Look at these first" not in shown
    assert "category=Bills 1.000 1.000 1.000 12 0 0" in shown
    assert re.search(r"urgency 0\.667 0\.\d+ to 0\.\d+ ", shown)


def test_planted_labels_are_escaped(of_topics: Path) -> None:
    """Markup in a label's name is escaped."""
    page = write_report(of_topics).read_text()
    assert "<img" not in page
    assert "&lt;img src=x" in page


def test_an_unfinished_run_shows_its_parts(of_topics: Path) -> None:
    """Without metrics.json the page shows the same table of labels."""
    whole = words(write_report(of_topics))
    (of_topics / "metrics.json").unlink()
    begun = words(write_report(of_topics))
    table = re.search(r"Each label of the set.*?Costliest", whole)
    assert table is not None
    assert table[0] in begun


def test_a_damaged_label_set_is_named(of_topics: Path) -> None:
    """A damaged label set in run.json raises StateError."""
    record = json.loads((of_topics / "run.json").read_text())
    (of_topics / "run.json").write_text(json.dumps({**record, "label_set": {"multi_label": 1}}))
    with pytest.raises(StateError, match=r"run\.json"):
        write_report(of_topics)
