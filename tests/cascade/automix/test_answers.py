"""Free-form answers: one spelling, and the words they share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.cascade.automix._answers import normalised_answer, token_f1
from calibrant.core import ConfigurationError


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("  a   man, AN apple ", "man apple"),
        ("theatre", "theatre"),
        ("«Köln»", "köln"),
        ("the", ""),
    ],
)
def test_spelling_is_made_one(answer: str, plain: str) -> None:
    """Case, punctuation, articles and spaces do not matter; parts of words do."""
    assert normalised_answer(answer) == plain


@pytest.mark.parametrize(
    ("prediction", "reference", "f1"),
    [
        ("The cat sat.", "cat sat", 1.0),
        ("a black cat", "cat", 2 / 3),
        ("yes yes no", "yes no no", 2 / 3),
        ("dog", "cat", 0.0),
        ("", "the", 1.0),
        ("", "cat", 0.0),
    ],
)
def test_f1_counts_shared_words(prediction: str, reference: str, f1: float) -> None:
    """By hand, repeated and empty answers included."""
    assert token_f1(prediction, reference) == pytest.approx(f1)


@given(one=st.text(max_size=30), other=st.text(max_size=30))
def test_f1_is_symmetric_and_one_for_equals(one: str, other: str) -> None:
    """Whatever the text holds."""
    assert token_f1(one, other) == token_f1(other, one)
    assert 0.0 <= token_f1(one, other) <= 1.0
    assert token_f1(one, one) == 1.0


def test_what_is_no_text_is_refused() -> None:
    """None is no empty answer."""
    nothing: Any = None
    with pytest.raises(ConfigurationError, match="text"):
        token_f1(nothing, "cat")
