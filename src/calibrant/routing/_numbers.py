"""Checks of the numbers and vectors that policies about answers are given."""

from __future__ import annotations

import math
from numbers import Real
from typing import TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core import ConfigurationError

__all__ = ["check_real", "check_whole", "is_number", "unit_vector"]


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a finite real number; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def check_real(name: str, value: object, *, low: float = 0.0, high: float = math.inf) -> float:
    """Return `value` as a finite float in [low, high].

    Raises
    ------
    ConfigurationError
        It is something else.
    """
    if not is_number(value) or not low <= value <= high:
        kind = (
            f"a finite number of at least {low:g}" if high == math.inf else f"a number in [{low:g}, {high:g}]"
        )
        raise ConfigurationError(f"Expected {name} to be {kind}, got {value!r:.80}.")
    return float(value)


def check_whole(name: str, value: object, *, low: int) -> int:
    """Return `value` as an int of at least `low`; a float is taken if it is whole.

    Raises
    ------
    ConfigurationError
        It is something else.
    """
    if not is_number(value) or value < low or value != int(value):
        raise ConfigurationError(
            f"Expected {name} to be a whole number of at least {low}, got {value!r:.80}."
        )
    return int(value)


def unit_vector(vector: ArrayLike | None) -> NDArray[np.float64] | None:
    """Return a vector at length 1; None where it has no direction.

    Parameters
    ----------
    vector : array-like of shape (d,), or None
        Anything else than d >= 1 finite numbers, not all 0, has no direction.

    Returns
    -------
    ndarray of shape (d,) or None
        The vector divided by its Euclidean length.
    """
    if vector is None:
        return None
    try:
        numbers = np.asarray(vector, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    if numbers.ndim != 1 or numbers.size == 0 or not np.isfinite(numbers).all():
        return None
    largest = np.abs(numbers).max()
    if largest == 0.0:
        return None
    scaled = numbers / largest  # squares of very large or small numbers would leave the range of floats
    found: NDArray[np.float64] = scaled / np.linalg.norm(scaled)
    return found
