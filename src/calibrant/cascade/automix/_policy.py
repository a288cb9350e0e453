"""Which rows a small model keeps: bins of a signal, and a policy that says what to do in each."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.cascade.automix._routing_checks import (
    Array,
    Bools,
    check_costs,
    check_rows,
    check_scores,
    check_verifier_cost,
)
from calibrant.core._errors import ConfigurationError
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


@dataclass(frozen=True, kw_only=True)
class RoutingDecisions:
    """What happens to each of n rows.

    Attributes
    ----------
    verified : ndarray of bool, shape (n,)
        The small model answers and its answer is looked at.
    large : ndarray of bool, shape (n,)
        The large model's answer is used. With `verified` the small model was asked first; without, never.
    """

    verified: Bools
    large: Bools


@dataclass(frozen=True, kw_only=True, repr=False)
class RoutingPolicy:
    """What to do with a row: take the small model's answer, ask the large one at once, or look first.

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

    @property
    def deterministic(self) -> bool:
        """Whether equal signals always meet the same fate."""
        return max(self.small, self.large, self.verify) == 1.0 and bool(np.isin(self.route, (0.0, 1.0)).all())

    @property
    def threshold(self) -> float | None:
        """The least signal that is trusted, where the policy is a threshold: infinity if none ever is.

        None for policies that do not always look, are randomised, or trust a bin below one they route.
        """
        if self.verify != 1.0 or not self.deterministic or (np.diff(self.route) > 0.0).any():
            return None
        trusted = self.bins.values[self.route == 0.0]
        return float(trusted[0]) if len(trusted) else float("inf")

    def route_probability(self, signal: ArrayLike) -> Array:
        """Return the chance that each row goes on to the large model once its signal is seen, shape (n,)."""
        chances: Array = self.route[self.bins.index(signal)]
        return chances

    def decide(self, signal: ArrayLike, *, rng: np.random.Generator | None = None) -> RoutingDecisions:
        """Return what happens to each row.

        Parameters
        ----------
        signal : array-like of shape (n,)
            How sure the small model is; not looked at for rows that are not verified.
        rng : numpy.random.Generator, optional
            Needed unless the policy is deterministic.

        Raises
        ------
        ConfigurationError
            A randomised policy without `rng`, or bad signals.
        """
        chance = self.route_probability(signal)
        if self.deterministic:
            verified = np.full(len(chance), self.verify == 1.0)
            return RoutingDecisions(
                verified=verified, large=np.where(verified, chance == 1.0, self.large == 1.0)
            )
        if rng is None:
            msg = "This policy is randomised: pass rng=numpy.random.default_rng(seed), or take a break point's policy."
            raise ConfigurationError(msg)
        way, draw = rng.random(len(chance)), rng.random(len(chance))
        verified = way < self.verify
        return RoutingDecisions(
            verified=verified, large=np.where(verified, draw < chance, way >= self.verify + self.small)
        )

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
        small, large = check_scores("small_score", small_score), check_scores("large_score", large_score)
        chance = self.route_probability(signal)
        n = check_rows(signal=chance, small_score=small, large_score=large)
        asked = check_costs("small_cost", small_cost, n)
        dearer = check_costs("large_cost", large_cost, n)
        looked = asked + check_verifier_cost(verifier_cost, small_cost, n)
        cost = self.small * asked + self.large * dearer + self.verify * (looked + chance * dearer)
        used = self.large + self.verify * chance
        return cost, small + used * (large - small)
