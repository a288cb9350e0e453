"""What every call for next-token probabilities to llama.cpp has in common."""

from __future__ import annotations

from typing import Final

__all__ = ["FEW_TOKENS", "MANY_TOKENS", "WRITABLE"]

MANY_TOKENS: Final = 1000
"""Next tokens listed for exact scoring. A quote that closes a label was seen beyond the 200th place."""

FEW_TOKENS: Final = 200
"""Listed where a few will probably do: 800 more cost as much time as computing half a token."""

WRITABLE: Final = [['"', 100.0]]
"""A ``logit_bias`` that makes llama.cpp write a quote, whatever it was asked.

The token it writes is of no interest here, but where that ends the turn or is part of a character,
the server holds it back and its log-probabilities with it. Those it reports are the model's own,
before any bias.
"""
