"""Benefit of each unit of cost beyond the small model (IBC), and how much a method lifts it."""

from __future__ import annotations

from calibrant.cascade._checks import check_real
from calibrant.core._errors import ConfigurationError

_FRONTIER = (
    "Look at `routing_frontier` instead: it says what each cost buys whichever model is better or dearer."
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
    """
    gained = check_real("performance", performance) - check_real("small_performance", small_performance)
    dearer = _difference(cost, small_cost, "cost", "small_cost")
    if dearer <= 0.0:
        msg = (
            f"Expected cost above small_cost, got {cost!r} and {small_cost!r}: benefit per cost is not defined where "
            f"nothing is paid in addition. {_FRONTIER}"
        )
        raise ConfigurationError(msg)
    return gained / dearer


def ibc_lift(
    *,
    performance: float,
    cost: float,
    small_performance: float,
    small_cost: float,
    large_performance: float,
    large_cost: float,
) -> float:
    """Return how much more a method gains per unit of cost than mixing the two models blindly.

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
    """
    if _difference(large_cost, small_cost, "large_cost", "small_cost") <= 0.0:
        msg = (
            f"Expected large_cost above small_cost, got {large_cost!r} and {small_cost!r}: an IBC lift is relative "
            f"to what the large model costs more. {_FRONTIER}"
        )
        raise ConfigurationError(msg)
    better = check_real("large_performance", large_performance)
    if better <= check_real("small_performance", small_performance):
        msg = (
            f"Expected large_performance above small_performance, got {large_performance!r} and "
            f"{small_performance!r}: an IBC lift is relative to what the large model gains, and it gains nothing. "
            f"{_FRONTIER}"
        )
        raise ConfigurationError(msg)
    small = {"small_performance": small_performance, "small_cost": small_cost}
    base = ibc(performance=large_performance, cost=large_cost, **small)
    return (ibc(performance=performance, cost=cost, **small) - base) / base


def _difference(cost: float, small_cost: float, name: str, small_name: str) -> float:
    return check_real(name, cost, low=0.0) - check_real(small_name, small_cost, low=0.0)
