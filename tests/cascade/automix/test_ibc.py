"""Tests of benefit per cost, its lift over blind mixing, and undefined cases."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.cascade import ibc, ibc_lift
from calibrant.core import ConfigurationError

SMALL_AND_LARGE = {"small_performance": 0.6, "small_cost": 1.0, "large_performance": 0.8, "large_cost": 51.0}


def test_ibc_is_gain_per_cost() -> None:
    """A gain of 0.1 for 10 more is 0.01, and a loss is negative."""
    assert ibc(performance=0.7, cost=11, small_performance=0.6, small_cost=1) == pytest.approx(0.01)
    assert ibc(performance=0.5, cost=11, small_performance=0.6, small_cost=1) == pytest.approx(-0.01)


@pytest.mark.parametrize(
    ("performance", "cost", "lift"),
    [(0.7, 26.0, 0.0), (0.8, 51.0, 0.0), (0.7, 13.5, 1.0), (0.6, 5.0, -1.0), (0.75, 26.0, 0.5)],
)
def test_lift_is_relative_to_blind_mixing(performance: float, cost: float, lift: float) -> None:
    """A method on the line between both models has lift 0, and one at half its cost has lift 1."""
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
def test_undefined_ratios_are_refused(changed: dict[str, float]) -> None:
    """A ratio without extra cost or gain raises ConfigurationError that names the frontier."""
    given: dict[str, float] = {"performance": 0.7, "cost": 20.0, **SMALL_AND_LARGE, **changed}
    with pytest.raises(ConfigurationError, match="routing_frontier"):
        ibc_lift(**given)


@pytest.mark.parametrize("name", ["performance", "cost", *SMALL_AND_LARGE])
def test_bad_numbers_are_refused_by_name(name: str) -> None:
    """NaN raises ConfigurationError with the parameter's name."""
    given: dict[str, Any] = {"performance": 0.7, "cost": 20.0, **SMALL_AND_LARGE, name: float("nan")}
    with pytest.raises(ConfigurationError, match=name):
        ibc_lift(**given)


def test_a_negative_cost_is_refused() -> None:
    """A negative cost raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="small_cost"):
        ibc(performance=0.7, cost=1, small_performance=0.6, small_cost=-1)
