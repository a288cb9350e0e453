"""Tests of the three strategies that score the predicted label's probability."""

# ruff: noqa: FBT003 - is_correct is positional in the protocol

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest

from calibrant.core import ConfigurationError
from calibrant.scoring import (
    LinearBlendScoring,
    LogScoring,
    ScoringStrategy,
    SigmoidScoring,
    ThresholdScoring,
)

STRATEGIES = [LinearBlendScoring(), LinearBlendScoring(0.99), ThresholdScoring(), SigmoidScoring(0.95, 50)]


@pytest.mark.parametrize(
    ("probability", "expected"), [(0.999, 1.0), (0.99, 1.0), (0.95, 0.972), (0.80, 0.866), (0.50, 0.654)]
)
def test_linear_blend_matches_the_published_table(probability: float, expected: float) -> None:
    """With threshold 0.99 and floor 0.3, `LinearBlendScoring` gives the reference guide's scores."""
    score = LinearBlendScoring(0.99, 0.3).score(True, math.log(probability))
    assert score == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("probability", "expected"), [(0.995, 1.0), (0.99, 1.0), (0.95, 0.0), (0.8, 0.0)])
def test_threshold_matches_the_published_table(probability: float, expected: float) -> None:
    """A correct answer scores 1 from the threshold on, and 0 below it."""
    assert ThresholdScoring(0.99).score(True, math.log(probability)) == expected


@pytest.mark.parametrize(
    ("probability", "expected"), [(0.97, 0.73), (0.95, 0.50), (0.93, 0.27), (0.8, 0.00), (0.995, 0.90)]
)
def test_sigmoid_matches_the_logistic_curve(probability: float, expected: float) -> None:
    """With midpoint 0.95 and steepness 50, 0.995 gives 1 / (1 + exp(-2.25)) = 0.905."""
    score = SigmoidScoring(midpoint=0.95, steepness=50.0).score(True, math.log(probability))
    assert score == pytest.approx(expected, abs=6e-3)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("logprob", [None, 0.0, -0.01, -1e6, -math.inf])
def test_an_incorrect_answer_scores_zero_however_sure(
    strategy: ScoringStrategy, logprob: float | None
) -> None:
    """An incorrect answer scores 0 with any log-probability."""
    assert strategy.score(False, logprob) == 0.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_correct_answer_without_log_probability_scores_one(strategy: ScoringStrategy) -> None:
    """A correct answer without a log-probability scores 1."""
    assert strategy.score(True, None) == 1.0


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [(LinearBlendScoring(), 0.3), (ThresholdScoring(), 0.0), (SigmoidScoring(), 1 / (1 + math.exp(5)))],
)
@pytest.mark.parametrize("logprob", [-800.0, -1e6, -math.inf])
def test_vanishing_probabilities_earn_the_floor(
    strategy: ScoringStrategy, expected: float, logprob: float
) -> None:
    """A correct answer with a log-probability down to -inf gets the strategy's lowest score."""
    assert strategy.score(True, logprob) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("threshold", [0.99, 0.7, 0.1, 1.0, 1e-300])
def test_a_probability_that_equals_the_threshold_reaches_it(threshold: float) -> None:
    """A probability equal to the threshold, up to rounding, reaches it; one 1e-9 lower does not."""
    parts = [math.log(threshold) / 30] * 30
    for logprob in (math.log(threshold), sum(parts), math.log(threshold) - 3e-13):
        assert ThresholdScoring(threshold).score(True, logprob) == 1.0
        assert LinearBlendScoring(threshold).score(True, logprob) == 1.0
    assert ThresholdScoring(threshold).score(True, math.log(threshold) - 1e-9) == 0.0
    assert LinearBlendScoring(threshold).score(True, math.log(threshold) - 1e-9) < 1.0


