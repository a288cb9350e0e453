"""Checks shared by the metrics: every array that enters is finite, in range and of one length."""

from __future__ import annotations

import math
from numbers import Real
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError

# Probabilities computed as exp of a sum may leave [0, 1] by this much; they are clipped.
_ROUNDING = 1e-6


def check_values(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return `values` as finite floats of shape (n,), n >= 1.

    Raises
    ------
    ConfigurationError
        Not numbers, not one-dimensional, empty, NaN or infinite.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        msg = f"Expected {name} to hold numbers: {error}. Leave out rows without a value."
        raise ConfigurationError(msg) from error
    if array.ndim != 1:
        msg = f"Expected {name} of shape (n,), got {array.shape}."
        raise ConfigurationError(msg)
    if array.size == 0:
        msg = f"Expected {name} to hold at least one row, got none: nothing can be said about no data."
        raise ConfigurationError(msg)
    finite = np.isfinite(array)
    if not finite.all():
        row = int(np.argmin(finite))
        msg = f"Expected {name} to be finite, got {array[row]} in row {row}: leave out rows without a value."
        raise ConfigurationError(msg)
    return array


def check_binary(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return `values` as 0.0 and 1.0, shape (n,), n >= 1.

    Raises
    ------
    ConfigurationError
        As `check_values`, or an entry other than 0 and 1.
    """
    array = check_values(name, values)
    legal = (array == 0.0) | (array == 1.0)
    if not legal.all():
        row = int(np.argmin(legal))
        msg = f"Expected {name} to hold only 0 and 1, got {array[row]} in row {row}."
        raise ConfigurationError(msg)
    return array


def check_confidence_correct(
    confidence: ArrayLike, correct: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return confidence clipped to [0, 1] and correctness as 0.0 and 1.0, both of shape (n,).

    Parameters
    ----------
    confidence : array-like of shape (n,), n >= 1
        In [0, 1]; up to 1e-6 outside is clipped.
    correct : array-like of 0/1, shape (n,)
        Whether each row is right.

    Raises
    ------
    ConfigurationError
        As `check_values` and `check_binary`, a confidence more than 1e-6 outside [0, 1], or
        different lengths.
    """
    p = check_confidence(confidence)
    y = check_binary("correct", correct)
    check_same_length(confidence=p, correct=y)
    return p, y


def check_confidence(confidence: ArrayLike) -> NDArray[np.float64]:
    """Return confidence clipped to [0, 1], shape (n,).

    Parameters
    ----------
    confidence : array-like of shape (n,), n >= 1
        In [0, 1]; up to 1e-6 outside is clipped.

    Raises
    ------
    ConfigurationError
        As `check_values`, or a confidence more than 1e-6 outside [0, 1].
    """
    p = check_values("confidence", confidence)
    legal = (p >= -_ROUNDING) & (p <= 1.0 + _ROUNDING)
    if not legal.all():
        row = int(np.argmin(legal))
        msg = f"Expected confidence in [0, 1], got {p[row]} in row {row}: pass probabilities, not logarithms."
        raise ConfigurationError(msg)
    return np.clip(p, 0.0, 1.0)


def check_same_length(**arrays: NDArray[np.float64]) -> None:
    """Raise ConfigurationError unless all named arrays have the same number of rows."""
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(array)}" for name, array in arrays.items())
        msg = f"Expected arrays of the same length, but {lengths} rows."
        raise ConfigurationError(msg)


def check_count(name: str, value: object, *, low: int, high: int | None = None) -> int:
    """Return `value` as an int in [low, high]; integral floats such as 3.0 are accepted.

    Raises
    ------
    ConfigurationError
        Not a whole number, or out of range.
    """
    allowed = f"at least {low}" if high is None else f"in [{low}, {high}]"
    whole = isinstance(value, (int, float, np.integer, np.floating)) and float(value).is_integer()
    if not whole or isinstance(value, bool):
        msg = f"Expected {name} to be a whole number {allowed}, got {value!r}."
        raise ConfigurationError(msg)
    number = int(value)  # type: ignore[call-overload]
    if number < low or (high is not None and number > high):
        msg = f"Expected {name} {allowed}, got {number}."
        raise ConfigurationError(msg)
    return int(number)


def check_number(name: str, value: object, interval: str) -> float:
    """Return `value` as a float inside `interval`.

    Parameters
    ----------
    name : str
        The argument as the user wrote it, for the message.
    value : object
        The user's value; booleans are not numbers here.
    interval : str
        Two finite or infinite ends in mathematical notation, such as ``"(0, 1]"``.

    Raises
    ------
    ConfigurationError
        Not a number, NaN, or outside the interval.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        msg = f"Expected {name} to be a number in {interval}, got {value!r} ({type(value).__name__})."
        raise ConfigurationError(msg)
    try:
        number = float(value)
    except OverflowError:  # a whole number that no float holds
        number = math.inf
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = number >= low if interval[0] == "[" else number > low
    below = number <= high if interval[-1] == "]" else number < high
    if not (above and below):
        msg = f"Expected {name} in {interval}, got {value!r}: choose a value in that range."
        raise ConfigurationError(msg)
    return number


def check_level(level: float) -> float:
    """Return a confidence level, such as 0.95; ConfigurationError unless it is strictly between 0 and 1."""
    return check_number("level", level, "(0, 1)")


def normal_quantile(level: float) -> float:
    """Return z with P(|Z| <= z) = level for a standard normal Z; 1.959963984540054 at 0.95."""
    return NormalDist().inv_cdf((1.0 + check_level(level)) / 2.0)
