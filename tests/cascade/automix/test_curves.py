"""Lines between models, lifts by region, lifts by cost ratio: against numbers worked out by hand."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import pytest

from calibrant.cascade import POMDPMetaVerifier, ThresholdMetaVerifier, ibc_lift, routing_frontier
from calibrant.cascade.automix._curves import cost_ratio_sweep, reference_line, region_lifts
from calibrant.core import ConfigurationError

ENDS = {"small_performance": 0.5, "small_cost": 1.0, "large_performance": 0.75, "large_cost": 51.0}


def test_a_worthwhile_medium_model_bends_the_line() -> None:
    """It lies above the straight line; below it, it is left out."""
    bent = reference_line(cost=[1, 10, 50], performance=[0.5, 0.7, 0.8])
    assert bent.models == (0, 1, 2)
    assert bent.at(5.5) == pytest.approx(0.6)
    assert bent.at(30) == pytest.approx(0.75)
    assert bent.at(80) == pytest.approx(0.8)
    straight = reference_line(cost=[1, 10, 50], performance=[0.5, 0.51, 0.8])
    assert straight.models == (0, 2)
    assert straight.at(25.5) == pytest.approx(0.65)


def test_a_lift_is_taken_against_the_models_on_both_sides() -> None:
    """Small and medium below the medium's cost, medium and large above it."""
    bent = reference_line(cost=[50, 1, 10], performance=[0.8, 0.5, 0.7])  # in any order
    assert bent.models == (1, 2, 0)
    low = {"small_performance": 0.5, "small_cost": 1, "large_performance": 0.7, "large_cost": 10}
    high = {"small_performance": 0.7, "small_cost": 10, "large_performance": 0.8, "large_cost": 50}
    for cost, ends in [(4.0, low), (10.0, low), (10.5, high), (49.0, high), (70.0, high)]:
        assert bent.lift(cost=cost, performance=0.72) == pytest.approx(
            ibc_lift(cost=cost, performance=0.72, **ends)
        )
    assert bent.lift(cost=30.0, performance=0.75) == pytest.approx(0.0, abs=1e-12)


def test_a_single_model_worth_using_leaves_nothing_to_lift_above() -> None:
    """The frontier is named instead."""
    alone = reference_line(cost=[1, 10], performance=[0.9, 0.8])
    assert alone.models == (0,)
    with pytest.raises(ConfigurationError, match="routing_frontier"):
        alone.lift(cost=5, performance=0.95)
    with pytest.raises(ConfigurationError, match="cheapest"):
        alone.at(0.5)


@pytest.mark.parametrize(
    ("cost", "performance", "message"),
    [([1, 2], [0.5], "cost has 2"), ([-1, 2], [0, 1], "at least 0"), ([1, np.nan], [0, 1], "finite")],
)
def test_lines_of_bad_numbers_are_refused(cost: Any, performance: Any, message: str) -> None:
    """By name."""
    with pytest.raises(ConfigurationError, match=message):
        reference_line(cost=cost, performance=performance)


def test_region_lifts_of_one_point_by_hand() -> None:
    """Before the point it is mixed with the small model, behind it nothing more is spent: one lift everywhere."""
    found = region_lifts([26.0], [0.75], **ENDS)
    assert found.edges == pytest.approx((1, 11, 21, 31, 41, 51))
    assert found.lifts == pytest.approx((1.0,) * 5)
    assert found.mean == pytest.approx(1.0)


def test_region_lifts_of_a_bent_curve_by_hand() -> None:
    """Gain 0.1 at 10 more, 0.2 at 30 more, base 0.005: 0.01 per cost up to 10, then 0.05 / x + 0.005, then 1/150."""
    found = region_lifts([31.0, 11.0], [0.7, 0.6], **ENDS)
    second = (0.05 * log(2) + 0.05) / 10 / 0.005 - 1
    third = (0.05 * log(1.5) + 0.05) / 10 / 0.005 - 1
    last = 0.2 / 30 / 0.005 - 1
    assert found.lifts == pytest.approx((1.0, second, third, last, last))
    assert found.mean == pytest.approx(np.mean(found.lifts))


