"""Tests of AutoMix's Union baseline: one mix of two models for each budget."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calibrant.cascade import plan_models, routing_frontier, union_baseline
from calibrant.core import ConfigurationError

COST = [1.0, 10.0, 50.0]


def rows(n: int, seed: int) -> tuple[list[Any], list[Any]]:
    """Return verifier scores of two models, and scores of three models of rising quality."""
    rng = np.random.default_rng(seed)
    hardness = rng.random(n)
    scores = [(rng.random(n) < ability - hardness).astype(float) for ability in (1.0, 1.3, 1.7)]
    return [np.round(8 * np.clip(s * 0.6 + rng.random(n) * 0.4, 0, 1)) / 8 for s in scores[:2]], scores


def test_the_budget_decides_between_the_mixes() -> None:
    """A budget below the middle model's cost takes the lower mix, and a larger one the upper mix."""
    verifiers, scores = rows(400, 0)
    union = union_baseline(verifiers, scores, cost=COST)
    for first, budget in ((0, 6.0), (1, 12.0), (1, 30.0)):
        pair = routing_frontier(
            verifiers[first],
            scores[first],
            scores[first + 1],
            small_cost=COST[first],
            large_cost=COST[first + 1],
            k=8,
        )
        assert union.mixture(cost=budget).performance == pair.mixture(cost=budget).performance
        assert union.mixture(cost=budget).cost == pytest.approx(budget)


def test_three_models_together_are_never_worse() -> None:
    """`plan_models` is at least as good as the union at every budget."""
    verifiers, scores = rows(600, 1)
    union = union_baseline(verifiers, scores, cost=COST)
    together = plan_models(verifiers, scores, cost=COST, verifier_cost=COST[:2], shrinkage=0.0)
    for budget in (2.0, 5.0, 9.0, 12.0, 25.0, 40.0):
        first, second, share = together.mixture(cost=budget)
        mixed = (1 - share) * first.performance + share * second.performance
        assert mixed >= union.mixture(cost=budget).performance - 1e-9


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cost": [1, 2]}, "3 costs and 2 verifier costs"),
        ({"cost": [10, 1, 50]}, "from the cheapest"),
        ({"verifier_scores": [[0.5]]}, "all but the last"),
        ({"scores": [[1.0]], "cost": [1], "verifier_scores": []}, "2 models"),
    ],
)
def test_columns_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    """Columns or costs that do not fit raise ConfigurationError."""
    given = {
        "verifier_scores": [[0.5], [0.5]],
        "scores": [[0.0], [1.0], [1.0]],
        "cost": [1, 10, 50],
        **changed,
    }
    with pytest.raises(ConfigurationError, match=message):
        union_baseline(**given)


def test_too_small_a_budget_is_refused() -> None:
    """A budget below the smallest model's cost raises ConfigurationError."""
    verifiers, scores = rows(50, 2)
    with pytest.raises(ConfigurationError, match="at least 1"):
        union_baseline(verifiers, scores, cost=COST).mixture(cost=0.5)
