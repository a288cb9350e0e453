"""Checks of columns, shared by everything that plans which model answers: signals, scores, costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import check_values

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Means and calibrated values may leave [0, 1] by this much; they are clipped.
_ROUNDING = 1e-6


def check_scores(name: str, values: ArrayLike) -> Array:
    """Return `values` clipped to [0, 1], shape (n,), n >= 1; up to 1e-6 outside counts as rounding.

    Raises
    ------
    ConfigurationError
        As `calibrant.metrics.check_values`, or out of range.
    """
    array = check_values(name, values)
    legal = (array >= -_ROUNDING) & (array <= 1.0 + _ROUNDING)
    if not legal.all():
        row = int(np.argmin(legal))
        msg = (
            f"Expected {name} in [0, 1], got {array[row]} in row {row}: divide percentages by 100, and bring other "
            "units to [0, 1] first."
        )
        raise ConfigurationError(msg)
    return np.clip(array, 0.0, 1.0)


def check_rows(**arrays: Array) -> int:
    """Return the number of rows all named arrays share; ConfigurationError if they do not share one."""
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        msg = f"Expected one entry per row in each array, but {listed}: pair the rows of all runs first."
        raise ConfigurationError(msg)
    return next(iter(lengths.values()))


def check_costs(name: str, cost: ArrayLike, n: int, *, positive: bool = False) -> Array:
    """Return what each of `n` rows costs, shape (n,): one number for all rows, or one for each.

    Parameters
    ----------
    name : str
        The argument as the caller knows it, for the message.
    cost : float or array-like of shape (n,)
        At least 0, in any unit, the same for all costs.
    n : int
        Number of rows.
    positive : bool, default False
        Whether the rows must cost something on average.

    Raises
    ------
    ConfigurationError
        Another length, negative, NaN, infinite, or nothing but zeros with `positive`.
    """
    given = np.asarray(cost)
    array = check_values(name, given.reshape(1) if given.ndim == 0 else given)
    if given.ndim and len(array) != n:
        msg = f"Expected {name} to be one number or one for each of the {n} rows, got {len(array)} numbers."
        raise ConfigurationError(msg)
    if (array < 0.0).any():
        msg = f"Expected {name} to be at least 0, got {array.min()}."
        raise ConfigurationError(msg)
    if positive and not array.any():
        msg = (
            f"Expected {name} above 0, got nothing but 0: a model that costs nothing needs no routing. Give its "
            "price, its time per row, or 1 for equal costs."
        )
        raise ConfigurationError(msg)
    return np.broadcast_to(array, (n,))


def check_verifier_cost(cost: ArrayLike | None, small_cost: ArrayLike, n: int) -> Array:
    """Return what looking at each signal costs, shape (n,): one call of the small model where nothing is said."""
    return check_costs("verifier_cost", small_cost if cost is None else cost, n)