def test_region_lifts_average_the_lift_of_the_curve() -> None:
    """A fine sum over costs agrees, with points inside regions, of equal cost, and below the small model's."""
    rng = np.random.default_rng(2)
    cost = np.concatenate([rng.uniform(1.5, 45, 9), [0.5, 1.0]])
    performance = 0.5 + rng.random(11) * 0.4
    found = region_lifts([*cost, cost[0]], [*performance, performance[0]], **ENDS, regions=4)
    order = np.argsort(cost[:9])
    x, y = np.append(1.0, cost[:9][order]), np.append(0.5, performance[:9][order])
    fine = np.linspace(1, 51, 400_001)[1:] - 50 / 800_000
    spent = np.minimum(fine, x[-1])
    lifts = (np.interp(fine, x, y) - 0.5) / (spent - 1) / 0.005 - 1
    assert found.lifts == pytest.approx(lifts.reshape(4, -1).mean(axis=1), abs=1e-4)


def test_the_line_itself_lifts_nothing_and_a_frontier_something() -> None:
    """Points of the models alone give 0; a frontier never less."""
    assert region_lifts([51.0], [0.75], **ENDS).lifts == pytest.approx((0.0,) * 5, abs=1e-12)
    rng = np.random.default_rng(0)
    small, large = rng.integers(0, 2, 200), np.ones(200)
    frontier = routing_frontier(
        rng.integers(0, 9, 200) / 8, small, large, small_cost=1, large_cost=50, verifier_cost=0
    )
    ends = {"small_performance": small.mean(), "small_cost": 1, "large_performance": 1.0, "large_cost": 50}
    assert min(region_lifts(frontier.cost, frontier.performance, **ends).lifts) >= -1e-9


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"large_performance": 0.5}, "routing_frontier"),
        ({"large_cost": 1.0}, "routing_frontier"),
        ({"regions": 0}, "regions"),
        ({"cost": [0.5]}, "cost more than the small model"),
        ({"cost": [np.nan]}, "finite"),
        ({"cost": [2.0, 3.0]}, "cost has 2"),
    ],
)
def test_regions_that_are_not_defined_are_refused(changed: dict[str, Any], message: str) -> None:
    """With the reason."""
    with pytest.raises(ConfigurationError, match=message):
        region_lifts(**{"cost": [20.0], "performance": [0.7], **ENDS, **changed})


def three_states(n: int, seed: int) -> Any:
    """Return verifier's, small and large scores of n questions."""
    rng = np.random.default_rng(seed)
    state = rng.choice(3, n, p=[0.55, 0.25, 0.2])
    return rng.binomial(8, np.array([0.85, 0.45, 0.15])[state]) / 8, state == 0, state < 2


def test_a_sweep_fits_and_tests_at_every_ratio() -> None:
    """The same numbers as by hand; a dearer large model is asked no more often."""
    train, test = three_states(1000, 1), three_states(1000, 2)
    found = cost_ratio_sweep(train, test, make=lambda: ThresholdMetaVerifier(price=0.002))
    assert [point.ratio for point in found] == [10, 25, 50, 100, 200]
    shares = [point.routed for point in found]
    assert shares == sorted(shares, reverse=True)
    one = found[2]
    fitted = ThresholdMetaVerifier(price=0.002).fit(*train, small_cost=1, large_cost=50, verifier_cost=1)
    routed = fitted.route(test[0])
    assert one.routed == routed.mean()
    assert one.cost == pytest.approx(2 + 50 * routed.mean())
    assert one.performance == pytest.approx(np.where(routed, test[2], test[1]).mean())
    ends = {
        "small_performance": test[1].mean(),
        "small_cost": 1,
        "large_performance": test[2].mean(),
        "large_cost": 50,
    }
    assert one.lift == pytest.approx(ibc_lift(performance=one.performance, cost=one.cost, **ends))
    assert all(point.lift is not None and point.lift > 0 for point in cost_ratio_sweep(train, test)[1:])


def test_a_lift_that_is_not_defined_on_the_test_rows_is_none() -> None:
    """The costs and the performance are still there."""
    train = three_states(200, 1)
    found = cost_ratio_sweep(
        train, (train[0], train[2], train[1]), make=lambda: POMDPMetaVerifier(form="discrete")
    )
    assert {point.lift for point in found} == {None}
    with pytest.raises(ConfigurationError, match="above 1"):
        cost_ratio_sweep(train, train, ratios=[1.0])
