"""Tests of plans over three and more models: optimality, simulation, estimation, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.cascade import CascadeAction, CascadeFrontier, plan_models, routing_frontier, union_baseline
from calibrant.cascade.automix._several import _shrunk_tables
from calibrant.core import ConfigurationError

Array = NDArray[np.float64]
Policy = dict[tuple[tuple[int, int], ...], tuple[str, int]]


def policies(
    shape: tuple[int, ...], seen: tuple[tuple[int, int], ...] = (), after: int = 0
) -> Iterator[Policy]:
    """Yield every deterministic policy for verifiers with these numbers of bins."""
    last = len(shape)
    for model in range(max(after - 1, 0), last + 1):
        yield {seen: ("report", model)}
    for model in range(after, last):
        below = [list(policies(shape, (*seen, (model, b)), model + 1)) for b in range(shape[model])]
        for chosen in product(*below):
            merged: Policy = {seen: ("verify", model)}
            for part in chosen:
                merged |= part
            yield merged


def follow(policy: Policy, cell: tuple[int, ...], costs: Array, looks: Array) -> tuple[float, int]:
    """Return what a policy pays for a row, and whose answer it reports, step by step."""
    seen: tuple[tuple[int, int], ...] = ()
    paid = 0.0
    while True:
        kind, model = policy[seen]
        if not seen or seen[-1][0] != model:
            paid += costs[model]
        if kind == "report":
            return paid, model
        paid += looks[model]
        seen = (*seen, (model, cell[model]))


def brute_force(mass: Array, value: Array, costs: Array, looks: Array) -> tuple[Array, Array]:
    """Return expected cost and performance of every policy."""
    points = []
    for policy in policies(mass.shape):
        cost = performance = 0.0
        for cell in np.ndindex(*mass.shape):
            paid, model = follow(policy, cell, costs, looks)
            cost += mass[cell] * paid
            performance += mass[cell] * value[(model, *cell)]
        points.append((cost, performance))
    x, y = np.array(points).T
    return x, y


def random_problem(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, Array, Array, Array]:
    """Return tables and costs: sometimes with impossible cells, free verifiers, ties, and misplaced costs.

    The masses are numbers of rows.
    """
    mass = rng.integers(0 if rng.random() < 0.3 else 1, 6, shape).astype(float)
    mass.flat[rng.integers(mass.size)] += 1.0
    n = len(shape) + 1
    value = rng.integers(0, 3, (n, *shape)) / 2 if rng.random() < 0.3 else rng.random((n, *shape))
    costs = np.sort(rng.integers(0, 20, n)).astype(float) if rng.random() < 0.8 else rng.random(n) * 9
    looks = np.zeros(n - 1) if rng.random() < 0.2 else rng.random(n - 1) * 3
    return mass, value, costs, looks


def frontier_of(mass: Array, value: Array, costs: Array, looks: Array) -> CascadeFrontier:
    """Return the frontier of rows, so many in each cell, with these values."""
    k = max(max(mass.shape) - 1, 1)
    cells = [cell for cell in np.ndindex(*mass.shape) for _ in range(int(mass[cell]))]
    verifiers = [np.array([cell[model] / k for cell in cells]) for model in range(mass.ndim)]
    scores = [np.array([value[(model, *cell)] for cell in cells]) for model in range(len(value))]
    return plan_models(verifiers, scores, cost=costs, verifier_cost=looks, k=k, shrinkage=0.0)


def largest_gap(frontier: CascadeFrontier, x: Array, y: Array) -> float:
    """Return how far the frontier is from all policies' costs x and performances y.

    0 where it ends where they end, every point is some policy, and at every price no policy is better than
    all points.
    """
    gaps = [abs(frontier.cost[0] - x.min()), abs(frontier.performance[-1] - y.max())]
    gaps += [
        (np.abs(x - cost) + np.abs(y - performance)).min()
        for cost, performance in zip(frontier.cost, frontier.performance, strict=True)
    ]
    gaps += [
        abs((frontier.performance - price * frontier.cost).max() - (y - price * x).max())
        for price in (*frontier.price, 0.0, 0.01, 0.1, 1.0)
    ]
    return float(max(gaps))


@pytest.mark.parametrize("shape", [None, (4,), (3, 2), (2, 1, 2), (1, 1, 1, 2)])
def test_no_policy_beats_the_frontier_of_several_models(shape: tuple[int, ...] | None) -> None:
    """In 1,000 problems of three models no policy lies above the frontier."""
    rng = np.random.default_rng(7)
    for _ in range(1000 if shape is None else 3):
        problem = random_problem(rng, shape or (int(rng.integers(1, 3)), int(rng.integers(1, 4))))
        mass, *rest = problem
        assert largest_gap(frontier_of(*problem), *brute_force(mass / mass.sum(), *rest)) < 1e-9


def random_rows(rng: np.random.Generator, n: int, models: int, k: int) -> tuple[list[Array], list[Array]]:
    """Return verifier scores and scores of n rows."""
    scores = [rng.integers(0, 2, n).astype(float) for _ in range(models)]
    return [rng.integers(0, k + 1, n) / k for _ in range(models - 1)], scores


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), models=st.integers(2, 4))
def test_policies_reach_their_point_of_the_frontier(seed: int, models: int) -> None:
    """Every break point's policy, carried out row by row, has the point's cost and performance."""
    rng = np.random.default_rng(seed)
    verifiers, scores = random_rows(rng, 60, models, 2)
    cost, looks = rng.random(models) * 10, rng.random(models - 1)
    frontier = plan_models(verifiers, scores, cost=cost, verifier_cost=looks, k=2, shrinkage=0.0)
    assert (np.diff(frontier.cost) > 0).all()
    assert (np.diff(frontier.performance) > 0).all()
    assert (np.diff(frontier.price) < 0).all()
    for point in range(len(frontier)):
        policy = frontier.policy(point)
        spent, performance = policy.evaluate(verifiers, scores, cost=cost, verifier_cost=looks)
        assert spent.mean() == pytest.approx(frontier.cost[point])
        assert performance.mean() == pytest.approx(frontier.performance[point])


@pytest.mark.parametrize("seed", range(5))
def test_two_models_agree_with_routing_frontier(seed: int) -> None:
    """With two models the break points are those of `routing_frontier`."""
    rng = np.random.default_rng(seed)
    verifiers, scores = random_rows(rng, 200, 2, 8)
    several = plan_models(verifiers, scores, cost=[1, 50], verifier_cost=[1], shrinkage=0.0)
    two = routing_frontier(verifiers[0], *scores, small_cost=1, large_cost=50, verifier_cost=1)
    assert several.cost == pytest.approx(two.cost)
    assert several.performance == pytest.approx(two.performance)


def test_verifying_costs_one_call_by_default() -> None:
    """Without a verifier's cost, a look costs one call of its model in all three planners."""
    verifiers, scores = random_rows(np.random.default_rng(0), 200, 3, 4)
    cost, looks = [1, 5, 50], [1, 5]
    several, same, free = (
        plan_models(verifiers, scores, cost=cost, verifier_cost=own) for own in (None, looks, [0, 0])
    )
    assert several.cost.tolist() == same.cost.tolist() != free.cost.tolist()
    policy = several.policy(-2)
    spent, _ = policy.evaluate(verifiers, scores, cost=cost)
    assert spent.tolist() == policy.evaluate(verifiers, scores, cost=cost, verifier_cost=looks)[0].tolist()
    two = plan_models(verifiers[:1], scores[:2], cost=[1, 5], k=4, shrinkage=0.0)
    pair = routing_frontier(verifiers[0], *scores[:2], small_cost=1, large_cost=5)
    union = union_baseline(verifiers[:1], scores[:2], cost=[1, 5], k=4)
    assert two.cost == pytest.approx(pair.cost)
    assert union.frontiers[0].cost.tolist() == pair.cost.tolist()


