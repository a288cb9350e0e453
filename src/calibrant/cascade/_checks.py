"""Checks of the numbers confidence methods are set up with."""

from __future__ import annotations

import math
from numbers import Real
from typing import TypeGuard

from calibrant.core import ConfigurationError

__all__ = ["check_native", "check_share", "is_number"]


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a finite real number; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def check_share(name: str, value: object) -> float:
    """Return `value` as a float in [0, 1].

    Raises
    ------
    ConfigurationError
        It is something else.
    """
    if not is_number(value) or not 0.0 <= value <= 1.0:
        raise ConfigurationError(f"Expected {name} to be a number in [0, 1], got {value!r}.")
    return float(value)


def check_native(name: str, value: object, *, low: float = -math.inf, high: float = math.inf) -> float:
    """Return `value` as a finite float from `low` to `high`.

    Raises
    ------
    ConfigurationError
        It is something else.
    """
    if not is_number(value) or not low <= value <= high:
        bound = f"<= {high:g}" if math.isfinite(high) else f">= {low:g}"
        raise ConfigurationError(f"Expected {name} to be a finite number {bound}, got {value!r}.")
    return float(value)
