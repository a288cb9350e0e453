"""Outcomes of providers, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrant.core import ConfigurationError
from calibrant.metrics._validation import check_count, check_number
from calibrant.routing._checks import check_providers

__all__ = ["Recording"]

Array = NDArray[np.float64]

_LATENCY_SECONDS = 0.5
_ARRAYS = ("success", "quality", "latency_seconds", "cost", "contexts", "propensity", "expected")


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """What became of requests at the providers that were asked; one row per request, at least one.

    Lists are taken for arrays.

    Attributes
    ----------
    providers : sequence of str
        The columns, k of them.
    success : ndarray of shape (n, k)
        1 where a whole answer came, 0 where none did, NaN where the provider was not asked.
    quality : ndarray of shape (n, k), optional
        What the answers are worth, in [0, 1]; NaN, the default, where nobody knows: counts as 1.
    latency_seconds : ndarray of shape (n, k), optional
        Finite and at least 0; NaN, the default, where nobody knows: counts as 0.5.
    cost : ndarray of shape (n, k), optional
        US dollars, finite and at least 0; NaN, the default, where no price is known: counts as 0.
    contexts : ndarray of shape (n, d), optional
        Embeddings of the requests, finite.
    propensity : ndarray of shape (n,), optional
        Probability in (0, 1] with which the provider that was asked had been chosen, for `replay`.
    expected : ndarray of shape (n, k), optional
        Mean of success times quality in [0, 1], where it is known; makes regret pseudo-regret.
    shuffled : bool, default False
        Whether every run takes the rows in another order: rows of a data set have none, those of a log have.

    Raises
    ------
    ConfigurationError
        A shape does not fit or a number is out of its range.
    """

    providers: Sequence[str]
    success: Array
    quality: Array | None = None
    latency_seconds: Array | None = None
    cost: Array | None = None
    contexts: Array | None = None
    propensity: Array | None = None
    expected: Array | None = None
    shuffled: bool = False

    def __post_init__(self) -> None:
        providers = check_providers(self.providers)
        object.__setattr__(self, "providers", providers)
        for name in _ARRAYS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        shape = self.success.shape
        if len(shape) != 2 or shape[0] < 1 or shape[1] != len(providers):
            raise ConfigurationError(
                f"Expected success of shape (n, {len(providers)}) with at least one row, got {shape}."
            )
        for name, most in {"success": 1.0, "quality": 1.0, "latency_seconds": np.inf, "cost": np.inf}.items():
            self._check(name, shape, most=most, gaps=True)
        self._check("expected", shape, most=1.0)
        self._check("propensity", shape[:1], most=1.0)
        width = self.contexts.shape[1:2] if self.contexts is not None else ()
        self._check("contexts", (shape[0], *(width or (1,))), least=-np.inf)
        if not np.isin(self.success[self.known], (0.0, 1.0)).all():
            raise ConfigurationError("Expected success to be 0, 1 or NaN, got other numbers.")
        if self.propensity is not None and not (self.propensity > 0.0).all():
            raise ConfigurationError("Expected propensity above 0, got 0: what never happens is in no log.")

    def _check(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        least: float = 0.0,
        most: float = np.inf,
        gaps: bool = False,
    ) -> None:
        """Raise for an array of another shape, or with numbers that are out of their range."""
        array: Array | None = getattr(self, name)
        if array is None:
            return
        if array.shape != shape:
            raise ConfigurationError(f"Expected {name} of shape {shape}, got {array.shape}.")
        known = array[~np.isnan(array)] if gaps else array
        if not (np.isfinite(known) & (known >= least) & (known <= most)).all():
            raise ConfigurationError(
                f"Expected {name} to be finite and in [{least:g}, {most:g}], got other numbers."
            )

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which outcomes are known, shape (n, k)."""
        return ~np.isnan(self.success)

    def draw(self, requests: int | None, rng: np.random.Generator) -> Recording:
        """Return the rows of one run: the first ones, or as many in another order where it is `shuffled`.

        Raises
        ------
        ConfigurationError
            There are fewer rows than requests, or requests is below 1.
        """
        rows = len(self.success)
        count = rows if requests is None else check_count("requests", requests, low=1)
        if count > rows:
            raise ConfigurationError(f"Expected requests in [1, {rows}], the rows there are, got {count!r}.")
        order = rng.permutation(rows)[:count] if self.shuffled else np.arange(count)
        kept = {name: value[order] for name in _ARRAYS if (value := getattr(self, name)) is not None}
        return replace(self, **kept)

    def judged(self, threshold: float) -> Recording:
        """Return it with answers below a quality told as failures; unknown quality stays what it is.

        Raises
        ------
        ConfigurationError
            The threshold is not in [0, 1].
        """
        check_number("quality_threshold", threshold, "[0, 1]")
        poor = self.known & (self.cells("quality") < threshold)
        return replace(self, success=np.where(poor, 0.0, self.success))

    def cells(self, name: str) -> Array:
        """Return quality, latency_seconds or cost, shape (n, k), with NaN where nobody knows."""
        value: Array | None = getattr(self, name)
        return np.full(self.success.shape, np.nan) if value is None else value

    def latencies(self) -> Array:
        """Return seconds, shape (n, k), with what counts where nobody knows."""
        return np.nan_to_num(self.cells("latency_seconds"), nan=_LATENCY_SECONDS)

    def rewards(self, cost_weight: float) -> Array:
        """Return success times quality minus the weighted cost, shape (n, k); NaN where nobody was asked."""
        worth = self.success * np.nan_to_num(self.cells("quality"), nan=1.0)
        return np.asarray(worth - cost_weight * np.nan_to_num(self.cells("cost"), nan=0.0), dtype=np.float64)

    def expected_rewards(self, cost_weight: float) -> Array | None:
        """Return the means of `rewards`, shape (n, k), where they are known."""
        if self.expected is None:
            return None
        return self.expected - cost_weight * np.nan_to_num(self.cells("cost"), nan=0.0)


def _numbers(name: str, given: object) -> Array:
    """Return an array of numbers."""
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise ConfigurationError(f"Expected {name} to have rows of the same length.") from error
    if array.dtype.kind not in "biuf":
        raise ConfigurationError(f"Expected {name} to be numbers, got {given!r:.80}.")
    return array.astype(np.float64)
