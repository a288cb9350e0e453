"""Providers of a routed client: their declaration, circuit breakers, calls and fallback order, and its checks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final, NamedTuple

from calibrant.clients._failures import rate_state
from calibrant.core._completion import Client, ClientTraits, Completion, CompletionRequest
from calibrant.core._errors import (
    CalibrantError,
    ConfigurationError,
    ContextLengthError,
    LogprobsUnsupportedError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from calibrant.core._prediction import LogprobSpace, Usage
from calibrant.core._predictor import Limits
from calibrant.inference._abilities import (
    AnswerForm,
    KnownAbilities,
    ModelAbilities,
    asked_labels,
    readable,
    shaped,
    tell_form,
)
from calibrant.inference._embeddings import CachedEmbedder
from calibrant.inference._examinations import identity
from calibrant.inference._limits import LONGEST_PAUSE, Gate
from calibrant.inference._methods import call_deadline
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._fields import UnparsedError
from calibrant.metrics._validation import check_count, check_number
from calibrant.routing._protocol import Router, check_providers, check_table

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
        if self.space is None:
            return self.client.space
        return LogprobSpace(self.space)

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

    Examples
    --------
    >>> ProviderStats(provider="small", calls=3, failures=1).calls
    3
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
    if usage.cost is None and cost is None:
        return usage
    return replace(usage, cost=cost)


def check_parts(router: Router, embedder: CachedEmbedder | None, **parts: object) -> None:
    """Raise ConfigurationError if a part lacks its embedder, or a given part has no effect.

    Raises
    ------
    ConfigurationError
        A required part is missing, or a given part has no effect.
    """
    for name, part in parts.items():
        if part is not None and router.traits.judges_answers:
            raise ConfigurationError(
                f"Expected no {name} with the strategy {router.strategy!r}, which judges answers itself: leave it out."
            )
        if part is not None and embedder is None:
            raise ConfigurationError(f"Expected an embedder for {name}, got none: hand one in.")
    if router.traits.needs_embedding and embedder is None:
        raise ConfigurationError(
            f"Expected an embedder for the strategy {router.strategy!r}, got none: hand one in."
        )


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
    if len(spaces) == 1:
        return spaces.pop()
    return LogprobSpace.MIXED


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
        self._lock = threading.RLock()
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
            until = max(self._paused_until, self._until if self._open else 0.0)
            return max(0.0, until - self._clock())

    @property
    def named_seconds(self) -> float | None:
        """Remaining wait in seconds that the provider named; None if it named none, or if it is over."""
        with self._lock:
            now = self._clock()
            if now < self._until and self._open and not self._named:
                return None
            return self.remaining or None

    @property
    def admits(self) -> bool:
        """True if a call may begin."""
        with self._lock:
            if not self._open and not self._paused_until:
                return True  # nearly always
            return self.remaining <= 0.0 and not (self._open and self._probing)

    @property
    def due(self) -> bool:
        """True if the breaker is open, its cooldown is over and no probe call is in flight."""
        with self._lock:
            return self._open and self.admits

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
            if not (forced or self.admits):
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
                        self._until = named
                        self._named = True
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


_KINDS: Final = (ContextLengthError, RateLimitError, ProviderTimeoutError)
# Routed providers take how they are scored from a cascade, of which they may be the only model.
_SECTION: Final = '[cascade]\nconfidence_method = "label_probability"\n\n[[cascade.models]]\nname = "routed"'
# An answer without text that ended so is the model's doing, not the server's.
_EMPTY_ON_PURPOSE: Final = frozenset({"length", "content_filter", "tool_calls", "function_call"})


class Lease(NamedTuple):
    """Permission for one call to a provider, used up by `RoutedProvider.ask`.

    Attributes
    ----------
    member : RoutedProvider
        The provider.
    epoch : int or None
        Epoch of its gate when the call began.
    turn : Turn
        Turn of its breaker.
    """

    member: RoutedProvider
    epoch: int | None
    turn: Turn


@dataclass(frozen=True, kw_only=True, eq=False)
class ProviderAnswer:
    """A successful call of a provider.

    Attributes
    ----------
    member : RoutedProvider
        Provider that answered.
    response : object
        Response of the provider, unchanged.
    completion : Completion
        The same, read, with what the provider's declaration adds: a price, and where providers differ, their space
        of log-probabilities.
    adds : bool
        True if the response alone would not tell all: it lacks what is declared, or its rate limit is used up.
    latency_seconds : float
        Duration of the call, in seconds.
    recovered : bool
        True if the answer closed the circuit breaker.
    calls : int
        This call, and the questions before it that found out in what form the provider answers.
    """

    member: RoutedProvider
    response: object
    completion: Completion
    adds: bool
    latency_seconds: float
    recovered: bool
    calls: int


@dataclass(frozen=True, kw_only=True, eq=False)
class ProviderFailure:
    """A failed call of a provider.

    Attributes
    ----------
    member : RoutedProvider
        Provider of the call.
    error : ProviderError
        Error of the call.
    latency_seconds : float
        Duration of the call, in seconds.
    calls : int
        As of an answer.
    """

    member: RoutedProvider
    error: ProviderError
    latency_seconds: float
    calls: int


@dataclass(eq=False)
class RoutedProvider:
    """One provider of a routed client.

    Attributes
    ----------
    provider : Provider
        The declared provider.
    breaker : Breaker
        Leaves it out while it fails.
    clock : function
        Returns seconds.
    call_seconds : float or None
        How long a call may take.
    mixed : bool
        Whether its answers are to say what their log-probabilities are probabilities of.
    """

    provider: Provider
    _: KW_ONLY
    breaker: Breaker
    clock: Callable[[], float]
    call_seconds: float | None
    mixed: bool

    def __post_init__(self) -> None:
        self.name = self.provider.name
        self._abilities = self.provider.abilities or KnownAbilities(ModelAbilities())
        self._unpaid = Usage()  # of a probe that no answer has paid for yet
        self._uncounted = 0  # calls of a probe that are counted with the next one
        limit = self.provider.places
        self._gate = None if limit is None else Gate(Limits(concurrency=limit), clock=self.clock)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()  # by the names of `ProviderStats`
        self._paid = Usage()
        self._seconds = 0.0

    async def enter(self, *, wait: bool = True, forced: bool = False) -> Lease | None:
        """Return permission for a call; None if the breaker or the concurrency limit refuses it."""
        epoch = None
        if self._gate is not None:
            epoch = await self._gate.enter() if wait else self._gate.try_enter()
            if epoch is None:
                return None
        turn = self.breaker.begin(forced=forced)
        if turn is not None:
            self.count("in_flight")
            return Lease(member=self, epoch=epoch, turn=turn)
        if self._gate is not None and epoch is not None:
            # There was no call, so no sign that the provider would welcome more of them.
            self._gate.leave(epoch, asyncio.CancelledError())
        return None

    async def ask(
        self, request: CompletionRequest, lease: Lease, *, empty_is_failure: bool
    ) -> ProviderAnswer | ProviderFailure:
        """Make one call and give its permission back.

        Exceptions that are no `ProviderError`, cancellation among them, pass; nothing is learnt from them.
        """
        options = self.provider.options
        if options:
            request = replace(request, options={**options, **request.options})
        start = self.clock()
        failure: BaseException | None = None
        try:
            asked = asked_labels(request)
            if asked is not None:
                await self._find_abilities(request)
                request = shaped(request, self._form, asked.labels)
                start = self.clock()
            response = await self._complete(request)
            completion = self._read(response, empty_is_failure=empty_is_failure)
            if asked is not None:
                with contextlib.suppress(UnparsedError):  # whoever asked says more
                    completion = readable(completion, self._form, asked.labels, asked.field)
        except ProviderError as error:
            failure = error
            return self._failed(lease.turn, error, max(0.0, self.clock() - start))
        except BaseException as error:
            failure = error
            self.breaker.released(lease.turn)
            raise
        else:
            return self._answered(lease.turn, response, completion, max(0.0, self.clock() - start))
        finally:
            if self._gate is not None and lease.epoch is not None:
                self._gate.leave(lease.epoch, failure)
            self.count("in_flight", by=-1)

    def count(self, *names: str, by: int = 1) -> None:
        """Add to counts, by their names in `ProviderStats`."""
        with self._lock:
            for name in names:
                self._counts[name] += by

    def stats(self) -> ProviderStats:
        """Return the counts of the provider's calls."""
        with self._lock:
            counts = dict(self._counts)
            paid = self._paid
            seconds = self._seconds
        answers = counts.pop("answers", 0)
        return ProviderStats(
            provider=self.name,
            mean_latency_seconds=seconds / answers if answers else None,
            prompt_tokens=paid.prompt_tokens,
            completion_tokens=paid.completion_tokens,
            cost=paid.cost,
            cooling_seconds=self.breaker.remaining,
            **counts,
        )

    @property
    def _form(self) -> AnswerForm:
        """Form of the provider's answers."""
        return self._abilities.used.form

    async def _complete(self, request: CompletionRequest) -> object:
        async with call_deadline(self.call_seconds, self.provider.client.name):
            return await self.provider.client.complete(request)

    async def _find_abilities(self, request: CompletionRequest) -> None:
        """Find out in what form the provider answers, unless that is known; the next answer pays for it."""
        made = 0

        async def complete(probe: CompletionRequest) -> tuple[object, int]:
            nonlocal made
            response = await self._complete(probe)
            made += 1  # one that failed took no tokens
            self._read(response, empty_is_failure=False)
            return response, 1

        needs_logprobs = request.top_logprobs > 0
        usage = await self._abilities.probe(complete, request, needs_logprobs=needs_logprobs)
        with self._lock:
            self._unpaid += usage
            self._uncounted += made
        tell_form(self.provider.client.name, self._form)

    def _read(self, response: object, *, empty_is_failure: bool) -> Completion:
        name = self.provider.client.name
        try:
            completion = read_completion(response)
        except CalibrantError as error:
            raise ProviderError(f"broken response: {error}", provider=name, retryable=True) from error
        is_empty = not completion.text.strip() and not completion.refusal
        if empty_is_failure and is_empty and completion.finish_reason not in _EMPTY_ON_PURPOSE:
            raise ProviderError(
                "broken response: it holds no text and no refusal.", provider=name, retryable=True
            )
        return completion

    def _answered(
        self, turn: Turn, response: object, completion: Completion, seconds: float
    ) -> ProviderAnswer:
        recovered = self.breaker.succeeded(turn)
        state = rate_state(response)
        spent = None if state is None else state.spent_seconds
        if spent:
            self.breaker.pause(spent)
        usage = priced(completion.usage, self.provider.cost)
        own = self.provider.logprob_space
        has_schema = self._form is AnswerForm.SCHEMA
        space = completion.space
        if not has_schema and own is LogprobSpace.MASKED:
            space = LogprobSpace.RAW
        elif self.mixed and own is not LogprobSpace.MIXED:
            space = own
        with self._lock:
            if self._unpaid != Usage():
                usage = usage + priced(self._unpaid, self.provider.cost)
                self._unpaid = Usage()
            self._counts["answers"] += 1
            self._paid += usage
            self._seconds += seconds
        return ProviderAnswer(
            member=self,
            response=response,
            completion=replace(completion, usage=usage, space=space),
            adds=bool(spent)
            or not has_schema
            or usage is not completion.usage
            or space is not completion.space,
            latency_seconds=seconds,
            recovered=recovered,
            calls=self._counted_calls(),
        )

    def _counted_calls(self) -> int:
        """Count a call and those of a probe before it, and return their number."""
        with self._lock:
            calls = 1 + self._uncounted
            self._uncounted = 0
            self._counts["calls"] += calls
        return calls

    def _failed(self, turn: Turn, error: ProviderError, seconds: float) -> ProviderFailure:
        if isinstance(error, ContextLengthError):
            self.breaker.released(turn)
            self.count("too_long")
        else:
            self.breaker.failed(turn, error)
            self.count("failures", *(["rate_limits"] if is_rate_limit(error) else []))
        calls = self._counted_calls()
        return ProviderFailure(member=self, error=error, latency_seconds=seconds, calls=calls)


