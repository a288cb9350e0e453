"""Protocol of routing strategies, and checks of their arguments: a request in, providers out, observations back."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import FloatArray, JsonObject
from calibrant.metrics._validation import check_number


@dataclass(frozen=True, kw_only=True, eq=False)
class RoutingRequest:
    """Description of a request, as a strategy sees it before the call.

    Attributes
    ----------
    embedding : ndarray of shape (d,) or None
        The text as a vector; None where it could not be embedded.
    tier : str or None
        Difficulty by a triage model: ``simple``, ``medium``, ``complex`` or ``expert``.
    task : str or None
        Name of the request's task.
    has_tools : bool
        True if the request offers tools to the model.
    tokens : int or None
        Tokens of its messages, estimated.

    Examples
    --------
    >>> from calibrant.routing import RoutingRequest, TriageRouter
    >>> router = TriageRouter(["big", "small"], tiers={"simple": "small", "expert": "big"})
    >>> [router.order(RoutingRequest(tier=tier))[0] for tier in ("simple", "expert")]
    ['small', 'big']
    """

    embedding: FloatArray | None = None
    tier: str | None = None
    task: str | None = None
    has_tools: bool = False
    tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class RouterTraits:
    """Traits of a strategy: needs that its client serves, and work that it does itself.

    Attributes
    ----------
    learns_order : bool, default True
        True if the order comes of observations; False if the user, or a triage model, declares it.
    keeps_state : bool, default True
        True if what it has learned is stored for the next run.
    judges_answers : bool, default False
        True if it learns from the quality of answers itself, so that no quality gate and no coherence apply.
    needs_embedding : bool, default False
        True if it orders by the embedding of a request.
    tries_all_first : bool, default False
        True if every provider has to be asked once before its order means anything, as it never explores.

    Examples
    --------
    >>> from calibrant.routing import BanditRouter, FixedRouter
    >>> BanditRouter.traits.needs_embedding, FixedRouter.traits.learns_order
    (True, False)
    """

    learns_order: bool = True
    keeps_state: bool = True
    judges_answers: bool = False
    needs_embedding: bool = False
    tries_all_first: bool = False


_FLAGS: Final = ("success", "rate_limited", "recovered")
# Largest value of a number, its interval, and whether it may be None.
_RANGES: Final = (
    ("latency_seconds", sys.float_info.max, "[0, inf)", False),
    ("quality", 1.0, "[0, 1]", True),
    ("cost", sys.float_info.max, "[0, inf)", True),
    ("penalty", 1.0, "[0, 1]", False),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """Outcome of one call.

    Real numbers of any type, numpy's included, are converted to floats. Flags also accept 0 and 1, and quality also
    accepts a bool.

    Attributes
    ----------
    provider : str
        Name of the provider that was asked.
    success : bool
        True if a complete answer came, of any quality.
    latency_seconds : float
        Duration of the call, finite and at least 0.
    rate_limited : bool
        True if the call failed on the provider's rate limit.
    quality : float or None
        Quality of the answer, in [0, 1]; None if it is not known, or not yet.
    cost : float or None
        Cost in US dollars, at least 0; None if no price is known.
    context : ndarray of shape (d,) or None
        The embedding of the request, or None.
    penalty : float
        In [0, 1]; lowers the provider's chances regardless of the outcome.
    recovered : bool
        True for the first answer after the provider's cooldown.
    request : RoutingRequest or None
        The request, as the strategy saw it.

    Raises
    ------
    ConfigurationError
        A number is out of range, not finite or of another type, or a truth value is neither true nor false.

    Examples
    --------
    >>> from calibrant.routing import Observation, ThompsonRouter
    >>> router = ThompsonRouter(["a", "b"])
    >>> router.record(Observation(provider="a", success=False, rate_limited=True, latency_seconds=0.1))
    >>> [one.values["beta"] for one in router.standings()]
    [3.0, 1.0]
    """

    provider: str
    success: bool
    latency_seconds: float
    rate_limited: bool = False
    quality: float | None = None
    cost: float | None = None
    context: FloatArray | None = None
    penalty: float = 0.0
    recovered: bool = False
    request: RoutingRequest | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.provider, str):
            raise ConfigurationError(f"Expected the name of a provider, got {self.provider!r:.80}.")
        for name in _FLAGS:
            flag = getattr(self, name)
            if flag is not True and flag is not False:
                object.__setattr__(self, name, _truth(name, flag))
        quality: object = self.quality
        if isinstance(quality, bool | np.bool_):  # right or wrong
            object.__setattr__(self, "quality", float(quality))
        for name, most, interval, optional in _RANGES:
            value = getattr(self, name)
            # Made once per call, and mostly of plain floats, which need no further check.
            is_plain = type(value) is float and 0.0 <= value <= most
            if not is_plain and (value is not None or not optional):
                object.__setattr__(self, name, check_number(name, value, interval))
        if self.success and self.rate_limited:
            raise ConfigurationError("Expected a rate-limited call to have no success, got both.")


@dataclass(frozen=True, kw_only=True)
class ProviderStanding:
    """Numbers that a strategy has learnt about one provider.

    Attributes
    ----------
    provider : str
        The provider.
    observations : int
        Number of calls that the strategy has learnt from.
    values : mapping of str to float
        Its numbers by name, such as ``alpha`` and ``beta``, in the order in which to show them.

    Examples
    --------
    >>> ProviderStanding(provider="small", observations=3, values={"latency": 0.2}).observations
    3
    """

    provider: str
    observations: int
    values: Mapping[str, float]


@runtime_checkable
class Router(Protocol):
    """Strategy that orders providers for a request.

    It makes no call, reads no clock and may be used by one thread at a time. Implementations take
    ``providers`` and ``rng`` as keywords.

    Attributes
    ----------
    strategy : str
        Its name, as ``routing`` of a task file spells it.
    traits : RouterTraits
        What it needs and does by itself.
    providers : tuple of str
        Names of the providers, in declared order.

    Examples
    --------
    >>> from calibrant.routing import FixedRouter, Router, RoutingRequest
    >>> class ToolsToLast(FixedRouter):
    ...     def order(self, request=None):
    ...         names = list(self.providers)
    ...         return names[::-1] if request is not None and request.has_tools else names
    >>> router = ToolsToLast(["small", "big"])
    >>> router.order(RoutingRequest(has_tools=True)), isinstance(router, Router)
    (['big', 'small'], True)
    """

    @property
    def strategy(self) -> str: ...

    @property
    def traits(self) -> RouterTraits: ...

    @property
    def providers(self) -> tuple[str, ...]: ...

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers, the one to ask first at the front; the others are its fallbacks."""
        ...

    def record(self, observation: Observation) -> None:
        """Update the strategy with the outcome of a call.

        Raises
        ------
        ConfigurationError
            The provider is unknown, or the context has another size than the strategy's.
        """
        ...

    def snapshot(self) -> JsonObject:
        """Return the learnt state as JSON values; it may be empty before any observation."""
        ...

    def restore(self, snapshot: Mapping[str, Any] | None) -> None:
        """Restore a snapshot of a strategy of the same kind; None resets the state.

        Undeclared providers are ignored; new ones start without observations.

        Raises
        ------
        StateError
            A value is missing, not finite or out of its range; nothing is changed.
        """
        ...

    def standings(self) -> tuple[ProviderStanding, ...]:
        """Return the standing of every provider, in declared order."""
        ...


