"""What every routing strategy has in common: a request in, providers in order out, observations back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from calibrant.core import ConfigurationError

__all__ = ["Observation", "Router", "RoutingRequest", "Standing", "check_providers"]


@dataclass(frozen=True, kw_only=True, eq=False)
class RoutingRequest:
    """What a strategy may know of a request before it is sent.

    Attributes
    ----------
    embedding : ndarray of shape (d,) or None
        The text as a vector; None where it could not be embedded.
    tier : str or None
        How hard a triage model takes it to be: ``simple``, ``medium``, ``complex`` or ``expert``.
    task : str or None
        Name of the task it belongs to.
    has_tools : bool
        Whether it offers tools to the model.
    tokens : int or None
        Tokens of its messages, estimated.
    """

    embedding: NDArray[np.float64] | None = None
    tier: str | None = None
    task: str | None = None
    has_tools: bool = False
    tokens: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """What came of one call.

    Attributes
    ----------
    provider : str
        Who was asked.
    success : bool
        Whether a whole answer came, whatever it is worth.
    latency_seconds : float
        How long it took, finite and at least 0.
    rate_limited : bool
        Whether it failed because the provider wants fewer calls.
    quality : float or None
        What the answer is worth, in [0, 1]; None where nobody knows, or not yet.
    cost : float or None
        US dollars, at least 0; None where no price is known.
    context : ndarray of shape (d,) or None
        The embedding of the request; None where there is none.
    penalty : float
        In [0, 1]; lowers the provider's chances whatever else was observed.
    recovered : bool
        Whether this is the first answer after the provider was left out for failing.
    request : RoutingRequest or None
        What the strategy was told of the request.

    Raises
    ------
    ConfigurationError
        A number is out of its range, not finite or no number.
    """

    provider: str
    success: bool
    latency_seconds: float
    rate_limited: bool = False
    quality: float | None = None
    cost: float | None = None
    context: NDArray[np.float64] | None = None
    penalty: float = 0.0
    recovered: bool = False
    request: RoutingRequest | None = None

    def __post_init__(self) -> None:
        try:
            self._check()
        except ConfigurationError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"Expected the numbers of an observation to be numbers: {error}."
            ) from error

    def _check(self) -> None:
        """Raise for numbers that are out of their range."""
        if not isinstance(self.provider, str):
            raise ConfigurationError(f"Expected the name of a provider, got {self.provider!r:.80}.")
        if not 0.0 <= self.latency_seconds < math.inf:
            raise ConfigurationError(
                f"Expected latency_seconds to be a finite number of at least 0, got {self.latency_seconds!r}."
            )
        if self.quality is not None and not 0.0 <= self.quality <= 1.0:
            raise ConfigurationError(f"Expected quality in [0, 1] or None, got {self.quality!r}.")
        if self.cost is not None and not 0.0 <= self.cost < math.inf:
            raise ConfigurationError(
                f"Expected cost to be a finite number of at least 0, or None, got {self.cost!r}."
            )
        if not 0.0 <= self.penalty <= 1.0:
            raise ConfigurationError(f"Expected penalty in [0, 1], got {self.penalty!r}.")
        if self.success and self.rate_limited:
            raise ConfigurationError("Expected a rate-limited call to have no success, got both.")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a strategy thinks of one provider.

    Attributes
    ----------
    provider : str
        The provider.
    observations : int
        Calls it has learnt from.
    values : mapping of str to float
        Its numbers by name, such as ``alpha`` and ``beta``, in the order in which to show them.
    """

    provider: str
    observations: int
    values: Mapping[str, float]


@runtime_checkable
class Router(Protocol):
    """A strategy: which provider to ask first, and which ones after it.

    It makes no call, reads no clock and may be used by one thread at a time. Implementations take
    ``providers`` and ``rng`` as keywords.

    Attributes
    ----------
    strategy : str
        Its name: ``none``, ``ema``, ``thompson``, ``cascade``, ``task``, ``triage`` or ``bandit``.
    providers : tuple of str
        Whom it orders, as they were declared.
    """

    @property
    def strategy(self) -> str: ...

    @property
    def providers(self) -> tuple[str, ...]: ...

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers, the one to ask first at the front; the others are its fallbacks."""
        ...

    def record(self, observation: Observation) -> None:
        """Learn from a call.

        Raises
        ------
        ConfigurationError
            The provider is unknown, or the context has another size than the strategy's.
        """
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return what has been learnt as JSON values; empty where nothing is."""
        ...

    def restore(self, snapshot: Mapping[str, Any] | None) -> None:
        """Take over what a strategy of the same kind has learnt; None forgets everything.

        Providers that are no longer there are left out, new ones begin without experience.

        Raises
        ------
        StateError
            A value is missing, not finite or out of its range; nothing is changed.
        """
        ...

    def standings(self) -> tuple[Standing, ...]:
        """Return what it thinks of every provider, as they were declared."""
        ...


def check_providers(providers: Sequence[str]) -> tuple[str, ...]:
    """Return the names of providers.

    Raises
    ------
    ConfigurationError
        There is none, one is no name, or one is there twice.
    """
    if isinstance(providers, str):
        raise ConfigurationError(f"Expected a list of providers, got the text {providers!r:.80}.")
    names = tuple(providers)
    if not names:
        raise ConfigurationError("Expected at least one provider, got none: name those to choose from.")
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(f"Expected the name of a provider, got {name!r:.80}.")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ConfigurationError(
            f"Expected every provider once, got {', '.join(doubled)} more than once: give them names of their own."
        )
    return names
