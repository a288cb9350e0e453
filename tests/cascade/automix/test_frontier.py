"""Tests of the frontier between two models: optimality, shape, mixtures and refusals."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.cascade import RoutingFrontier, routing_frontier
from calibrant.cascade.automix._frontier import rising_hull
from calibrant.core import ConfigurationError

Array = NDArray[np.float64]
Rows = dict[str, Any]


def random_rows(rng: np.random.Generator) -> Rows:
    """Return a small instance of any kind: few bins, ties, scalar or row-wise costs, free verifiers."""
    n, n_bins = int(rng.integers(1, 25)), int(rng.integers(1, 7))
    binary = rng.random() < 0.5
    scores = rng.integers(0, 2, (2, n)).astype(float) if binary else rng.random((2, n))
    whole = rng.integers(1, 60, n).astype(float)
    if rng.random() < 0.3:
        whole[1:] *= rng.random(n - 1) < 0.3  # most escalations cost nothing
    return {
        "signal": rng.integers(0, n_bins, n) / n_bins,
        "small_score": scores[0],
        "large_score": scores[1],
        "small_cost": float(rng.integers(0, 3)),
        "large_cost": whole if rng.random() < 0.3 else float(whole[0]),
        "verifier_cost": [0.0, 1.0, 0.25][int(rng.integers(3))],
    }


def all_policies(rows: Rows) -> tuple[Array, Array]:
    """Return cost and performance of every deterministic policy, row by row and set by set."""
    small, large = rows["small_score"], rows["large_score"]
    dear = np.broadcast_to(rows["large_cost"], small.shape)
    found = [(rows["small_cost"], small.mean()), (dear.mean(), large.mean())]
    levels = np.unique(rows["signal"])
    for chosen in product([False, True], repeat=len(levels)):
        routed = np.isin(rows["signal"], levels[np.array(chosen)])
        cost = rows["small_cost"] + rows["verifier_cost"] + np.where(routed, dear, 0.0).mean()
        found.append((cost, np.where(routed, large, small).mean()))
    cost, performance = np.array(found).T
    return cost, performance


def best_mixture(cost: Array, performance: Array, budget: float) -> float:
    """Return the best mean of any two policies whose mean cost is within the budget (the linear program)."""
    cheap = cost <= budget
    best = performance[cheap].max()
    for a, b in product(np.flatnonzero(cheap), np.flatnonzero(~cheap)):
        share = (budget - cost[a]) / (cost[b] - cost[a])
        best = max(best, (1 - share) * performance[a] + share * performance[b])
    return float(best)


def simulate(frontier: RoutingFrontier, point: int, rows: Rows) -> tuple[float, float]:
    """Return cost and performance of a point's policy, applied row by row."""
    policy = frontier.policy(point)
    dear = np.broadcast_to(rows["large_cost"], rows["small_score"].shape)
    routed = (
        policy.route_probability(rows["signal"]) == 1.0
        if policy.verify
        else np.full(len(dear), policy.large == 1.0)
    )
    asked = (policy.small + policy.verify) == 1.0
    cost = asked * rows["small_cost"] + policy.verify * rows["verifier_cost"] + routed * dear
    return cost.mean(), np.where(routed, rows["large_score"], rows["small_score"]).mean()


@pytest.mark.parametrize("seed", range(20))
def test_no_policy_beats_the_frontier(seed: int) -> None:
    """The frontier equals the best of all sets of bins and their mixtures in 1,000 random instances."""
    rng = np.random.default_rng(seed)
    for _ in range(50):
        rows = random_rows(rng)
        frontier = routing_frontier(**rows)
        cost, performance = all_policies(rows)
        assert frontier.cost[0] == pytest.approx(cost.min(), abs=1e-12)
        assert frontier.performance[-1] == pytest.approx(performance.max(), abs=1e-12)
        assert (np.diff(frontier.cost) > 0).all()
        assert (np.diff(frontier.price) < 0).all()
        budgets = [*frontier.cost, *rng.uniform(cost.min(), cost.max() + 1.0, 3)]
        for budget in budgets:
            assert frontier.at(budget) == pytest.approx(
                best_mixture(cost, performance, budget + 1e-12), abs=1e-9
            )
        for point in range(len(frontier)):
            reached = simulate(frontier, point, rows)
            assert reached == pytest.approx((frontier.cost[point], frontier.performance[point]), abs=1e-12)


