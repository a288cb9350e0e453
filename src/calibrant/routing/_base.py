"""What strategies share that keep a few numbers about every provider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from calibrant.core import ConfigurationError, StateError
from calibrant.routing._protocol import Observation, RoutingRequest, Standing, check_providers
from calibrant.routing._tallies import read_numbers, write_tallies

__all__ = ["CountingRouter"]

_COUNT = "observations"


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

    def _written(self, columns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Return a snapshot that holds a few numbers about every provider, and the counts."""
        named = {_COUNT: self._counts, **columns}
        rows = zip(*named.values(), strict=True)
        numbers = (dict(zip(named, row, strict=True)) for row in rows)
        return write_tallies(self.strategy, dict(zip(self._providers, numbers, strict=True)))

    def _read(self, snapshot: Mapping[str, Any] | None, names: Sequence[str]) -> dict[int, dict[str, float]]:
        """Return what is stored about the providers that are still there, by their number.

        Raises
        ------
        StateError
            A number is missing or not finite, or a count is none.
        """
        stored = read_numbers(
            snapshot, strategy=self.strategy, providers=self._providers, names=(_COUNT, *names)
        )
        for provider, values in stored.items():
            if not isinstance(values[_COUNT], int) or values[_COUNT] < 0:
                raise StateError(
                    f"Expected a count as {_COUNT} of {provider!r}, got {values[_COUNT]!r}: reset the state."
                )
        return {self._numbers[provider]: values for provider, values in stored.items()}

    def _begin(self, stored: Mapping[int, Mapping[str, float]]) -> None:
        """Set the counts to what is stored."""
        self._counts = [
            int(stored[number][_COUNT]) if number in stored else 0 for number in range(len(self._counts))
        ]
