"""Providers at run time: concurrency, circuit breaker, calls, and the fallback order of a request."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from calibrant.clients._rates import rate_state
from calibrant.core._completion import Completion, CompletionRequest
from calibrant.core._errors import (
    CalibrantError,
    ContextLengthError,
    LogprobsUnsupportedError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from calibrant.core._limits import Limits
from calibrant.core._prediction import LogprobSpace, Usage
from calibrant.inference._abilities import (
    AnswerForm,
    KnownAbilities,
    ModelAbilities,
    asked_labels,
    readable,
    shaped,
    tell_form,
)
from calibrant.inference._limits import Gate
from calibrant.inference._methods import call_deadline
from calibrant.inference.routed._provider import Breaker, Provider, ProviderStats, Turn, is_rate_limit, priced
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._fields import UnparsedError

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
    """

    member: RoutedProvider
    response: object
    completion: Completion
    adds: bool
    latency_seconds: float
    recovered: bool


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
    """

    member: RoutedProvider
    error: ProviderError
    latency_seconds: float


class RoutedProvider:
    """One provider of a routed client.

    Parameters
    ----------
    provider : Provider
        The declared provider.
    breaker : Breaker
        Leaves it out while it fails.
    clock : function
        Returns seconds.
    call_seconds : float, optional
        How long a call may take.
    mixed : bool, default False
        Whether its answers are to say what their log-probabilities are probabilities of.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        breaker: Breaker,
        clock: Callable[[], float],
        call_seconds: float | None = None,
        mixed: bool = False,
    ) -> None:
        self.provider = provider
        self.name = provider.name
        self.breaker = breaker
        self._clock = clock
        self._call_seconds = call_seconds
        self._mixed = mixed
        self._abilities = provider.abilities or KnownAbilities(ModelAbilities())
        self._unpaid = Usage()  # of a probe that no answer has paid for yet
        limit = provider.places
        self._gate = None if limit is None else Gate(Limits(concurrency=limit), clock=clock)
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
        start = self._clock()
        failure: BaseException | None = None
        try:
            asked = asked_labels(request)
            if asked is not None:
                await self._find_abilities(request)
                request = shaped(request, self._form, asked.labels)
                start = self._clock()
            response = await self._complete(request)
            completion = self._read(response, empty_is_failure=empty_is_failure)
            if asked is not None:
                with contextlib.suppress(UnparsedError):  # whoever asked says more
                    completion = readable(completion, self._form, asked.labels, asked.field)
        except ProviderError as error:
            failure = error
            return self._failed(lease.turn, error, max(0.0, self._clock() - start))
        except BaseException as error:
            failure = error
            self.breaker.released(lease.turn)
            raise
        else:
            return self._answered(lease.turn, response, completion, max(0.0, self._clock() - start))
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
            counts, paid, seconds = dict(self._counts), self._paid, self._seconds
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
        async with call_deadline(self._call_seconds, self.provider.client.name):
            return await self.provider.client.complete(request)

    async def _find_abilities(self, request: CompletionRequest) -> None:
        """Find out in what form the provider answers, unless that is known; the next answer pays for it."""

        async def complete(probe: CompletionRequest) -> tuple[object, int]:
            response = await self._complete(probe)
            self._read(response, empty_is_failure=False)
            return response, 1

        needs_logprobs = request.top_logprobs > 0
        usage = await self._abilities.probe(complete, request, needs_logprobs=needs_logprobs)
        with self._lock:
            self._unpaid += usage
        tell_form(self.provider.client.name, self._form)

    def _read(self, response: object, *, empty_is_failure: bool) -> Completion:
        name = self.provider.client.name
        try:
            completion = read_completion(response)
        except CalibrantError as error:
            raise ProviderError(f"broken response: {error}", provider=name, retryable=True) from error
        is_empty = not completion.text.strip() and not completion.refusal
        if empty_is_failure and is_empty and completion.finish_reason not in _EMPTY_ON_PURPOSE:
            raise ProviderError("the response holds no text and no refusal.", provider=name, retryable=True)
        return completion

    def _answered(
        self, turn: Turn, response: object, completion: Completion, seconds: float
    ) -> ProviderAnswer:
        recovered = self.breaker.succeeded(turn)
        state = rate_state(response)
        spent = None if state is None else state.spent_seconds
        if spent:
            self.breaker.pause(spent)
        usage, own = priced(completion.usage, self.provider.cost), self.provider.logprob_space
        has_schema = self._form is AnswerForm.SCHEMA
        space = completion.space
        if not has_schema and own is LogprobSpace.MASKED:
            space = LogprobSpace.RAW
        elif self._mixed and own is not LogprobSpace.MIXED:
            space = own
        with self._lock:
            if self._unpaid != Usage():
                usage, self._unpaid = usage + priced(self._unpaid, self.provider.cost), Usage()
            self._counts.update(("calls", "answers"))
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
        )

    def _failed(self, turn: Turn, error: ProviderError, seconds: float) -> ProviderFailure:
        if isinstance(error, ContextLengthError):
            self.breaker.released(turn)
            self.count("calls", "too_long")
        else:
            self.breaker.failed(turn, error)
            self.count("calls", "failures", *(["rate_limits"] if is_rate_limit(error) else []))
        return ProviderFailure(member=self, error=error, latency_seconds=seconds)


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
        due = next((member for member in waiting if member.breaker.due), None) if learning else None
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
            lease = await member.enter(wait=not self._learning) if member.breaker.admits else None
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
        return unsupported[0].under(_SECTION) if unsupported else causes[0]
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
