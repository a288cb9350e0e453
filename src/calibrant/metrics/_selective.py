"""Metrics of ranking by confidence: AUROC, risk-coverage curves, accuracy at a coverage.

Language models report exactly 1.0 on most rows, so ties decide these metrics. Throughout, rows of
equal confidence are taken in random order and the expectation over that order is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Interval
from calibrant.metrics._validation import check_confidence_correct, check_number, normal_quantile

_HALVINGS = 60  # of [0, 1]: to the last bit of a float


def auroc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Return the area under the ROC curve: the probability that a right row outranks a wrong one.

    Ties count one half: the Mann-Whitney statistic over the number of pairs (Hanley and McNeil
    1982).

    Parameters
    ----------
    confidence : array-like of shape (n,)
        In [0, 1]; up to 1e-6 outside is clipped.
    correct : array-like of 0/1, shape (n,)
        Whether each row is right; both kinds must occur.

    Returns
    -------
    float
        In [0, 1]; chance gives 0.5, 1 is best.

    Raises
    ------
    ConfigurationError
        All rows right or all wrong (the value is undefined), no rows, NaN, values out of range,
        or different lengths.

    Examples
    --------
    >>> from calibrant.metrics import auroc
    >>> auroc([0.9, 0.8, 0.7, 0.2], [1, 0, 1, 0])  # three of the four pairs are in order
    0.75
    """
    p, y = check_confidence_correct(confidence, correct)
    right = y.sum()
    wrong = len(y) - right
    if right == 0 or wrong == 0:
        side = "right" if wrong == 0 else "wrong"
        msg = f"AUROC is undefined: all {len(y)} rows are {side}, and it compares right rows with wrong ones."
        raise ConfigurationError(msg)
    _, group, count = np.unique(p, return_inverse=True, return_counts=True)
    middle_rank = np.cumsum(count) - (count - 1) / 2.0
    statistic = (middle_rank[group] * y).sum() - right * (right + 1) / 2.0
    return float(statistic / (right * wrong))