def test_plans_may_jump_over_a_model() -> None:
    """A plan sends hopeless rows past the medium model to the large one."""
    mass = np.array(
        [[5.0], [3.0], [2.0]]
    )  # rows in the bins of the small verifier; the medium one says nothing
    value = np.array([[[1.0], [0.0], [0.0]], [[1.0], [1.0], [0.0]], [[1.0], [1.0], [1.0]]])
    costs, looks = np.array([1.0, 5.0, 50.0]), np.array([0.5, 0.5])
    frontier = frontier_of(mass, value, costs, looks)
    best = frontier.policy(-1)
    assert best.actions[()] == CascadeAction(kind="verify", model=0)
    assert [best.actions[((0, b),)].model for b in range(3)] == [0, 1, 2]
    assert best.cost == pytest.approx(1.5 + 0.3 * 5 + 0.2 * 50)
    assert best.performance == 1.0
    scores = [[0.9, 0.0, 0.0], [0.0, 0.8, 0.0], [0.0, 0.0, 0.7]]
    spent, performance = best.evaluate(
        [[0.0, 0.5, 1.0], [0.3, 0.3, 0.3]], scores, cost=costs, verifier_cost=looks
    )
    assert spent.tolist() == [1.5, 6.5, 51.5]
    assert performance.tolist() == [0.9, 0.8, 0.7]


