"""What strategies share that keep a few numbers about every provider."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from calibrant.core import ConfigurationError, StateError
from calibrant.routing._protocol import Observation, RoutingRequest, Standing, check_providers

__all__ = ["CountingRouter", "stored_numbers"]

_VERSION = 1


class CountingRouter(ABC):
    """Knows its providers and how many observations there were of each.

    Parameters
    ----------
    providers : sequence of str
        As in `Router`.
    """

    strategy: str

    def __init__(self, providers: Sequence[str]) -> None:
        self._providers = check_providers(providers)
        self._numbers = {name: number for number, name in enumerate(self._providers)}
        self._counts = [0] * len(self._providers)

    @property
    def providers(self) -> tuple[str, ...]:
        """Whom it orders, as they were declared."""
        return self._providers

    @abstractmethod
    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers, the one to ask first at the front; the others are its fallbacks."""

    def record(self, observation: Observation) -> None:
        """Count a call.

        Raises
        ------
        ConfigurationError
            The provider is unknown.
        """
        self._count(observation)

    def _count(self, observation: Observation) -> int:
        """Count a call and return its provider's number."""
        number = self._numbers.get(observation.provider)
        if number is None:
            raise ConfigurationError(
                f"Expected an observation of one of {', '.join(self._providers)}, got one of "
                f"{observation.provider!r:.80}."
            )
        self._counts[number] += 1
        return number

    def snapshot(self) -> dict[str, Any]:
        """Return nothing: there is nothing to learn."""
        return {}

    def restore(self, snapshot: Mapping[str, Any] | None) -> None:
        """Take over nothing; None sets the counts back.

        Raises
        ------
        StateError
            There is something in the snapshot.
        """
        if snapshot is None:
            self._counts = [0] * len(self._providers)
        elif snapshot != {}:
            raise StateError(
                f"Expected an empty record of the strategy {self.strategy!r}, got {snapshot!r:.80}."
            )

    def standings(self) -> tuple[Standing, ...]:
        """Return what it knows of every provider, as they were declared."""
        return tuple(
            Standing(provider=name, observations=self._counts[number], values=self._values(number))
            for number, name in enumerate(self._providers)
        )

    def _values(self, number: int) -> dict[str, float]:  # noqa: ARG002 (subclasses use it)
        """Return what it thinks of one provider."""
        return {}

    def _record_of(self, columns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Return a snapshot that holds a few numbers about every provider."""
        kept: dict[str, Any] = {}
        for number, name in enumerate(self._providers):
            own = {column: values[number] for column, values in columns.items()}
            kept[name] = {"observations": self._counts[number], **own}
        return {"version": _VERSION, "strategy": self.strategy, "providers": kept}


def stored_numbers(
    snapshot: Mapping[str, Any], *, strategy: str, providers: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the finite numbers that a snapshot holds about the providers that are still there; none if it is empty.

    Raises
    ------
    StateError
        It is of another version or strategy, or a number is missing or not finite.
    """
    if not isinstance(snapshot, Mapping):
        raise StateError(f"Expected the record of a strategy, got {snapshot!r:.80}: reset it.")
    if not snapshot:
        return {}
    found = snapshot.get("version"), snapshot.get("strategy")
    if found != (_VERSION, strategy):
        raise StateError(
            f"Expected a record of version {_VERSION} of the strategy {strategy!r}, got version {found[0]!r:.80} of "
            f"{found[1]!r:.80}: reset it."
        )
    kept = snapshot.get("providers")
    if not isinstance(kept, Mapping):
        raise StateError(f"Expected numbers by provider, got {kept!r:.80}: reset the record.")
    return {
        provider: {name: _number(kept[provider], name, provider) for name in ("observations", *names)}
        for provider in providers
        if provider in kept
    }


def _number(values: object, name: str, provider: str) -> float:
    """Return a finite number; observations have to be a count."""
    value = values.get(name) if isinstance(values, Mapping) else None
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if good and name == "observations":
        good = isinstance(value, int) and value >= 0
    if not good:
        kind = "a count" if name == "observations" else "a finite number"
        raise StateError(f"Expected {kind} as {name} of {provider!r}, got {value!r:.80}: reset the record.")
    return value  # type: ignore[return-value]
