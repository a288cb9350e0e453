"""Exact cost-performance frontier of two or more models whose answers are verified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike

from calibrant.cascade.automix._frontier import (
    Corners,
    RoutingFrontier,
    RoutingPolicy,
    bin_numbers,
    check_scores,
    rising_hull,
    routing_frontier,
)
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import FloatArray, IndexArray
from calibrant.metrics._validation import check_count, check_number, check_same_length, check_values

# The tree of decisions has a branch for every cell, and is searched whole.
_MOST_CELLS: Final = 1_000_000

Seen = tuple[tuple[int, int], ...]
"""The models that were verified, and the bin of the verifier's score of each, in order."""


@dataclass(frozen=True, kw_only=True)
class CascadeAction:
    """Next action of a cascade for one row: report an answer, or ask and verify a model.

    Attributes
    ----------
    kind : {"report", "verify"}
        Report a model's answer, asking for it first unless the model was just verified; or ask a model and verify
        its answer.
    model : int
        Position of the model.

    Examples
    --------
    >>> CascadeAction(kind="verify", model=0).model
    0
    """

    kind: Literal["report", "verify"]
    model: int


@dataclass(frozen=True, kw_only=True, repr=False)
class CascadePolicy:
    """Deterministic cascade policy: one action per observable state.

    Attributes
    ----------
    actions : mapping of tuple to CascadeAction
        By the (model, bin) pairs seen so far, in order; ``()`` is the beginning.
    k : tuple of int, length N - 1
        Scores of model m's verifier are rounded to 0, 1/k[m], ..., 1: its bins 0 to k[m].
    cost, performance : float
        Expected per row.

    Examples
    --------
    >>> from calibrant.cascade import plan_models
    >>> sure, small, large = [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]
    >>> frontier = plan_models([sure], [small, large], cost=[1, 10], verifier_cost=[0], k=1, shrinkage=0)
    >>> policy = frontier.policy(-1)
    >>> policy
    CascadePolicy(2 models, 3 actions, cost=6, performance=1)
    >>> spent, performance = policy.evaluate([[1, 0]], [[0, 0], [1, 1]], cost=[1, 10], verifier_cost=[0])
    >>> spent.tolist(), performance.tolist()
    ([1.0, 11.0], [0.0, 1.0])
    """

    actions: Mapping[Seen, CascadeAction]
    k: tuple[int, ...]
    cost: float
    performance: float

    def __repr__(self) -> str:
        return (
            f"CascadePolicy({len(self.k) + 1} models, {len(self.actions)} actions, cost={self.cost:.6g}, "
            f"performance={self.performance:.6g})"
        )

    def evaluate(
        self,
        verifier_scores: Sequence[ArrayLike],
        scores: Sequence[ArrayLike],
        *,
        cost: ArrayLike,
        verifier_cost: ArrayLike | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Return each row's cost and performance under the policy, both of shape (n,).

        Parameters and errors are those of `plan_models`; the rows may be others than those of the plan.
        """
        costs, looks = _check_prices(cost, verifier_cost, models=len(self.k) + 1)
        bins, columns = _check_columns(verifier_scores, scores, self.k)
        spent = np.zeros(len(columns[0]))
        performance = np.zeros_like(spent)
        waiting: list[tuple[Seen, IndexArray]] = [((), np.arange(len(spent)))]
        while waiting:
            seen, rows = waiting.pop()
            action = self.actions[seen]
            model = action.model
            if not seen or seen[-1][0] != model:  # one just verified has answered already
                spent[rows] += costs[model]
            if action.kind == "report":
                performance[rows] = columns[model][rows]
                continue
            spent[rows] += looks[model]
            steps = bins[model][rows]
            for step in np.unique(steps):
                child = (*seen, (model, int(step)))
                waiting.append((child, rows[steps == step]))
        return spent, performance


@dataclass(frozen=True, kw_only=True, repr=False)
class CascadeFrontier(Corners):
    """Cost-performance frontier of N models: break points and their policies.

    Attributes
    ----------
    cost, performance : ndarray of shape (m,), m >= 1
        Expected per row at every break point; both ascend strictly, and the slope falls strictly.
    """

    _tree: _PlanTree = field(compare=False)

    def policy(self, point: int) -> CascadePolicy:
        """Return the policy of a break point; negative numbers count from the most expensive.

        Raises
        ------
        ConfigurationError
            There is no such point.
        """
        at = self._check_point(point)
        # Between its two slopes a corner is the only optimum, so that no ties have to be broken.
        slopes = [1.0, 1.0]
        if len(self) > 1:
            slopes = [2.0 * self.price[0], *self.price, 0.0]
        price = float(slopes[at] + slopes[at + 1]) / 2.0
        _, actions = self._tree.best(self._tree.root, (), price)
        return CascadePolicy(
            actions=MappingProxyType(actions),
            k=tuple(size - 1 for size in self._tree.root.mass.shape),
            cost=float(self.cost[at]),
            performance=float(self.performance[at]),
        )

    def mixture(self, *, cost: float) -> tuple[CascadePolicy, CascadePolicy, float]:
        """Return the two policies to mix for a budget, and the share of rows for the second.

        Parameters
        ----------
        cost : float
            Most that may be spent per row, on average.

        Raises
        ------
        ConfigurationError
            Less than the cheapest policy costs, or not a number.
        """
        lower, upper, share = self._points_around(cost)
        return self.policy(lower), self.policy(upper), share


def plan_models(
    verifier_scores: Sequence[ArrayLike],
    scores: Sequence[ArrayLike],
    *,
    cost: ArrayLike,
    verifier_cost: ArrayLike | None = None,
    k: int = 8,
    shrinkage: float = 8.0,
) -> CascadeFrontier:
    """Return the frontier of N models learned from rows that all of them answered.

    Every model but the last may be asked and verified, or asked and believed; any model may be passed over, at
    the beginning too; after a look, the model just verified or any later one may be reported. With two models this is
    `routing_frontier`.

    Parameters
    ----------
    verifier_scores : sequence of N - 1 array-likes of shape (n,), N >= 2
        Of all models but the last, small to large, in [0, 1].
    scores : sequence of N array-likes of shape (n,)
        Performance of each model: 0 and 1, or any score in [0, 1].
    cost : array-like of shape (N,)
        Of each model, per row, at least 0.
    verifier_cost : array-like of shape (N - 1,), optional
        Of looking at each answer, in the same unit. By default as much as one call of its model, as in AutoMix; 0 is
        right for a signal that comes with the answer, such as its confidence.
    k : int, default 8
        Verifier scores are rounded to 0, 1/k, ..., 1.
    shrinkage : float, default 8.0
        Rows that are added to every distribution of a verifier given the ones before it: spread like that verifier's
        scores in all rows, and with the mean performance known before. Cells that few rows fall into are drawn
        towards their row's mean by it; 0 trusts them as they are.

    Raises
    ------
    ConfigurationError
        Lengths differ, NaN, scores outside [0, 1], negative costs, more than a million cells.

    References
    ----------
    Aggarwal, Madaan et al. (2023). AutoMix: Automatically Mixing Language Models. arXiv:2310.12963, appendices B.2
    and C.

    Examples
    --------
    >>> from calibrant.cascade import plan_models
    >>> sure, small, large = [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]
    >>> frontier = plan_models([sure], [small, large], cost=[1, 10], verifier_cost=[0], k=1, shrinkage=0)
    >>> frontier.cost.tolist(), frontier.performance.tolist()
    ([1.0, 6.0], [0.5, 1.0])
    """
    steps = check_count("k", k, low=1)
    verified = len(scores) - 1
    if verified < 1 or (steps + 1) ** verified > _MOST_CELLS:
        raise ConfigurationError(
            f"Expected two models or more, and at most {_MOST_CELLS} cells, got {len(scores)} models at k={k}."
        )
    bins, columns = _check_columns(verifier_scores, scores, (steps,) * verified)
    costs, looks = _check_prices(cost, verifier_cost, models=len(columns))
    strength = check_number("shrinkage", shrinkage, "[0, inf)")
    shape = (steps + 1,) * len(bins)
    cells = np.ravel_multi_index(tuple(bins), shape)

    def table(weights: FloatArray | None = None) -> FloatArray:
        totals = np.bincount(cells, weights=weights, minlength=int(np.prod(shape)))
        return totals.reshape(shape).astype(np.float64)

    sums = np.stack([table(column) for column in columns])
    mass, means = _shrunk_tables(table(), sums, strength)
    return exact_frontier(mass, means, cost=costs, verifier_cost=looks)


def exact_frontier(
    mass: FloatArray, value: FloatArray, *, cost: FloatArray, verifier_cost: FloatArray
) -> CascadeFrontier:
    """Return the exact frontier of N models under known probabilities.

    Parameters
    ----------
    mass : ndarray of shape (B_1, ..., B_{N-1}), N >= 2
        Joint probability of the bins of the verifiers of all models but the last; sums to 1.
    value : ndarray of shape (N, B_1, ..., B_{N-1})
        Expected score of each model given all bins.
    cost, verifier_cost : ndarray of shape (N,) and (N - 1,)
        As `_check_prices` returns them.

    Notes
    -----
    Every node of the decision tree is represented by its upper concave hull in cost and performance. Behind a look,
    hulls of the bins add up segment by segment, steepest first (the Minkowski sum); among actions the hull of the
    union is taken. The corners at the root are all break points, without a grid of prices.
    """
    root = _PlanNode(mass=mass, gain=mass * value, after=0)
    tree = _PlanTree(root=root, cost=cost, verifier_cost=verifier_cost)
    x, y = tree.hull(root)
    return CascadeFrontier(cost=x, performance=y, _tree=tree)


def _shrunk_tables(counts: FloatArray, sums: FloatArray, strength: float) -> tuple[FloatArray, FloatArray]:
    """Return joint probabilities and mean scores, with conditional values shrunk to marginal ones."""
    n = counts.sum()
    axes = tuple(range(counts.ndim))
    mass = np.ones(())
    means = sums.reshape(len(sums), -1).sum(axis=1) / n
    for axis in axes:
        here = counts.sum(axis=axes[axis + 1 :])
        before = here.sum(axis=-1, keepdims=True)
        overall = counts.sum(axis=axes[:axis] + axes[axis + 1 :]) / n
        added = strength * overall
        grown = here + added
        # Without shrinkage, a row of cells that nothing fell into has no distribution of its own.
        filled = before + strength > 0.0
        row_total = np.where(filled, before + strength, 1.0)
        share = np.where(filled, grown / row_total, overall)
        mass = mass[..., None] * share
        before_means = means[..., None]
        later = tuple(1 + other for other in axes[axis + 1 :])
        total = sums.sum(axis=later) + added * before_means
        seen = grown > 0.0
        means = np.where(seen, total / np.where(seen, grown, 1.0), before_means)
    return mass, means


def _check_columns(
    verifier_scores: Sequence[ArrayLike], scores: Sequence[ArrayLike], k: tuple[int, ...]
) -> tuple[list[IndexArray], list[FloatArray]]:
    """Check the columns; return the verifiers' scores as bins, and the scores of the models."""
    _check_counts(verifier_scores, scores, models=len(k) + 1)
    given = {f"verifier_scores[{m}]": column for m, column in enumerate(verifier_scores)}
    given |= {f"scores[{m}]": column for m, column in enumerate(scores)}
    checked = {name: check_scores(name, column) for name, column in given.items()}
    check_same_length(**checked)
    columns = list(checked.values())
    bins = [bin_numbers(look, steps) for look, steps in zip(columns, k, strict=False)]
    return bins, columns[len(k) :]


def _check_counts(verifier_scores: Sequence[ArrayLike], scores: Sequence[ArrayLike], *, models: int) -> None:
    if len(scores) != models or len(verifier_scores) != models - 1:
        raise ConfigurationError(
            f"Expected scores of {models} models and verifier_scores of all but the last, got {len(scores)} and "
            f"{len(verifier_scores)}."
        )


def _check_prices(
    cost: ArrayLike, verifier_cost: ArrayLike | None, *, models: int
) -> tuple[FloatArray, FloatArray]:
    """Return costs, shape (N,), and verifier costs, shape (N - 1,); refuse negative ones.

    Without verifier costs, looking at an answer costs as much as the call it came from.
    """
    costs = check_values("cost", cost)
    looks = costs[:-1] if verifier_cost is None else check_values("verifier_cost", verifier_cost)
    is_complete = (len(costs), len(looks)) == (models, models - 1)
    if not is_complete or min(costs.min(), looks.min()) < 0.0:
        raise ConfigurationError(
            f"Expected {models} costs and {models - 1} verifier costs, all at least 0, got {costs.tolist()} and "
            f"{looks.tolist()}."
        )
    return costs, looks


@dataclass(frozen=True, kw_only=True)
class _PlanNode:
    """Node of a cascade's decision tree, with unnormalised probabilities of later observations.

    `mass` has an axis for each verifier behind the last one looked at; `gain` is mass times the expected score of
    each model, with the models in front.
    """

    mass: FloatArray
    gain: FloatArray
    after: int  # the next model's position; the one before it was just verified

    def verified(self, model: int) -> list[_PlanNode]:
        """Return the child nodes after a model is verified, one per bin of its verifier's score."""
        skipped = tuple(range(model - self.after))
        mass = self.mass.sum(axis=skipped)
        gain = self.gain.sum(axis=tuple(1 + axis for axis in skipped))
        by_bin = zip(mass, gain.swapaxes(0, 1), strict=True)
        return [_PlanNode(mass=own, gain=gains, after=model + 1) for own, gains in by_bin]


@dataclass(frozen=True, kw_only=True)
class _PlanTree:
    """Decision tree of a cascade, solved from probability tables and costs."""

    root: _PlanNode
    cost: FloatArray
    verifier_cost: FloatArray

    def reports(self, node: _PlanNode) -> Iterator[tuple[int, float, float]]:
        """Yield model, expected cost and performance of each answer that can be reported at a node."""
        mass = float(node.mass.sum())
        gains = node.gain.reshape(len(node.gain), -1).sum(axis=1).tolist()
        if node.after > 0:
            yield node.after - 1, 0.0, gains[node.after - 1]
        for model in range(node.after, len(self.cost)):
            yield model, mass * float(self.cost[model]), gains[model]

    def looks(self, node: _PlanNode) -> Iterator[tuple[int, float]]:
        """Yield each later model with the expected cost of asking and verifying it."""
        mass = float(node.mass.sum())
        for model in range(node.after, len(self.verifier_cost)):
            yield model, mass * float(self.cost[model] + self.verifier_cost[model])

    def hull(self, node: _PlanNode) -> tuple[FloatArray, FloatArray]:
        """Return the frontier of a node: the upper hull over the frontiers of its actions."""
        costs = []
        values = []
        for _, cost, value in self.reports(node):
            costs.append(np.array([cost]))
            values.append(np.array([value]))
        for model, cost in self.looks(node):
            x, y = _sum_of_hulls([self.hull(child) for child in node.verified(model)])
            costs.append(x + cost)
            values.append(y)
        x = np.concatenate(costs)
        y = np.concatenate(values)
        corners = rising_hull(x, y)
        return x[corners], y[corners]

    def best(self, node: _PlanNode, seen: Seen, price: float) -> tuple[float, dict[Seen, CascadeAction]]:
        """Return the best value (performance - price * cost) of a node, and the best action by state."""
        values = [(gain - price * cost, -m) for m, cost, gain in self.reports(node)]
        value, model = max(values)
        best = {seen: CascadeAction(kind="report", model=-model)}
        for looked, cost in self.looks(node):
            below = []
            for number, child in enumerate(node.verified(looked)):
                below.append(self.best(child, (*seen, (looked, number)), price))
            worth = sum(part for part, _ in below) - price * cost
            if worth > value:
                value = worth
                best = {seen: CascadeAction(kind="verify", model=looked)}
                for _, actions in below:
                    best |= actions
        return value, best


def _sum_of_hulls(hulls: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    """Return the corners of the Minkowski sum of hulls: all segments, sorted by falling slope."""
    run = np.concatenate([np.diff(x) for x, _ in hulls])
    rise = np.concatenate([np.diff(y) for _, y in hulls])
    order = np.argsort(-rise / run, kind="stable")
    first_x = sum(x[0] for x, _ in hulls)
    first_y = sum(y[0] for _, y in hulls)
    x = first_x + np.append(0.0, np.cumsum(run[order]))
    y = first_y + np.append(0.0, np.cumsum(rise[order]))
    return x, y


@dataclass(frozen=True, kw_only=True)
class UnionBaseline:
    """Union baseline of AutoMix: mixtures of two neighbouring models; the budget chooses the pair.

    It never asks more than two models about a row, and never jumps over one, which is what `plan_models` can gain.

    Attributes
    ----------
    frontiers : tuple of RoutingFrontier, length N - 1
        Of models m and m + 1.
    cost : ndarray of shape (N,)
        Of each model, per row.
    """

    frontiers: tuple[RoutingFrontier, ...]
    cost: FloatArray = field(compare=False)

    def mixture(self, *, cost: float) -> RoutingPolicy:
        """Return the best policy for a budget, over the pair of neighbouring models it selects.

        This is the first mix whose larger model costs more than the budget, else the last.

        Parameters
        ----------
        cost : float
            Most that may be spent per row, on average.

        Raises
        ------
        ConfigurationError
            Less than the smallest model costs, or not a number.
        """
        budget = check_number("cost", cost, "(-inf, inf)")
        dearer = np.flatnonzero(self.cost[1:] > budget)
        pair = int(dearer[0]) if len(dearer) else len(self.frontiers) - 1
        return self.frontiers[pair].mixture(cost=budget)


def union_baseline(
    verifier_scores: Sequence[ArrayLike],
    scores: Sequence[ArrayLike],
    *,
    cost: ArrayLike,
    verifier_cost: ArrayLike | None = None,
    k: int = 8,
) -> UnionBaseline:
    """Return the Union baseline of AutoMix, learned from rows that all N models answered.

    Parameters
    ----------
    verifier_scores : sequence of N - 1 array-likes of shape (n,), N >= 2
        Of all models but the last, small to large, in [0, 1].
    scores : sequence of N array-likes of shape (n,)
        Performance of each model: 0 and 1, or any score in [0, 1].
    cost : array-like of shape (N,)
        Per row, at least 0, in one unit; ascending.
    verifier_cost : array-like of shape (N - 1,), optional
        By default looking at an answer costs as much as one call of its model, as in AutoMix; 0 is right for a signal
        that comes with the answer, such as its confidence.
    k : int, default 8
        Verifier scores are rounded to 0, 1/k, ..., 1.

    Raises
    ------
    ConfigurationError
        Lengths differ, NaN, scores outside [0, 1], negative or falling costs.

    References
    ----------
    Aggarwal, Madaan et al. (2023). AutoMix: Automatically Mixing Language Models. arXiv:2310.12963, section 5.5.

    Examples
    --------
    >>> from calibrant.cascade import union_baseline
    >>> sure, small, middle, large = [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]
    >>> found = union_baseline([sure, sure], [small, middle, large], cost=[1, 4, 20], verifier_cost=[0, 0], k=1)
    >>> found.mixture(cost=3).performance
    0.75
    """
    _check_counts(verifier_scores, scores, models=max(len(scores), 2))
    costs, looks = _check_prices(cost, verifier_cost, models=len(scores))
    if (np.diff(costs) < 0.0).any():
        raise ConfigurationError(
            f"Expected costs from the cheapest model to the dearest, got {costs.tolist()}: sort the models."
        )
    frontiers = tuple(
        routing_frontier(
            verifier_scores[m],
            scores[m],
            scores[m + 1],
            small_cost=costs[m],
            large_cost=costs[m + 1],
            verifier_cost=looks[m],
            k=k,
        )
        for m in range(len(costs) - 1)
    )
    return UnionBaseline(frontiers=frontiers, cost=costs)
