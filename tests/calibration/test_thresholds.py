"""Tests of suggested thresholds: the guide's families, and warnings where none fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.calibration import ThresholdSuggestion, suggest_thresholds
from calibrant.core import ConfigurationError


def sample(low: float, high: float, *, n: int = 80, right: float = 0.85) -> ThresholdSuggestion:
    """Return the suggestion for uniform confidences of which the lowest were wrong."""
    confidence = np.linspace(low, high, n)
    return suggest_thresholds(confidence, np.arange(n) >= (1 - right) * n)


@pytest.mark.parametrize(
    ("low", "high", "family", "thresholds"),
    [
        (0.96, 1.0, "very-high", (0.99, 0.90, 0.99)),
        (0.90, 0.99, "moderately-high", (0.95, 0.80, 0.95)),
        (0.50, 0.97, "well-spread", (0.85, 0.60, 0.85)),
    ],
)
def test_the_families_of_the_guide_are_recognised(
    low: float, high: float, family: str, thresholds: tuple[float, float, float]
) -> None:
    """A guide's family is suggested where its thresholds fit the confidences."""
    found = sample(low, high)
    assert (found.high, found.low, found.scoring) == thresholds
    assert (found.family, found.warnings) == (family, ())
    # A median of 0.98 is nearer to 0.99 than to 0.95, but nothing reaches 0.99.
    assert suggest_thresholds([0.98] * 60 + [0.7] * 20, [1] * 60 + [0] * 20).high == 0.95


def test_scoring_that_collapses_to_binary_is_warned_of() -> None:
    """A warning says that nearly all right answers reach the scoring threshold."""
    found = suggest_thresholds([1.0] * 77 + [0.8] * 3, [1] * 78 + [0] * 2)
    assert found.scoring == 0.99
    assert found.full_score == 77 / 78
    assert "of the right answers reach" in found.warnings[0]
    assert sample(0.96, 1.0).full_score < 0.5


def test_a_model_the_guide_would_punish_gets_thresholds_of_its_own() -> None:
    """A model below the guide's families gets thresholds of its own, and a warning."""
    confidence = np.r_[np.linspace(0.2, 0.3, 20), np.linspace(0.35, 0.5, 60)]
    found = suggest_thresholds(confidence, confidence > 0.32)
    assert found.family == "custom"
    assert (found.high, found.low, found.scoring) == (0.42, 0.35, 0.42)
    assert "100% of the right answers are below the lowest of them, 0.85" in found.warnings[0]
    assert found.full_score >= 0.5


def test_few_predictions_are_used_with_their_uncertainty() -> None:
    """For 20 predictions the warnings say that they are few, and the median has an interval."""
    found = sample(0.90, 1.0, n=20)
    assert found.high == 0.95
    assert any("Only 20 predictions" in warning for warning in found.warnings)
    assert any(
        "too few predictions to tell which thresholds fit, high 0." in warning for warning in found.warnings
    )
    assert found.cluster.lower < found.cluster.estimate < found.cluster.upper
    assert found.cluster.level >= 0.95


def test_the_interval_of_the_median_is_the_exact_one_of_ranks() -> None:
    """The interval of the median of 20 values has ranks 6 and 15, at a level of 95.86 %."""
    found = suggest_thresholds(np.arange(20) / 20, np.ones(20))
    assert (found.cluster.lower, found.cluster.upper) == (0.25, 0.7)
    assert found.cluster.level == pytest.approx(0.9586, abs=1e-4)


@pytest.mark.parametrize("value", [1.0, 0.7, 0.3])
def test_a_constant_confidence_is_said_to_say_nothing(value: float) -> None:
    """A constant confidence gets ordered thresholds and a warning that it says nothing."""
    found = suggest_thresholds([value] * 60, [1] * 40 + [0] * 20)
    assert 0 < found.low < found.high <= 1
    assert any("says nothing" in warning for warning in found.warnings)
    assert any("No prediction was wrong" in warning for warning in sample(0.96, 1.0, right=1.0).warnings)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=100))
def test_thresholds_are_ordered_numbers_or_an_error(rows: list[tuple[float, bool]]) -> None:
    """Thresholds are ordered, or fewer than 5 right rows raise ConfigurationError."""
    confidence, correct = zip(*rows, strict=True)
    if sum(correct) < 5:
        with pytest.raises(ConfigurationError, match="at least 5 correct"):
            suggest_thresholds(confidence, correct)
        return
    found = suggest_thresholds(confidence, correct)
    assert 0 < found.low < found.high <= 1
    assert found.scoring == found.high
    assert found.full_score >= 0.1 or np.median(confidence) < 1e-8


@pytest.mark.parametrize(
    ("confidence", "correct", "says"),
    [
        ([0.9] * 60, [0] * 60, "at least 5 correct predictions.*got 0 of 60"),
        ([0.9, float("nan")], [1, 1], "got nan in row 1"),
    ],
)
def test_bad_input_is_refused(confidence: list[float], correct: list[int], says: str) -> None:
    """Rows that are all wrong, and NaN, raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match=says):
        suggest_thresholds(confidence, correct)
