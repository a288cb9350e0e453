"""What frontiers have in common: corners of the best trade of cost against performance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from calibrant.cascade._checks import check_real
from calibrant.cascade.automix._routing_checks import Array
from calibrant.core._errors import ConfigurationError

# Means are off by some units in the last place: what is asked for may miss an end by as little.
ALMOST: Final = 1.0 - 1e-9


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
        """Performance per unit of cost that each point but the first must be worth, shape (m - 1,); falls strictly."""
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
        if budget < self.cost[0] * ALMOST:
            msg = f"Nothing can be had for {budget!r} per row: the cheapest policy costs {self.cost[0]:.6g}."
            raise ConfigurationError(msg)
        return budget

    def _check_point(self, point: int) -> int:
        """Return the place of a break point, from 0; negative numbers count from the dearest."""
        if not -len(self) <= point < len(self):
            msg = f"Expected a point in [0, {len(self)}), got {point!r}."
            raise ConfigurationError(msg)
        return point % len(self)
