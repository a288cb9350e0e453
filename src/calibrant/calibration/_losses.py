"""Log loss per row, comparison of losses on the same rows, and stratified folds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Differences of losses are right up to rounding only; less than this is no gain.
_ROUNDING = 1e-12


def log_normalise(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `rows`, shape (n, L), shifted so that the exponentials of each row sum to 1."""
    shifted = rows - rows.max(axis=1, keepdims=True)
    normalised: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def log_losses(log_p: NDArray[np.float64], answers: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return ``-log p(answer)`` of each normalised row, shape (n,), in nats, >= 0."""
    losses: NDArray[np.float64] = -log_p[np.arange(len(log_p)), answers]
    return losses


@dataclass(frozen=True, kw_only=True)
class PairedGain:
    """Decrease of a mean loss on the same rows, with its standard error.

    Attributes
    ----------
    before, after : float
        Mean losses.
    mean : float
        Mean of before minus after, by row; above 0 where the loss falls.
    standard_error : float
        Standard error of that mean: the sample standard deviation (divisor n - 1) over sqrt(n); infinite for a
        single row, which cannot show its own error.
    """

    before: float
    after: float
    mean: float
    standard_error: float

    @property
    def helps(self) -> bool:
        """True if the loss falls by more than one standard error (and more than rounding)."""
        return self.mean > self.standard_error + _ROUNDING


def paired_gain(before: NDArray[np.float64], after: NDArray[np.float64]) -> PairedGain:
    """Return the decrease of the mean loss over the same n rows, from losses of shape (n,)."""
    difference = before - after
    n = len(difference)
    error = float(difference.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return PairedGain(
        before=float(before.mean()),
        after=float(after.mean()),
        mean=float(difference.mean()),
        standard_error=error,
    )


def stratified_folds(groups: NDArray[Any], n_folds: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return a random fold for each row, shape (n,), with each group spread evenly over the folds."""
    order = rng.permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    fold = np.empty(len(groups), dtype=np.intp)
    fold[order] = np.arange(len(groups)) % n_folds
    return fold
