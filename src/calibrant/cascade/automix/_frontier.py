"""Checked rows of a small and a large model, their exact cost-performance frontiers, and benefit per cost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import BoolArray, FloatArray, IndexArray
from calibrant.metrics._validation import (
    check_count,
    check_number,
    check_same_length,
    check_shares,
    check_values,
)

Action = Literal["small", "large", "verify"]
# Means are off by some units in the last place: a budget may miss an end by as little.
_ALMOST: Final = 1.0 - 1e-9
# Sums that are added up step by step are off by a few units in the last place of their size.
_ROUNDING: Final = 8 * float(np.finfo(np.float64).eps)
_FRONTIER = (
    "Look at `routing_frontier` instead: it says what each cost buys whichever model is better or dearer."
)


def check_scores(name: str, values: ArrayLike) -> FloatArray:
    """Return `values` clipped to [0, 1], shape (n,), n >= 1; up to 1e-6 outside counts as rounding.

    Raises
    ------
    ConfigurationError
        As `calibrant.metrics.check_values`, or out of range.
    """
    remedy = "divide percentages by 100, and bring other units to [0, 1] first"
    return check_shares(name, values, remedy=remedy)


def bin_numbers(scores: ArrayLike, k: int, *, name: str = "verifier_score") -> IndexArray:
    """Return the nearest of the k + 1 values 0, 1/k, ..., 1 for each score, as 0 to k, shape (n,).

    A score half-way between two values counts as the upper one.

    Raises
    ------
    ConfigurationError
        Scores outside [0, 1], NaN, or not of shape (n,).
    """
    steps = check_scores(name, scores) * k
    # Rounding is needed even for exact shares: 0.29 * 100 is 28.999999999999996.
    return np.floor(steps + 0.5).astype(np.intp)


def check_costs(name: str, cost: ArrayLike, n: int, *, positive: bool = False) -> FloatArray:
    """Return the costs of `n` rows, shape (n,), given one number for all rows or one per row.

    Parameters
    ----------
    name : str
        The argument as the caller knows it, for the message.
    cost : float or array-like of shape (n,)
        At least 0, in any unit, the same for all costs.
    n : int
        Number of rows.
    positive : bool, default False
        Whether the rows must cost something on average.

    Raises
    ------
    ConfigurationError
        Another length, negative, NaN, infinite, or nothing but zeros with `positive`.
    """
    costs = np.asarray(cost)
    array = check_values(name, costs.reshape(1) if costs.ndim == 0 else costs)
    if costs.ndim and len(array) != n:
        raise ConfigurationError(
            f"Expected {name} to be one number or one for each of the {n} rows, got {len(array)} numbers."
        )
    if (array < 0.0).any():
        raise ConfigurationError(f"Expected {name} to be at least 0, got {array.min()}.")
    if positive and not array.any():
        raise ConfigurationError(
            f"Expected {name} above 0, got nothing but 0: a model that costs nothing needs no routing. Give its "
            "price, its time per row, or 1 for equal costs."
        )
    # A view: one price for a million rows takes no memory.
    return np.broadcast_to(array, (n,))


@dataclass(frozen=True, kw_only=True)
class PairedRows:
    """Checked scores and costs of rows that both models answered.

    Attributes
    ----------
    signal : ndarray of shape (n,)
        Confidence in the small model's answers.
    small, large : ndarray of shape (n,)
        Scores of either model, in [0, 1].
    small_cost, large_cost, verifier_cost : ndarray of shape (N,)
        At least 0, of the N rows that these were taken from.
    """

    signal: FloatArray
    small: FloatArray
    large: FloatArray
    small_cost: FloatArray
    large_cost: FloatArray
    verifier_cost: FloatArray

    @classmethod
    def of(
        cls,
        signal: FloatArray,
        small_score: ArrayLike,
        large_score: ArrayLike,
        costs: tuple[ArrayLike, ArrayLike, ArrayLike | None],
        *,
        name: str = "signal",
    ) -> Self:
        """Check the columns, one value per row; `name` is the signal's name in messages.

        Costs are those of the small model, the large one and a look at the signal; without the last, a look costs one
        call of the small model.
        """
        small_cost, large_cost, verifier_cost = costs
        if verifier_cost is None:
            verifier_cost = small_cost
        small = check_scores("small_score", small_score)
        large = check_scores("large_score", large_score)
        n = len(signal)
        check_same_length(**{name: signal}, small_score=small, large_score=large)
        return cls(
            signal=signal,
            small=small,
            large=large,
            small_cost=check_costs("small_cost", small_cost, n),
            large_cost=check_costs("large_cost", large_cost, n, positive=True),
            verifier_cost=check_costs("verifier_cost", verifier_cost, n),
        )

    @property
    def gain(self) -> FloatArray:
        """Score of the large model minus score of the small model, shape (n,)."""
        return self.large - self.small

    def take(self, rows: BoolArray) -> Self:
        """Return a subset of rows, with the mean costs of all rows."""
        return replace(self, signal=self.signal[rows], small=self.small[rows], large=self.large[rows])


@dataclass(frozen=True, kw_only=True, repr=False)
class Corners:
    """Break points of a cost-performance frontier.

    Between two corners the best is a straight line, reached by randomising between their policies; beyond
    the last one more cost buys nothing.

    Attributes
    ----------
    cost, performance : ndarray of shape (m,), m >= 1
        Expected per row at every break point; both ascend strictly, and the slope falls strictly.
    """

    cost: FloatArray = field(compare=False)
    performance: FloatArray = field(compare=False)

    def __len__(self) -> int:
        return len(self.cost)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} points, cost {self.cost[0]:.6g} to {self.cost[-1]:.6g}, "
            f"performance {self.performance[0]:.6g} to {self.performance[-1]:.6g})"
        )

    @property
    def price(self) -> FloatArray:
        """Slope of each segment, performance per unit of cost, shape (m - 1,); strictly decreasing."""
        return np.diff(self.performance) / np.diff(self.cost)

    def at(self, cost: float) -> float:
        """Return the best mean performance for a mean cost of at most `cost` per row, policies mixed.

        Raises
        ------
        ConfigurationError
            Less than the cheapest policy costs, or not a number.
        """
        return float(np.interp(self._check_cost(cost), self.cost, self.performance))

    def _check_cost(self, cost: float) -> float:
        budget = check_number("cost", cost, "(-inf, inf)")
        if budget < self.cost[0] * _ALMOST:
            raise ConfigurationError(
                f"Expected a cost of at least {self.cost[0]:.6g}, which the cheapest policy takes per row, got "
                f"{budget!r}: raise it."
            )
        return budget

    def _points_around(self, cost: float) -> tuple[int, int, float]:
        """Return the break points below and above a budget, and the share of the upper one."""
        budget = self._check_cost(cost)
        upper = int(np.searchsorted(self.cost, budget))
        if upper in {0, len(self)}:
            end = min(upper, len(self) - 1)
            return end, end, 0.0
        low = self.cost[upper - 1]
        share = (budget - low) / (self.cost[upper] - low)
        return upper - 1, upper, float(share)

    def _check_point(self, point: int) -> int:
        """Return the position of a break point, from 0; negative numbers count from the most expensive."""
        if not -len(self) <= point < len(self):
            raise ConfigurationError(f"Expected a point in [0, {len(self)}), got {point!r}.")
        return point % len(self)


def rising_hull(cost: FloatArray, performance: FloatArray) -> IndexArray:
    """Return the positions of the corners of the upper convex hull, up to the best performance.

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
    tall = _ROUNDING * np.abs(performance).max()
    wide = _ROUNDING * np.abs(cost).max()
    ascending = performance[order]
    best = np.maximum.accumulate(ascending)
    is_better = np.concatenate(([True], ascending[1:] > best[:-1] + tall))
    order = order[is_better]
    x = cost[order].tolist()
    y = performance[order].tolist()
    corners: list[int] = []
    for new in range(len(x)):
        while corners and x[new] - x[corners[-1]] <= wide:
            corners.pop()  # better at the same cost
        while len(corners) >= 2:
            a, b = corners[-2:]
            run = x[new] - x[a]
            rise = y[new] - y[a]
            above = (y[b] - y[a]) * run - rise * (x[b] - x[a])
            if above > tall * run + wide * rise:
                break
            corners.pop()
        corners.append(new)
    return order[corners]