def _truth(name: str, value: object) -> bool:
    """Return True, False, 1 or 0 as a bool; raise ConfigurationError for anything else."""
    if not isinstance(value, Real | np.bool_) or value not in (0, 1):
        raise ConfigurationError(f"Expected {name} to be true or false, got {value!r:.80}.")
    return bool(value)


def check_providers(providers: Sequence[str]) -> tuple[str, ...]:
    """Return the checked names of providers as a tuple.

    Raises
    ------
    ConfigurationError
        `providers` is empty, holds a non-string or a blank name, or repeats a name.
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


def check_known(option: str, names: Iterable[str], providers: Sequence[str]) -> None:
    """Raise ConfigurationError for a name in an option that is not a provider.

    Raises
    ------
    ConfigurationError
        A name is unknown.
    """
    unknown = sorted({str(name) for name in names if name not in providers})
    if unknown:
        raise ConfigurationError(
            f"Expected {option} to name some of the providers {', '.join(providers)}, got "
            f"{', '.join(unknown):.80}: correct the name."
        )


def check_table(option: str, table: object) -> JsonObject:
    """Return a table as a dict.

    Raises
    ------
    ConfigurationError
        `table` is not a mapping.
    """
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"Expected {option} to be a table, got {table!r:.80}.")
    return dict(table)


def check_costs(costs: Mapping[str, float] | None, providers: Sequence[str]) -> dict[str, float]:
    """Return checked costs by provider; empty if `costs` is None.

    Raises
    ------
    ConfigurationError
        `costs` is not a table, names an unknown provider, or holds a cost that is not a finite number of at least 0.
    """
    table = {} if costs is None else check_table("costs", costs)
    check_known("costs", table, providers)
    return {name: check_number(f"the cost of {name!r}", cost, "[0, inf)") for name, cost in table.items()}


def unit_vector(vector: ArrayLike | None) -> FloatArray | None:
    """Return the vector scaled to length 1, or None if it has no direction.

    Parameters
    ----------
    vector : array-like of shape (d,), or None
        Anything else than d >= 1 finite numbers, not all 0, has no direction.

    Returns
    -------
    ndarray of shape (d,) or None
        The vector divided by its Euclidean length.
    """
    if vector is None:
        return None
    try:
        numbers = np.asarray(vector, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    if numbers.ndim != 1 or numbers.size == 0 or not np.isfinite(numbers).all():
        return None
    largest = np.abs(numbers).max()
    if largest == 0.0:
        return None
    scaled = numbers / largest  # squares of very large or small numbers would leave the range of floats
    found: FloatArray = scaled / np.linalg.norm(scaled)
    return found
