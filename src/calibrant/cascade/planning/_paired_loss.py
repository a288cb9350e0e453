"""An exact test that a cascade loses less than epsilon against its large model, from paired rows.

Every row adds +1 where only the large model is right, -1 where only the cascade is, else 0. This is
the non-inferiority problem for paired proportions; what is tested is that the mean is above epsilon.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Floats = NDArray[np.float64]

_KEPT_BACK = 0.01  # share of the allowed error that covers what lies between the points of `_nuisances`
_TAIL = 7.0  # standard deviations beyond which a binomial tail, below 1e-11, counts in full
_DENSE = 400  # counts up to this are summed one by one
_PER_DEVIATION = 8  # blocks of counts per standard deviation above that
_COARSE = 12  # of so many populations one is looked at to find where to begin


def loss_score(worse: ArrayLike, better: ArrayLike, n: int, epsilon: float) -> _Floats:
    """Return the distance of the loss from `epsilon`, in standard errors; the lower, the surer it is below.

    Tango's score statistic for paired proportions (Tango 1998, Statistics in Medicine 17:891-908):
    ``(worse - better - n epsilon) / sqrt(n (2 q + epsilon - epsilon^2))``, where q is the likeliest
    probability of `better` if the loss is epsilon, the positive root of ``2 n q^2 - B q - better
    epsilon (1 - epsilon)`` with ``B = worse (1 + epsilon) + better (1 - epsilon) - 2 n epsilon``.

    Parameters
    ----------
    worse, better : array-like of int
        Rows that only the large model has right, and rows that only the cascade has.
    n : int
        All rows.
    epsilon : float
        Allowed loss, in (0, 1).
    """
    w, b = np.asarray(worse, dtype=np.float64), np.asarray(better, dtype=np.float64)
    slope = w * (1.0 + epsilon) + b * (1.0 - epsilon) - 2.0 * n * epsilon
    q = (slope + np.sqrt(slope**2 + 8.0 * n * b * epsilon * (1.0 - epsilon))) / (4.0 * n)
    spread = np.sqrt(n * (2.0 * np.maximum(q, 0.0) + epsilon - epsilon**2))
    result: _Floats = (w - b - n * epsilon) / spread
    return result


def loss_p_value(worse: int, better: int, n: int, epsilon: float) -> float:
    """Return the exact p-value of the null hypothesis "the loss is at least epsilon".

    The largest probability, over all populations with such a loss, of a score this low. See
    `critical_score` for how it is found.
    """
    score = float(loss_score(worse, better, n, epsilon))
    return min(1.0, _size(score, n, epsilon) / (1.0 - _KEPT_BACK))


@lru_cache(maxsize=256)
def critical_score(n: int, epsilon: float, delta: float) -> float:
    """Return the critical score that rejects a loss of epsilon at level delta.

    The level is exact, not asymptotic: with probability at most delta is the score of n rows so low
    where the loss is epsilon or more, whatever the share of rows on which the models differ (an
    unconditional exact test; Hsueh, Liu and Chen 2001, Biometrics 57:478-483). It depends on the
    number of rows alone, so one value serves every threshold of a sequence.

    A bound that adapts to the variance but not to the distribution, such as a betting martingale,
    needs about 1.7 times as wide a margin at delta = 0.1.
    """
    normal = NormalDist()
    allowed = delta * (1.0 - _KEPT_BACK)
    score = goal = normal.inv_cdf(allowed)
    for every in (_COARSE, 1):
        while (size := _size(score, n, epsilon, every=every)) > allowed:
            score -= max(0.005, normal.inv_cdf(min(size, 0.999)) - goal)
    return score


def _size(score: float, n: int, epsilon: float, *, every: int = 1) -> float:
    """Return the largest probability of a score up to `score` in a population that loses epsilon.

    A population with a larger loss turns into one that loses epsilon by making rows of `worse` equal,
    which only lowers scores; so the maximum is over the probability q of `better` alone.
    """
    from scipy.special import bdtr  # noqa: PLC0415  (heavy)

    better = _counts(n)
    worse = _largest_worse(score, better, n, epsilon)
    rejects = worse >= 0
    worst = 0.0
    for q in _nuisances(n, epsilon)[::every]:
        mean, spread = n * q, np.sqrt(n * q * (1.0 - q))
        first, last = np.searchsorted(better, (mean - _TAIL * spread - 5.0, mean + _TAIL * spread + 25.0))
        own = slice(max(first - 1, 0), min(last + 1, len(better)))
        up_to = bdtr(better[own], n, q)
        left = (n - better[own]).astype(np.int64)
        given = bdtr(np.maximum(worse[own], 0.0), left, min((q + epsilon) / (1.0 - q), 1.0))
        given[~rejects[own]] = 0.0
        # A single count has its own probability of rejecting; a block the mean of its ends.
        wide = np.diff(better[own], prepend=better[own][0]) > 1.0
        given = np.where(wide, (given + np.roll(given, 1)) / 2.0, given)
        worst = max(worst, float(np.diff(up_to, prepend=0.0) @ given) + 1.0 - float(up_to[-1]))
    return worst


def _counts(n: int) -> _Floats:
    """Return the upper ends of blocks of counts, growing in size, n last."""
    dense = np.arange(min(n, _DENSE) + 1.0)
    if n <= _DENSE:
        return dense
    # The square root of a count has the same standard deviation, a half, everywhere.
    roots = np.arange(np.sqrt(_DENSE), np.sqrt(n), 0.5 / _PER_DEVIATION)
    return np.unique(np.concatenate([dense, np.floor(roots**2), [float(n)]]))


def _nuisances(n: int, epsilon: float) -> _Floats:
    """Return a grid of nuisance probabilities of `better`, a tenth of a standard deviation apart at low counts."""
    top = (1.0 - epsilon) / 2.0
    few = (np.arange(0.0, 20.0, 0.1) / 2.0) ** 2 / n  # up to an expected count of 100
    many = 100.0 / n * 1.03 ** np.arange(0.0, max(0.0, np.log(n * top / 100.0) / np.log(1.03)) + 1.0)
    tried = np.concatenate([few, many, top - few / 2.0])
    return np.unique(tried[(tried >= 0.0) & (tried <= top)])


def _largest_worse(score: float, better: _Floats, n: int, epsilon: float) -> _Floats:
    """Return, for each count of `better`, the largest count of `worse` that is rejected; -1 where none is."""
    low, high = np.full(len(better), -1.0), n - better + 1.0
    while (open_ := high - low > 1.0).any():
        middle = np.floor((low + high) / 2.0)
        fits = loss_score(middle, better, n, epsilon) <= score
        low, high = np.where(open_ & fits, middle, low), np.where(open_ & ~fits, middle, high)
    return low