def auroc_interval(confidence: ArrayLike, correct: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return `auroc` with its confidence interval.

    The ends are the values of A whose distance from the estimate is z standard errors, the standard error that of A
    itself, as in Wilson's interval of a share (Newcombe 2006, Statistics in Medicine 25:559-573, method 5)::

        var(A) = A (1 - A) / (m n) * (1 + ((m + n) / 2 - 1) * ((1 - A) / (2 - A) + A / (1 + A)))

    with m right and n wrong rows. So even a perfect ranking of few rows has an interval of positive width. Ties make
    the estimate vary less than this formula assumes: the interval is then conservative.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        In [0, 1]; up to 1e-6 outside is clipped.
    correct : array-like of 0/1, shape (n,)
        Whether each row is right; both kinds must occur.
    level : float in (0, 1), default 0.95
        Confidence level.

    Returns
    -------
    Interval
        Ends in [0, 1]; the estimate is `auroc`.

    Raises
    ------
    ConfigurationError
        As `auroc`, or the level is not in (0, 1).

    Examples
    --------
    >>> interval = auroc_interval([0.9, 0.8, 0.7, 0.2], [1, 1, 1, 0])
    >>> interval.estimate, round(interval.lower, 2), interval.upper
    (1.0, 0.32, 1.0)
    """
    z = normal_quantile(level)
    estimate = auroc(confidence, correct)
    right = float(np.sum(correct))
    wrong = float(np.size(correct)) - right

    def is_within(a: float) -> bool:
        spread = 1.0 + ((right + wrong) / 2.0 - 1.0) * ((1.0 - a) / (2.0 - a) + a / (1.0 + a))
        return (estimate - a) ** 2 <= z * z * a * (1.0 - a) * spread / (right * wrong)

    lower, upper = _end(estimate, 0.0, is_within), _end(estimate, 1.0, is_within)
    return Interval(lower=lower, upper=upper, level=level, estimate=estimate)


def _end(inside: float, outside: float, is_within: Callable[[float], bool]) -> float:
    """Return the value between `inside` and `outside` where `is_within` turns false, by bisection."""
    if inside == outside:
        return inside
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2.0
        inside, outside = (middle, outside) if is_within(middle) else (inside, middle)
    return inside


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Return the area under the risk-coverage curve.

    The mean, over k = 1..n, of the share of errors among the k most confident rows (El-Yaniv and
    Wiener 2010; Geifman, Uziel and El-Yaniv 2019), in expectation over the order of ties.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        In [0, 1]; up to 1e-6 outside is clipped.
    correct : array-like of 0/1, shape (n,)
        Whether each row is right.

    Returns
    -------
    float
        In [0, 1], 0 is best. A constant confidence gives the error rate.

    Raises
    ------
    ConfigurationError
        No rows, NaN, values out of range, or different lengths.

    Examples
    --------
    >>> from calibrant.metrics import aurc
    >>> round(aurc([0.9, 0.8, 0.7, 0.2], [1, 1, 1, 0]), 4)  # the only error comes last: (0 + 0 + 0 + 1/4) / 4
    0.0625
    >>> round(aurc([0.9, 0.8, 0.7, 0.2], [0, 1, 1, 1]), 4)  # it comes first: (1 + 1/2 + 1/3 + 1/4) / 4
    0.5208
    """
    p, y = check_confidence_correct(confidence, correct)
    return float(np.mean(_errors_among_top(p, y) / np.arange(1, len(p) + 1)))


def excess_aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Return the area under the risk-coverage curve minus that of a perfect ranking.

    `aurc` minus the mean over k = 1..n of ``max(0, k - (n - m)) / k``, m the number of errors:
    the part that remains when all right rows come first (Geifman, Uziel and El-Yaniv 2019). Unlike `aurc`
    it compares rankings of classifiers of different accuracy.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        In [0, 1]; up to 1e-6 outside is clipped.
    correct : array-like of 0/1, shape (n,)
        Whether each row is right.

    Returns
    -------
    float
        In [0, 1), 0 is best. All rows right, or all wrong, give 0, too.

    Raises
    ------
    ConfigurationError
        No rows, NaN, values out of range, or different lengths.

    Examples
    --------
    >>> from calibrant.metrics import aurc, excess_aurc
    >>> round(aurc([0.9, 0.8, 0.3], [1, 0, 1]), 4)  # risks 0, 1/2 and 1/3
    0.2778
    >>> round(excess_aurc([0.9, 0.8, 0.3], [1, 0, 1]), 4)  # less 0, 0 and 1/3 of the perfect ranking
    0.1667
    """
    p, y = check_confidence_correct(confidence, correct)
    k = np.arange(1, len(y) + 1)
    perfect = np.mean(np.maximum(0.0, k - y.sum()) / k)
    return max(0.0, aurc(p, y) - float(perfect))


def selective_accuracy(confidence: ArrayLike, correct: ArrayLike, *, coverage: float) -> float:
    """Return the accuracy on the most confident rows, whose share of all rows is `coverage`.

    Keeps k = ceil(coverage * n) rows (a product within 1e-9 above a whole number counts as that
    number), in expectation over the order of ties.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        In [0, 1]; up to 1e-6 outside is clipped.
    correct : array-like of 0/1, shape (n,)
        Whether each row is right.
    coverage : float in (0, 1]
        Share of rows to keep.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ConfigurationError
        Coverage outside (0, 1], no rows, NaN, values out of range, or different lengths.

    Examples
    --------
    >>> from calibrant.metrics import selective_accuracy
    >>> confidence, correct = [0.9, 0.8, 0.7, 0.2], [1, 1, 1, 0]
    >>> [selective_accuracy(confidence, correct, coverage=coverage) for coverage in (0.75, 1.0)]
    [1.0, 0.75]
    """
    p, y = check_confidence_correct(confidence, correct)
    k = max(1, math.ceil(check_number("coverage", coverage, "(0, 1]") * len(p) - 1e-9))
    return float(1.0 - _errors_among_top(p, y)[k - 1] / k)


def _errors_among_top(p: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the expected number of errors among the k most confident rows, k = 1..n, shape (n,).

    Within a group of ties the expectation grows linearly.
    """
    _, group, size = np.unique(-p, return_inverse=True, return_counts=True)
    errors = np.bincount(group, weights=1.0 - y)
    rows_before = np.cumsum(size) - size
    errors_before = np.cumsum(errors) - errors
    into_group = np.arange(1, len(p) + 1) - np.repeat(rows_before, size)
    result: NDArray[np.float64] = np.repeat(errors_before, size) + into_group * np.repeat(errors / size, size)
    return result
