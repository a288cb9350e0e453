"""Prediction methods: their model calls, and decoding."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from calibrant.clients._rates import rate_state
from calibrant.clients._retry import RetryPolicy, with_retries
from calibrant.core._completion import Client, Completion, CompletionRequest, ContinuingClient
from calibrant.core._errors import (
    CalibrantError,
    ConfigurationError,
    DataError,
    ProviderError,
    ProviderTimeoutError,
)
from calibrant.core._prediction import LogprobSpace, Outcome, Prediction, Usage
from calibrant.inference._limits import Gate
from calibrant.inference._reader import AnswerReader
from calibrant.logprobs._completion import read_completion

Tolerance: TypeAlias = float | Literal["exact"]
DEFAULT_TOLERANCE: Final = 0.2

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class ModelCalls:
    """Model calls through a gate, with deadline and retries.

    Attributes
    ----------
    policy : RetryPolicy
        Retry policy of transient faults.
    gate : Gate
        Bounds the calls in flight; shared with the runner of the rows.
    """

    policy: RetryPolicy = RetryPolicy()
    gate: Gate = field(default_factory=Gate)

    @contextlib.asynccontextmanager
    async def one(self, provider: str) -> AsyncIterator[None]:
        """Hold a place in the gate, and the call's deadline, until the block ends."""
        gate = self.gate
        epoch = await gate.enter()
        try:
            seconds = gate.limits.call_seconds
            # Mostly there is no deadline, and every row would pay for one.
            async with contextlib.nullcontext() if seconds is None else call_deadline(seconds, provider):
                yield
        except BaseException as error:
            pause = None
            if isinstance(error, ProviderError):
                if self.policy.worth_retrying(error):
                    pause = error.retry_after
                error.retryable = error.retryable and not gate.hopeless
            gate.leave(epoch, error, pause=pause)
            raise
        gate.leave(epoch)

    async def make(self, call: Callable[[], Awaitable[_T]], *, provider: str) -> tuple[_T, int]:
        """Make a call, with retries while the failure is retryable.

        Parameters
        ----------
        call : coroutine function
            Makes one call.
        provider : str
            The model, for messages.

        Returns
        -------
        answer : object
            Result of the call.
        attempts : int
            Calls made.

        Raises
        ------
        ProviderError
            The last failure; its attribute ``attempts`` holds the number of calls made.
        """

        async def once() -> _T:
            async with self.one(provider):
                return await call()

        return await with_retries(once, policy=self.policy)

    async def complete(self, client: Client, request: CompletionRequest) -> tuple[Completion, int]:
        """Return a client's answer to a non-classification request, and the calls made.

        It counts towards the budgets. A broken response is retried like a failed call.

        Raises
        ------
        ProviderError
            As `make`.
        CalibrantError
            The model tried to end the program, which would end the event loop for all others.
        """

        async def once() -> Completion:
            try:
                response = await client.complete(request)
            except (SystemExit, KeyboardInterrupt) as error:
                raise CalibrantError(f"{client.name}: the model raised {error!r}.") from error
            self.note_rates(response)
            try:
                return read_completion(response)
            except DataError as error:
                raise ProviderError(
                    f"broken response: {error}", provider=client.name, retryable=True
                ) from error

        completion, attempts = await self.make(once, provider=client.name)
        self.gate.charge(completion.usage, rows=0)
        return completion, attempts

    def note_rates(self, response: object) -> None:
        """Pass the rate limits of a response to the gate."""
        if not isinstance(response, dict) or "_hidden_params" in response:  # a plain response has none
            self.gate.heard(rate_state(response))


@contextlib.asynccontextmanager
async def call_deadline(seconds: float | None, provider: str) -> AsyncIterator[None]:
    """Cancel the block after some seconds; None sets no deadline.

    Raises
    ------
    ProviderTimeoutError
        The block took longer.
    """
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            yield
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise ProviderTimeoutError(
            f"no complete answer within {seconds:g} seconds.", provider=provider, retryable=True
        ) from error


def total_usage(parts: Iterable[Usage]) -> Usage:
    """Return the summed usage; its cost is the sum of the known costs, None if none is known."""
    usages = tuple(parts)
    costs = [usage.cost for usage in usages if usage.cost is not None]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cost=math.fsum(costs) if costs else None,
    )


def check_tolerance(tolerance: Tolerance) -> None:
    """Check a tolerance.

    Raises
    ------
    ConfigurationError
        The tolerance is neither ``"exact"`` nor a number in [0, 1].
    """
    if tolerance == "exact":
        return
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0.0 <= tolerance <= 1.0:
        raise ConfigurationError(f'Expected a tolerance in [0, 1] or "exact", got {tolerance!r}.')


