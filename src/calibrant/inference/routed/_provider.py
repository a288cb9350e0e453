"""Declared providers of a routed client, their circuit breakers, and the checks of its other parts."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final, NamedTuple

from calibrant.core._completion import Client, ClientTraits
from calibrant.core._errors import ConfigurationError, ProviderError, RateLimitError
from calibrant.core._prediction import LogprobSpace, Usage
from calibrant.inference._abilities import KnownAbilities
from calibrant.inference._embeddings import CachedEmbedder
from calibrant.inference._limits import LONGEST_PAUSE
from calibrant.inference.doctor._records import identity
from calibrant.metrics._validation import check_count, check_number
from calibrant.routing._checks import check_providers, check_table
from calibrant.routing._protocol import OWN_SIGNAL, Router

COOLDOWN_SECONDS: Final = 5.0
_LONGEST_COOLDOWN: Final = 300.0
# A server's own Retry-After counts in full, but for nonsense.
_LONGEST_RETRY_AFTER: Final = 3600.0
_MOST_DOUBLINGS: Final = 30  # beyond every longest cooldown, and no overflow


@dataclass(frozen=True)
class Provider:
    """Declared provider of a routed client.

    Attributes
    ----------
    name : str
        Unique name in strategies, tables and state.
    client : Client
        Client of the provider's calls.
    concurrency : int or None
        Calls in flight at most, at least 1; fewer while it says that it is overloaded. None takes what the client
        computes at the same time, where it runs the model itself (its ``n_parallel``); otherwise it sets no limit.
    options : mapping
        Sent with every call; those of a request come before them.
    cost : float or None
        US dollars a call costs, at least 0, where its answers carry no price.
    context_window : int or None
        Tokens its model takes, at least 1; a request that is estimated to be longer goes to the others first.
    space : LogprobSpace, str or None
        Log-probability space, if the client's own is wrong.
    abilities : KnownAbilities or None
        What is known of its model. Where it has to be found out in what form that answers, one question is asked
        before the first request. None asks by a schema, as requests have it.

    Raises
    ------
    ConfigurationError
        A value is not what it must be.

    Examples
    --------
    >>> from calibrant.inference import Provider
    >>> from calibrant.testing import FakeClient
    >>> provider = Provider("small", FakeClient(["cat", "dog"], {}), concurrency=4, cost=0.0002)
    >>> provider.name, provider.places, provider.logprob_space.value
    ('small', 4, 'masked')
    """

    name: str
    client: Client
    _: KW_ONLY
    concurrency: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold a key
    cost: float | None = None
    context_window: int | None = None
    space: LogprobSpace | str | None = None
    abilities: KnownAbilities | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_providers([self.name])
        if not isinstance(self.client, Client):
            raise ConfigurationError(
                f"Expected a client for the provider {self.name!r}, got {self.client!r:.80}: open one with "
                "calibrant.inference.open_client."
            )
        for name in ("concurrency", "context_window"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_count(f"{name} of {self.name!r}", value, low=1))
        if self.cost is not None:
            check_number(f"the cost of {self.name!r} in US dollars", self.cost, "[0, inf)")
        check_table(f"options of {self.name!r}", self.options)
        if self.space is not None:
            object.__setattr__(self, "space", LogprobSpace(self.space))

    @property
    def logprob_space(self) -> LogprobSpace:
        """Log-probability space of the provider's answers."""
        return self.client.space if self.space is None else LogprobSpace(self.space)

    @property
    def places(self) -> int | None:
        """Maximum number of calls in flight; None without a limit."""
        if self.concurrency is not None:
            return self.concurrency
        # Further calls would wait inside the client, and what they wait would pass for its latency.
        return ClientTraits.of(self.client).n_parallel


@dataclass(frozen=True, kw_only=True)
class ProviderStats:
    """Counts of one provider's calls.

    Attributes
    ----------
    provider : str
        Its name.
    calls : int
        Calls that ended.
    failures : int
        Calls failed through the provider's fault, rate limits included.
    rate_limits : int
        Calls rejected by a rate limit.
    too_long : int
        Calls longer than the model's context.
    escalations : int
        Answers that were turned down for their quality, so that another provider was asked.
    in_flight : int
        Calls under way.
    mean_latency_seconds : float or None
        Mean duration of the calls that were answered; None without any.
    prompt_tokens, completion_tokens : int
        Tokens of its answers, those turned down included.
    cost : float or None
        US dollars of its answers as far as they are known; None where none is.
    cooling_seconds : float
        Seconds for which it is still left out; 0 where it is not.
    """

    provider: str
    calls: int = 0
    failures: int = 0
    rate_limits: int = 0
    too_long: int = 0
    escalations: int = 0
    in_flight: int = 0
    mean_latency_seconds: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    cooling_seconds: float = 0.0


