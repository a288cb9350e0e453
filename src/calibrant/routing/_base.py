"""Base class of strategies with a tally of every provider, and the strategies of a declared order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import ClassVar, Generic, Self, TypeVar

import pydantic

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._prediction import JsonObject, Record
from calibrant.core._settings import Count
from calibrant.metrics._validation import RandomSource
from calibrant.routing._protocol import (
    Observation,
    ProviderStanding,
    RouterTraits,
    RoutingRequest,
    check_known,
    check_providers,
    check_table,
)


@dataclass
class ProviderTally:
    """Base class of what a strategy stores about one provider; annotations hold the value ranges.

    Attributes
    ----------
    observations : int
        Number of calls that were learnt from.
    """

    observations: Count = 0


_T = TypeVar("_T", bound=ProviderTally)


class TallyRouter(ABC, Generic[_T]):
    """Base class of strategies that keep a tally (counts or averages) of each provider.

    A subclass names its strategy, and the kind of its tallies, whose defaults are those of a provider that was
    never asked.

    Parameters
    ----------
    providers : sequence of str
        As in `Router`.
    rng : Generator or int, optional
        Not used here; every strategy takes it.
    """

    strategy: str
    traits: ClassVar[RouterTraits] = RouterTraits()
    version = 1
    tally_kind: type[_T]

    def __init__(
        self,
        providers: Sequence[str],
        *,
        rng: RandomSource = None,  # noqa: ARG002 (subclasses use it)
    ) -> None:
        self._providers = check_providers(providers)
        self._form = pydantic.TypeAdapter(self.tally_kind)
        self._adopt({})

    @classmethod
    def from_settings(cls, settings: Record) -> Self:
        """Return the strategy of a ``[routing]`` section, without experience.

        Parameters
        ----------
        settings : mapping
            The section's keys and values; `provider_names` and `provider_values` read its providers.
        """
        return cls(provider_names(settings))

    @classmethod
    def for_snapshot(
        cls,
        snapshot: Record,  # noqa: ARG003
        providers: Sequence[str],
        *,
        parameters: Record,  # noqa: ARG003 (it has none)
    ) -> Self:
        """Return a strategy without experience that a snapshot of these providers can be restored into."""
        return cls(providers)

    @classmethod
    def parameters(
        cls,
        snapshot: Record,  # noqa: ARG003
        settings: Record | None,  # noqa: ARG003
    ) -> dict[str, float | None]:
        """Return the parameters to show beside a snapshot, of the settings where there are some: here none."""
        return {}

    @property
    def providers(self) -> tuple[str, ...]:
        """Names of the providers, in declared order."""
        return self._providers

    @abstractmethod
    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers, the one to ask first at the front; the others are its fallbacks."""

    def record(self, observation: Observation) -> None:
        """Update the provider's tally with the outcome of a call, and count the call.

        Raises
        ------
        ConfigurationError
            The provider is unknown.
        """
        tally = self._tally(observation)
        self._learn(tally, observation)
        tally.observations += 1

    def _learn(self, tally: _T, observation: Observation) -> None:
        """Update the provider's tally; `record` counts the call afterwards."""

    def _tally(self, observation: Observation) -> _T:
        """Return the tally of a call's provider."""
        tally = self._tallies.get(observation.provider)
        if tally is None:
            raise ConfigurationError(
                f"Expected an observation of one of {', '.join(self._providers)}, got one of "
                f"{observation.provider!r:.80}."
            )
        return tally

    def standings(self) -> tuple[ProviderStanding, ...]:
        """Return the standing of every provider, in declared order."""
        return tuple(
            ProviderStanding(provider=name, observations=tally.observations, values=self._values(name))
            for name, tally in self._tallies.items()
        )

    def _values(self, provider: str) -> dict[str, float]:
        """Return the strategy's numbers about one provider, by name."""
        values: dict[str, float] = asdict(self._tallies[provider])
        del values["observations"]
        return values

    def snapshot(self) -> JsonObject:
        """Return the tallies as JSON values; floats keep every bit."""
        records = {
            name: self._form.dump_python(tally, mode="json", warnings=False)
            for name, tally in self._tallies.items()
        }
        return {"version": self.version, "strategy": self.strategy, "providers": records}

    def restore(self, snapshot: Record | None) -> None:
        """Restore the tallies of a snapshot; None or an empty one resets them.

        Providers that are no longer there are left out, new ones begin without experience.

        Raises
        ------
        StateError
            A value is missing, not finite or out of its range; nothing is changed.
        """
        self._adopt(self._stored(snapshot))

    def _adopt(self, stored: Mapping[str, _T]) -> None:
        """Take stored tallies; providers without one begin without experience."""
        self._tallies = {name: stored.get(name) or self.tally_kind() for name in self._providers}

    def _stored(self, snapshot: Record | None) -> dict[str, _T]:
        """Return the stored tallies of these providers by name; empty for None or an empty snapshot."""
        if snapshot is None or snapshot == {}:
            return {}
        head = {"version": self.version, "strategy": self.strategy}
        is_own = isinstance(snapshot, Mapping) and head.items() <= snapshot.items()
        records = snapshot.get("providers") if is_own else None
        if not isinstance(records, Mapping):
            raise StateError(
                f"Expected the state of {self.strategy!r}, version {self.version}, with a record of every provider, "
                f"got {snapshot!r:.80}: reset it."
            )
        return {name: self._read(name, records[name]) for name in self._providers if name in records}

    def _read(self, provider: str, record: object) -> _T:
        who = f"the state of the provider {provider!r:.80}"
        if not isinstance(record, Mapping):
            raise StateError(f"Expected {who} as a table, got {record!r:.80}: reset the state.")
        # A default would pass for what was learnt.
        missing = [field.name for field in fields(self.tally_kind) if field.name not in record]
        if missing:
            raise StateError(f"Expected {', '.join(missing)} in {who}, got none: reset the state.")
        try:
            return self._form.validate_python(dict(record))
        except pydantic.ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(map(str, problem["loc"])) or "numbers that fit"
            raise StateError(
                f"Expected {place} in {who}, got {problem['input']!r:.80} ({problem['msg']}): reset the state."
            ) from None


