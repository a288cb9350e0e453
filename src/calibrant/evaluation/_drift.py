"""Drift of values against their history: Kolmogorov-Smirnov distance with a permutation test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_PERMUTATIONS = 9_999
_CHUNK = 1 << 18  # elements permuted at once: they stay in the processor's cache


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Distance between new and earlier values, with its p-value.

    Attributes
    ----------
    values, history : int
        Numbers compared: new ones, and those of the history.
    mean, history_mean : float or None
        Their means; None of no values.
    statistic : float or None
        Two-sample Kolmogorov-Smirnov distance in [0, 1]: the largest difference of the two
        distribution functions. None where either side has fewer than two values.
    p_value : float or None
        Share of 9,999 permutations (and the values as they are) at least as far apart; exact up to
        that sampling, however many values are equal. It takes values for independent: use it on
        rows that the history has not seen.
    """

    values: int
    history: int
    mean: float | None
    history_mean: float | None
    statistic: float | None
    p_value: float | None


def measure_drift(
    values: NDArray[np.float64], history: NDArray[np.float64], *, rng: np.random.Generator
) -> Drift:
    """Compare `values` of shape (n,) with `history` of shape (m,): finite, a thousand each at most."""
    n, m = len(values), len(history)
    statistic = p_value = None
    if min(n, m) >= 2:
        pooled = np.concatenate([values, history])
        order = np.argsort(pooled)
        # Distribution functions are compared only behind the last of equal values.
        last = np.flatnonzero(np.append(np.diff(pooled[order]) != 0, True))
        new = order < n
        # Whole numbers, n m times the distance: equal distances stay equal.
        observed = int(_distances(new[np.newaxis], last)[0])
        further = 0
        step = max(1, _CHUNK // (n + m))
        for start in range(0, _PERMUTATIONS, step):
            size = min(step, _PERMUTATIONS - start)
            shuffled = rng.permuted(np.broadcast_to(new, (size, n + m)), axis=1)
            further += int((_distances(shuffled, last) >= observed).sum())
        statistic = observed / (n * m)
        p_value = (further + 1) / (_PERMUTATIONS + 1)
    return Drift(
        values=n,
        history=m,
        mean=float(values.mean()) if n else None,
        history_mean=float(history.mean()) if m else None,
        statistic=statistic,
        p_value=p_value,
    )


def _distances(new: NDArray[np.bool_], last: NDArray[np.intp]) -> NDArray[np.int32]:
    """Return the distance times n times m, for each row of the mask `new` over sorted values.

    With c of the first k values new, the functions differ by c / n - (k - c) / m.
    """
    size = new.shape[1]
    n = int(new[0].sum())
    ours = np.cumsum(new, axis=1, dtype=np.int32)
    if len(last) < size:
        ours = ours[:, last]
    found: NDArray[np.int32] = np.abs(ours * size - ((last + 1) * n).astype(np.int32)).max(axis=1)
    return found
