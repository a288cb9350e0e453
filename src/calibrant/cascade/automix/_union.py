"""AutoMix's Union baseline: of two-model mixes of neighbours, the one that a budget calls for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from calibrant.cascade._checks import check_real
from calibrant.cascade.automix._frontier import RoutingFrontier, routing_frontier
from calibrant.cascade.automix._policy import RoutingPolicy
from calibrant.cascade.automix._routing_checks import Array
from calibrant.cascade.automix._several import check_prices
from calibrant.core._errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class UnionBaseline:
    """Two-model mixes of neighbours among N models; a budget decides which of them is used.

    It never asks more than two models about a row, and never jumps over one, which is what `plan_models` can gain.

    Attributes
    ----------
    frontiers : tuple of RoutingFrontier, length N - 1
        Of models m and m + 1.
    cost : ndarray of shape (N,)
        Of each model, per row.
    verifier_cost : ndarray of shape (N - 1,)
        Of looking at each answer, per row.
    """

    frontiers: tuple[RoutingFrontier, ...]
    cost: Array = field(compare=False)
    verifier_cost: Array = field(compare=False)

    def pair(self, *, cost: float) -> int:
        """Return which mix a budget calls for: the first whose larger model costs more, else the last.

        Parameters
        ----------
        cost : float
            Most that may be spent per row, on average.

        Raises
        ------
        ConfigurationError
            Less than the smallest model costs, or not a number.
        """
        budget = check_real("cost", cost)
        if budget < self.cost[0]:
            msg = (
                f"Expected a budget of at least {self.cost[0]:.6g}, the smallest model's cost, got {cost!r}."
            )
            raise ConfigurationError(msg)
        dearer = np.flatnonzero(self.cost[1:] > budget)
        return int(dearer[0]) if len(dearer) else len(self.frontiers) - 1

    def mixture(self, *, cost: float) -> RoutingPolicy:
        """Return the best policy of that mix for a budget; parameters and errors are those of `pair`."""
        return self.frontiers[self.pair(cost=cost)].mixture(cost=cost)

    def evaluate(
        self, verifier_scores: Sequence[ArrayLike], scores: Sequence[ArrayLike], *, cost: float
    ) -> tuple[Array, Array]:
        """Return each row's expected cost and performance under a budget, both of shape (n,).

        Parameters
        ----------
        verifier_scores, scores : sequence of N - 1 and of N array-likes of shape (n,)
            As `union_baseline` takes them; the rows may be others.
        cost : float
            The budget per row, on average.

        Raises
        ------
        ConfigurationError
            As `pair`, or another number of arrays, or bad scores.
        """
        _check_models(verifier_scores, scores, models=len(self.cost))
        first = self.pair(cost=cost)
        return self.mixture(cost=cost).expected(
            verifier_scores[first],
            scores[first],
            scores[first + 1],
            small_cost=self.cost[first],
            large_cost=self.cost[first + 1],
            verifier_cost=self.verifier_cost[first],
        )


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
    """
    _check_models(verifier_scores, scores, models=max(len(scores), 2))
    costs, looks = check_prices(cost, verifier_cost, models=len(scores))
    if (np.diff(costs) < 0.0).any():
        msg = f"Expected costs from the cheapest model to the dearest, got {costs.tolist()}: sort the models."
        raise ConfigurationError(msg)
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
    return UnionBaseline(frontiers=frontiers, cost=costs, verifier_cost=looks)


def _check_models(verifier_scores: Sequence[ArrayLike], scores: Sequence[ArrayLike], *, models: int) -> None:
    if len(scores) != models or len(verifier_scores) != models - 1:
        msg = (
            f"Expected scores of {models} models and verifier_scores of all but the last, got {len(scores)} and "
            f"{len(verifier_scores)}."
        )
        raise ConfigurationError(msg)
