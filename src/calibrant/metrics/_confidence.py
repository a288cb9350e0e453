"""Metrics of a confidence: calibration, proper scores, and ranking (AUROC, risk-coverage curve, selective accuracy).

Language models report exactly 1.0 on most rows, so ties decide the metrics of ranking. Throughout, rows of equal
confidence are taken in random order and the expectation over that order is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import FloatArray, IndexArray, Interval
from calibrant.metrics._validation import (
    ROUNDING,
    as_numbers,
    check_answers,
    check_confidence_correct,
    check_count,
    check_number,
    normal_quantile,
    refuse_rows,
)

# The logarithm of a confident mistake stays finite.
_CLIP = 1e-6
_BINS = 15  # of equal width
_HALVINGS = 60  # of [0, 1]: to the last bit of a float


def expected_calibration_error(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    n_bins: int = 15,
    strategy: Literal["uniform", "quantile"] = "uniform",
) -> float:
    """Return the mean absolute gap between confidence and accuracy over bins, weighted by rows.

    ``sum_b (n_b / n) |mean confidence in b - accuracy in b|`` (Naeini, Cooper and Hauskrecht
    2015; Guo et al. 2017). Bins are closed on the right, the first on both sides. The value
    depends on the bins and is above 0 even for perfect confidence, more so for small n.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        In [0, 1]; up to 1e-6 outside is clipped.
    correct : array-like of 0/1, shape (n,)
        Whether each row is right.
    n_bins : int, at least 1, default 15
        Bins.
    strategy : {"uniform", "quantile"}, default "uniform"
        ``uniform``: bins of equal width over [0, 1]. ``quantile``: bins of about equal count
        (quantiles by linear interpolation); equal confidences always share a bin, so ties leave
        fewer bins.

    Returns
    -------
    float
        In [0, 1], 0 is best.

    Raises
    ------
    ConfigurationError
        No rows, NaN, values out of range, different lengths, or an unknown strategy.

    Examples
    --------
    >>> from calibrant.metrics import expected_calibration_error
    >>> confidence, correct = [0.95, 0.95, 0.55, 0.55], [1, 1, 0, 0]
    >>> round(expected_calibration_error(confidence, correct, n_bins=2), 3)  # all in one bin: |0.75 - 0.5|
    0.25
    >>> round(expected_calibration_error(confidence, correct), 3)  # in two bins: (|0.95 - 1| + |0.55 - 0|) / 2
    0.3
    """
    p, y = check_confidence_correct(confidence, correct)
    edges = _edges(p, check_count("n_bins", n_bins, low=1), strategy)
    gap = np.bincount(bin_places(p, edges), weights=p - y)
    return float(np.abs(gap).sum() / len(p))


def resampled_calibration_errors(
    confidence: FloatArray, correct: FloatArray, samples: Iterable[IndexArray], *, n_bins: int = 15
) -> FloatArray:
    """Return `expected_calibration_error` of samples of rows, over bins of equal width.

    Each row is put into its bin once, and not once for each sample: that takes a tenth of the time.

    Parameters
    ----------
    confidence : ndarray of shape (n,)
        In [0, 1].
    correct : ndarray of 0/1, shape (n,)
        Whether each row is right.
    samples : iterable of ndarray of int
        Places of the rows in each sample, from 0, at least one; a row may be there several times.
    n_bins : int, default 15
        Bins.
    """
    places = bin_places(confidence, _edges(confidence, n_bins, "uniform"))
    gaps = confidence - correct
    errors = []
    for rows in samples:
        gap = np.bincount(places[rows], weights=gaps[rows])
        errors.append(np.abs(gap).sum() / len(rows))
    return np.array(errors)


def chance_calibration_errors(confidence: FloatArray, n_draws: int, rng: np.random.Generator) -> FloatArray:
    """Return `expected_calibration_error` of drawn answers that are right as often as their confidence says.

    It is what chance alone shows of a model that is calibrated: about 0.07 on 200 rows, and 0.03 on 1,000.

    Parameters
    ----------
    confidence : ndarray of shape (n,)
        In [0, 1].
    n_draws : int
        How often answers are drawn.
    rng : Generator
        Draws them.
    """
    places = bin_places(confidence, _edges(confidence, _BINS, "uniform"))
    errors = []
    for _ in range(n_draws):
        right = rng.random(len(confidence)) < confidence
        gap = np.bincount(places, weights=confidence - right)
        errors.append(np.abs(gap).sum() / len(confidence))
    return np.array(errors)


def _edges(p: FloatArray, n_bins: int, strategy: str) -> FloatArray:
    even = np.linspace(0.0, 1.0, n_bins + 1)
    if strategy == "uniform":
        return even
    if strategy == "quantile":
        return np.unique(np.quantile(p, even))
    raise ConfigurationError(f"Expected strategy 'uniform' or 'quantile', got {strategy!r}.")


def bin_places(values: FloatArray, edges: FloatArray) -> IndexArray:
    """Return the place of each value's bin; the upper end of a bin belongs to it, and the lowest edge to the first."""
    found = np.searchsorted(edges, values, side="left") - 1
    places: IndexArray = np.clip(found, 0, max(len(edges) - 2, 0))
    return places


