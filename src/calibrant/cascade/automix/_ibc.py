"""Incremental benefit per cost (IBC) over the small model, and its lift."""

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

    Examples
    --------
    >>> from calibrant.cascade import ibc
    >>> round(ibc(performance=0.8, cost=6.0, small_performance=0.6, small_cost=1.0), 6)
    0.04
    """
    return _benefit(performance, cost, small_performance, small_cost)


def ibc_lift(
    *,
    performance: float,
    cost: float,
    small_performance: float,
    small_cost: float,
    large_performance: float,
    large_cost: float,
) -> float:
    """Return the relative gain per unit of cost of a method over mixing the two models blindly.

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

    Examples
    --------
    >>> from calibrant.cascade import ibc_lift
    >>> small = {"small_performance": 0.6, "small_cost": 1.0}
    >>> large = {"large_performance": 0.85, "large_cost": 11.0}
    >>> round(ibc_lift(performance=0.8, cost=6.0, **small, **large), 6)
    0.6
    """
    base = _benefit(large_performance, large_cost, small_performance, small_cost, of="large_")
    if base <= 0.0:
        raise ConfigurationError(
            f"Expected large_performance above small_performance, got {large_performance!r} and "
            f"{small_performance!r}: an IBC lift is relative to what the large model gains, and it gains nothing. "
            f"{_FRONTIER}"
        )
    return (_benefit(performance, cost, small_performance, small_cost) - base) / base


def _benefit(
    performance: float, cost: float, small_performance: float, small_cost: float, *, of: str = ""
) -> float:
    """Return the performance gained per unit of cost; `of` begins the names of the first two in messages."""
    gained = check_real(f"{of}performance", performance) - check_real("small_performance", small_performance)
    extra = check_real(f"{of}cost", cost, low=0.0) - check_real("small_cost", small_cost, low=0.0)
    if extra <= 0.0:
        raise ConfigurationError(
            f"Expected {of}cost above small_cost, got {cost!r} and {small_cost!r}: benefit per cost is not defined "
            f"where nothing is paid in addition. {_FRONTIER}"
        )
    return gained / extra
