"""Tests of properties of the scoring strategies."""

# ruff: noqa: FBT003 - is_correct is positional in the protocol

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.core import LabelDistribution
from calibrant.scoring import BrierScoring, LinearBlendScoring, LogScoring, SigmoidScoring, ThresholdScoring
from distributions import exact

# Lazy imports and a busy machine make single examples slow.
unhurried = settings(deadline=None)

unit_open = st.floats(1e-9, 1.0, exclude_max=True)
logprobs = st.one_of(st.floats(-60.0, 0.0), st.floats(-1e6, 0.0), st.just(-math.inf), unit_open.map(math.log))
scorers = st.one_of(
    st.builds(LinearBlendScoring, st.floats(1e-9, 1.0), st.floats(0.0, 1.0, exclude_max=True)),
    st.builds(ThresholdScoring, st.floats(1e-9, 1.0)),
    st.builds(SigmoidScoring, unit_open, st.floats(1e-6, 1e300)),
)
proper = st.one_of(st.just(BrierScoring()), st.builds(LogScoring, st.floats(1e-12, 0.5)))


@st.composite
def simplex(draw: st.DrawFn, size: int | None = None) -> NDArray[np.float64]:
    """Draw a distribution over `size` labels, zeros included."""
    n = size or draw(st.integers(2, 6))
    weights = np.array(draw(st.lists(st.floats(0.0, 1.0), min_size=n, max_size=n))) ** 3
    if weights.sum() == 0.0:
        weights[draw(st.integers(0, n - 1))] = 1.0
    return np.asarray(weights / weights.sum())


def as_distribution(probabilities: NDArray[np.float64]) -> LabelDistribution:
    """Return an exact, fully measured distribution."""
    return exact([f"label {i}" for i in range(len(probabilities))], probabilities)


@unhurried
@given(scorers, st.booleans(), st.one_of(st.none(), logprobs))
def test_scores_stay_in_the_unit_interval(
    scorer: LinearBlendScoring, is_correct: bool, logprob: float | None
) -> None:
    """Scores stay in [0, 1] for all parameters."""
    score = scorer.score(is_correct, logprob)
    assert type(score) is float
    assert 0.0 <= score <= 1.0


@unhurried
@given(scorers, logprobs, logprobs)
def test_more_confidence_never_scores_less(scorer: LinearBlendScoring, one: float, other: float) -> None:
    """A correct answer's score never falls with its log-probability."""
    low, high = sorted((one, other))
    assert scorer.score(True, low) <= scorer.score(True, high) + 1e-15


@unhurried
@given(proper, simplex(), st.data())
def test_proper_scores_stay_in_the_unit_interval(
    scorer: BrierScoring, probabilities: NDArray[np.float64], data: st.DataObject
) -> None:
    """Proper scores stay in [0, 1] for every answer."""
    index = data.draw(st.integers(0, len(probabilities) - 1))
    score = scorer.score(False, None, distribution=as_distribution(probabilities), answer=f"label {index}")
    assert 0.0 <= score <= 1.0


@unhurried
@given(proper, simplex(3), simplex(3))
def test_no_report_beats_the_true_distribution(
    scorer: BrierScoring, truth: NDArray[np.float64], report: NDArray[np.float64]
) -> None:
    """The expected score is highest for the true distribution, up to the log score's cut-off."""
    slack = 1e-12
    if isinstance(scorer, LogScoring):
        slack += 3 * scorer.min_probability / abs(math.log(scorer.min_probability))
    assert expected_score(scorer, truth, report) <= expected_score(scorer, truth, truth) + slack


def expected_score(scorer: BrierScoring, truth: NDArray[np.float64], report: NDArray[np.float64]) -> float:
    """Return the mean score of a report when the label is drawn from `truth`."""
    told = as_distribution(report)
    scores = [scorer.score(True, None, distribution=told, answer=label) for label in told.labels]
    return float(truth @ np.array(scores))
