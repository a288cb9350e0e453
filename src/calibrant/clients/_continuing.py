"""What every call for next-token probabilities to llama.cpp has in common."""

from __future__ import annotations

from typing import Final

__all__ = ["WRITABLE"]

WRITABLE: Final = [['"', 100.0]]
"""A ``logit_bias`` that makes llama.cpp write a quote, whatever it was asked.

The token it writes is of no interest here, but where that ends the turn or is part of a character,
the server holds it back and its log-probabilities with it. Those it reports are the model's own,
before any bias.
"""
