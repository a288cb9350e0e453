"""Checks of signals, scores and costs for routing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import check_same_length, check_values

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Means and calibrated values may leave [0, 1] by this much; they are clipped.
_ROUNDING = 1e-6


def check_scores(name: str, values: ArrayLike) -> Array:
    """Return `values` clipped to [0, 1], shape (n,), n >= 1; up to 1e-6 outside counts as rounding.

    Raises
    ------
    ConfigurationError
        As `calibrant.metrics.check_values`, or out of range.
    """
    array = check_values(name, values)
    legal = (array >= -_ROUNDING) & (array <= 1.0 + _ROUNDING)
    if not legal.all():
        row = int(np.argmin(legal))
        raise ConfigurationError(
            f"Expected {name} in [0, 1], got {array[row]} in row {row}: divide percentages by 100, and bring other "
            "units to [0, 1] first."
        )
    return np.clip(array, 0.0, 1.0)


def bin_numbers(scores: ArrayLike, k: int, *, name: str = "verifier_score") -> NDArray[np.intp]:
    """Return the nearest of the k + 1 values 0, 1/k, ..., 1 for each score, as 0 to k, shape (n,).

    A score half-way between two values counts as the upper one.

    Raises
    ------
    ConfigurationError
        Scores outside [0, 1], NaN, or not of shape (n,).
    """
    # Rounding is needed even for exact shares: 0.29 * 100 is 28.999999999999996.
    return np.floor(check_scores(name, scores) * k + 0.5).astype(np.intp)


def check_costs(name: str, cost: ArrayLike, n: int, *, positive: bool = False) -> Array:
    """Return the costs of `n` rows, shape (n,), given one number for all rows or one per row.

    Parameters
    ----------
    name : str
        The argument as the caller knows it, for the message.
    cost : float or array-like of shape (n,)
        At least 0, in any unit, the same for all costs.
    n : int
        Number of rows.
    positive : bool, default False
        Whether the rows must cost something on average.

    Raises
    ------
    ConfigurationError
        Another length, negative, NaN, infinite, or nothing but zeros with `positive`.
    """
    costs = np.asarray(cost)
    array = check_values(name, costs.reshape(1) if costs.ndim == 0 else costs)
    if costs.ndim and len(array) != n:
        raise ConfigurationError(
            f"Expected {name} to be one number or one for each of the {n} rows, got {len(array)} numbers."
        )
    if (array < 0.0).any():
        raise ConfigurationError(f"Expected {name} to be at least 0, got {array.min()}.")
    if positive and not array.any():
        raise ConfigurationError(
            f"Expected {name} above 0, got nothing but 0: a model that costs nothing needs no routing. Give its "
            "price, its time per row, or 1 for equal costs."
        )
    # A view: one price for a million rows takes no memory.
    return np.broadcast_to(array, (n,))


@dataclass(frozen=True, kw_only=True)
class PairedRows:
    """Checked scores and costs of rows that both models answered.

    Attributes
    ----------
    signal : ndarray of shape (n,)
        Confidence in the small model's answers.
    small, large : ndarray of shape (n,)
        Scores of either model, in [0, 1].
    small_cost, large_cost, verifier_cost : ndarray of shape (N,)
        At least 0, of the N rows that these were taken from.
    """

    signal: Array
    small: Array
    large: Array
    small_cost: Array
    large_cost: Array
    verifier_cost: Array

    @classmethod
    def of(
        cls,
        signal: Array,
        small_score: ArrayLike,
        large_score: ArrayLike,
        costs: tuple[ArrayLike, ArrayLike, ArrayLike | None],
        *,
        name: str = "signal",
    ) -> Self:
        """Check the columns, one value per row; `name` is the signal's name in messages.

        Costs are those of the small model, the large one and a look at the signal; without the last, a look costs one
        call of the small model.
        """
        small_cost, large_cost, verifier_cost = costs
        small, large = check_scores("small_score", small_score), check_scores("large_score", large_score)
        n = len(signal)
        check_same_length(**{name: signal}, small_score=small, large_score=large)
        return cls(
            signal=signal,
            small=small,
            large=large,
            small_cost=check_costs("small_cost", small_cost, n),
            large_cost=check_costs("large_cost", large_cost, n, positive=True),
            verifier_cost=check_costs(
                "verifier_cost", small_cost if verifier_cost is None else verifier_cost, n
            ),
        )

    @property
    def gain(self) -> Array:
        """Score of the large model minus score of the small model, shape (n,)."""
        return self.large - self.small

    def take(self, rows: Bools) -> Self:
        """Return a subset of rows, with the mean costs of all rows."""
        return replace(self, signal=self.signal[rows], small=self.small[rows], large=self.large[rows])
