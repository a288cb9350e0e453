"""Thresholds for scores and feedback, from a sample of predictions."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log, log10
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Interval
from calibrant.metrics._validation import check_confidence_correct

ThresholdFamily: TypeAlias = Literal["very-high", "moderately-high", "well-spread", "custom"]

# The guide's families: high, low.
_FAMILIES: Final[tuple[tuple[ThresholdFamily, float, float], ...]] = (
    ("very-high", 0.99, 0.90),
    ("moderately-high", 0.95, 0.80),
    ("well-spread", 0.85, 0.60),
)
_ENOUGH: Final = 50
_FEWEST_CORRECT: Final = 5
_BINARY: Final = 0.95  # share of correct answers from which on hardly any is told from another
_PUNISHING: Final = 0.10  # share of correct answers below which hardly any earns full score
_LEAST: Final = 1e-9  # confidences below count as 0


@dataclass(frozen=True, kw_only=True)
class ThresholdSuggestion:
    """Suggested confidence thresholds for a model, with warnings about their reliability.

    Attributes
    ----------
    high : float
        From here on an answer counts as certain, in (0, 1].
    low : float
        Below, an answer counts as uncertain; in (0, `high`).
    scoring : float
        From here on a correct answer earns full score: ``LinearBlendScoring(scoring)``.
    family : {"very-high", "moderately-high", "well-spread", "custom"}
        The kind of model: 0.99/0.90, 0.95/0.80, 0.85/0.60, or thresholds taken from the sample.
    warnings : tuple of str
        Reasons not to trust the thresholds, in sentences; empty without any.
    n, n_correct : int
        Predictions, and how many of them were right.
    cluster : Interval
        Median confidence of the correct predictions, with an interval from order statistics, of at least
        95 % where there are six or more (its `level` is exact).
    full_score : float
        Share of the correct predictions with a confidence of at least `scoring`.

    Examples
    --------
    >>> from calibrant.calibration import suggest_thresholds
    >>> suggest_thresholds([0.99] * 30 + [0.6] * 10, [1] * 30 + [0] * 10).n_correct
    30
    """

    high: float
    low: float
    scoring: float
    family: ThresholdFamily
    warnings: tuple[str, ...]
    n: int
    n_correct: int
    cluster: Interval
    full_score: float


def suggest_thresholds(confidence: ArrayLike, correct: ArrayLike) -> ThresholdSuggestion:
    """Suggest confidence thresholds from a sample of predictions of one model under one prompt.

    The rule: `high` lies where correct predictions cluster (their median), and `low` where
    predictions become unreliable. The family of the guide whose `high` is nearest to the median, on
    the scale of log-odds, gives both; the next lower one where hardly any correct prediction reaches
    it. None fits where the median is below 0.60 or hardly any reaches 0.85; then the median itself
    is `high`, and `low` is the confidence below it that best divides right from wrong (greatest
    difference between the shares kept).

    Parameters
    ----------
    confidence : array-like of shape (n,)
        In [0, 1].
    correct : array-like of shape (n,)
        1 where the prediction was right, else 0; at least five are needed.

    Raises
    ------
    ConfigurationError
        No rows, NaN, lengths that differ, values out of range, or fewer than five correct
        predictions.

    Examples
    --------
    >>> found = suggest_thresholds([0.97] * 40 + [0.93] * 10 + [0.7] * 10, [1] * 50 + [0] * 10)
    >>> found.high, found.low, found.scoring, found.family
    (0.95, 0.8, 0.95, 'moderately-high')
    """
    p, y = check_confidence_correct(confidence, correct)
    right, wrong = np.sort(p[y == 1.0]), p[y == 0.0]
    if len(right) < _FEWEST_CORRECT:
        raise ConfigurationError(
            f"Expected at least {_FEWEST_CORRECT} correct predictions to see where they cluster, got {len(right)} "
            f"of {len(p)}: add labelled rows (50 to 100 in all), or look at the prompt first."
        )
    cluster = _median(right)
    family, high, low = _family(right)
    if family == "custom":
        high = max(_rounded_down(cluster.estimate), _LEAST)
        low = _divide(right, wrong, high)
    full_score = float(np.mean(right >= high))
    return ThresholdSuggestion(
        high=high,
        low=low,
        scoring=high,
        family=family,
        warnings=tuple(_warnings(p, right, wrong, cluster, family=family, scoring=high)),
        n=len(p),
        n_correct=len(right),
        cluster=cluster,
        full_score=full_score,
    )


def _family(right: NDArray[np.float64]) -> tuple[ThresholdFamily, float, float]:
    """Return the usual thresholds that fit the confidence of right answers best, else ``custom``."""
    median = float(np.median(right))
    nearest = _FAMILIES.index(_nearest(median))
    for name, high, low in _FAMILIES[nearest:]:
        if median >= low and np.mean(right >= high) >= _PUNISHING:
            return name, high, low
    return "custom", 0.0, 0.0


def _nearest(median: float) -> tuple[ThresholdFamily, float, float]:
    return min(_FAMILIES, key=lambda family: abs(_log_odds(family[1]) - _log_odds(median)))


def _log_odds(p: float) -> float:
    clipped = min(max(p, _LEAST), 1.0 - _LEAST)
    return log(clipped / (1.0 - clipped))


def _median(values: NDArray[np.float64]) -> Interval:
    """Return the median of sorted values with an exact confidence interval, from their ranks."""
    from scipy.stats import binom  # noqa: PLC0415  (heavy)

    n = len(values)
    # The j-th from either end encloses the median unless fewer than j values lie on one side.
    j = max(1, int(binom.ppf(0.025, n, 0.5)))
    level = 1.0 - 2.0 * float(binom.cdf(j - 1, n, 0.5))
    return Interval(
        lower=float(values[j - 1]), upper=float(values[n - j]), level=level, estimate=float(np.median(values))
    )


def _divide(right: NDArray[np.float64], wrong: NDArray[np.float64], high: float) -> float:
    """Return the confidence below `high` that best separates right from wrong predictions."""
    candidates = np.unique(np.concatenate([right, wrong]))
    candidates = candidates[(candidates > _LEAST) & (candidates < high)]
    if len(candidates) == 0:
        return high * 0.9  # nothing lies below: slightly below, as the guide has it
    if len(wrong) == 0:
        return float(min(candidates[-1], max(candidates[0], np.quantile(right, 0.25))))
    kept_right = (right[:, None] >= candidates).mean(axis=0)
    kept_wrong = (wrong[:, None] >= candidates).mean(axis=0)
    best = float(candidates[int(np.argmax(kept_right - kept_wrong))])
    return max(_rounded_down(best), _LEAST)


def _rounded_down(value: float) -> float:
    """Return `value` rounded down to two significant digits."""
    if value <= _LEAST:
        return value
    digits = 1 - floor(log10(value))
    return min(value, floor(value * 10.0**digits + 1e-9) / 10.0**digits)


def _warnings(
    p: NDArray[np.float64],
    right: NDArray[np.float64],
    wrong: NDArray[np.float64],
    cluster: Interval,
    *,
    family: ThresholdFamily,
    scoring: float,
) -> list[str]:
    said = []
    full = float(np.mean(right >= scoring))
    if full >= _BINARY:
        said.append(
            f"{full:.0%} of the right answers reach {scoring:g} and earn the full score, so confidence decides hardly "
            "anything in a search. Consider a proper score such as BrierScoring."
        )
    least = _FAMILIES[-1][1]
    if family == "custom":
        said.append(
            f"The usual thresholds do not fit this model: {np.mean(right < least):.0%} of the right answers are below "
            f"the lowest of them, {least:g}. These are read off the rows instead."
        )
    if len(p) < _ENOUGH:
        said.append(
            f"Only {len(p)} predictions: the middle confidence of the right ones lies somewhere between "
            f"{cluster.lower:.3g} and {cluster.upper:.3g} ({cluster.level:.0%} interval). Use 50 to 100."
        )
    ends = dict.fromkeys((_nearest(cluster.upper), _nearest(cluster.lower)))
    if family != "custom" and len(ends) > 1:
        pairs = " or ".join(f"high {high:g} with low {low:g}" for _, high, low in ends)
        said.append(f"These are too few predictions to tell which thresholds fit, {pairs}: add some.")
    if len(wrong) == 0:
        said.append("No prediction was wrong: where predictions become unreliable was not seen.")
    if p.min() == p.max():
        said.append(f"Every confidence is {p[0]:g}: it says nothing about which predictions are right.")
    return said