@dataclass(frozen=True, kw_only=True)
class SignalBins:
    """Bins of the values of a routing signal.

    Attributes
    ----------
    values : ndarray of shape (B,)
        Ascending: the distinct values that were seen or, with `k`, those of 0, 1/k, ..., 1 that were.
    k : int or None
        Whether, and to how many steps of [0, 1], signals are rounded first.
    """

    values: FloatArray
    k: int | None = None

    def index(self, signal: ArrayLike) -> IndexArray:
        """Return the bin of each value, shape (n,); values between bins fall into the next lower bin.

        One below all that were seen counts as the lowest. Lower means less sure, so that a threshold between
        two values seen is the upper one.

        Raises
        ------
        ConfigurationError
            NaN or infinite, not of shape (n,) or, with `k`, outside [0, 1].
        """
        if self.k is None:
            values = check_values("signal", signal)
        else:
            values = bin_numbers(signal, self.k, name="signal") / self.k
        return np.maximum(np.searchsorted(self.values, values, side="right") - 1, 0)


@dataclass(frozen=True, kw_only=True)
class RoutingPolicy:
    """Routing policy of two models: always small, always large, or chosen by a signal.

    A policy between two break points is randomised: `small`, `large` and `verify` are the chances of the three
    ways for every row, drawn before anything is asked.

    Attributes
    ----------
    bins : SignalBins
        Of the signal.
    small, large, verify : float
        Chances of the small model's answer as it is, of the large model's at once, and of looking at the signal;
        they sum to 1.
    route : ndarray of shape (B,)
        Chance that a row in the bin goes on to the large model after its signal was seen, in [0, 1].
    cost, performance : float
        Expected per row, on the rows the policy was planned on.
    """

    bins: SignalBins = field(repr=False)
    small: float
    large: float
    verify: float
    route: FloatArray = field(compare=False, repr=False)
    cost: float
    performance: float

    def route_probability(self, signal: ArrayLike) -> FloatArray:
        """Return each row's probability of escalation given its signal, shape (n,)."""
        chances: FloatArray = self.route[self.bins.index(signal)]
        return chances

    def expected(
        self,
        signal: ArrayLike,
        small_score: ArrayLike,
        large_score: ArrayLike,
        *,
        small_cost: ArrayLike,
        large_cost: ArrayLike,
        verifier_cost: ArrayLike | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Return each row's expected cost and performance, both of shape (n,), without sampling.

        Parameters and errors are those of `routing_frontier`; the rows may be others than those of the plan.
        """
        chance = self.route_probability(signal)
        rows = PairedRows.of(chance, small_score, large_score, (small_cost, large_cost, verifier_cost))
        looked = rows.small_cost + rows.verifier_cost + chance * rows.large_cost
        cost = self.small * rows.small_cost + self.large * rows.large_cost + self.verify * looked
        used = self.large + self.verify * chance
        return cost, rows.small + used * rows.gain


@dataclass(frozen=True, kw_only=True, repr=False)
class RoutingFrontier(Corners):
    """Cost-performance frontier of two models: break points and their policies.

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

    Examples
    --------
    >>> from calibrant.cascade import RoutingFrontier, routing_frontier
    >>> frontier = routing_frontier([0.9, 0.2], [1, 0], [1, 1], small_cost=1, large_cost=10)
    >>> isinstance(frontier, RoutingFrontier)
    True
    """

    action: tuple[Action, ...]
    n_routed: IndexArray = field(compare=False)
    bins: SignalBins
    order: IndexArray = field(compare=False)

    def policy(self, point: int) -> RoutingPolicy:
        """Return the policy of a break point; negative numbers count from the most expensive.

        Raises
        ------
        ConfigurationError
            There is no such point.
        """
        at = self._check_point(point)
        return self._mixed_policy(at, at, 0.0)

    def mixture(self, *, cost: float) -> RoutingPolicy:
        """Return the best policy for a budget: a random mixture of two neighbouring break points.

        Parameters
        ----------
        cost : float
            Most that may be spent per row, on average. Beyond the dearest point nothing more is spent.

        Raises
        ------
        ConfigurationError
            Less than the cheapest policy costs, or not a number.
        """
        return self._mixed_policy(*self._points_around(cost))

    def _mixed_policy(self, lower: int, upper: int, share: float) -> RoutingPolicy:
        chance = dict.fromkeys(("small", "large", "verify"), 0.0)
        route = np.zeros(len(self.order))
        cost = performance = 0.0
        for point, part in ((lower, 1.0 - share), (upper, share)):
            cost += part * self.cost[point]
            performance += part * self.performance[point]
            chance[self.action[point]] += part
            if self.action[point] == "verify":
                route[self.order[: self.n_routed[point]]] += part
        if chance["verify"] > 0.0:
            route = np.minimum(route / chance["verify"], 1.0)
        return RoutingPolicy(
            bins=self.bins, **chance, route=route, cost=float(cost), performance=float(performance)
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
    """Return the cost-performance frontier of routing two models by `signal`.

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

    Examples
    --------
    >>> from calibrant.cascade import routing_frontier
    >>> sure, small, large = [0.9, 0.8, 0.4, 0.3], [1, 1, 0, 0], [1, 1, 1, 0]
    >>> costs = {"small_cost": 1, "large_cost": 10, "verifier_cost": 0}
    >>> frontier = routing_frontier(sure, small, large, **costs, thresholds_only=True)
    >>> frontier.cost.tolist(), frontier.performance.tolist()
    ([1.0, 6.0], [0.5, 0.75])
    >>> frontier.mixture(cost=3.5).performance
    0.625
    """
    values = check_values("signal", signal)
    rows = PairedRows.of(values, small_score, large_score, (small_cost, large_cost, verifier_cost))
    # Rows of equal signal cannot be told apart, so that they share a bin.
    n = len(values)
    if k is not None:
        k = check_count("k", k, low=1)
        values = bin_numbers(values, k, name="signal") / k
    levels, bin_of = np.unique(values, return_inverse=True)
    gain = np.bincount(bin_of, weights=rows.gain).astype(np.float64)  # for the type checker
    dear = np.bincount(bin_of, weights=rows.large_cost).astype(np.float64)
    order = np.arange(len(levels))
    if not thresholds_only:  # by falling gain per cost; the least sure first among equals
        worth = np.where(gain > 0.0, np.inf, -np.inf)
        np.divide(gain, dear, out=worth, where=dear > 0.0)
        order = np.argsort(-worth, kind="stable")
    asked = rows.small_cost.mean()
    looked = asked + rows.verifier_cost.mean()
    base = rows.small.mean()
    # Small as it is, large at once, and looking first with 0, 1, ..., B bins routed.
    routed_cost = looked + np.cumsum(dear[order]) / n
    routed_performance = base + np.cumsum(gain[order]) / n
    cost = np.append([asked, rows.large_cost.mean(), looked], routed_cost)
    performance = np.append([base, rows.large.mean(), base], routed_performance)
    corners = rising_hull(cost, performance)
    first: tuple[Action, ...] = ("small", "large")
    return RoutingFrontier(
        cost=cost[corners],
        performance=performance[corners],
        action=tuple(first[corner] if corner < 2 else "verify" for corner in corners.tolist()),
        n_routed=np.maximum(corners - 2, 0),
        bins=SignalBins(values=levels, k=k),
        order=order,
    )


def ibc(*, performance: float, cost: float, small_performance: float, small_cost: float) -> float:
    """Return the performance gained per unit of cost over always using the small model.

    Parameters
    ----------
    performance : float
        Mean performance of the method, in any unit.
    cost : float
        What it costs per row, above `small_cost`.
    small_performance, small_cost : float
        The same of the small model alone.

    Returns
    -------
    float
        ``(performance - small_performance) / (cost - small_cost)``, negative where the method is worse.

    Raises
    ------
    ConfigurationError
        NaN, infinite, a negative cost, or a method that costs no more than the small model: the ratio
        then says nothing about its worth.

    References
    ----------
    Aggarwal, Madaan et al. (2023). AutoMix: Automatically Mixing Language Models. arXiv:2310.12963,
    section 4 (incremental benefit per cost).

    Examples
    --------
    >>> from calibrant.cascade import ibc
    >>> round(ibc(performance=0.8, cost=6.0, small_performance=0.6, small_cost=1.0), 6)
    0.04
    """
    return _benefit(performance, cost, small_performance, small_cost)


def ibc_lift(
    *,
    performance: float,
    cost: float,
    small_performance: float,
    small_cost: float,
    large_performance: float,
    large_cost: float,
) -> float:
    """Return the relative gain in benefit per cost of a method over mixing two models at random.

    Parameters
    ----------
    performance, cost : float
        Of the method, per row.
    small_performance, small_cost : float
        Of always using the small model.
    large_performance, large_cost : float
        Of always using the large one; both larger than the small model's.

    Returns
    -------
    float
        ``(IBC of the method - IBC of the large model) / IBC of the large model``, as a ratio: 0 for a
        method on the line between the two models, 0.5 for half as much again per unit of cost.

    Raises
    ------
    ConfigurationError
        NaN or infinite; the method costs no more than the small model; or the large model is not better or
        not dearer, so that there is nothing a lift could be relative to.

    References
    ----------
    Aggarwal, Madaan et al. (2023). AutoMix: Automatically Mixing Language Models. arXiv:2310.12963.

    Examples
    --------
    >>> from calibrant.cascade import ibc_lift
    >>> small = {"small_performance": 0.6, "small_cost": 1.0}
    >>> large = {"large_performance": 0.85, "large_cost": 11.0}
    >>> round(ibc_lift(performance=0.8, cost=6.0, **small, **large), 6)
    0.6
    """
    base = _benefit(large_performance, large_cost, small_performance, small_cost, of="large_")
    if base <= 0.0:
        raise ConfigurationError(
            f"Expected large_performance above small_performance, got {large_performance!r} and "
            f"{small_performance!r}: an IBC lift is relative to what the large model gains, and it gains nothing. "
            f"{_FRONTIER}"
        )
    return (_benefit(performance, cost, small_performance, small_cost) - base) / base


def _benefit(
    performance: float, cost: float, small_performance: float, small_cost: float, *, of: str = ""
) -> float:
    """Return the performance gained per unit of added cost; `of` is a prefix of names in messages."""
    gained = check_number(f"{of}performance", performance, "(-inf, inf)")
    gained -= check_number("small_performance", small_performance, "(-inf, inf)")
    extra = check_number(f"{of}cost", cost, "[0, inf)") - check_number("small_cost", small_cost, "[0, inf)")
    if extra <= 0.0:
        raise ConfigurationError(
            f"Expected {of}cost above small_cost, got {cost!r} and {small_cost!r}: benefit per cost is not defined "
            f"where nothing is paid in addition. {_FRONTIER}"
        )
    return gained / extra
