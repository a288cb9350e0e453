"""A provider at work: its free places, its health, its calls."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from calibrant.clients._rates import rate_state
from calibrant.core._completion import Completion, CompletionRequest
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import CalibrantError, ContextLengthError, ProviderError
from calibrant.core._limits import Limits
from calibrant.core._prediction import Usage
from calibrant.inference._limits import Gate
from calibrant.inference._methods import call_deadline
from calibrant.inference.routed._health import Breaker, Turn, is_rate_limit
from calibrant.inference.routed._provider import Provider, ProviderStats, priced
from calibrant.logprobs._completion import read_completion

# An answer without text that ended so is the model's doing, not the server's.
_EMPTY_ON_PURPOSE: Final = frozenset({"length", "content_filter", "tool_calls", "function_call"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """A provider's leave to be asked now; `Member.ask` gives it back.

    Attributes
    ----------
    member : Member
        The provider.
    epoch : int or None
        What its gate is to be told.
    turn : Turn
        What its breaker is to be told.
    """

    member: Member
    epoch: int | None
    turn: Turn


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """A whole answer.

    Attributes
    ----------
    member : Member
        Who answered.
    response : object
        As it came.
    completion : Completion
        The same, read, with what the provider's declaration adds: a price, and where providers differ, their space
        of log-probabilities.
    added : bool
        Whether it adds anything to the response.
    latency_seconds : float
        What the call took.
    recovered : bool
        Whether the provider is back with it.
    allowance_spent : bool
        Whether the provider says that its rate limit is used up for a while.
    """

    member: Member
    response: object
    completion: Completion
    added: bool
    latency_seconds: float
    recovered: bool
    allowance_spent: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Failure:
    """A call that brought no answer.

    Attributes
    ----------
    member : Member
        Who was asked.
    error : ProviderError
        Why.
    latency_seconds : float
        What the call took.
    """

    member: Member
    error: ProviderError
    latency_seconds: float = 0.0


class Member:
    """One provider of a routed client.

    Parameters
    ----------
    provider : Provider
        As it is declared.
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
        limit = provider.places
        self._gate = None if limit is None else Gate(Limits(concurrency=limit), clock=clock)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()  # by the names of `ProviderStats`
        self._paid = Usage()
        self._seconds = 0.0

    def try_enter(self) -> Place | None:
        """Return a place if one is free and the provider may be asked."""
        turn = self.breaker.begin()
        if turn is None:
            return None
        epoch = None
        if self._gate is not None:
            epoch = self._gate.try_enter()
            if epoch is None:
                self.breaker.released(turn)
                return None
        return self._placed(epoch, turn)

    async def enter(self, *, forced: bool = False) -> Place | None:
        """Wait for a place; None where the provider may not be asked any more and it is not `forced`."""
        epoch = None if self._gate is None else await self._gate.enter()
        turn = self.breaker.begin(forced=forced)
        if turn is not None:
            return self._placed(epoch, turn)
        if self._gate is not None and epoch is not None:
            # There was no call, so no sign that the provider would welcome more of them.
            self._gate.leave(epoch, asyncio.CancelledError())
        return None

    def _placed(self, epoch: int | None, turn: Turn) -> Place:
        self._count("in_flight")
        return Place(member=self, epoch=epoch, turn=turn)

    async def ask(
        self, request: CompletionRequest, place: Place, *, empty_is_failure: bool
    ) -> Answer | Failure:
        """Make one call and give the place back.

        Exceptions that are no `ProviderError`, cancellation among them, pass; nothing is learnt from them.
        """
        options = self.provider.options
        if options:
            request = replace(request, options={**options, **request.options})
        start = self._clock()
        failure: BaseException | None = None
        try:
            response = await self._call(request)
            completion = self._read(response, empty_is_failure=empty_is_failure)
        except ProviderError as error:
            failure = error
            return self._failed(place.turn, error, self._since(start))
        except BaseException as error:
            failure = error
            self.breaker.released(place.turn)
            raise
        else:
            return self._answered(place.turn, response, completion, self._since(start))
        finally:
            if self._gate is not None and place.epoch is not None:
                self._gate.leave(place.epoch, failure)
            self._count("in_flight", by=-1)

    def escalated(self) -> None:
        """Note that an answer was turned down."""
        self._count("escalations")

    def stats(self) -> ProviderStats:
        """Return what became of its calls."""
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

    async def _call(self, request: CompletionRequest) -> object:
        client = self.provider.client
        async with call_deadline(self._call_seconds, client.name):
            return await client.complete(request)

    def _read(self, response: object, *, empty_is_failure: bool) -> Completion:
        name = self.provider.client.name
        try:
            completion = read_completion(response)
        except CalibrantError as error:
            raise ProviderError(f"broken response: {error}", provider=name, retryable=True) from error
        if empty_is_failure and _is_empty(completion):
            raise ProviderError("the response holds no text and no refusal.", provider=name, retryable=True)
        return completion

    def _completed(self, completion: Completion) -> Completion:
        """Return an answer with what the provider's declaration adds."""
        usage, own = priced(completion.usage, self.provider.cost), self.provider.logprob_space
        space = own if self._mixed and own is not LogprobSpace.MIXED else completion.space
        if usage is completion.usage and space is completion.space:
            return completion
        return replace(completion, usage=usage, space=space)

    def _answered(self, turn: Turn, response: object, completion: Completion, seconds: float) -> Answer:
        recovered = self.breaker.succeeded(turn)
        state = rate_state(response)
        spent = None if state is None else state.spent_seconds
        if spent:
            self.breaker.pause(spent)
        whole = self._completed(completion)
        answer = Answer(
            member=self,
            response=response,
            completion=whole,
            added=whole is not completion,
            latency_seconds=seconds,
            recovered=recovered,
            allowance_spent=bool(spent),
        )
        with self._lock:
            self._counts["calls"] += 1
            self._counts["answers"] += 1
            self._paid += whole.usage
            self._seconds += seconds
        return answer

    def _failed(self, turn: Turn, error: ProviderError, seconds: float) -> Failure:
        if isinstance(error, ContextLengthError):
            self.breaker.released(turn)
            self._count("calls", "too_long")
        else:
            self.breaker.failed(turn, error)
            self._count("calls", "failures", *(["rate_limits"] if is_rate_limit(error) else []))
        return Failure(member=self, error=error, latency_seconds=seconds)

    def _since(self, start: float) -> float:
        return max(0.0, self._clock() - start)

    def _count(self, *names: str, by: int = 1) -> None:
        with self._lock:
            for name in names:
                self._counts[name] += by


def _is_empty(completion: Completion) -> bool:
    return (
        not completion.text.strip()
        and not completion.refusal
        and completion.finish_reason not in _EMPTY_ON_PURPOSE
    )
