"""Base classes of strategies: the declared providers, and a few numbers about each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.routing._checks import check_providers
from calibrant.routing._protocol import Observation, RoutingRequest, Standing
from calibrant.routing._snapshots import read_count, read_numbers, read_records, write_records

_COUNT = "observations"


class NamedRouter(ABC):
    """Base class of strategies over named providers.

    Parameters
    ----------
    providers : sequence of str
        As in `Router`.
    rng : Generator or int, optional
        Not used here; every strategy takes it.
    """

    strategy: str

    def __init__(
        self,
        providers: Sequence[str],
        *,
        rng: np.random.Generator | int | None = None,  # noqa: ARG002 (subclasses use it)
    ) -> None:
        self._providers = check_providers(providers)
        self._numbers = {name: number for number, name in enumerate(self._providers)}

    @property
    def providers(self) -> tuple[str, ...]:
        """Names of the providers, in declared order."""
        return self._providers

    @abstractmethod
    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers, the one to ask first at the front; the others are its fallbacks."""

    def _number(self, observation: Observation) -> int:
        """Return the index of a call's provider in declared order, from 0."""
        number = self._numbers.get(observation.provider)
        if number is None:
            raise ConfigurationError(
                f"Expected an observation of one of {', '.join(self._providers)}, got one of "
                f"{observation.provider!r:.80}."
            )
        return number

    def standings(self) -> tuple[Standing, ...]:
        """Return the standing of every provider, in declared order."""
        return tuple(
            Standing(provider=name, observations=self._observed(number), values=self._values(number))
            for number, name in enumerate(self._providers)
        )

    @abstractmethod
    def _observed(self, number: int) -> int:
        """Return the number of observations of one provider."""

    def _values(self, number: int) -> dict[str, float]:  # noqa: ARG002 (subclasses use it)
        """Return the strategy's numbers about one provider, by name."""
        return {}


class CountingRouter(NamedRouter):
    """Router that counts the observations of every provider; subclasses may keep more numbers.

    Parameters
    ----------
    providers : sequence of str
        As in `Router`.
    rng : Generator or int, optional
        Not used here; every strategy takes it.
    """

    def __init__(self, providers: Sequence[str], *, rng: np.random.Generator | int | None = None) -> None:
        super().__init__(providers, rng=rng)
        self._counts = [0] * len(self._providers)

    def record(self, observation: Observation) -> None:
        """Count a call.

        Raises
        ------
        ConfigurationError
            The provider is unknown.
        """
        self._count(observation)

    def _count(self, observation: Observation) -> int:
        """Count a call and return its provider's index."""
        number = self._number(observation)
        self._counts[number] += 1
        return number

    def snapshot(self) -> dict[str, Any]:
        """Return an empty snapshot: the strategy has no state."""
        return {}

    def restore(self, snapshot: Mapping[str, Any] | None) -> None:
        """Ignore a snapshot; None resets the counts.

        Raises
        ------
        StateError
            The snapshot is not empty.
        """
        if snapshot is None:
            self._counts = [0] * len(self._providers)
        elif snapshot != {}:
            raise StateError(
                f"Expected an empty record of the strategy {self.strategy!r}, got {snapshot!r:.80}."
            )

    def _observed(self, number: int) -> int:
        return self._counts[number]

    def _written(self, columns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Return a snapshot that holds a few numbers about every provider, and the counts."""
        named = {_COUNT: self._counts, **columns}
        rows = zip(*named.values(), strict=True)
        records = (dict(zip(named, row, strict=True)) for row in rows)
        return write_records(self.strategy, dict(zip(self._providers, records, strict=True)))

    def _read(self, snapshot: Mapping[str, Any] | None, names: Sequence[str]) -> dict[int, dict[str, float]]:
        """Return the stored numbers of the providers still declared, by provider index.

        Raises
        ------
        StateError
            A number is missing or not finite, or a count is not a whole number.
        """
        stored = {}
        for provider, record in read_records(
            snapshot, strategy=self.strategy, providers=self._providers
        ).items():
            try:
                values = {_COUNT: read_count(record, _COUNT), **read_numbers(record, names)}
            except StateError as error:
                raise StateError(f"Provider {provider!r:.80}: {error} Reset the state.") from None
            stored[self._numbers[provider]] = values
        return stored

    def _begin(
        self, stored: Mapping[int, Mapping[str, float]], start: Mapping[str, float]
    ) -> list[list[float]]:
        """Set the counts to what is stored; return the columns of `start`, with it where nothing is."""
        rows = [stored.get(number, {_COUNT: 0, **start}) for number in range(len(self._providers))]
        self._counts = [int(row[_COUNT]) for row in rows]
        return [[row[name] for row in rows] for name in start]
