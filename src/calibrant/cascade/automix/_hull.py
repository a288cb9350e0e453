"""The upper concave hull of (cost, performance) points: what no mixture of the other points beats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrant.cascade.automix._routing_checks import Array

# Sums that are added up step by step are off by a few units in the last place of their size.
_ROUNDING = 8 * float(np.finfo(np.float64).eps)


def rising_hull(cost: Array, performance: Array) -> NDArray[np.intp]:
    """Return the positions of the corners of the upper hull, up to the best point.

    Parameters
    ----------
    cost, performance : ndarray of shape (n,), n >= 1
        Finite. Among equal points the first counts.

    Returns
    -------
    ndarray of shape (m,), 1 <= m <= n
        From the cheapest corner to the best; cost and performance both rise strictly, and the slope falls
        strictly. Points on a segment between two corners are left out.
    """
    order = np.lexsort((-performance, cost))  # stable: the first of equal points stays first
    # Only points better than all cheaper ones can be corners.
    tall, wide = _ROUNDING * np.abs(performance).max(), _ROUNDING * np.abs(cost).max()
    best = np.maximum.accumulate(performance[order])
    order = order[np.concatenate(([True], performance[order][1:] > best[:-1] + tall))]
    x, y = cost[order].tolist(), performance[order].tolist()
    corners: list[int] = []
    for new in range(len(x)):
        while corners and x[new] - x[corners[-1]] <= wide:
            corners.pop()  # better at the same cost
        while len(corners) >= 2:
            a, b = corners[-2], corners[-1]
            run, rise = x[new] - x[a], y[new] - y[a]
            if (y[b] - y[a]) * run - rise * (x[b] - x[a]) > tall * run + wide * rise:
                break
            corners.pop()
        corners.append(new)
    return order[corners]
