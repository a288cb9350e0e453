"""Tests of the number of labels that a classifier answers, and of its collapse."""

from __future__ import annotations

import pytest

from calibrant.core import Field, FieldLabels, LabelSet, MultiLabels
from calibrant.metrics import AnsweredLabels, CompositeMetrics, classification_summary
from evaluated import FAILED, evaluated, given

LABELS = ["a", "b", "c", "d", "e"]


def counted(truth: str, answers: str) -> AnsweredLabels:
    """Return the count for one-letter labels, where a dot is a missing answer."""
    return classification_summary(
        list(truth), [None if label == "." else label for label in answers], labels=LABELS
    ).answered_labels


def test_labels_are_counted_once() -> None:
    """A label that is answered several times counts once."""
    found = counted("aabbcc", "aaaae.")
    assert (found.answered, found.total, found.present, found.found) == (2, 5, 3, 1)
    assert str(found) == "2 of 5"


@pytest.mark.parametrize(
    ("truth", "given", "collapsed"),
    [
        ("abcd", "aabb", False),  # half of them
        ("abcde", "aabba", True),
        ("abcde", "aabbc", False),
        ("ab", "aa", False),
        ("abcd", "eeea", True),  # `e` is in no row
        ("abcd", "....", True),
        ("aaaa", "aaaa", False),
    ],
)
def test_few_answered_labels_are_a_collapse(truth: str, given: str, *, collapsed: bool) -> None:
    """A classifier that answers fewer than half of the labels in the rows has collapsed."""
    found = counted(truth, given)
    assert found.collapsed is collapsed
    assert bool(found.warning) is collapsed


def test_the_warning_names_both_counts() -> None:
    """The warning has the number of labels in the rows, and of those that were answered."""
    assert counted("abcd", "eeea").warning == (
        "Collapsed: of the 4 labels that occur in these rows only 1 were ever answered."
    )


def test_one_collapsed_field_is_a_collapse() -> None:
    """One field with few answered labels is a collapse, although most labels are answered."""
    labels = FieldLabels(
        [
            Field(name="topic", labels=LabelSet(["x", "y", "z"])),
            Field(name="urgency", labels=LabelSet(["low", "high"])),
        ]
    )
    truth = [{"topic": t, "urgency": u} for t, u in zip("xyzx", ["low", "high"] * 2, strict=True)]
    rows = [(labels.answer_of(values), given(labels.answer_of({**values, "topic": "x"}))) for values in truth]
    found = evaluated(labels, rows).composite
    assert isinstance(found, CompositeMetrics)
    assert str(found.answered_labels) == "3 of 5"
    assert found.answered_labels.collapsed
    assert "in one of the fields only 33% of the labels" in found.answered_labels.warning


def test_labels_of_sets_count_one_by_one() -> None:
    """Every label of a set counts, not the set as a whole."""
    labels = MultiLabels(["x", "y", "z"])
    found = evaluated(labels, [('["x", "y"]', given('["x"]')), ('["z"]', given("[]"))]).answered_labels
    assert str(found) == "1 of 3"
    assert found is not None
    assert found.collapsed


def test_no_rows_have_no_count() -> None:
    """Without an answered row there is no count."""
    assert evaluated(LabelSet(["a", "b"]), [("a", FAILED)]).answered_labels is None
