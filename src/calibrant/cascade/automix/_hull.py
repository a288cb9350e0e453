"""Cost-performance frontiers as upper concave hulls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibrant.cascade._checks import check_real
from calibrant.cascade.automix._routing_checks import Array
from calibrant.core._errors import ConfigurationError

# Means are off by some units in the last place: a budget may miss an end by as little.
_ALMOST: Final = 1.0 - 1e-9
# Sums that are added up step by step are off by a few units in the last place of their size.
_ROUNDING: Final = 8 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, kw_only=True, repr=False)
class Corners:
    """The break points of a frontier.

    Between two corners the best is a straight line, reached by randomising between their policies; beyond
    the last one more cost buys nothing.

    Attributes
    ----------
    cost, performance : ndarray of shape (m,), m >= 1
        Expected per row at every break point; both ascend strictly, and the slope falls strictly.
    """

    cost: Array = field(compare=False)
    performance: Array = field(compare=False)

    def __len__(self) -> int:
        return len(self.cost)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} points, cost {self.cost[0]:.6g} to {self.cost[-1]:.6g}, "
            f"performance {self.performance[0]:.6g} to {self.performance[-1]:.6g})"
        )

    @property
    def price(self) -> Array:
        """Slope of each segment, performance per unit of cost, shape (m - 1,); strictly decreasing."""
        return np.diff(self.performance) / np.diff(self.cost)

    def at(self, cost: float) -> float:
        """Return the best performance that costs at most `cost` per row; randomised between break points.

        Raises
        ------
        ConfigurationError
            Less than the cheapest policy costs, or not a number.
        """
        return float(np.interp(self._check_cost(cost), self.cost, self.performance))

    def _check_cost(self, cost: float) -> float:
        budget = check_real("cost", cost)
        if budget < self.cost[0] * _ALMOST:
            raise ConfigurationError(
                f"Expected a cost of at least {self.cost[0]:.6g}, which the cheapest policy takes per row, got "
                f"{budget!r}: raise it."
            )
        return budget

    def _points_around(self, cost: float) -> tuple[int, int, float]:
        """Return the points on either side of a budget, and the share of the upper one."""
        budget = self._check_cost(cost)
        upper = int(np.searchsorted(self.cost, budget))
        if upper in {0, len(self)}:
            end = min(upper, len(self) - 1)
            return end, end, 0.0
        share = (budget - self.cost[upper - 1]) / (self.cost[upper] - self.cost[upper - 1])
        return upper - 1, upper, float(share)

    def _check_point(self, point: int) -> int:
        """Return the position of a break point, from 0; negative numbers count from the dearest."""
        if not -len(self) <= point < len(self):
            raise ConfigurationError(f"Expected a point in [0, {len(self)}), got {point!r}.")
        return point % len(self)


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