def priced(usage: Usage, cost: float | None) -> Usage:
    """Return the usage of a call; a missing or implausible cost is replaced by the declared one."""
    if usage.cost is not None and 0.0 <= usage.cost < math.inf:
        return usage
    return usage if usage.cost is None and cost is None else replace(usage, cost=cost)


def check_parts(strategy: str, embedder: CachedEmbedder | None, **parts: object) -> None:
    """Raise ConfigurationError if a part lacks its embedder, or a given part has no effect.

    Raises
    ------
    ConfigurationError
        A required part is missing, or a given part has no effect.
    """
    for name, part in parts.items():
        if part is not None and strategy in OWN_SIGNAL:
            raise ConfigurationError(
                f"Expected no {name} with the strategy {strategy!r}, which judges answers itself: leave it out."
            )
        if part is not None and embedder is None:
            raise ConfigurationError(f"Expected an embedder for {name}, got none: hand one in.")
    if strategy == "bandit" and embedder is None:
        raise ConfigurationError("Expected an embedder for the strategy 'bandit', got none: hand one in.")


def check_helper(name: str, client: Client | None, *, wanted: bool, why: str) -> None:
    """Raise ConfigurationError if a helper model is missing, or would never be called.

    Raises
    ------
    ConfigurationError
        The helper is missing, never called, or no client.
    """
    if wanted and client is None:
        raise ConfigurationError(f"Expected a client as {name} for {why}, got none: hand one in.")
    if client is not None and not wanted:
        raise ConfigurationError(f"Expected no {name} but for {why}: leave it out.")
    if client is not None and not isinstance(client, Client):
        raise ConfigurationError(f"Expected a client as {name}, got {client!r:.80}.")


def checked_providers(providers: Sequence[Provider], router: Router) -> tuple[Provider, ...]:
    """Return the providers after checking their names and settings.

    Raises
    ------
    ConfigurationError
        `providers` is empty, holds something else, repeats a name, or differs from the router's.
    """
    declared = tuple(providers)
    for provider in declared:
        if not isinstance(provider, Provider):
            raise ConfigurationError(f"Expected a Provider, got {provider!r:.80}.")
    names = check_providers([provider.name for provider in declared])
    if set(names) != set(router.providers):
        raise ConfigurationError(
            f"Expected a router of the providers {', '.join(names)}, got one of {', '.join(router.providers)}."
        )
    return declared


def common_space(providers: Sequence[Provider]) -> LogprobSpace:
    """Return the common log-probability space; ``mixed`` if providers differ."""
    spaces = {provider.logprob_space for provider in providers}
    return spaces.pop() if len(spaces) == 1 else LogprobSpace.MIXED


def identity_of(providers: Sequence[Provider]) -> str:
    """Return the providers' models, addresses and options as JSON, free of credentials."""
    mixed = common_space(providers) is LogprobSpace.MIXED
    identities = []
    for provider in providers:
        client = provider.client
        who = identity(client.name, provider.options, api_base=ClientTraits.of(client).endpoint)
        identities.append([provider.name, *who, *([provider.logprob_space] if mixed else [])])
    return json.dumps(identities, sort_keys=True)


class Turn(NamedTuple):
    """Permission of a circuit breaker for one call.

    Attributes
    ----------
    epoch : int
        Number of cooldowns before the call began.
    probe : bool
        True for the probe call after a cooldown.
    """

    epoch: int
    probe: bool


