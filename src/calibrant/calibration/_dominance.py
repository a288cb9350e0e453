"""Test for a label bias in unlabelled predictions, and the prior to divide out if there is one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# A label with at least half its fair share of the rows, 1 / (2 L), is in use; unlabelled rows cannot show
# whether the others are rare or suppressed.
_IN_USE = 0.5
# A dominant label wins this many times the rows that the other labels in use win on average: of 64 rows that 4 labels
# win equally often, chance makes one dominant about 4 times in 100,000. Priors are floored at a third of a fair share.
_DOMINANT = 3.0
# Above this share of rows won by one label, no other label is left to compare it with.
_NEARLY_ALL = 0.95
# Sums of weights are exact up to rounding.
_ROUNDING = 1e-9


def label_wins(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 for the most probable label of each row, divided among ties, and 0 elsewhere; shape (n, L)."""
    top = rows == rows.max(axis=1, keepdims=True)
    won: NDArray[np.float64] = top / top.sum(axis=1, keepdims=True)
    return won


def guarded_prior(prior: NDArray[np.float64], wins: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the prior to divide out, or None where the rows show no bias.

    Parameters
    ----------
    prior : ndarray of shape (L,)
        Mean probability of each label, positive.
    wins : ndarray of shape (L,)
        Share of the rows on which each label is the most probable; sums to 1.
    """
    n_labels = len(prior)
    top = int(wins.argmax())
    if wins[top] >= _NEARLY_ALL - _ROUNDING:
        return prior
    others = np.delete(wins, top)
    others = others[others >= _IN_USE / n_labels - _ROUNDING]
    if not len(others) or wins[top] < _DOMINANT * others.mean() - _ROUNDING:
        return None
    return np.maximum(prior, 1.0 / (_DOMINANT * n_labels))
