"""Checks shared by the scoring strategies: parameters and log-probabilities."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np

from calibrant.core._errors import ConfigurationError

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
