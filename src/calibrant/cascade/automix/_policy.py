"""Policies between a small and a large model: bins of a signal, and an action for each bin."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.cascade.automix._routing_checks import Array, PairedRows, check_scores
from calibrant.metrics._validation import check_values


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


@dataclass(frozen=True, kw_only=True)
class SignalBins:
    """Values of a signal that are treated alike.

    Attributes
    ----------
    values : ndarray of shape (B,)
        Ascending: the distinct values that were seen or, with `k`, those of 0, 1/k, ..., 1 that were.
    k : int or None
        Whether, and to how many steps of [0, 1], signals are rounded first.
    """

    values: Array
    k: int | None = None

    def index(self, signal: ArrayLike) -> NDArray[np.intp]:
        """Return the bin of each signal, shape (n,): a value never seen counts as the next lower one seen.

        One below all that were seen counts as the lowest. Lower means less sure, so that a threshold between
        two values seen is the upper one.

        Raises
        ------
        ConfigurationError
            NaN or infinite, not of shape (n,) or, with `k`, outside [0, 1].
        """
        if self.k is None:
            values = check_values("signal", signal)
        else:
            values = bin_numbers(signal, self.k, name="signal") / self.k
        return np.maximum(np.searchsorted(self.values, values, side="right") - 1, 0)


@dataclass(frozen=True, kw_only=True, repr=False)
class RoutingPolicy:
    """A choice for every row: take the small model's answer, ask the large model at once, or look at the signal first.

    A policy between two break points is randomised: `small`, `large` and `verify` are the chances of the three
    ways for every row, drawn before anything is asked.

    Attributes
    ----------
    bins : SignalBins
        Of the signal.
    small, large, verify : float
        Chances of the small model's answer as it is, of the large model's at once, and of looking at the signal;
        they sum to 1.
    route : ndarray of shape (B,)
        Chance that a row in the bin goes on to the large model after its signal was seen, in [0, 1].
    cost, performance : float
        Expected per row, on the rows the policy was planned on.
    """

    bins: SignalBins
    small: float
    large: float
    verify: float
    route: Array = field(compare=False)
    cost: float
    performance: float

    def __repr__(self) -> str:
        return (
            f"RoutingPolicy(small={self.small:.4g}, large={self.large:.4g}, verify={self.verify:.4g}, "
            f"bins={len(self.route)}, cost={self.cost:.6g}, performance={self.performance:.6g})"
        )

    def route_probability(self, signal: ArrayLike) -> Array:
        """Return the chance that each row goes on to the large model once its signal is seen, shape (n,)."""
        chances: Array = self.route[self.bins.index(signal)]
        return chances

    def expected(
        self,
        signal: ArrayLike,
        small_score: ArrayLike,
        large_score: ArrayLike,
        *,
        small_cost: ArrayLike,
        large_cost: ArrayLike,
        verifier_cost: ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        """Return each row's expected cost and performance, both of shape (n,), without drawing anything.

        Parameters and errors are those of `routing_frontier`; the rows may be others than those of the plan.
        """
        chance = self.route_probability(signal)
        rows = PairedRows.of(chance, small_score, large_score, (small_cost, large_cost, verifier_cost))
        looked = rows.small_cost + rows.verifier_cost + chance * rows.large_cost
        cost = self.small * rows.small_cost + self.large * rows.large_cost + self.verify * looked
        used = self.large + self.verify * chance
        return cost, rows.small + used * rows.gain
