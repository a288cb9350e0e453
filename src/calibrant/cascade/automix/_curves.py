"""What a method is held against: lines between models, lifts by cost region and by cost ratio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from calibrant.cascade._checks import check_count, check_real
from calibrant.cascade.automix._hull import rising_hull
from calibrant.cascade.automix._ibc import ibc_lift
from calibrant.cascade.automix._meta import MetaVerifier
from calibrant.cascade.automix._pomdp import POMDPMetaVerifier
from calibrant.cascade.automix._routing_checks import Array, check_rows, check_scores
from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import check_values


@dataclass(frozen=True, kw_only=True)
class ReferenceLine:
    """What mixing models blindly achieves: the line a method has to stay above.

    Attributes
    ----------
    cost, performance : ndarray of shape (m,), m >= 1
        Of the models worth using; both ascend strictly.
    models : tuple of int, length m
        Their positions among the models given.
    """

    cost: Array = field(compare=False)
    performance: Array = field(compare=False)
    models: tuple[int, ...]

    def at(self, cost: float) -> float:
        """Return what mixing blindly achieves at a cost per row; beyond the dearest model no more than that.

        Raises
        ------
        ConfigurationError
            Less than the cheapest model costs, or not a number.
        """
        return float(np.interp(self._check(cost), self.cost, self.performance))

    def lift(self, *, cost: float, performance: float) -> float:
        """Return the IBC lift of a method against the two models between whose costs its own lies.

        Beyond the dearest model the last two count.

        Raises
        ------
        ConfigurationError
            As `ibc_lift`, or fewer than two models on the line.
        """
        if len(self.cost) < 2:
            msg = (
                "Only one model is worth using here, so there is no line to lift above. Look at `routing_frontier` "
                "instead: it says what each cost buys whichever model is better or dearer."
            )
            raise ConfigurationError(msg)
        upper = int(np.searchsorted(self.cost, self._check(cost)))
        upper = min(max(upper, 1), len(self.cost) - 1)
        return ibc_lift(
            performance=performance,
            cost=cost,
            small_performance=float(self.performance[upper - 1]),
            small_cost=float(self.cost[upper - 1]),
            large_performance=float(self.performance[upper]),
            large_cost=float(self.cost[upper]),
        )

    def _check(self, cost: float) -> float:
        value = check_real("cost", cost)
        if value < self.cost[0]:
            msg = f"Expected a cost of at least {self.cost[0]:.6g}, the cheapest model's, got {value!r}."
            raise ConfigurationError(msg)
        return value


def reference_line(*, cost: ArrayLike, performance: ArrayLike) -> ReferenceLine:
    """Return the line through the models that are worth using.

    Of three models the medium one is on it if it lies above the straight line between the small and the large
    one; otherwise the line joins these two. The same rule holds for more.

    Parameters
    ----------
    cost, performance : array-like of shape (M,), M >= 1
        Of each model alone, per row; costs at least 0.

    Raises
    ------
    ConfigurationError
        Lengths differ, NaN, or negative costs.

    References
    ----------
    Aggarwal, Madaan et al. (2023). AutoMix: Automatically Mixing Language Models. arXiv:2310.12963, appendix B.2.
    """
    costs, values = check_values("cost", cost), check_values("performance", performance)
    check_rows(cost=costs, performance=values)
    if (costs < 0.0).any():
        msg = f"Expected cost to be at least 0, got {costs.min()}."
        raise ConfigurationError(msg)
    used = rising_hull(costs, values)
    return ReferenceLine(cost=costs[used], performance=values[used], models=tuple(used.tolist()))


@dataclass(frozen=True, kw_only=True)
class RegionLifts:
    """Mean IBC lift in cost regions of equal width between the small and the large model.

    Attributes
    ----------
    edges : tuple of float, length R + 1
        From the small model's cost to the large one's.
    lifts : tuple of float, length R
        Mean lift over the costs of each region, as a ratio.
    mean : float
        Mean over all regions.
    """

    edges: tuple[float, ...]
    lifts: tuple[float, ...]
    mean: float


def region_lifts(  # noqa: PLR0913  (keyword-only numbers of two models)
    cost: ArrayLike,
    performance: ArrayLike,
    *,
    small_performance: float,
    small_cost: float,
    large_performance: float,
    large_cost: float,
    regions: int = 5,
) -> RegionLifts:
    """Return the mean lift of a method's curve in cost regions of equal width.

    The lift at a cost is that of what the method does for it: of a mixture of its two nearest points, the small
    model alone being the first; or, beyond its dearest point, of that point.

    Parameters
    ----------
    cost, performance : array-like of shape (m,), m >= 1
        Points of the method, in any order: a frontier's, or tested ones. Of points of equal cost the mean counts;
        those that cost no more than the small model are left out.
    small_performance, small_cost, large_performance, large_cost : float
        Of either model alone; the large one better and dearer.
    regions : int, default 5
        As in the paper's Table 1.

    Raises
    ------
    ConfigurationError
        As `ibc_lift`, or no point costs more than the small model.

    References
    ----------
    Aggarwal, Madaan et al. (2023). AutoMix: Automatically Mixing Language Models. arXiv:2310.12963, Table 1.
    """
    count = check_count("regions", regions)
    ends = {
        "small_performance": small_performance,
        "small_cost": small_cost,
        "large_performance": large_performance,
        "large_cost": large_cost,
    }
    ibc_lift(performance=large_performance, cost=large_cost, **ends)  # refuses ends without a lift
    base = (large_performance - small_performance) / (large_cost - small_cost)
    extra, gained = _curve(cost, performance, small_cost=small_cost, small_performance=small_performance)
    edges = np.linspace(0.0, large_cost - small_cost, count + 1)
    cuts = np.unique(np.concatenate((edges, extra[extra < edges[-1]])))
    pieces = np.array([_ratio_integral(a, b, extra, gained) for a, b in pairwise(cuts)])
    region = np.minimum(np.searchsorted(edges, cuts[:-1], side="right") - 1, count - 1)
    means = np.bincount(region, weights=pieces, minlength=count) / (edges[1] - edges[0]) / base - 1.0
    return RegionLifts(
        edges=tuple((edges + small_cost).tolist()), lifts=tuple(means.tolist()), mean=float(means.mean())
    )


def _curve(
    cost: ArrayLike, performance: ArrayLike, *, small_cost: float, small_performance: float
) -> tuple[Array, Array]:
    """Return the points by what they cost and gain beyond the small model, which is the first, shape (m + 1,)."""
    costs, values = check_values("cost", cost), check_values("performance", performance)
    check_rows(cost=costs, performance=values)
    dearer = costs > small_cost
    if not dearer.any():
        msg = f"Expected points that cost more than the small model ({small_cost!r}), got {costs.tolist()}."
        raise ConfigurationError(msg)
    extra, group = np.unique(costs[dearer] - small_cost, return_inverse=True)
    gained = np.bincount(group, weights=values[dearer] - small_performance) / np.bincount(group)
    return np.concatenate(([0.0], extra)), np.concatenate(([0.0], gained))


def _ratio_integral(a: float, b: float, extra: Array, gained: Array) -> float:
    """Return the integral of gain per cost from a to b, two costs on one segment of the curve.

    On it the gain is q + s x, so that gain / x = q / x + s; q is 0 on the segment that begins at the small model.
    """
    upper = int(np.searchsorted(extra, a, side="right"))
    if upper == len(extra):
        return float((b - a) * gained[-1] / extra[-1])
    slope = (gained[upper] - gained[upper - 1]) / (extra[upper] - extra[upper - 1])
    rest = gained[upper - 1] - slope * extra[upper - 1]
    return float(slope * (b - a) + (rest * np.log(b / a) if upper > 1 else 0.0))


Scored = tuple[ArrayLike, ArrayLike, ArrayLike]


@dataclass(frozen=True, kw_only=True)
class CostRatioLift:
    """What a meta-verifier achieves when the large model costs `ratio` times the small one.

    Attributes
    ----------
    ratio : float
        Cost of the large model in units of the small one's.
    routed : float
        Share of the test rows that go on to the large model, in [0, 1].
    cost, performance : float
        Per test row; the cost in units of the small model's.
    lift : float or None
        IBC lift on the test rows; None where the large model is not better there.
    """

    ratio: float
    routed: float
    cost: float
    performance: float
    lift: float | None


def cost_ratio_sweep(
    train: Scored,
    test: Scored,
    *,
    ratios: Sequence[float] = (10.0, 25.0, 50.0, 100.0, 200.0),
    verifier_cost: float = 1.0,
    make: Callable[[], MetaVerifier] = POMDPMetaVerifier,
) -> tuple[CostRatioLift, ...]:
    """Return what a meta-verifier achieves on fresh rows, by how much dearer the large model is.

    Parameters
    ----------
    train, test : tuple of three array-likes of shape (n,)
        Verifier's scores of the small model's answers, scores of the small and of the large model, all in [0, 1].
    ratios : sequence of float
        Costs of the large model, each above 1, in units of the small one's.
    verifier_cost : float, default 1.0
        In the same unit.
    make : callable, default POMDPMetaVerifier
        Returns a new meta-verifier for each ratio.

    Raises
    ------
    ConfigurationError
        As `MetaVerifier.fit`, or a ratio that is not above 1.
    """
    names = ("verifier_score", "small_score", "large_score")
    verifier, small, large = (check_scores(name, values) for name, values in zip(names, test, strict=True))
    check_rows(verifier_score=verifier, small_score=small, large_score=large)
    found = []
    for given in ratios:
        ratio = check_real("a ratio", given)
        if ratio <= 1.0:
            msg = f"Expected ratios above 1, got {given!r}: the large model must be the dearer one."
            raise ConfigurationError(msg)
        fitted = make().fit(*train, small_cost=1.0, large_cost=ratio, verifier_cost=verifier_cost)
        routed = fitted.route(verifier)
        cost = 1.0 + verifier_cost + ratio * float(routed.mean())
        performance = float(np.where(routed, large, small).mean())
        defined = large.mean() > small.mean() and cost > 1.0
        lift = None
        if defined:
            lift = ibc_lift(
                performance=performance,
                cost=cost,
                small_performance=float(small.mean()),
                small_cost=1.0,
                large_performance=float(large.mean()),
                large_cost=ratio,
            )
        point = CostRatioLift(
            ratio=ratio, routed=float(routed.mean()), cost=cost, performance=performance, lift=lift
        )
        found.append(point)
    return tuple(found)
