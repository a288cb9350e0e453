"""Proper scores of whole distributions over the labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError

# Probabilities computed as exp of a sum may leave [0, 1], and their sum 1, by this much.
_ROUNDING = 1e-6
_CLIP = 1e-6


def multiclass_brier_score(probabilities: ArrayLike, answers: ArrayLike) -> float:
    """Return the mean squared distance of the distributions to the answers, halved.

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
    p, truth = _check(probabilities, answers)
    gap = p.copy()
    gap[np.arange(len(p)), truth] -= 1.0
    return float(0.5 * (gap**2).sum(axis=1).mean())


def multiclass_log_loss(probabilities: ArrayLike, answers: ArrayLike) -> float:
    """Return the mean negative logarithm of the probability of the answer.

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
    p, truth = _check(probabilities, answers)
    return float(-np.log(np.clip(p[np.arange(len(p)), truth], _CLIP, 1.0 - _CLIP)).mean())


def _check(probabilities: ArrayLike, answers: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return probabilities clipped to [0, 1] and positions, or raise ConfigurationError."""
    try:
        p = np.asarray(probabilities, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"Expected probabilities to hold numbers, in rows of one length: {error}."
        ) from error
    if p.ndim != 2 or p.shape[0] == 0 or p.shape[1] < 2:
        raise ConfigurationError(
            f"Expected probabilities of shape (n, L), n >= 1 and L >= 2, got {p.shape}: one row per text."
        )
    legal = ((p >= -_ROUNDING) & (p <= 1.0 + _ROUNDING)).all(axis=1)  # False for NaN
    legal &= np.abs(p.sum(axis=1) - 1.0) <= _ROUNDING * p.shape[1]
    if not legal.all():
        row = int(np.argmin(legal))
        raise ConfigurationError(
            f"Expected probabilities in [0, 1] that sum to 1, got {p[row].tolist()} in row {row}: "
            "pass probabilities, not logarithms, and leave out rows without them."
        )
    truth = np.asarray(answers)
    if truth.shape != (len(p),) or truth.dtype.kind not in "iu":
        raise ConfigurationError(
            f"Expected answers as {len(p)} positions of labels, got {truth.dtype} of shape {truth.shape}."
        )
    if not ((truth >= 0) & (truth < p.shape[1])).all():
        raise ConfigurationError(
            f"Expected answers in [0, {p.shape[1]}), got {truth.min()} to {truth.max()}: look each up in the label set."
        )
    return np.clip(p, 0.0, 1.0), truth.astype(np.intp)
