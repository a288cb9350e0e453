"""Ranks of texts whose answers have the same confidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibrant.cascade import KeepPolicy, KeepRule


def tie_ranks(texts: Sequence[str | int], *, key: str = "calibrant") -> NDArray[np.float64]:
    """Return the ranks that a policy gives texts where answers are tied, each in (0, 1)."""
    rule = KeepRule.from_threshold(1.0, tied_share=0.5, key=key)
    ranks = KeepPolicy(name="any", members=(0, 1), rules=(rule,)).ranks(texts)
    assert ranks is not None
    return ranks[0]