def test_free_escalations_come_first() -> None:
    """A free and better large model is called first, and a free but worse one is never called."""
    rows: Rows = {
        "signal": [0.1, 0.1, 0.5, 0.5, 0.9, 0.9],
        "small_score": [0, 0, 1, 1, 0, 0],
        "large_score": [1, 0, 0, 1, 1, 1],
        "small_cost": 1.0,
        "large_cost": np.array([0.0, 0.0, 0.0, 0.0, 10.0, 10.0]),
        "verifier_cost": 0.0,
    }
    frontier = routing_frontier(**rows)
    best, cheapest = frontier.policy(-1), frontier.policy(0)
    assert best.route.tolist() == [1.0, 0.0, 1.0]
    assert best.performance == pytest.approx(5 / 6)
    looked = [point for point in range(len(frontier)) if frontier.policy(point).verify == 1.0]
    assert [frontier.policy(point).route.tolist() for point in looked] == [[1.0, 0.0, 0.0], [1.0, 0.0, 1.0]]
    assert cheapest.cost == pytest.approx(1.0)
    assert frontier.order.tolist() == [0, 2, 1]


@st.composite
def instances(draw: st.DrawFn) -> Rows:
    """Draw the rows of an instance with many ties."""
    n = draw(st.integers(1, 30))
    unit = st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.integers(0, 10**6).map(lambda i: i / 10**6)
    column = st.lists(unit, min_size=n, max_size=n).map(np.array)
    cost = st.integers(0, 10**6).map(lambda i: i / 10**4)
    return {
        "signal": draw(column),
        "small_score": draw(column),
        "large_score": draw(column),
        "small_cost": draw(cost),
        "large_cost": draw(st.floats(0.01, 100.0)),
        "verifier_cost": draw(cost),
    }


@settings(deadline=None)
@given(rows=instances(), share=st.floats(0.0, 1.0))
def test_mixtures_meet_budget_and_frontier(rows: Rows, share: float) -> None:
    """The expected cost and performance of a mixture are a point on the frontier."""
    frontier = routing_frontier(**rows)
    budget = frontier.cost[0] + share * (frontier.cost[-1] - frontier.cost[0])
    policy = frontier.mixture(cost=budget)
    cost, performance = policy.expected(**rows)
    assert cost.mean() == pytest.approx(budget, abs=1e-8)
    assert performance.mean() == pytest.approx(frontier.at(budget), abs=1e-8)
    assert (policy.cost, policy.performance) == pytest.approx((cost.mean(), performance.mean()), abs=1e-8)
    assert policy.small + policy.large + policy.verify == pytest.approx(1.0)


@settings(deadline=None)
@given(rows=instances())
def test_thresholds_are_policies_among_others(rows: Rows) -> None:
    """Sets of bins are never worse than thresholds, and every threshold reaches its own point."""
    free, bound = routing_frontier(**rows), routing_frontier(**rows, thresholds_only=True)
    for cost, performance in zip(bound.cost, bound.performance, strict=True):
        assert free.at(max(cost, free.cost[0])) >= performance - 1e-9
    for level in np.unique(rows["signal"]):
        routed = rows["signal"] < level
        cost = rows["small_cost"] + rows["verifier_cost"] + routed.mean() * rows["large_cost"]
        assert bound.at(cost) >= np.where(routed, rows["large_score"], rows["small_score"]).mean() - 1e-9


def test_a_frontier_by_hand() -> None:
    """Four rows in two bins give the corners and the slope that are worked out by hand."""
    rows = ([0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1])
    frontier = routing_frontier(*rows, small_cost=1, large_cost=10, verifier_cost=0)
    assert frontier.cost.tolist() == [1.0, 6.0]
    assert frontier.performance.tolist() == [0.5, 1.0]
    assert frontier.action == ("small", "verify")
    assert frontier.price.tolist() == [0.1]
    half = frontier.mixture(cost=3.5)
    assert (half.small, half.verify, half.route.tolist()) == (0.5, 0.5, [1.0, 0.0])