class FallbackOrder:
    """Order in which one request tries the providers.

    Parameters
    ----------
    members : iterable of RoutedProvider
        All providers, in the order in which they are to be asked.
    learning : bool
        True if the order is learnt, not declared by the user. Then a provider that
        was left out long enough comes first, once, to find out whether it is back; and one whose places
        are all taken is passed over while others have a free one. Otherwise it is waited for.

    Attributes
    ----------
    passed : list of RoutedProvider
        Providers skipped because of an open circuit breaker.
    """

    def __init__(self, members: Iterable[RoutedProvider], *, learning: bool) -> None:
        waiting = list(members)
        due = None
        if learning:
            due = next((member for member in waiting if member.breaker.due), None)
        if due is not None:
            waiting.sort(key=lambda member: member is not due)  # stable
        self._waiting = deque(waiting)
        self._full: deque[RoutedProvider] = deque()
        self._learning = learning
        self._has_lease = False
        self.passed: list[RoutedProvider] = []

    @property
    def is_over(self) -> bool:
        """True if no provider is left to ask."""
        return not self._waiting and not self._full

    async def next(self) -> Lease | None:
        """Return permission to call the next provider; None if no provider is left.

        Where all are left out, the one whose time ends first is asked all the same, unless it has itself
        named the time.
        """
        lease = await self._next_admitted()
        if lease is None and not self._has_lease and self.passed:
            first = min(self.passed, key=lambda member: member.breaker.remaining)
            if first.breaker.named_seconds is None:
                lease = await first.enter(forced=True)
                self.passed.remove(first)
        self._has_lease = self._has_lease or lease is not None
        return lease

    async def _next_admitted(self) -> Lease | None:
        while self._waiting:
            member = self._waiting.popleft()
            lease = None
            if member.breaker.admits:
                lease = await member.enter(wait=not self._learning)
            if lease is not None:
                return lease
            (self._full if self._learning and member.breaker.admits else self.passed).append(member)
        while self._full:
            member = self._full.popleft()
            lease = await member.enter()
            if lease is not None:
                return lease
            self.passed.append(member)
        return None


