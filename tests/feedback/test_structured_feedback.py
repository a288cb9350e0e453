"""Tests of feedback on labels with a structure, where an answer can be nearly right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from calibrant.core import HierarchicalLabels, LabelSet, OrdinalLabels, Outcome
from calibrant.feedback import build_feedback
from distributions import exact

SCALE = " On the scale from '1 star' to '5 stars' the answer is"
STARS = OrdinalLabels(["1 star", "2 stars", "3 stars", "4 stars", "5 stars"])
MONEY = HierarchicalLabels(["Bills", "Bills/Gas", "Bills/Power", "Food/Out/Bar", "Food/In"])


def feedback(
    labels: LabelSet, got: str | None, expected: str, shares: Sequence[float] | None, **changes: Any
) -> str:
    """Return the feedback on a row whose confidence is the predicted label's probability."""
    distribution = None if shares is None else exact(labels, shares)
    arguments: dict[str, Any] = {
        "is_correct": got == expected,
        "expected": expected,
        "got": got,
        "confidence": None if shares is None or got is None else shares[labels.index(got)],
        "distribution": distribution,
        "outcome": Outcome.OK,
        "labels": labels,
    }
    return build_feedback(**(arguments | changes))


def added(labels: LabelSet, got: str, expected: str, shares: Sequence[float] | None, **changes: Any) -> str:
    """Return the text that a structure adds to the feedback for plain labels."""
    plain = feedback(LabelSet(labels), got, expected, shares, **changes)
    text = feedback(labels, got, expected, shares, **changes)
    assert text.startswith(plain)
    return text.removeprefix(plain)


@pytest.mark.parametrize(
    ("got", "expected", "shares", "says"),
    [
        (
            "5 stars",
            "3 stars",
            [0.1, 0.09, 0.09, 0.1, 0.62],
            f"{SCALE} 2 steps too high, of 4 possible. The probability adds up to 19% below and 72% above '3 stars'.",
        ),
        (
            "2 stars",
            "3 stars",
            [0.001, 0.995, 0.002, 0.001, 0.001],
            f"{SCALE} 1 step too low, of 4 possible. The probability adds up to 99.6% below '3 stars'.",
        ),
        (
            "4 stars",
            "4 stars",
            [0.02, 0.03, 0.05, 0.7, 0.2],
            " The probability adds up to 10% below and 20% above '4 stars'.",
        ),
        ("2 stars", "4 stars", None, f"{SCALE} 2 steps too low, of 4 possible."),
    ],
)
def test_scales_show_distance_and_probability(
    got: str, expected: str, shares: Sequence[float] | None, says: str
) -> None:
    """On a scale the feedback holds the distance and the probability of each side above one percent."""
    assert added(STARS, got, expected, shares) == says


@pytest.mark.parametrize(
    ("got", "expected", "shares", "says"),
    [
        (
            "Bills/Gas",
            "Bills/Power",
            [0.05, 0.6, 0.2, 0.1, 0.05],
            " By level: 'Bills' (85%) is right; below it, expected 'Power', got 'Gas'.",
        ),
        (
            "Food/Out/Bar",
            "Bills/Power",
            [0.0005, 0.0005, 0.001, 0.997, 0.001],
            " By level: the answer is wrong from the first level on, which should be 'Bills' and is 'Food' (99.8%).",
        ),
        (
            "Bills",
            "Bills/Power",
            [0.6, 0.2, 0.1, 0.05, 0.05],
            " By level: 'Bills' (90%) is right, but the answer stops there; 'Power' belongs below it.",
        ),
        (
            "Bills/Power",
            "Bills",
            None,
            " By level: 'Bills' is right and is the whole label; 'Power' does not belong below it.",
        ),
        (
            "Food/Out/Bar",
            "Food/Out/Bar",
            [0.05, 0.05, 0.05, 0.7, 0.15],
            " By level: 85% for 'Food', 70% for 'Food/Out'.",
        ),
        ("Bills", "Bills", [0.6, 0.1, 0.1, 0.1, 0.1], ""),
    ],
)
def test_trees_show_the_right_levels(
    got: str, expected: str, shares: Sequence[float] | None, says: str
) -> None:
    """The text names the expected label at the first wrong level."""
    assert added(MONEY, got, expected, shares) == says


@pytest.mark.parametrize(("labels", "label"), [(STARS, "3 stars"), (MONEY, "Bills/Gas")])
def test_a_sure_right_answer_is_still_one_word(labels: LabelSet, label: str) -> None:
    """A right answer of high or unknown confidence gets only "Correct.", whatever the structure is."""
    shares = np.full(len(labels), 0.001)
    shares[labels.index(label)] = 0.996
    assert feedback(labels, label, label, shares.tolist()) == "Correct."
    assert feedback(labels, label, label, None) == "Correct."


@pytest.mark.parametrize("labels", [STARS, MONEY])
@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.REFUSAL, Outcome.UNPARSED])
def test_without_a_label_there_is_no_distance(labels: LabelSet, outcome: Outcome) -> None:
    """Without a label the structure adds nothing to the feedback."""
    for got in (None, "moo"):
        changes: dict[str, Any] = {"outcome": outcome, "confidence": None}
        text = feedback(labels, got, labels[0], None, **changes)
        assert text == feedback(LabelSet(labels), got, labels[0], None, **changes)


def test_additional_context_stays_last() -> None:
    """The additional context follows the sentence about levels."""
    text = feedback(MONEY, "Bills/Gas", "Food/In", None, additional_context={"note": "x"})
    assert text.endswith("and is 'Bills'.\nnote: x")
