"""Comparison of two classifiers on the same rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Interval
from calibrant.metrics._intervals import wilson_limits
from calibrant.metrics._validation import check_binary, check_same_length, check_values, normal_quantile


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Comparison of two classifiers, or two prompts, on the same rows.

    Attributes
    ----------
    difference : float
        Accuracy of b minus accuracy of a, in [-1, 1]; above 0 where b is better.
    interval : Interval
        Interval of the difference, in the same direction.
    p_value : float
        Exact McNemar test of equal accuracy, two-sided; 1 where a and b never differ.
    n : int
        Rows.
    only_a, only_b : int
        Rows that only a, or only b, has right.
    """

    difference: float
    interval: Interval
    p_value: float
    n: int
    only_a: int
    only_b: int


def paired_comparison(correct_a: ArrayLike, correct_b: ArrayLike, level: float = 0.95) -> PairedComparison:
    """Compare the accuracy of a and b on the same rows; positive differences favour b.

    The interval is Newcombe's square-and-add of two Wilson intervals, with the correlation of
    the pairs (Newcombe 1998, Statistics in Medicine 17:2635-2650, method 10). The test is
    McNemar's, exact: given the rows on which a and b differ, each is as likely to favour either
    (binomial, 1/2). Interval and test are different methods: near the edge one may exclude 0 and
    the other not reject.

    Parameters
    ----------
    correct_a, correct_b : array-like of 0/1, shape (n,)
        Correctness on the same rows, in the same order.
    level : float in (0, 1), default 0.95
        Confidence level of the interval.

    Raises
    ------
    ConfigurationError
        No rows, different lengths, an entry other than 0 and 1, or a level outside (0, 1).

    Examples
    --------
    >>> result = paired_comparison([1, 0, 0, 0, 1, 0], [1, 1, 1, 0, 1, 1])
    >>> result.difference, result.only_a, result.only_b, result.p_value
    (0.5, 0, 3, 0.25)
    """
    a = check_binary("correct_a", correct_a)
    b = check_binary("correct_b", correct_b)
    check_same_length(correct_a=a, correct_b=b)
    z = normal_quantile(level)
    n = len(a)
    both = int(np.sum(a * b))
    only_a, only_b = int(a.sum()) - both, int(b.sum()) - both
    difference = (only_b - only_a) / n
    lower, upper = _newcombe_limits(both, only_b, only_a, n, z=z)
    return PairedComparison(
        difference=difference,
        interval=Interval(lower=lower, upper=upper, level=float(level), estimate=difference),
        p_value=_mcnemar(only_a, only_b),
        n=n,
        only_a=only_a,
        only_b=only_b,
    )


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Return p-values adjusted for multiple tests by Holm's method.

    Holm's step-down procedure (Holm 1979, Scandinavian Journal of Statistics 6:65-70): the i-th
    smallest of m is multiplied by m - i + 1, made no smaller than the one before it and at most 1.
    A test that rejects every adjusted value up to alpha then rejects any true hypothesis with
    probability at most alpha, under any dependence between the tests.

    Parameters
    ----------
    p_values : array-like of shape (m,)
        One p-value per candidate, in [0, 1]; for instance those of `paired_comparison` with the
        same baseline.

    Returns
    -------
    ndarray of shape (m,)
        Adjusted values in the order given, none smaller than before.

    Raises
    ------
    ConfigurationError
        No values, NaN, or a value outside [0, 1].

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    p = check_values("p_values", p_values)
    if p.min() < 0.0 or p.max() > 1.0:
        msg = f"Expected p_values in [0, 1], got {p.min()} to {p.max()}: pass one p-value per candidate."
        raise ConfigurationError(msg)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _newcombe_limits(e: int, f: int, g: int, n: int, *, z: float) -> tuple[float, float]:
    """Return Newcombe's limits for p1 - p2, in the symbols of his paper.

    e rows have both, f only the first, g only the second, h neither; l, u are Wilson's limits.
    """
    h = n - e - f - g
    p1, p2 = (e + f) / n, (e + g) / n
    l1, u1 = wilson_limits(e + f, n, z=z)
    l2, u2 = wilson_limits(e + g, n, z=z)
    phi = _corrected_phi(e, f, g, h)
    below = (p1 - l1) ** 2 - 2.0 * phi * (p1 - l1) * (u2 - p2) + (u2 - p2) ** 2
    above = (u1 - p1) ** 2 - 2.0 * phi * (u1 - p1) * (p2 - l2) + (p2 - l2) ** 2
    theta = p1 - p2
    return (max(-1.0, theta - math.sqrt(max(below, 0.0))), min(1.0, theta + math.sqrt(max(above, 0.0))))


def _corrected_phi(e: int, f: int, g: int, h: int) -> float:
    """Return the correlation of the pairs with continuity correction; 0 if it is undefined."""
    margins = (e + f) * (g + h) * (e + g) * (f + h)
    if margins == 0:
        return 0.0
    numerator = float(e * h - f * g)
    if numerator > 0.0:
        numerator = max(numerator - (e + f + g + h) / 2.0, 0.0)
    return numerator / math.sqrt(margins)


def _mcnemar(only_a: int, only_b: int) -> float:
    discordant = only_a + only_b
    if discordant == 0:
        return 1.0
    from scipy.special import bdtr  # noqa: PLC0415 - `import calibrant` must not load scipy

    return min(1.0, 2.0 * float(bdtr(min(only_a, only_b), discordant, 0.5)))
