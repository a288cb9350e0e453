"""Three and more models: the exact frontier of a cascade whose members are verified in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.cascade._checks import check_count, check_real
from calibrant.cascade.automix._corners import Corners
from calibrant.cascade.automix._policy import bin_numbers
from calibrant.cascade.automix._routing_checks import Array, Bools, check_rows, check_scores
from calibrant.cascade.automix._tree import CascadeAction, Node, Seen, Tree
from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import check_values

__all__ = [
    "CascadeAction",
    "CascadeDecisions",
    "CascadeFrontier",
    "CascadePolicy",
    "cascade_frontier",
    "check_prices",
    "plan_models",
]

_MOST_CELLS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class CascadeDecisions:
    """What a cascade did with n rows.

    Attributes
    ----------
    model : ndarray of int, shape (n,)
        Whose answer is reported.
    asked : ndarray of bool, shape (n, N)
        Which models were asked.
    verified : ndarray of bool, shape (n, N)
        Whose answers were verified; never the last model's.
    """

    model: NDArray[np.intp]
    asked: Bools
    verified: Bools


@dataclass(frozen=True, kw_only=True, repr=False)
class CascadePolicy:
    """A deterministic policy: an action for everything that can have been seen.

    Attributes
    ----------
    actions : mapping of tuple to CascadeAction
        By the (model, bin) pairs seen so far, in order; ``()`` is the beginning.
    k : tuple of int, length N - 1
        Scores of model m's verifier are rounded to 0, 1/k[m], ..., 1: its bins 0 to k[m].
    cost, performance : float
        Expected per row.
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

    def decide(self, verifier_scores: Sequence[ArrayLike]) -> CascadeDecisions:
        """Return what happens to each row.

        Parameters
        ----------
        verifier_scores : sequence of N - 1 array-likes of shape (n,)
            In [0, 1], by model; only those of models that the policy verifies for a row are looked at.

        Raises
        ------
        ConfigurationError
            Another number of arrays, or bad scores.
        """
        bins = _check_bins(verifier_scores, self.k)
        n = len(bins[0])
        model = np.zeros(n, dtype=np.intp)
        asked, verified = (
            np.zeros((n, len(self.k) + 1), dtype=bool),
            np.zeros((n, len(self.k) + 1), dtype=bool),
        )
        waiting: list[tuple[Seen, NDArray[np.intp]]] = [((), np.arange(n))]
        while waiting:
            seen, rows = waiting.pop()
            action = self.actions[seen]
            asked[rows, action.model] = True
            if action.kind == "report":
                model[rows] = action.model
                continue
            verified[rows, action.model] = True
            found = bins[action.model][rows]
            waiting += [((*seen, (action.model, int(b))), rows[found == b]) for b in np.unique(found)]
        return CascadeDecisions(model=model, asked=asked, verified=verified)

    def evaluate(
        self,
        verifier_scores: Sequence[ArrayLike],
        scores: Sequence[ArrayLike],
        *,
        cost: ArrayLike,
        verifier_cost: ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        """Return each row's cost and performance under the policy, both of shape (n,).

        Parameters and errors are those of `plan_models`; the rows may be others than those of the plan.
        """
        costs, looks = check_prices(cost, verifier_cost, models=len(self.k) + 1)
        done = self.decide(verifier_scores)
        columns = [check_scores(f"scores[{m}]", column) for m, column in enumerate(scores)]
        if len(columns) != len(costs):
            msg = f"Expected scores of {len(costs)} models, got {len(columns)}."
            raise ConfigurationError(msg)
        n = check_rows(
            verifier_scores=done.model.astype(np.float64), **{f"scores{m}": c for m, c in enumerate(columns)}
        )
        spent = done.asked @ costs + done.verified[:, :-1] @ looks
        return spent, np.stack(columns, axis=1)[np.arange(n), done.model]


@dataclass(frozen=True, kw_only=True, repr=False)
class CascadeFrontier(Corners):
    """What each cost buys from N models: all break points, and the policy of each.

    Attributes
    ----------
    cost, performance : ndarray of shape (m,), m >= 1
        Expected per row at every break point; both ascend strictly, and the slope falls strictly.
    """

    _tree: Tree = field(compare=False)

    def policy(self, point: int) -> CascadePolicy:
        """Return the policy of a break point; negative numbers count from the dearest.

        Raises
        ------
        ConfigurationError
            There is no such point.
        """
        at = self._check_point(point)
        # Between its two slopes a corner is the only optimum, so that no ties have to be broken.
        slopes = np.concatenate(([2.0 * self.price[0]], self.price, [0.0])) if len(self) > 1 else np.ones(2)
        actions = self._tree.best_actions(float(slopes[at] + slopes[at + 1]) / 2.0)
        return CascadePolicy(
            actions=MappingProxyType(actions),
            k=self._tree.k,
            cost=float(self.cost[at]),
            performance=float(self.performance[at]),
        )

    def mixture(self, *, cost: float) -> tuple[CascadePolicy, CascadePolicy, float]:
        """Return the best use of a budget: two policies, and the share of rows that get the second one.

        Parameters
        ----------
        cost : float
            Most that may be spent per row, on average.

        Raises
        ------
        ConfigurationError
            Less than the cheapest policy costs, or not a number.
        """
        budget = self._check_cost(cost)
        upper = int(np.searchsorted(self.cost, budget))
        if upper in {0, len(self)}:
            end = self.policy(0 if upper == 0 else -1)
            return end, end, 0.0
        share = (budget - self.cost[upper - 1]) / (self.cost[upper] - self.cost[upper - 1])
        return self.policy(upper - 1), self.policy(upper), float(share)


def cascade_frontier(
    probability: ArrayLike,
    performance: ArrayLike,
    *,
    cost: ArrayLike,
    verifier_cost: ArrayLike | None = None,
) -> CascadeFrontier:
    """Return the exact frontier of N models where the probabilities are known.

    Every model but the last may be asked and verified, or asked and believed; any model may be passed over, at
    the beginning too; after a look, the model just verified or any later one may be reported. With two models this is
    `routing_frontier`.

    Parameters
    ----------
    probability : array-like of shape (B_1, ..., B_{N-1}), N >= 2
        Joint probability of the bins of the verifiers of all models but the last; sums to 1.
    performance : array-like of shape (N, B_1, ..., B_{N-1})
        Expected score of each model given all bins.
    cost : array-like of shape (N,)
        Of each model, at least 0.
    verifier_cost : array-like of shape (N - 1,), optional
        Of looking at each answer, at least 0. By default as much as one call of its model, as in AutoMix.

    Returns
    -------
    CascadeFrontier

    Raises
    ------
    ConfigurationError
        Shapes that do not fit, NaN, negative costs or probabilities, more than a million cells.

    Notes
    -----
    Every node of the decision tree is represented by its upper concave hull in cost and performance. Behind a look,
    hulls of the bins add up segment by segment, steepest first (the Minkowski sum); among actions the hull of the
    union is taken. The corners at the root are all break points, without a grid of prices.
    """
    mass, value = np.asarray(probability, dtype=np.float64), np.asarray(performance, dtype=np.float64)
    if mass.ndim < 1 or value.shape != (mass.ndim + 1, *mass.shape) or not 0 < mass.size <= _MOST_CELLS:
        msg = (
            f"Expected probability of shape (B_1, ..., B_N-1), of at most {_MOST_CELLS} cells, and performance of "
            f"shape (N, B_1, ..., B_N-1), got {mass.shape} and {value.shape}."
        )
        raise ConfigurationError(msg)
    if not (np.isfinite(value).all() and (mass >= 0.0).all() and abs(float(mass.sum()) - 1.0) <= 1e-6):
        msg = f"Expected finite performance and probabilities that sum to 1, got a sum of {float(mass.sum()):.6g}."
        raise ConfigurationError(msg)
    costs, looks = check_prices(cost, verifier_cost, models=mass.ndim + 1)
    tree = Tree(root=Node(mass=mass, gain=mass * value, after=0), cost=costs, verifier_cost=looks)
    x, y = tree.hull(tree.root)
    return CascadeFrontier(cost=x, performance=y, _tree=tree)


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
    """
    steps = check_count("k", k)
    columns = [check_scores(f"scores[{m}]", column) for m, column in enumerate(scores)]
    if len(columns) < 2 or (steps + 1) ** (len(columns) - 1) > _MOST_CELLS:
        msg = f"Expected two models or more, and at most {_MOST_CELLS} cells, got {len(columns)} models at k={k}."
        raise ConfigurationError(msg)
    bins = _check_bins(verifier_scores, (steps,) * (len(columns) - 1))
    check_rows(verifier_scores=bins[0].astype(np.float64), **{f"scores{m}": c for m, c in enumerate(columns)})
    strength = check_real("shrinkage", shrinkage, low=0.0)
    shape = (steps + 1,) * len(bins)
    cells = np.ravel_multi_index(tuple(bins), shape)
    counts = np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape).astype(np.float64)
    sums: Array = np.stack(
        [np.bincount(cells, weights=c, minlength=counts.size).reshape(shape) for c in columns]
    )
    mass, means = _shrunk(counts, sums, strength)
    return cascade_frontier(mass, means, cost=cost, verifier_cost=verifier_cost)


def _shrunk(counts: Array, sums: Array, strength: float) -> tuple[Array, Array]:
    """Return joint probabilities and mean scores, each axis in turn drawn towards what the ones before it say."""
    axes = counts.ndim
    n = counts.sum()
    mass, means = np.ones(()), sums.reshape(len(sums), -1).sum(axis=1) / n
    for axis in range(axes):
        rest = tuple(range(axis + 1, axes))
        here = counts.sum(axis=rest)
        before = here.sum(axis=-1, keepdims=True)
        overall = counts.sum(axis=tuple(a for a in range(axes) if a != axis)) / n
        added = strength * overall
        known = before + strength > 0.0
        share = np.where(known, (here + added) / np.where(known, before + strength, 1.0), overall)
        seen = here + added > 0.0
        total = sums.sum(axis=tuple(1 + a for a in rest)) + added * means[..., None]
        means = np.where(seen, total / np.where(seen, here + added, 1.0), means[..., None])
        mass = mass[..., None] * share
    return mass, means


def _check_bins(verifier_scores: Sequence[ArrayLike], k: tuple[int, ...]) -> list[NDArray[np.intp]]:
    if len(verifier_scores) != len(k):
        msg = (
            f"Expected verifier_scores of {len(k)} models, one array for each but the last, got "
            f"{len(verifier_scores)}."
        )
        raise ConfigurationError(msg)
    bins = [
        bin_numbers(s, steps, name=f"verifier_scores[{m}]")
        for m, (s, steps) in enumerate(zip(verifier_scores, k, strict=True))
    ]
    check_rows(**{f"verifier_scores{m}": b.astype(np.float64) for m, b in enumerate(bins)})
    return bins


def check_prices(cost: ArrayLike, verifier_cost: ArrayLike | None, *, models: int) -> tuple[Array, Array]:
    """Return costs of shape (N,) and verifier costs of shape (N - 1,), all at least 0, or ConfigurationError.

    Without verifier costs, looking at an answer costs as much as the call it came from.
    """
    costs = check_values("cost", cost)
    looks = costs[:-1] if verifier_cost is None else check_values("verifier_cost", verifier_cost)
    if (len(costs), len(looks)) != (models, models - 1) or min(costs.min(), looks.min()) < 0.0:
        msg = (
            f"Expected {models} costs and {models - 1} verifier costs, all at least 0, got {costs.tolist()} and "
            f"{looks.tolist()}."
        )
        raise ConfigurationError(msg)
    return costs, looks
