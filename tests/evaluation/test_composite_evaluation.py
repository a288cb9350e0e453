"""Tests of evaluations whose answers hold several labels: rows, metrics, and continued runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import Example, Field, FieldLabels, LabelSet, MultiLabels
from calibrant.evaluation import BatchEvaluator, calibrate_predictions, compare_predictions
from calibrant.inference import Classifier
from calibrant.runs import SavedRows
from calibrant.testing import FakeClient
from command_line import prediction_rows

TOPICS = MultiLabels(["Bills", "Food", "Travel"])
FIELDS = FieldLabels(
    [
        Field(name="category", labels=LabelSet(["Bills", "Food"])),
        Field(name="urgency", labels=LabelSet(["low", "high"])),
    ]
)
HIGH = '{"category": "Bills", "urgency": "high"}'
LOW = '{"category": "Bills", "urgency": "low"}'


def topics(text: str) -> Any:
    """Answer one text well and another badly, and give nonsense for a third."""
    if "babble" in text:
        return '["Horse"]'
    return ('["Bills", "Food"]', 0.9) if "both" in text else ('["Travel"]', 0.6)


def classifier(labels: MultiLabels | FieldLabels, answers: Any) -> Classifier:
    """Return a classifier on a fake model."""
    return Classifier(model=FakeClient(labels, answers, field="labels"), labels=labels, field="labels")


def graded(confidence: float) -> Any:
    """Return a rule that answers alike, with one of two confidences."""
    return lambda text: (HIGH, 0.5 + confidence / 2 if len(text) % 2 else confidence)


def rows(*answers: str) -> list[Example]:
    """Return rows that the rule `topics` answers with ["Bills", "Food"]."""
    return [Example(input=f"both {number}", answer=answer) for number, answer in enumerate(answers)]


def test_rows_say_what_became_of_every_part(tmp_path: Path) -> None:
    """Each row holds its parts with name, label and correctness."""
    BatchEvaluator(classifier(TOPICS, topics)).evaluate(
        rows('["Food", "bills"]', '["Food", "Travel"]'), out=tmp_path / "run"
    )
    first, second = prediction_rows(tmp_path / "run")
    assert first["label"] == first["answer"] == '["Bills", "Food"]'
    assert first["correct"] is True
    assert first["space"] == "masked"
    assert [(part["name"], part["label"], part["correct"]) for part in second["parts"]] == [
        ("Bills", "yes", False),
        ("Food", "yes", True),
        ("Travel", "no", False),
    ]
    for part in second["parts"]:
        assert part["probabilities"][part["label"]] == pytest.approx(part["confidence"])
        assert sum(part["probabilities"].values()) == pytest.approx(1.0)


def test_numbers_are_about_whole_answers_and_about_parts(tmp_path: Path) -> None:
    """The metrics hold the Jaccard index of whole answers, and accuracy and macro F1 of parts."""
    answers = [*['["Bills", "Food"]'] * 3, '["Food"]']
    examples = [*rows(*answers), Example(input="babble", answer="[]")]
    found = BatchEvaluator(classifier(TOPICS, topics)).evaluate(examples, out=tmp_path / "run").metrics
    assert (found.correct, found.answered) == (3, 5)
    assert found.composite is not None
    assert found.composite.kind == "multi_label"
    assert found.composite.jaccard == pytest.approx((3 + 0.5 + 0) / 5)
    assert (found.composite.parts["Bills"].correct, found.macro_f1) == (3, found.composite.macro_f1)
    assert found.per_label["Bills"].support == 3
    record = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert record["composite"]["parts"]["Food"]["accuracy"]["estimate"] == pytest.approx(0.8)
    assert record["per_label"]["Bills"]["added"] == 1
    assert "per_label" not in record["composite"]
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["label_set"] == TOPICS.record()


def test_the_run_file_of_plain_labels_is_unchanged(tmp_path: Path) -> None:
    """Files of single labels hold no "label_set", "composite" or "parts"."""
    plain = Classifier(model=FakeClient(["a", "b"], lambda _: "a"), labels=["a", "b"], field="category")
    BatchEvaluator(plain).evaluate([Example(input="x", answer="a")], out=tmp_path)
    assert "label_set" not in json.loads((tmp_path / "run.json").read_text())
    assert "composite" not in json.loads((tmp_path / "metrics.json").read_text())
    assert "parts" not in prediction_rows(tmp_path)[0]


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_resumed_run_counts_like_a_whole_one(tmp_path: Path, kept: int) -> None:
    """A continued run has the metrics of an uninterrupted run."""
    asked = classifier(FIELDS, lambda text: (HIGH if "1" in text else LOW, 0.8))
    examples = rows(HIGH, HIGH, LOW, LOW)
    whole = BatchEvaluator(asked).evaluate(examples, out=tmp_path / "whole").metrics
    begun = tmp_path / "begun"
    BatchEvaluator(asked).evaluate(examples, out=begun)
    file = begun / "predictions.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:kept]))
    again = BatchEvaluator(asked).evaluate(examples, out=begun).metrics
    assert again.composite == whole.composite
    assert again.composite is not None
    assert again.composite.parts["urgency"].rows_with_confidence == 4
    assert again.per_label == whole.per_label


def test_saved_rows_of_several_labels_are_compared_and_calibrated(tmp_path: Path) -> None:
    """Saved rows of several labels can be compared and calibrated."""
    asked = {
        name: classifier(FIELDS, graded(confidence)) for name, confidence in (("one", 0.7), ("other", 0.9))
    }
    for name, own in asked.items():
        answers = [HIGH if number % 4 else LOW for number in range(60)]
        BatchEvaluator(own).evaluate(rows(*answers), out=tmp_path / name)
    saved = SavedRows.load(tmp_path / "one")
    assert saved.fingerprint is not None
    assert saved.fingerprint.to_record() == asked["one"].fingerprint().to_record()
    assert compare_predictions([saved, SavedRows.load(tmp_path / "other")]).runs[0].rows == 60
    assert calibrate_predictions(saved).held_out.rows > 0


def test_a_fingerprint_tells_sets_from_single_labels(tmp_path: Path) -> None:
    """Fingerprints of label sets and of single labels differ although the labels are equal."""
    sets = classifier(TOPICS, topics)
    BatchEvaluator(sets).evaluate(rows('["Food"]', "[]"), out=tmp_path / "run")
    saved = SavedRows.load(tmp_path / "run").fingerprint
    assert saved is not None
    assert saved.differences(sets.fingerprint().to_record()) == []
    single = Classifier(model=sets.client, labels=list(TOPICS), field="labels").fingerprint()
    assert single.labels == saved.labels
    assert single.differences(saved.to_record()) == ["labels in an answer (any number then, one now)"]
    assert saved.differences(single.to_record()) == ["labels in an answer (one then, any number now)"]


def test_compared_runs_of_several_labels_have_no_macro_f1_of_whole_answers(tmp_path: Path) -> None:
    """`compare` shows their accuracy, and leaves F1 to `evaluate`, which counts every label."""
    labels = MultiLabels(["Bills", "Food", "Travel"])
    rows = [Example(input=f"both {place}", answer='["Bills", "Food"]') for place in range(12)]
    for name in ("a", "b"):
        with classifier(labels, topics) as asked:
            BatchEvaluator(asked).evaluate(rows, out=tmp_path / name)
    runs = compare_predictions([SavedRows.load(tmp_path / name) for name in ("a", "b")]).runs
    assert [(run.accuracy.estimate, run.macro_f1) for run in runs] == [(1.0, None)] * 2
