"""The whole trade of cost against performance between a small and a large model, exactly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.cascade._checks import check_count, check_real
from calibrant.cascade.automix._corners import ALMOST, Corners
from calibrant.cascade.automix._hull import rising_hull
from calibrant.cascade.automix._policy import RoutingPolicy, SignalBins, bin_numbers
from calibrant.cascade.automix._routing_checks import (
    Array,
    Bools,
    check_costs,
    check_rows,
    check_scores,
    check_verifier_cost,
)
from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import check_values

Action = Literal["small", "large", "verify"]


@dataclass(frozen=True, kw_only=True, repr=False)
class RoutingFrontier(Corners):
    """What each cost buys: the corners of the best trade between two models, and how to get there.

    Between two corners the best is a straight line, reached by randomising between their policies; beyond
    the last one more cost buys nothing.

    Attributes
    ----------
    cost, performance : ndarray of shape (m,), m >= 1
        Expected per row at every break point; both ascend strictly, and the slope falls strictly.
    action : tuple of str, length m
        ``"small"`` (its answer as it is), ``"large"`` (at once) or ``"verify"`` (look at the signal first).
    n_routed : ndarray of int, shape (m,)
        Bins that go on to the large model: the first so many of `order`; 0 unless verified.
    bins : SignalBins
        Of the signal.
    order : ndarray of int, shape (B,)
        Bins in the order in which they are routed.
    weight : ndarray of shape (B,)
        Share of the rows in each bin.
    gain : ndarray of shape (B,)
        Mean of the large model's score minus the small one's in each bin.
    """

    action: tuple[Action, ...]
    n_routed: NDArray[np.intp] = field(compare=False)
    bins: SignalBins
    order: NDArray[np.intp] = field(compare=False)
    weight: Array = field(compare=False)
    gain: Array = field(compare=False)

    def routed(self, point: int) -> Bools:
        """Return which bins go on to the large model at a break point, shape (B,)."""
        routed = np.zeros(len(self.order), dtype=bool)
        routed[self.order[: self.n_routed[point]]] = True
        return routed

    def policy(self, point: int) -> RoutingPolicy:
        """Return the deterministic policy of a break point; negative numbers count from the dearest.

        Raises
        ------
        ConfigurationError
            There is no such point.
        """
        at = self._check_point(point)
        return self._between(at, at, 0.0)

    def at_price(self, price: float) -> RoutingPolicy:
        """Return the policy with the best ``performance - price * cost``; the cheaper one of equals.

        Raises
        ------
        ConfigurationError
            Negative, or not a number.
        """
        worth = check_real("price", price, low=0.0)
        return self.policy(int(np.count_nonzero(self.price > worth)))

    def mixture(self, *, cost: float | None = None, performance: float | None = None) -> RoutingPolicy:
        """Return the best policy for a budget, or the cheapest for a target; randomised between break points.

        Parameters
        ----------
        cost : float, optional
            Most that may be spent per row, on average. Beyond the dearest point nothing more is spent.
        performance : float, optional
            Least mean performance. Exactly one of the two is given.

        Raises
        ------
        ConfigurationError
            Both or neither given; a budget below the cheapest policy, or a target above the best one.
        """
        if (cost is None) == (performance is None):
            msg = "Expected either cost (a budget) or performance (a target): pass exactly one of them."
            raise ConfigurationError(msg)
        if cost is not None:
            return self._reach(self.cost, self._check_cost(cost))
        target = check_real("performance", performance)
        if target * ALMOST > self.performance[-1]:
            msg = (
                f"No policy reaches a performance of {target!r}: the best one has {self.performance[-1]:.6g} at a cost "
                f"of {self.cost[-1]:.6g}. Lower the target, or use a better large model."
            )
            raise ConfigurationError(msg)
        return self._reach(self.performance, target)

    def _reach(self, axis: Array, value: float) -> RoutingPolicy:
        if value <= axis[0] or value >= axis[-1]:
            return self.policy(0 if value <= axis[0] else -1)
        upper = int(np.searchsorted(axis, value))
        share = (value - axis[upper - 1]) / (axis[upper] - axis[upper - 1])
        return self._between(upper - 1, upper, float(share))

    def _between(self, lower: int, upper: int, share: float) -> RoutingPolicy:
        parts = [(lower, 1.0 - share), (upper, share)]
        chance = dict.fromkeys(("small", "large", "verify"), 0.0)
        route = np.zeros(len(self.order))
        for point, part in parts:
            chance[self.action[point]] += part
            if self.action[point] == "verify":
                route += part * self.routed(point)
        if chance["verify"] > 0.0:
            route = np.minimum(route / chance["verify"], 1.0)
        return RoutingPolicy(
            bins=self.bins,
            **chance,
            route=route,
            cost=float(sum(part * self.cost[point] for point, part in parts)),
            performance=float(sum(part * self.performance[point] for point, part in parts)),
        )


def routing_frontier(  # noqa: PLR0913  (keyword-only options)
    signal: ArrayLike,
    small_score: ArrayLike,
    large_score: ArrayLike,
    *,
    small_cost: ArrayLike,
    large_cost: ArrayLike,
    verifier_cost: ArrayLike | None = None,
    k: int | None = None,
    thresholds_only: bool = False,
) -> RoutingFrontier:
    """Return all break points of cost against performance of deciding by `signal` which model answers.

    Every policy is considered: the small model's answer as it is, the large model at once, looking at the signal
    and routing any set of its values to the large model, and all randomised mixtures of these.

    Parameters
    ----------
    signal : array-like of shape (n,), n >= 1
        How sure one is of the small model's answer: a verifier's score, a confidence; higher is surer. Any
        finite numbers; in [0, 1] with `k`.
    small_score, large_score : array-like of shape (n,)
        Performance of either model on the same rows: 0 and 1, or any score in [0, 1].
    small_cost, large_cost, verifier_cost : float or array-like of shape (n,)
        What the small model, the large one and looking at the signal cost, at least 0, in one unit of any kind. A
        routed row pays for all three. By default looking costs as much as a small call, as in AutoMix; 0 is right
        for a signal that comes with the answer, such as its confidence.
    k : int, optional
        Round signals to the k + 1 values 0, 1/k, ..., 1. By default each distinct value is a bin of its own:
        right for shares of k samples, and much too flattering for confidences that never repeat (see Notes).
    thresholds_only : bool, default False
        Only consider policies that route what lies below a threshold.

    Returns
    -------
    RoutingFrontier
        On these rows; what it promises for others is to be measured on others.

    Raises
    ------
    ConfigurationError
        Lengths differ, NaN, scores outside [0, 1], negative costs, or a large model that costs nothing.

    Notes
    -----
    A bin is worth routing at the price w of performance in cost if and only if the mean gain in the bin exceeds
    w times its mean cost, so the optimal sets are the prefixes of the bins sorted by gain per cost: B log B
    steps, no grid. With one row per bin this is hindsight: use `k` or `thresholds_only` there.
    """
    small, large = check_scores("small_score", small_score), check_scores("large_score", large_score)
    values = check_values("signal", signal)
    n = check_rows(signal=values, small_score=small, large_score=large)
    if k is not None:
        k = check_count("k", k)
        values = bin_numbers(values, k, name="signal") / k
    levels, bin_of = np.unique(values, return_inverse=True)
    large_costs = check_costs("large_cost", large_cost, n, positive=True)
    count = np.bincount(bin_of)
    gain = np.bincount(bin_of, weights=large - small).astype(np.float64)  # for the type checker
    dear = np.bincount(bin_of, weights=large_costs).astype(np.float64)
    order = np.arange(len(levels)) if thresholds_only else _by_worth(gain, dear)
    asked = check_costs("small_cost", small_cost, n).mean()
    looked = asked + check_verifier_cost(verifier_cost, small_cost, n).mean()
    base = small.mean()
    # Small as it is, large at once, and looking first with 0, 1, ..., B bins routed.
    cost = np.concatenate(([asked, large_costs.mean(), looked], looked + np.cumsum(dear[order]) / n))
    performance = np.concatenate(([base, large.mean(), base], base + np.cumsum(gain[order]) / n))
    corners = rising_hull(cost, performance)
    first: tuple[Action, ...] = ("small", "large")
    return RoutingFrontier(
        cost=cost[corners],
        performance=performance[corners],
        action=tuple(first[corner] if corner < 2 else "verify" for corner in corners.tolist()),
        n_routed=np.maximum(corners - 2, 0),
        bins=SignalBins(values=levels, k=k),
        order=order,
        weight=count / n,
        gain=gain / count,
    )


def _by_worth(gain: Array, dear: Array) -> NDArray[np.intp]:
    """Return the bins by falling gain per cost; the least sure first among equals."""
    free = dear == 0.0
    worth = gain / np.where(free, 1.0, dear)
    worth[free] = np.where(gain[free] > 0.0, np.inf, -np.inf)
    return np.argsort(-worth, kind="stable")