class Method(Protocol):
    """Method that turns a request into a prediction."""

    @property
    def space(self) -> LogprobSpace:
        """Space of the distributions it returns."""
        ...

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the prediction; its ``attempts`` counts the calls made.

        Raises
        ------
        ProviderError
            The model could not be asked, after retries; ``attempts`` counts the calls made.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return the settings that can change a prediction as JSON values: part of every cache key."""
        ...


@dataclass(kw_only=True)
class FeatureMethod(Method):
    """Base class of methods whose predictions can hold text features.

    Attributes
    ----------
    client : ContinuingClient
        Client of the calls.
    keep_features : bool
        True if predictions hold them, where the engine reports them.
    """

    client: ContinuingClient
    keep_features: bool = False


def keeps_features(method: Method) -> bool:
    """Return True if a method's predictions hold text features."""
    return isinstance(method, FeatureMethod) and method.keep_features


def might_keep_features(method: Method) -> bool:
    """Return True if a method could report text features but does not."""
    return (
        isinstance(method, FeatureMethod)
        and not method.keep_features
        and bool(getattr(method.client, "in_process", False))
    )


def keeping_features(method: Method) -> Method:
    """Return a method whose predictions hold text features, if its engine reports them."""
    if isinstance(method, FeatureMethod) and might_keep_features(method):
        return replace(method, keep_features=True)
    return method


@dataclass
class _Evidence:
    """Record of the models whose answers come with log-probabilities.

    Attributes
    ----------
    known : dict of str or None to bool
        By the model that really answered, which may be one of several; there once it gave an answer with them, or
        two to one row without.
    seen : bool
        True once any answer came with some, be they unusable.
    """

    known: dict[str | None, bool] = field(default_factory=dict)
    seen: bool = False

    def missed(self, prediction: Prediction, response: object, *, again: bool) -> bool:
        """Record an answer; return True if a retry may bring its missing log-probabilities."""
        if prediction.confidence is not None:
            self.known[prediction.model] = self.seen = True
            return False
        if not self.seen:
            completion = read_completion(response)
            self.seen = completion.tokens is not None or bool(completion.evidence_problem)
        if again:
            self.known.setdefault(prediction.model, False)
        return self.known.get(prediction.model, True)


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Method that decodes an answer and reads its token log-probabilities.

    Attributes
    ----------
    client : Client
        Client of the calls.
    reader : AnswerReader
        Reader of the responses.
    calls : ModelCalls
        Calls with gate, deadline and retries.
    """

    client: Client
    reader: AnswerReader
    calls: ModelCalls = field(default_factory=ModelCalls)
    _evidence: _Evidence = field(default_factory=_Evidence, init=False, repr=False, compare=False)

    @property
    def space(self) -> LogprobSpace:
        """Log-probability space of the reader."""
        return self.reader.space

    @property
    def silent_models(self) -> int:
        """Number of models that answered a row twice without log-probabilities; 0 once any answer had some."""
        return 0 if self._evidence.seen else len(self._evidence.known)

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the model's answer; a broken response is retried like a failed call.

        So is one without log-probabilities, where others came with them. Of those that never have any,
        each row is asked once.
        """
        silent: list[Prediction] = []
        attempts = 0
        while True:
            attempts += 1
            try:
                async with self.calls.one(self.client.name):
                    response = await self.client.complete(request)
                    self.calls.note_rates(response)
                    prediction = self._read(response, silent, asks_for_logprobs=request.top_logprobs > 0)
                break
            except ProviderError as error:
                if await self.calls.policy.next_attempt(error, attempts):
                    continue
                if not silent:
                    raise
                prediction = silent[-1]
                break
        return prediction if attempts == prediction.attempts else prediction.with_effort(attempts=attempts)

    def _read(self, response: object, silent: list[Prediction], *, asks_for_logprobs: bool) -> Prediction:
        """Return the prediction in a response; one without log-probabilities, if others have some, joins `silent`.

        Raises
        ------
        ProviderError
            Another call may bring a better response.
        """
        prediction = self.reader.read(response)
        if prediction.outcome is Outcome.ERROR:
            raise ProviderError(prediction.reason, provider=self.client.name, retryable=True)
        wants_evidence = (
            asks_for_logprobs
            and prediction.outcome is Outcome.OK
            and self.reader.space_of(response) is not LogprobSpace.NONE
        )
        again = any(earlier.model == prediction.model for earlier in silent)
        if wants_evidence and self._evidence.missed(prediction, response, again=again):
            silent.append(prediction)
            raise ProviderError(
                "the answer has no log-probabilities.", provider=self.client.name, retryable=True
            )
        return prediction

    def describe(self) -> Mapping[str, Any]:
        """Return the settings of the reader, for cache keys."""
        kept = {"tokens": True} if self.reader.keep_tokens else {}
        return {**kept, "scoring": "decode", **self.reader.describe()}
