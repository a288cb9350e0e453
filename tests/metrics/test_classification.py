"""Tests of accuracy, F1 and the confusion matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calibrant.core import ConfigurationError, LabelSet
from calibrant.metrics import ClassificationSummary, LabelMetrics, classification_summary

LABELS = ["Sports", "World", "Business"]


def test_a_hand_made_example() -> None:
    """The summary of six rows equals the numbers that are worked out by hand."""
    summary = classification_summary(
        ["Sports", "Sports", "Sports", "World", "World", "Business"],
        ["Sports", "World", None, "World", "Weather", "World"],
        labels=LABELS,
    )
    assert summary.labels == tuple(LABELS)
    assert summary.n == 6
    assert summary.confusion.tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    assert summary.other.tolist() == [1, 1, 0]
    assert summary.accuracy == pytest.approx(2 / 6)
    wanted = {
        "Sports": {"precision": 1.0, "recall": 1 / 3, "f1": 0.5, "support": 3, "predicted": 1},
        "World": {"precision": 1 / 3, "recall": 0.5, "f1": 0.4, "support": 2, "predicted": 3},
        "Business": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 1, "predicted": 0},
    }
    assert summary.per_label == {label: LabelMetrics(**numbers) for label, numbers in wanted.items()}
    assert summary.macro_f1 == pytest.approx(0.3)


@pytest.mark.parametrize("seed", range(4))
def test_it_agrees_with_scikit_learn(seed: int) -> None:
    """The summary agrees with scikit-learn, with unused labels and missing predictions."""
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    labels = ["a", "b", "c", "d", "unused"]
    truth = rng.choice(labels[:4], 80, p=[0.6, 0.2, 0.15, 0.05]).tolist()
    predicted = [t if rng.random() < 0.6 else str(rng.choice([*labels[:3], "none of them"])) for t in truth]
    summary = classification_summary(truth, predicted, labels=labels)
    options = {"labels": labels, "zero_division": 0}
    precision, recall, f1, support = sklearn.precision_recall_fscore_support(truth, predicted, **options)
    found = list(summary.per_label.values())
    assert [m.precision for m in found] == pytest.approx(precision)
    assert [m.recall for m in found] == pytest.approx(recall)
    assert [m.f1 for m in found] == pytest.approx(f1)
    assert [m.support for m in found] == support.tolist()
    assert summary.macro_f1 == pytest.approx(sklearn.f1_score(truth, predicted, average="macro", **options))
    assert summary.accuracy == pytest.approx(sklearn.accuracy_score(truth, predicted))
    assert summary.confusion.tolist() == sklearn.confusion_matrix(truth, predicted, labels=labels).tolist()


def test_labels_compare_without_case_and_surrounding_space() -> None:
    """Labels are compared without case and surrounding space, and spelled as in the label set."""
    summary = classification_summary([" sports"], ["SPORTS "], labels=LabelSet(LABELS))
    assert summary.accuracy == 1.0
    assert summary.per_label["Sports"].support == 1


def test_without_a_label_set_the_labels_that_occur_are_used() -> None:
    """Without a label set the labels are those that occur, sorted, without missing predictions."""
    summary = classification_summary(["b", "a", "B"], ["c", None, ""])
    assert summary.labels == ("a", "b", "c")
    assert summary.confusion[1].tolist() == [0, 0, 1]
    assert summary.other.tolist() == [1, 1, 0]
    assert classification_summary(["x"], ["x"]).macro_f1 == 1.0


def test_a_perfect_classifier_scores_one_everywhere() -> None:
    """If all rows are right, accuracy and macro F1 are 1 and the matrix is diagonal."""
    summary = classification_summary(LABELS * 3, LABELS * 3, labels=LABELS)
    assert summary.accuracy == summary.macro_f1 == 1.0
    assert summary.confusion.tolist() == (3 * np.eye(3, dtype=int)).tolist()


def test_arrays_of_the_summary_cannot_be_changed() -> None:
    """Writing to an array of a summary raises ValueError."""
    summary = classification_summary(["x"], ["y"])
    with pytest.raises(ValueError, match="read-only"):
        summary.confusion[0, 0] = 5


def test_arrays_handed_to_a_summary_stay_the_callers() -> None:
    """A summary copies the arrays that it is given."""
    confusion, other = np.array([[1, 0], [0, 1]]), np.array([0, 0])
    summary = ClassificationSummary(
        labels=("a", "b"), accuracy=1.0, macro_f1=1.0, per_label={}, confusion=confusion, other=other, n=2
    )
    confusion[0, 0], other[0] = 7, 7
    assert summary.confusion.tolist() == [[1, 0], [0, 1]]
    assert summary.other.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("truth", "predicted", "labels", "message"),
    [
        ([], [], LABELS, "at least one row"),
        (["Sports"], [], LABELS, "as many"),
        (["Sports", "Weather"], ["Sports", "Sports"], LABELS, "'Weather' in row 1"),
        ([None], ["Sports"], LABELS, "row 0"),
        ([3], [3], None, "row 0"),
        (["a"], ["a"], ["a", "A"], "distinct"),
    ],
)
def test_bad_input_is_an_error(truth: Any, predicted: Any, labels: Any, message: str) -> None:
    """Wrong true labels, or columns of different lengths, raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match=message):
        classification_summary(truth, predicted, labels=labels)