def final_error(
    failures: Sequence[ProviderFailure], passed: Sequence[RoutedProvider], *, provider: str
) -> ProviderError:
    """Return the error for a request that no provider answered.

    It may be retried if any provider may succeed a moment later, and every call would meet it only if
    that is so of every provider. A kind of failure that all share is kept. Where no provider was called, since
    all named the time of a retry, it is a rate limit that ends with the first of these times.

    Parameters
    ----------
    failures : sequence of ProviderFailure
        Failures of the called providers.
    passed : sequence of RoutedProvider
        Those that were not asked because they are left out; what left them out counts for them.
    provider : str
        Name of the routed client, for the message.
    """
    skipped = [_left_out_words(member) for member in passed]
    if not failures:
        return RateLimitError(
            f"every provider is left out: {'; '.join(sorted(skipped))}.",
            provider=provider,
            retryable=True,
            retry_after=min(member.breaker.remaining for member in passed),
        )
    errors = {failure.member.name: failure.error for failure in failures}
    parts = [_called_words(name, error) for name, error in errors.items()] + skipped
    last_failures = (member.breaker.last_failure for member in passed)
    causes = [*errors.values(), *(error for error in last_failures if error is not None)]
    unsupported = [error for error in causes if isinstance(error, LogprobsUnsupportedError)]
    if len(parts) == 1:
        if unsupported:
            return unsupported[0].under(_SECTION)
        return causes[0]
    message = f"no provider answered: {'; '.join(sorted(parts))}."
    if len(unsupported) == len(parts):
        return LogprobsUnsupportedError(message, provider=provider, section=_SECTION)
    kind = next((kind for kind in _KINDS if all(isinstance(error, kind) for error in causes)), ProviderError)
    paused = len(causes) < len(parts)  # somebody is left out who has not failed
    if paused and kind is ContextLengthError:
        kind = ProviderError
    statuses = {error.status for error in causes}
    waits = [error.retry_after for error in causes if error.retryable]
    named = [wait for wait in waits if wait is not None]
    systemic = not paused and all(error.systemic for error in causes)
    return kind(
        message,
        provider=provider,
        status=statuses.pop() if len(statuses) == 1 and not paused else None,
        retryable=paused or any(error.retryable for error in causes),
        retry_after=min(named) if named and len(named) == len(waits) else None,
        hint=LogprobsUnsupportedError.remedy(_SECTION) if systemic and unsupported else None,
        systemic=systemic,
    )


def _called_words(name: str, error: ProviderError) -> str:
    words = _error_words(error)
    return words if name == error.provider else f"{name}: {words}"


def _left_out_words(member: RoutedProvider) -> str:
    last = member.breaker.last_failure
    why = "its allowance is used up" if last is None else _error_words(last)
    return f"{member.name}: left out for another {member.breaker.remaining:.3g} seconds ({why})"


def _error_words(error: ProviderError) -> str:
    """Return the message of an error without a remedy, for a list of errors."""
    words = error.summary if isinstance(error, LogprobsUnsupportedError) else str(error)
    return words.removesuffix(".")
