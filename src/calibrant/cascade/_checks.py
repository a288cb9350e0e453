"""Checks of numeric settings."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TypeGuard

from calibrant.core._errors import ConfigurationError


def is_number(value: object) -> TypeGuard[float]:
    """Return True if `value` is a finite real number and no bool."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def is_share(value: object) -> TypeGuard[float]:
    """Return True if `value` is a number in [0, 1]."""
    return is_number(value) and 0.0 <= value <= 1.0


def is_count(value: object, *, low: int = 1) -> TypeGuard[int]:
    """Return True if `value` is an int or NumPy integer of at least `low`, and no bool."""
    return isinstance(value, Integral) and is_number(value) and value >= low


def check_real(name: str, value: object, *, low: float = -math.inf, high: float = math.inf) -> float:
    """Return `value` as a finite float in [low, high].

    Raises
    ------
    ConfigurationError
        The value is not a number in the range.
    """
    if not is_number(value) or not low <= value <= high:
        raise ConfigurationError(f"Expected {name} to be {_kind(low, high)}, got {value!r}.")
    return float(value)


def check_share(name: str, value: object) -> float:
    """Return `value` as a float in [0, 1]; ConfigurationError if it is something else."""
    return check_real(name, value, low=0.0, high=1.0)


def check_count(name: str, value: object, *, low: int = 1) -> int:
    """Return `value` as an int of at least `low`; ConfigurationError unless it is integral."""
    if not is_number(value) or value < low or not float(value).is_integer():
        raise ConfigurationError(f"Expected {name} to be a whole number of at least {low}, got {value!r}.")
    return int(value)


def _kind(low: float, high: float) -> str:
    if math.isfinite(low) and math.isfinite(high):
        return f"a number in [{low:g}, {high:g}]"
    if math.isfinite(low):
        return f"a finite number of at least {low:g}"
    return f"a finite number of at most {high:g}" if math.isfinite(high) else "a finite number"
