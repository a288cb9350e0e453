"""Benefit per cost, its lift over mixing blindly, and when neither is defined."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.cascade import ibc, ibc_lift
from calibrant.core import ConfigurationError

SMALL_AND_LARGE = {"small_performance": 0.6, "small_cost": 1.0, "large_performance": 0.8, "large_cost": 51.0}


def test_ibc_is_performance_gained_per_unit_of_cost() -> None:
    """0.1 more for 10 more; a loss is negative."""
    assert ibc(performance=0.7, cost=11, small_performance=0.6, small_cost=1) == pytest.approx(0.01)
    assert ibc(performance=0.5, cost=11, small_performance=0.6, small_cost=1) == pytest.approx(-0.01)


@pytest.mark.parametrize(
    ("performance", "cost", "lift"),
    [(0.7, 26.0, 0.0), (0.8, 51.0, 0.0), (0.7, 13.5, 1.0), (0.6, 5.0, -1.0), (0.75, 26.0, 0.5)],
)
def test_lift_is_relative_to_blind_mixing(performance: float, cost: float, lift: float) -> None:
    """Nothing on the line, 1 where the same gain costs half, -1 where nothing is gained."""
    assert ibc_lift(performance=performance, cost=cost, **SMALL_AND_LARGE) == pytest.approx(lift, abs=1e-12)


@pytest.mark.parametrize(
    "changed",
    [
        {"large_performance": 0.6},
        {"large_performance": 0.5},
        {"large_cost": 1.0},
        {"large_cost": 0.5},
        {"cost": 1.0},
        {"cost": 0.5},
    ],
)
def test_an_undefined_ratio_is_refused_and_the_frontier_named(changed: dict[str, float]) -> None:
    """The large model is not better or dearer there, or nothing more is paid."""
    given: dict[str, float] = {"performance": 0.7, "cost": 20.0, **SMALL_AND_LARGE, **changed}
    with pytest.raises(ConfigurationError, match="routing_frontier"):
        ibc_lift(**given)


@pytest.mark.parametrize("name", ["performance", "cost", *SMALL_AND_LARGE])
def test_bad_numbers_are_refused_by_name(name: str) -> None:
    """NaN never wins by comparing false."""
    given: dict[str, Any] = {"performance": 0.7, "cost": 20.0, **SMALL_AND_LARGE, name: float("nan")}
    with pytest.raises(ConfigurationError, match=name):
        ibc_lift(**given)


def test_a_negative_cost_is_refused() -> None:
    """Refunds are no costs."""
    with pytest.raises(ConfigurationError, match="small_cost"):
        ibc(performance=0.7, cost=1, small_performance=0.6, small_cost=-1)