def brier_score(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Return the mean squared gap between confidence and correctness.

    ``mean((p - y)^2)`` (Brier 1950), of the predicted label's confidence alone; for the whole
    distribution see `multiclass_brier_score`.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        In [0, 1]; up to 1e-6 outside is clipped.
    correct : array-like of 0/1, shape (n,)
        Whether each row is right.

    Returns
    -------
    float
        In [0, 1], 0 is best.

    Raises
    ------
    ConfigurationError
        No rows, NaN, values out of range, or different lengths.

    Examples
    --------
    >>> from calibrant.metrics import brier_score
    >>> round(brier_score([0.9, 0.6], [1, 0]), 3)  # (0.1 ** 2 + 0.6 ** 2) / 2
    0.185
    """
    p, y = check_confidence_correct(confidence, correct)
    return float(np.mean((p - y) ** 2))


def log_loss(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Return the mean negative log-likelihood of correctness.

    ``-mean(y log p + (1 - y) log(1 - p))`` with p clipped to [1e-6, 1 - 1e-6]: a mistake at
    confidence 1 costs 13.8 nats, not infinity.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        In [0, 1]; up to 1e-6 outside is clipped.
    correct : array-like of 0/1, shape (n,)
        Whether each row is right.

    Returns
    -------
    float
        In nats, in [1e-6, 13.82], less is better.

    Raises
    ------
    ConfigurationError
        No rows, NaN, values out of range, or different lengths.

    Examples
    --------
    >>> from calibrant.metrics import log_loss
    >>> round(log_loss([0.9, 0.6], [1, 0]), 3)  # -(ln 0.9 + ln 0.4) / 2
    0.511
    >>> round(log_loss([1.0], [0]), 2)
    13.82
    """
    p, y = check_confidence_correct(confidence, correct)
    clipped = np.clip(p, _CLIP, 1.0 - _CLIP)
    likelihood = np.where(y == 1.0, np.log(clipped), np.log1p(-clipped))
    return float(-np.mean(likelihood))


def multiclass_brier_score(probabilities: ArrayLike, answers: ArrayLike) -> float:
    """Return half the mean squared distance between the distributions and the true labels.

    ``mean_i sum_j (p_ij - [j = answer_i])^2 / 2``: Brier (1950) over all labels. Halved, it lies in
    [0, 1], and for two labels it equals `brier_score` of the probability of one of them;
    `calibrant.scoring.BrierScoring` is 1 minus it, and scikit-learn's ``scale_by_half=True`` the same.

    Parameters
    ----------
    probabilities : array-like of shape (n, L), L >= 2
        Rows that sum to 1; up to 1e-6 outside [0, 1] is clipped.
    answers : array-like of int, shape (n,)
        Position of the true label of each row, in [0, L).

    Returns
    -------
    float
        In [0, 1], 0 is best.

    Raises
    ------
    ConfigurationError
        No rows, NaN, rows that do not sum to 1 within 1e-6 L, other shapes, or a position out of range.

    Examples
    --------
    >>> from calibrant.metrics import multiclass_brier_score
    >>> round(multiclass_brier_score([[0.7, 0.2, 0.1]], [0]), 3)  # (0.3 ** 2 + 0.2 ** 2 + 0.1 ** 2) / 2
    0.07
    >>> multiclass_brier_score([[0.0, 1.0]], [0])
    1.0
    """
    p, truth = _check_distributions(probabilities, answers)
    gap = p.copy()
    gap[np.arange(len(p)), truth] -= 1.0
    return float(0.5 * (gap**2).sum(axis=1).mean())


def multiclass_log_loss(probabilities: ArrayLike, answers: ArrayLike) -> float:
    """Return the mean negative logarithm of the true label's probability.

    ``mean_i -log(p_i,answer)``, the probability clipped to [1e-6, 1 - 1e-6]: one confident mistake
    costs 13.8 nats, not infinity.

    Parameters
    ----------
    probabilities, answers
        As in `multiclass_brier_score`.

    Returns
    -------
    float
        In nats, in [1e-6, 13.82], less is better.

    Raises
    ------
    ConfigurationError
        As `multiclass_brier_score`.

    Examples
    --------
    >>> from calibrant.metrics import multiclass_log_loss
    >>> round(multiclass_log_loss([[0.5, 0.5], [0.9, 0.1]], [0, 0]), 4)  # (0.6931 + 0.1054) / 2
    0.3993
    """
    p, truth = _check_distributions(probabilities, answers)
    of_truth = p[np.arange(len(p)), truth]
    clipped = np.clip(of_truth, _CLIP, 1.0 - _CLIP)
    return float(-np.log(clipped).mean())


def _check_distributions(probabilities: ArrayLike, answers: ArrayLike) -> tuple[FloatArray, IndexArray]:
    """Check distributions and positions of true labels; return both, probabilities in [0, 1]."""
    p = as_numbers("probabilities", probabilities)
    if p.ndim != 2 or p.shape[0] == 0 or p.shape[1] < 2:
        raise ConfigurationError(
            f"Expected probabilities of shape (n, L), n >= 1 and L >= 2, got {p.shape}: one row per text."
        )
    legal = ((p >= -ROUNDING) & (p <= 1.0 + ROUNDING)).all(axis=1)  # False for NaN
    legal &= np.abs(p.sum(axis=1) - 1.0) <= ROUNDING * p.shape[1]
    remedy = "pass probabilities, not logarithms, and leave out rows without them"
    refuse_rows(~legal, p, "probabilities in [0, 1] that sum to 1", remedy)
    return np.clip(p, 0.0, 1.0), check_answers(answers, p)


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
        raise ConfigurationError(
            f"AUROC is undefined: all {len(y)} rows are {side}, and it compares right rows with wrong ones."
        )
    _, group, count = np.unique(p, return_inverse=True, return_counts=True)
    middle_rank = np.cumsum(count) - (count - 1) / 2.0
    rank_sum = (middle_rank[group] * y).sum()
    statistic = rank_sum - right * (right + 1) / 2.0
    return float(statistic / (right * wrong))


def auroc_interval(confidence: ArrayLike, correct: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return `auroc` with its confidence interval.

    The ends are the values of A whose distance from the estimate is z standard errors, the standard error that of A
    itself, as in Wilson's interval of a share (Newcombe 2006, Statistics in Medicine 25:559-573, method 5)::

        var(A) = A (1 - A) / (m n) * (1 + ((m + n) / 2 - 1) * ((1 - A) / (2 - A) + A / (1 + A)))

    with m right and n wrong rows, or the variance that the ranks of these rows show themselves (DeLong, DeLong and
    Clarke-Pearson 1988, Biometrics 44:837-845), if that is larger. So even a perfect ranking of few rows has an
    interval of positive width, and so has one of wrong rows of which some are the surest and others the least sure.

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
    p, y = check_confidence_correct(confidence, correct)
    right = float(y.sum())
    wrong = len(y) - right
    own = _rank_variance(p[y == 1], p[y == 0])

    def is_within(a: float) -> bool:
        weight = (1.0 - a) / (2.0 - a) + a / (1.0 + a)
        spread = 1.0 + ((right + wrong) / 2.0 - 1.0) * weight
        return (estimate - a) ** 2 <= z * z * max(own, a * (1.0 - a) * spread / (right * wrong))

    lower = _end(estimate, 0.0, is_within)
    upper = _end(estimate, 1.0, is_within)
    return Interval(lower=lower, upper=upper, level=level, estimate=estimate)


def _rank_variance(right: FloatArray, wrong: FloatArray) -> float:
    """Return DeLong's variance of the area under the ROC curve; rows that are the only ones of a kind add nothing."""
    variance = 0.0
    for own, other in ((right, wrong), (wrong, right)):
        placed = np.sort(other)
        # Of each row, the share of the others that it outranks; ties count one half.
        below = np.searchsorted(placed, own, side="left")
        not_above = np.searchsorted(placed, own, side="right")
        if len(own) > 1:
            shares = (below + not_above) / (2.0 * len(other))
            variance += float(shares.var(ddof=1)) / len(own)
    return variance


def _end(inside: float, outside: float, is_within: Callable[[float], bool]) -> float:
    """Return the value between `inside` and `outside` where `is_within` turns false, by bisection."""
    if inside == outside:
        return inside
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2.0
        if is_within(middle):
            inside = middle
        else:
            outside = middle
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
    risks = _errors_among_top(p, y) / np.arange(1, len(p) + 1)
    return float(np.mean(risks))


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
    share = check_number("coverage", coverage, "(0, 1]")
    k = max(1, math.ceil(share * len(p) - 1e-9))
    return float(1.0 - _errors_among_top(p, y)[k - 1] / k)


def _errors_among_top(p: FloatArray, y: FloatArray) -> FloatArray:
    """Return the expected number of errors among the k most confident rows, k = 1..n, shape (n,).

    Within a group of ties the expectation grows linearly.
    """
    _, group, size = np.unique(-p, return_inverse=True, return_counts=True)
    errors = np.bincount(group, weights=1.0 - y)
    rows_before = np.cumsum(size) - size
    errors_before = np.cumsum(errors) - errors
    into_group = np.arange(1, len(p) + 1) - np.repeat(rows_before, size)
    result: FloatArray = np.repeat(errors_before, size) + into_group * np.repeat(errors / size, size)
    return result