@pytest.mark.parametrize("steepness", [1e-300, 1e308])
def test_sigmoid_is_stable_for_extreme_steepness(steepness: float) -> None:
    """At any steepness the score at the midpoint is one half, and the others stay in [0, 1]."""
    strategy = SigmoidScoring(0.5, steepness)
    low, middle, high = (strategy.score(True, math.log(p)) for p in (0.1, 0.5, 0.9))
    assert 0.0 <= low <= middle == 0.5 <= high <= 1.0
    if steepness > 1:
        assert (low, high) == (0.0, 1.0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("is_correct", [True, False])
@pytest.mark.parametrize("logprob", [math.nan, 2e-6])
def test_nan_and_positive_log_probabilities_are_errors(
    strategy: LinearBlendScoring, is_correct: bool, logprob: float
) -> None:
    """A log-probability of NaN or above 0 raises ConfigurationError, also for a wrong answer."""
    with pytest.raises(ConfigurationError, match="log-probability"):
        strategy.score(is_correct, logprob)


def test_a_log_probability_barely_above_zero_counts_as_zero() -> None:
    """A log-probability of 1e-6 scores like one of 0."""
    sharp = SigmoidScoring(0.5, 10)
    assert sharp.score(True, 1e-6) == sharp.score(True, 0.0)


@pytest.mark.parametrize(
    ("strategy", "name", "value", "interval"),
    [
        (LinearBlendScoring, "low_confidence_threshold", 0.0, "(0, 1]"),
        (LinearBlendScoring, "min_score_on_correct", 1.0, "[0, 1)"),
        (ThresholdScoring, "threshold", 1.1, "(0, 1]"),
        (SigmoidScoring, "midpoint", 1.0, "(0, 1)"),
        (SigmoidScoring, "steepness", math.inf, "(0, inf)"),
        (LogScoring, "min_probability", 0.0, "(0, 1)"),
    ],
)
def test_parameters_outside_their_range_are_refused(
    strategy: Any, name: str, value: float, interval: str
) -> None:
    """A parameter out of its range raises ConfigurationError with its name, range and value."""
    with pytest.raises(ConfigurationError, match=re.escape(f"Expected {name} in {interval}, got {value}")):
        strategy(**{name: value})


def test_range_ends_that_belong_to_the_range_are_accepted() -> None:
    """A threshold of 1 and a floor of 0 are accepted."""
    assert LinearBlendScoring(1, 0).score(True, math.log(0.25)) == pytest.approx(0.25)
    assert ThresholdScoring(1.0).score(True, 0.0) == 1.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fields_are_the_saved_configuration(strategy: ScoringStrategy) -> None:
    """The fields of a strategy are plain floats, rebuild an equal strategy, and cannot be changed."""
    saved = dataclasses.asdict(strategy)  # type: ignore[call-overload]
    assert type(strategy)(**saved) == strategy
    assert all(type(value) is float for value in saved.values())
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(strategy, next(iter(saved)), 0.4)


def test_numpy_parameters_become_plain_floats() -> None:
    """Numpy parameters become plain floats in the fields and in the repr."""
    assert repr(ThresholdScoring(np.float64(0.9))) == "ThresholdScoring(threshold=0.9)"


def test_defaults_are_the_pinned_ones() -> None:
    """The defaults are 0.5 and 0.3, 0.7, and 0.5 and 10, in the positional order of the parameters."""
    assert LinearBlendScoring() == LinearBlendScoring(0.5, 0.3)
    assert ThresholdScoring() == ThresholdScoring(0.7)
    assert SigmoidScoring() == SigmoidScoring(0.5, 10.0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_descriptions_name_every_parameter_on_one_line(strategy: ScoringStrategy) -> None:
    """`describe` shows every parameter as a float, on one line."""
    text = strategy.describe()
    assert "\n" not in text
    for value in dataclasses.asdict(strategy).values():  # type: ignore[call-overload]
        assert f"{value:g}" in text
    assert LinearBlendScoring(1, 0).describe().endswith("falls linearly to 0.0")


def test_the_protocol_is_checked_at_run_time() -> None:
    """Every strategy and a user's own class satisfy `ScoringStrategy`; a plain object does not."""

    class Own:
        def score(self, is_correct: bool, logprob_score: float | None, **_: object) -> float:
            return float(is_correct and logprob_score is not None)

        def describe(self) -> str:
            return "own"

    assert all(isinstance(strategy, ScoringStrategy) for strategy in (*STRATEGIES, Own()))
    assert not isinstance(object(), ScoringStrategy)
