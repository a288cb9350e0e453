"""Tests of label sets and their errors."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core import ConfigurationError, LabelSet, OpenLabels


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["cat", "dog", "cat"], "'cat' twice: keep one"),
        (["Cat", "dog", "cAT"], "'cAT' and 'Cat', equal up to case"),
        (["cat", "dog", " cat\t"], r"' cat\\t' and 'cat', equal up to case"),
        (["Straße", "STRASSE"], "'STRASSE' and 'Straße', equal"),
        ([], r"at least two labels, got 0: \[\]"),
        (["cat"], r"at least two labels, got 1: \['cat'\]"),
        (["cat", ""], "hold text, got ''"),
        (["cat", " \t"], r"hold text, got ' \\t'"),
        (["cat", 5], r"to be text, got 5 \(int\): quote it"),
        ("cat", r"got the text 'cat': write \['cat', \.\.\.\]"),
        (None, "list of labels, got NoneType: list them"),
        ({"cat", "dog"}, "list of labels, got set: list them, in the same order in every process"),
        ({"cat": "purrs", "dog": "barks"}, "list of labels, got dict: list them"),
    ],
)
def test_wrong_label_sets_are_errors(labels: Any, message: str) -> None:
    """A wrong label set raises an error with the label and the remedy."""
    with pytest.raises(ConfigurationError, match=message):
        LabelSet(labels)


def test_canonical_ignores_case_and_space() -> None:
    """`canonical` returns the task's spelling of a label, or None for an unknown label."""
    labels = LabelSet(["Gas & Oil", "ÉTÉ"])
    assert labels.canonical("  gas & OIL\n") == "Gas & Oil"
    assert labels.canonical("été") == "ÉTÉ"
    assert labels.canonical("e\u0301te\u0301") == "ÉTÉ"  # accents as characters of their own
    assert labels.canonical("Gas  &\u00a0Oil") == "Gas & Oil"
    assert labels.canonical("Gas") is None
    assert labels.canonical("") is None


def test_label_sets_are_sequences() -> None:
    """A label set keeps the order of the task, and holds plain texts."""
    assert repr(LabelSet(np.array(["dog", "cat"])).labels) == "('dog', 'cat')"
    labels = LabelSet(["dog", "cat", "ant"])
    assert list(labels) == ["dog", "cat", "ant"]
    assert labels[1] == "cat"
    assert labels[1:] == ("cat", "ant")
    assert labels.index("ant") == 2
    assert len(labels) == 3
    assert "cat" in labels
    assert "CAT" not in labels  # membership is exact; `canonical` is not


def test_label_sets_are_values() -> None:
    """Equal labels in equal order make equal sets, also as keys and after pickling."""
    labels = LabelSet(["cat", "dog"])
    assert labels == LabelSet(("cat", "dog"))
    assert hash(labels) == hash(LabelSet(("cat", "dog")))
    assert labels != LabelSet(["dog", "cat"])
    assert pickle.loads(pickle.dumps(labels)).canonical("DOG") == "dog"  # noqa: S301 (our own bytes)


def test_of_keeps_label_sets() -> None:
    """A label set is returned unchanged."""
    labels = LabelSet(["cat", "dog"])
    assert LabelSet.of(labels) is labels
    assert LabelSet.of(["cat", "dog"]) == labels


@given(
    st.lists(
        st.text(min_size=1).filter(lambda text: text.strip()),
        min_size=2,
        max_size=8,
        unique_by=lambda text: text.strip().casefold(),
    )
)
def test_labels_are_found_in_any_spelling(names: list[str]) -> None:
    """A label is found in any case and with spaces around, and never mistaken for another."""
    labels = LabelSet(names)
    for name in names:
        assert labels.canonical(name) == name
        assert labels.canonical(f" {name.casefold()}\n") == name


def test_open_sets_grow_with_new_texts() -> None:
    """An open set adds each new text as a label, except blank text, and equals only itself."""
    labels = OpenLabels()
    assert (len(labels), labels.labels) == (0, ())
    assert labels.canonical(" Food ") == "Food"
    assert labels.canonical("food") == "Food"
    assert labels.canonical("  ") is None
    held = {labels}
    assert labels.canonical("Rent") == "Rent"
    assert list(labels) == ["Food", "Rent"]
    assert "Rent" in labels
    assert labels in held
    assert OpenLabels() != OpenLabels()
    assert LabelSet.of(labels) is labels