def test_the_second_observation_is_used() -> None:
    """A plan looks twice where only both verifiers together show the medium model's faults."""
    mass = np.ones((2, 2))
    wrong_apart = np.array([[1.0, 0.0], [0.0, 1.0]])
    value = np.stack([np.array([[0.0, 0.0], [0.0, 0.0]]), wrong_apart, np.ones((2, 2))])
    costs, looks = np.array([0.1, 1.0, 50.0]), np.array([0.1, 0.1])
    frontier = frontier_of(mass, value, costs, looks)
    policy = frontier.policy(-1)
    assert policy.performance == 1.0
    assert policy.cost == pytest.approx(0.1 + 0.1 + 1 + 0.1 + 0.5 * 50)
    assert policy.actions[((0, 0), (1, 0))] == CascadeAction(kind="report", model=1)
    assert policy.actions[((0, 0), (1, 1))] == CascadeAction(kind="report", model=2)


def test_a_budget_is_a_mixture_of_two_policies() -> None:
    """The expected cost of a mixture is the budget, up to the dearest point."""
    rng = np.random.default_rng(3)
    verifiers, scores = random_rows(rng, 300, 3, 4)
    frontier = plan_models(verifiers, scores, cost=[1, 5, 50], verifier_cost=[1, 1], k=4)
    budget = float(frontier.cost[1:3].mean())
    lower, upper, share = frontier.mixture(cost=budget)
    assert (1 - share) * lower.cost + share * upper.cost == pytest.approx(budget)
    assert (1 - share) * lower.performance + share * upper.performance == pytest.approx(frontier.at(budget))
    assert frontier.mixture(cost=1e9)[2] == 0.0
    with pytest.raises(ConfigurationError, match="cheapest"):
        frontier.mixture(cost=0.0)
    with pytest.raises(ConfigurationError, match="point"):
        frontier.policy(len(frontier))
    lower, _, share = frontier.mixture(cost=1.0)  # whatever the last bits of the cheapest policy's cost
    assert (lower.cost, share) == pytest.approx((1.0, 0.0))
    with pytest.raises(ConfigurationError, match="scores of 3 models"):
        lower.evaluate(verifiers, scores[:2], cost=[1, 5, 50], verifier_cost=[1, 1])


def test_shrinkage_keeps_the_total() -> None:
    """One cell is worked out by hand, and probabilities sum to 1 under any shrinkage."""
    counts = np.array([[3.0, 1.0], [0.0, 4.0]])
    sums = np.array([[[3.0, 0.0], [0.0, 2.0]]])
    mass, means = _shrunk_tables(counts, sums, 2.0)
    assert mass.sum() == pytest.approx(1.0)
    row_share = (4 + 2 * 0.5) / (8 + 2)
    row_mean = (3 + 2 * 0.5 * 5 / 8) / (4 + 2 * 0.5)
    assert mass[0, 1] == pytest.approx(row_share * (1 + 2 * 5 / 8) / (4 + 2))
    assert means[0, 0, 1] == pytest.approx((0 + 2 * 5 / 8 * row_mean) / (1 + 2 * 5 / 8))
    _, flat = _shrunk_tables(counts, sums, 1e9)
    assert flat == pytest.approx(np.full((1, 2, 2), 5 / 8), abs=1e-6)
    exact, raw = _shrunk_tables(counts, sums, 0.0)
    assert exact == pytest.approx(counts / 8)
    assert raw[0] == pytest.approx(np.array([[1.0, 0.0], [0.5, 0.5]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verifier_scores": [[0.5, 0.5]]}, "of 3 models"),
        ({"verifier_scores": [[0.5, 0.5], [0.5]]}, "same length"),
        ({"verifier_scores": [[0.5, 7.0], [0.5, 0.5]]}, r"verifier_scores\[0\]"),
        ({"scores": [[0, 1], [1, 1], [1, 2]]}, r"scores\[2\]"),
        ({"scores": [[0, 1]]}, "two models or more"),
        ({"k": 0}, "k to be"),
        ({"k": 1000}, "cells"),
        ({"shrinkage": -1.0}, "shrinkage"),
        ({"cost": [1.0]}, "3 costs and 2 verifier"),
        ({"verifier_cost": [1, -1]}, "at least 0"),
    ],
)
def test_bad_rows_are_refused(options: dict[str, Any], message: str) -> None:
    """A bad column raises ConfigurationError with its name and model."""
    good: dict[str, Any] = {
        "verifier_scores": [[0.5, 0.5], [0.5, 0.5]],
        "scores": [[0, 1], [1, 1], [1, 1]],
        "cost": [1, 5, 50],
        "verifier_cost": [1, 1],
    }
    with pytest.raises(ConfigurationError, match=message):
        plan_models(**{**good, **options})
