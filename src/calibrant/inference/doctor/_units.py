"""Are these natural logarithms of probabilities? What else providers have been seen to report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from calibrant.core._completion import Token

SENTINEL: Final = -9999.0
"""At or below this a log-probability means "impossible"."""

# A log-probability may exceed 0 by this much: rounding.
_ROUNDING: Final = 1e-6
# The probabilities listed for one token may sum to this much more than 1: half precision.
_EXCESS: Final = 0.01
# Listed probabilities that sum to less are not taken for a nearly complete list.
_MOST: Final = 0.5


def unit_fault(tokens: Sequence[Token]) -> str:
    """Return what is wrong with the numbers reported for `tokens`, or an empty text.

    Parameters
    ----------
    tokens : sequence of Token
        As reported, unchecked; for a list of alternatives alone, one token that has them.
    """
    values = [value for token in tokens for value in (token.logprob, *(found for _, found in token.top))]
    if any(math.isnan(value) for value in values):
        return "NaN, or no number, where a log-probability belongs"
    lists = [_distinct(token.top) for token in tokens if token.top]
    highest = max(values, default=0.0)
    if highest > _ROUNDING:
        return _positive(highest, min(values), lists)
    sums = [math.fsum(map(math.exp, found)) for found in lists]
    if max(sums, default=0.0) <= 1.0 + _EXCESS:
        return ""
    if all(math.fsum(10.0**value for value in found) <= 1.0 + _EXCESS for found in lists):
        return f"logarithms to base 10 (read as natural ones, a token's alternatives sum to {max(sums):.2f})"
    return f"the probabilities listed for one token sum to {max(sums):.2f}, which is more than 1"


def _positive(highest: float, lowest: float, lists: Sequence[Sequence[float]]) -> str:
    for unit, name in ((1.0, "probabilities"), (100.0, "percentages")):
        sums = [math.fsum(found) / unit for found in lists]
        whole = all(found <= 1.0 + _EXCESS for found in sums) and max(sums, default=0.0) >= _MOST
        if lowest >= 0.0 and highest <= unit and whole:
            return f"{name} instead of their logarithms (up to {highest:.3g})"
    return f"values above 0 (up to {highest:.3g}), which no logarithm of a probability is"


def _distinct(top: Iterable[tuple[bytes, float]]) -> list[float]:
    """Return the values of a list, each spelling once: some servers add the emitted token again."""
    found: dict[bytes, float] = {}
    for data, value in top:
        found[data] = max(value, found.get(data, -math.inf))
    return list(found.values())