def test_verifier_cost_defaults_to_small_cost() -> None:
    """Without `verifier_cost`, verifying a row costs as much as the small model's call."""
    rows = ([0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1])
    unset, free = (
        routing_frontier(*rows, small_cost=[1, 2, 3, 2], large_cost=10, **more)
        for more in ({}, {"verifier_cost": 0.0})
    )
    assert (unset.cost.tolist(), free.cost.tolist()) == ([2.0, 9.0], [2.0, 7.0])
    for frontier, more in ((unset, {}), (free, {"verifier_cost": 0.0})):
        spent, _ = frontier.policy(1).expected(*rows, small_cost=[1, 2, 3, 2], large_cost=10, **more)
        assert spent.mean() == frontier.cost[1]


def test_signals_are_rounded_to_k_steps() -> None:
    """Signals fall into k + 1 bins, and each share of k samples has a bin of its own."""
    frontier = routing_frontier(
        [0.04, 0.06, 0.3, 1.0], [0, 1, 0, 1], [1, 1, 1, 1], small_cost=1, large_cost=5, k=10
    )
    assert frontier.bins.values.tolist() == pytest.approx([0.0, 0.1, 0.3, 1.0])
    shares = np.arange(101) / 100
    same = routing_frontier(shares, shares, shares, small_cost=1, large_cost=5, k=100)
    assert same.bins.values.tolist() == shares.tolist()


def test_unseen_signals_take_the_lower_bin() -> None:
    """A signal between two seen ones falls into the bin of the lower one."""
    costs = {"small_cost": 1, "large_cost": 5, "verifier_cost": 0}
    frontier = routing_frontier([0.2, 0.6], [0, 1], [1, 1], **costs, thresholds_only=True)
    policy = frontier.policy(-1)
    assert policy.route_probability([0.0, 0.2, 0.4, 0.59, 0.6, 0.9]).tolist() == [1, 1, 1, 1, 0, 0]


GOOD: Rows = {
    "signal": [0.1, 0.9],
    "small_score": [0, 1],
    "large_score": [1, 1],
    "small_cost": 1.0,
    "large_cost": 50.0,
    "verifier_cost": 1.0,
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"signal": [0.1]}, "signal has 1"),
        ({"signal": [], "small_score": [], "large_score": []}, "at least one row"),
        ({"signal": [7.0, 0.5], "k": 8}, "signal in"),
        ({"small_score": [0.0, 1.5]}, r"small_score in \[0, 1\]"),
        ({"large_cost": 0.0}, "large_cost above 0"),
        ({"large_cost": [1.0, 2.0, 3.0]}, "2 rows, got 3"),
        ({"small_cost": -1.0}, "small_cost to be at least 0"),
    ],
)
def test_bad_input_is_refused_by_name(changed: Rows, message: str) -> None:
    """Every bad column raises ConfigurationError with its name."""
    with pytest.raises(ConfigurationError, match=message):
        routing_frontier(**{**GOOD, **changed})


def test_unreachable_points_are_refused() -> None:
    """A budget below the cheapest policy, or a point beyond the last, raises ConfigurationError."""
    frontier = routing_frontier(**GOOD)
    with pytest.raises(ConfigurationError, match="cheapest policy"):
        frontier.mixture(cost=0.5)
    assert frontier.mixture(cost=frontier.cost[0] * (1 - 1e-15)).cost == frontier.cost[0]
    with pytest.raises(ConfigurationError, match="point"):
        frontier.policy(9)


def test_equal_costs_are_allowed() -> None:
    """With equal costs the better model is called at once, and a look first still buys performance."""
    frontier = routing_frontier([0, 1], [0, 1], [1, 0], small_cost=2, large_cost=2, verifier_cost=0)
    assert (frontier.cost.tolist(), frontier.performance.tolist()) == ([2.0, 3.0], [0.5, 1.0])


def test_rounding_of_costs_makes_no_corner() -> None:
    """Of two points whose costs differ only by rounding, the better one is the corner."""
    cost, performance = np.array([1.0, np.nextafter(1.0, 2.0)]), np.array([0.5, 0.6])
    assert rising_hull(cost, performance).tolist() == [1]


def test_frontiers_and_policies_show_their_figures() -> None:
    """The representation of a frontier and of a policy shows figures and no arrays."""
    frontier = routing_frontier([0, 1], [0, 1], [1, 1], small_cost=1, large_cost=10, k=1)
    assert repr(frontier) == "RoutingFrontier(2 points, cost 1 to 7, performance 0.5 to 1)"
    assert repr(frontier.policy(0)).startswith("RoutingPolicy(small=1.0, large=0.0, verify=0.0, cost=1.0,")
