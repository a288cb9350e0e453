"""Metrics of calibration, and proper scores of a confidence or of a whole distribution."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import (
    ROUNDING,
    as_numbers,
    check_answers,
    check_confidence_correct,
    check_count,
    refuse_rows,
)

# The logarithm of a confident mistake stays finite.
_CLIP = 1e-6


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
    # edges[i] < p <= edges[i + 1] is bin i; the lowest edge belongs to the first bin.
    bins = np.clip(np.searchsorted(edges, p, side="left") - 1, 0, max(len(edges) - 2, 0))
    gap = np.bincount(bins, weights=p - y)
    return float(np.abs(gap).sum() / len(p))


def _edges(p: NDArray[np.float64], n_bins: int, strategy: str) -> NDArray[np.float64]:
    if strategy == "uniform":
        return np.linspace(0.0, 1.0, n_bins + 1)
    if strategy == "quantile":
        return np.unique(np.quantile(p, np.linspace(0.0, 1.0, n_bins + 1)))
    msg = f"Expected strategy 'uniform' or 'quantile', got {strategy!r}."
    raise ConfigurationError(msg)


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
    return float(-np.mean(np.where(y == 1.0, np.log(clipped), np.log1p(-clipped))))


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
    return float(-np.log(np.clip(p[np.arange(len(p)), truth], _CLIP, 1.0 - _CLIP)).mean())


def _check_distributions(
    probabilities: ArrayLike, answers: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
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
