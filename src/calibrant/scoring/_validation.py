"""Check of log-probabilities, and numbers as the scoring strategies print them."""

from __future__ import annotations

import math

from calibrant.core._errors import ConfigurationError

# Sums of rounded token log-probabilities can end a little above 0.
_POSITIVE_TOLERANCE = 1e-6


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
    if math.isnan(number):
        raise ConfigurationError(
            "Expected a log-probability in [-inf, 0], got NaN: pass None where there is none."
        )
    raise ConfigurationError(
        f"Expected a log-probability in [-inf, 0], got {number!r}: pass the natural logarithm of the confidence, not "
        "the confidence itself."
    )


def format_number(value: float) -> str:
    """Return a number as a log line shows it: as a float, in six significant digits."""
    return repr(float(f"{value:.6g}"))