def provider_names(settings: Record) -> tuple[str, ...]:
    """Return the names of the providers of a ``[routing]`` section, as declared."""
    providers = settings["providers"]
    return tuple(own["name"] if own["alias"] is None else own["alias"] for own in providers)


def provider_values(settings: Record, key: str) -> JsonObject | None:
    """Return the values of one key of the providers, by name; None if no provider has it."""
    values = [own[key] for own in settings["providers"]]
    named = zip(provider_names(settings), values, strict=True)
    return {name: value for name, value in named if value is not None} or None


class FixedRouter(TallyRouter[ProviderTally]):
    """Strategy that keeps the declared order.

    Parameters
    ----------
    providers : sequence of str
        At least one, each once.
    rng : Generator or int, optional
        Not used; every strategy takes it.

    Raises
    ------
    ConfigurationError
        The providers cannot be used.

    Examples
    --------
    >>> from calibrant.routing import FixedRouter, Observation
    >>> router = FixedRouter(["a", "b"])
    >>> router.record(Observation(provider="a", success=False, latency_seconds=0.2))
    >>> router.order()
    ['a', 'b']
    >>> [one.observations for one in router.standings()]
    [1, 0]
    """

    strategy = "none"
    traits = RouterTraits(learns_order=False, keeps_state=False)
    tally_kind = ProviderTally

    def order(self, request: RoutingRequest | None = None) -> list[str]:  # noqa: ARG002
        """Return all providers as they were declared."""
        return list(self._providers)


class TaskRouter(TallyRouter[ProviderTally]):
    """Strategy with one preferred provider per task; the others follow in declared order.

    A request without a task, or of one that is not in the table, keeps the declared order.

    Parameters
    ----------
    providers : sequence of str
        At least one, each once.
    tasks : mapping of str to str
        The provider of every task, by the task's name.
    rng : Generator or int, optional
        Not used; every strategy takes it.

    Raises
    ------
    ConfigurationError
        The providers cannot be used, or the table names one that is not among them.

    Examples
    --------
    >>> from calibrant.routing import RoutingRequest, TaskRouter
    >>> router = TaskRouter(["a", "b"], tasks={"animals": "b"})
    >>> router.order(RoutingRequest(task="animals"))
    ['b', 'a']
    """

    strategy = "task"
    traits = RouterTraits(learns_order=False, keeps_state=False)
    tally_kind = ProviderTally

    def __init__(
        self,
        providers: Sequence[str],
        *,
        tasks: Mapping[str, str],
        rng: RandomSource = None,
    ) -> None:
        super().__init__(providers, rng=rng)
        self._tasks = check_table("tasks", tasks)
        check_known("tasks", self._tasks.values(), self._providers)

    @classmethod
    def from_settings(cls, settings: Record) -> Self:
        """Return the strategy of a ``[routing]`` section: its ``tasks``."""
        return cls(provider_names(settings), tasks=settings["tasks"])

    @classmethod
    def for_snapshot(
        cls,
        snapshot: Record,  # noqa: ARG003
        providers: Sequence[str],
        *,
        parameters: Record,  # noqa: ARG003
    ) -> Self:
        """Return a strategy without tasks, as the standings do not depend on them."""
        return cls(providers, tasks={})

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers, the task's at the front."""
        task = None if request is None else request.task
        first = None
        if task is not None:
            first = self._tasks.get(task)
        return sorted(self._providers, key=lambda name: name != first)  # stable
