"""Checks shared by the scoring strategies: parameters, log-probabilities, batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core import ConfigurationError

__all__ = [
    "LogprobBatch",
    "check_correct",
    "check_logprob",
    "check_logprobs",
    "check_parameter",
    "format_number",
]

LogprobBatch = NDArray[np.float64] | Sequence[float | None]
"""Log-probabilities of a batch; None marks a row without evidence, NaN is an error."""

# Sums of rounded token log-probabilities can end a little above 0.
_POSITIVE_TOLERANCE = 1e-6


def check_parameter(name: str, value: object, *, interval: str) -> float:
    """Return `value` as a float inside `interval`.

    Parameters
    ----------
    name : str
        The parameter as the user wrote it, for the message.
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
    number = float(value)
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = number >= low if interval[0] == "[" else number > low
    below = number <= high if interval[-1] == "]" else number < high
    if not (above and below):
        msg = f"Expected {name} in {interval}, got {number!r}: choose a value in that range."
        raise ConfigurationError(msg)
    return number


def check_logprob(logprob_score: float) -> float:
    """Return a log-probability in [-inf, 0]; up to 1e-6 above 0 counts as rounding.

    Raises
    ------
    ConfigurationError
        NaN or more than 1e-6 above 0.
    """
    number = float(logprob_score)
    if number <= 0.0:
        return number
    if number <= _POSITIVE_TOLERANCE:
        return 0.0
    raise ConfigurationError(_logprob_message(number))


def check_logprobs(logprob_score: LogprobBatch) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the log-probabilities, shape (n,), in [-inf, 0], and a mask of the rows without one.

    A missing entry becomes 0, a placeholder.

    Raises
    ------
    ConfigurationError
        Not one-dimensional, or an entry that `check_logprob` would reject.
    """
    array = np.asarray(logprob_score)
    if array.ndim != 1:
        msg = f"Expected logprob_score of shape (n,), got {array.shape}."
        raise ConfigurationError(msg)
    if array.dtype == object:
        missing = np.array([entry is None for entry in array], dtype=bool)
        values = np.array([0.0 if entry is None else float(entry) for entry in array])
    else:
        missing = np.zeros(array.shape, dtype=bool)
        values = array.astype(np.float64)
    wrong = ~(values <= _POSITIVE_TOLERANCE)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ConfigurationError(f"Row {row}: " + _logprob_message(float(values[row])))
    return np.minimum(values, 0.0), missing


def check_correct(is_correct: ArrayLike, *, n: int) -> NDArray[np.bool_]:
    """Return `is_correct` as booleans of shape (n,).

    Raises
    ------
    ConfigurationError
        Another shape, or an entry other than 0, 1, True, False.
    """
    array = np.asarray(is_correct)
    if array.shape != (n,):
        msg = f"Expected is_correct of shape ({n},), like logprob_score, got {array.shape}."
        raise ConfigurationError(msg)
    if not np.isin(array, (0, 1)).all():
        raise ConfigurationError("Expected is_correct to hold only True and False (or 1 and 0).")
    return array.astype(bool)


def format_number(value: float) -> str:
    """Return a number as a log line shows it: as a float, in six significant digits."""
    return repr(float(f"{value:.6g}"))


def _logprob_message(value: float) -> str:
    if math.isnan(value):
        return "Expected a log-probability in [-inf, 0], got NaN: pass None where there is none."
    return (
        f"Expected a log-probability in [-inf, 0], got {value!r}: pass the natural logarithm of the "
        "confidence, not the confidence itself."
    )