class Breaker:
    """Circuit breaker of one provider.

    It is left out after `allowed_failures` failures in a row, after a rate limit, or after a fault that
    every call would meet (a wrong key, an unknown model, no credit). The cooldown is the time a rate limit names,
    at most an hour; 5 minutes for a fault that every call would meet; else `cooldown_seconds`, doubled every
    time in a row, up to 5 minutes (or `cooldown_seconds`, if that is longer). Then a single call is let through.
    If it succeeds the provider is back, if it fails it is left out again.

    Calls that were under way when the provider was left out neither bring it back nor prolong the time,
    unless the server names a longer one; nor do calls that were forced meanwhile prolong it, though their answers
    bring it back. Thread-safe.

    Parameters
    ----------
    allowed_failures : int, default 3
        Consecutive failures that open the breaker, at least 1.
    cooldown_seconds : float, default 5
        First cooldown in seconds, above 0.
    clock : function, default time.monotonic
        Returns seconds; tests replace it.

    Raises
    ------
    ConfigurationError
        A number is out of its range.
    """

    def __init__(
        self,
        *,
        allowed_failures: int = 3,
        cooldown_seconds: float = COOLDOWN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = check_count("allowed_failures", allowed_failures, low=1)
        self._seconds = check_number("cooldown_seconds", cooldown_seconds, "(0, inf)")
        self._longest = max(cooldown_seconds, _LONGEST_COOLDOWN)
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0  # in a row
        self._doublings = 0
        self._epoch = 0
        self._open = False  # left out
        self._until = 0.0
        self._named = False  # whether the provider itself named that time
        self._probing = False
        self._paused_until = 0.0
        self._last: ProviderError | None = None

    @property
    def remaining(self) -> float:
        """Remaining cooldown or pause in seconds; 0 if it is over."""
        with self._lock:
            return self._remaining()

    @property
    def named_seconds(self) -> float | None:
        """Remaining wait in seconds that the provider named; None if it named none, or if it is over."""
        with self._lock:
            now = self._clock()
            if now < self._until and self._open and not self._named:
                return None
            return self._remaining() or None

    @property
    def admits(self) -> bool:
        """True if a call may begin."""
        with self._lock:
            return self._admits()

    @property
    def due(self) -> bool:
        """True if the breaker is open, its cooldown is over and no probe call is in flight."""
        with self._lock:
            return self._open and self._admits()

    @property
    def last_failure(self) -> ProviderError | None:
        """Latest failure since the last success; None without one."""
        with self._lock:
            return self._last

    def begin(self, *, forced: bool = False) -> Turn | None:
        """Return permission for a call; None if the breaker refuses and the call is not `forced`.

        The caller ends the call with `succeeded`, `failed` or `released`.
        """
        with self._lock:
            if not (forced or self._admits()):
                return None
            probe = self._open and not self._probing
            self._probing = self._probing or probe
            return Turn(self._epoch, probe)

    def succeeded(self, turn: Turn) -> bool:
        """Record a success; return True if it closes the breaker."""
        with self._lock:
            if turn.epoch != self._epoch:
                return False
            recovered = self._open
            self._open = self._probing = False
            self._failures = self._doublings = 0
            self._last = None
            return recovered

    def failed(self, turn: Turn, error: ProviderError) -> None:
        """Record a failure of the provider."""
        with self._lock:
            self._last = error
            current = turn.epoch == self._epoch
            if not current or (self._open and self._clock() < self._until):
                # Begun before the provider was left out, or forced since: it says no more than what led to that.
                self._probing = self._probing and not (current and turn.probe)
                if self._open and is_rate_limit(error) and error.retry_after is not None:
                    named = self._clock() + min(error.retry_after, _LONGEST_RETRY_AFTER)
                    if named > self._until:
                        self._until, self._named = named, True
                return
            self._failures += 1
            if self._open or is_rate_limit(error) or _is_lasting(error) or self._failures >= self._allowed:
                self._leave_out(error)

    def released(self, turn: Turn) -> None:
        """Release a call without evidence about the provider, such as a cancelled one."""
        with self._lock:
            if turn.probe and turn.epoch == self._epoch:
                self._probing = False

    def pause(self, seconds: float) -> None:
        """Pause calls for `seconds`, at most a minute, because a rate-limit allowance is exhausted."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + min(seconds, LONGEST_PAUSE))

    def _remaining(self) -> float:
        until = max(self._paused_until, self._until if self._open else 0.0)
        return max(0.0, until - self._clock())

    def _admits(self) -> bool:
        if not self._open and not self._paused_until:
            return True  # nearly always
        return self._remaining() <= 0.0 and not (self._open and self._probing)

    def _leave_out(self, error: ProviderError) -> None:
        own = min(self._longest, self._seconds * 2.0**self._doublings)
        self._doublings = min(self._doublings + 1, _MOST_DOUBLINGS)
        self._named = is_rate_limit(error) and error.retry_after is not None
        if _is_lasting(error):
            own = self._longest
        elif self._named and error.retry_after is not None:
            own = min(error.retry_after, _LONGEST_RETRY_AFTER)
        self._until = self._clock() + own
        self._open = True
        self._probing = False
        self._epoch += 1


def is_rate_limit(error: ProviderError) -> bool:
    """Return True for a temporary rate limit; False for an account without credit."""
    return isinstance(error, RateLimitError) and error.retryable


def _is_lasting(error: ProviderError) -> bool:
    return error.systemic or (isinstance(error, RateLimitError) and not error.retryable)
