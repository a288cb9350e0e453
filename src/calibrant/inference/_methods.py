"""Prediction methods: model calls with retries, decoding, and the choice of a method."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar, get_args

from calibrant.clients._rates import rate_state
from calibrant.clients._retry import RetryPolicy, with_retries
from calibrant.core._completion import Client, Completion, CompletionRequest, ContinuingClient
from calibrant.core._errors import (
    CalibrantError,
    ConfigurationError,
    DataError,
    LogprobsUnsupportedError,
    ProviderError,
    ProviderTimeoutError,
)
from calibrant.core._prediction import LogprobSpace, Outcome, Prediction
from calibrant.inference._answer_forms import AnswerForm, refuses_form, tell_form
from calibrant.inference._limits import Gate, is_in_process
from calibrant.inference._reader import AnswerReader
from calibrant.logprobs._completion import read_completion
from calibrant.metrics._validation import is_number

if TYPE_CHECKING:
    from calibrant.inference._exact import ExactMethod

_LOG = logging.getLogger("calibrant")

Scoring: TypeAlias = Literal["auto", "fused", "verbalised", "exact", "decode", "sampled"]
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
        """Enter the gate for one call, and apply the call's deadline to the block."""
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

    async def respond(self, client: Client, request: CompletionRequest) -> tuple[object, int]:
        """Return the response to a request, and the number of calls made; a broken one is retried like a failed call.

        Raises
        ------
        ProviderError
            As `make`.
        CalibrantError
            The model tried to end the program, which would end the event loop for all others.
        """

        async def once() -> object:
            try:
                response = await client.complete(request)
            except (SystemExit, KeyboardInterrupt) as error:
                raise CalibrantError(f"{client.name}: the model raised {error!r}.") from error
            self.note_rates(response)
            try:
                read_completion(response)
            except DataError as error:
                raise ProviderError(
                    f"broken response: {error}", provider=client.name, retryable=True
                ) from error
            return response

        return await self.make(once, provider=client.name)

    async def complete(self, client: Client, request: CompletionRequest) -> tuple[Completion, int]:
        """Return the answer to a request that is no classification, and the number of calls made; see `respond`.

        It counts towards the budgets.
        """
        response, attempts = await self.respond(client, request)
        completion = read_completion(response)
        self.gate.charge(completion.usage, rows=0)
        return completion, attempts

    def note_rates(self, response: object) -> None:
        """Pass the rate limits of a response to the gate."""
        if not isinstance(response, dict) or "_hidden_params" in response:  # a plain response has none
            self.gate.heard(rate_state(response))


@contextlib.asynccontextmanager
async def call_deadline(seconds: float | None, provider: str) -> AsyncIterator[None]:
    """Cancel the block after `seconds` and raise ProviderTimeoutError; None sets no deadline.

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


@dataclass(kw_only=True)
class Method(ABC):
    """Method that turns a request into a prediction.

    Attributes
    ----------
    client : Client
        Client of the calls.
    reader : AnswerReader
        Reader of the responses, with the legal labels and the space of the distributions.
    calls : ModelCalls
        Calls with gate, deadline and retries.
    keep_features : bool
        True if predictions hold text features.
    """

    client: Client
    reader: AnswerReader
    calls: ModelCalls = field(default_factory=ModelCalls)
    keep_features: bool = False
    # False if the method can do with answers that have none.
    needs_logprobs: ClassVar[bool] = False

    @property
    def space(self) -> LogprobSpace:
        """Log-probability space of the distributions that the method returns."""
        return self.reader.evidence_space

    @property
    def calls_a_row(self) -> int:
        """Number of calls about each row, retries aside; 1 where exact scoring decides by the row."""
        return 1

    @property
    def unless_told(self) -> Method:
        """Method to take where a model decodes unless told otherwise."""
        return self

    @property
    def knows_abilities(self) -> bool:
        """True if it is known how the model is asked, or nothing can tell before it is asked."""
        return not self.reader.abilities.is_to_probe

    async def find_abilities(self, request: CompletionRequest, stored: Prediction | None = None) -> None:
        """Find out how the model is asked, unless that is known: with one call where a server follows a schema.

        See `KnownAbilities.probe`.

        Parameters
        ----------
        request : CompletionRequest
            Request of the first row, whose options the call has.
        stored : Prediction, optional
            Answer to it from a journal.

        Raises
        ------
        ProviderError
            A fault that every call would meet.
        """
        del stored
        abilities = self.reader.abilities
        respond = partial(self.calls.respond, self.client)
        usage = await abilities.probe(respond, request, needs_logprobs=self.needs_logprobs)
        self.calls.gate.charge(usage, rows=0)
        tell_form(self.client.name, abilities.used.form)

    @property
    def might_keep_features(self) -> bool:
        """True if the method could add text features to predictions, but does not."""
        return False

    def with_features(self) -> Self:
        """Return a method whose predictions hold text features, if its engine reports them."""
        return replace(self, keep_features=True) if self.might_keep_features else self

    @abstractmethod
    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the prediction; its ``attempts`` counts the calls made.

        Raises
        ------
        ProviderError
            The model could not be asked, after retries; ``attempts`` counts the calls made.
        """

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return the settings that can change a prediction, as JSON values for cache keys."""


@dataclass(kw_only=True)
class Decoding(Method):
    """Method that decodes an answer and reads its token log-probabilities."""

    needs_logprobs: ClassVar[bool] = True
    # By the model that really answered, which may be one of several: False once it answered one row twice without
    # log-probabilities, True once it gave an answer with them.
    _gives_logprobs: dict[str | None, bool] = field(default_factory=dict, init=False, repr=False)
    # True once any answer came with some, be they unusable.
    _any_logprobs: bool = field(default=False, init=False, repr=False)

    @property
    def silent_models(self) -> int:
        """Number of models that answered a row twice without log-probabilities; 0 once any answer had some."""
        return 0 if self._any_logprobs else len(self._gives_logprobs)

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the prediction from a decoded answer; a broken response is retried like a failed call.

        So is one without log-probabilities, where others came with them. Of those that never have any,
        each row is asked once.
        """
        request = self.reader.shaped(request)
        attempts = 0
        silent: list[Prediction] = []
        while True:
            attempts += 1
            try:
                prediction = await self._ask(request, silent)
                break
            except ProviderError as error:
                if await self.calls.policy.next_attempt(error, attempts):
                    continue
                if not silent:
                    self._doubt(error)
                    raise
                prediction = silent[-1]
                break
        return prediction if attempts == prediction.attempts else prediction.with_effort(attempts=attempts)

    async def _ask(self, request: CompletionRequest, silent: list[Prediction]) -> Prediction:
        """Return the prediction from one call."""
        async with self.calls.one(self.client.name):
            response = await self.client.complete(request)
            self.calls.note_rates(response)
            return self._read(response, silent, asks_for_logprobs=request.top_logprobs > 0)

    def _doubt(self, error: ProviderError) -> None:
        """Forget the finding about the model if it is refused now; the next run finds out anew."""
        if refuses_form(error) or isinstance(error, LogprobsUnsupportedError):
            self.reader.abilities.forget()

    def _read(self, response: object, silent: list[Prediction], *, asks_for_logprobs: bool) -> Prediction:
        """Return a response's prediction; if a retry may add log-probabilities, store it and raise.

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
            and not self.reader.is_unaligned(response, prediction)
        )
        again = any(earlier.model == prediction.model for earlier in silent)
        if wants_evidence and self._lacks_logprobs(prediction, response, again=again):
            silent.append(prediction)
            raise ProviderError(
                "the answer has no log-probabilities.", provider=self.client.name, retryable=True
            )
        return prediction

    def _lacks_logprobs(self, prediction: Prediction, response: object, *, again: bool) -> bool:
        """Record an answer; return True if a retry may bring its missing log-probabilities."""
        if prediction.confidence is not None:
            self._gives_logprobs[prediction.model] = self._any_logprobs = True
            return False
        if not self._any_logprobs:
            completion = read_completion(response)
            self._any_logprobs = completion.tokens is not None or bool(completion.evidence_problem)
        if again:
            self._gives_logprobs.setdefault(prediction.model, False)
        return self._gives_logprobs.get(prediction.model, True)

    def describe(self) -> Mapping[str, Any]:
        """Return the settings of the reader, for cache keys."""
        kept = {"tokens": True} if self.reader.keep_tokens else {}
        return {**kept, "scoring": "decode", **self.reader.describe()}


def choose_method(  # noqa: PLR0913  (keyword-only options)
    client: Client,
    reader: AnswerReader,
    response_format: Mapping[str, Any],
    *,
    calls: ModelCalls,
    options: Mapping[str, Any],
    scoring: Scoring | None,
    tolerance: Tolerance | None,
    samples: int | None,
    temperature: float | None,
    model: object = None,
) -> Method:
    """Return the requested method, or the best that model and schema support.

    Parameters
    ----------
    client, reader, response_format, calls
        As `Method` and the schema have them.
    options : mapping
        Handed to the provider with every call.
    scoring, tolerance, samples, temperature
        See `calibrant.inference.Classifier`.
    model : str, Client or callable, optional
        As it was given: of one by name it is found out whether it gives log-probabilities, of others only with
        ``auto``. Answers that lack them are else predictions without a confidence.

    Raises
    ------
    ConfigurationError
        A value is unknown or out of range, or the model or the schema does not allow it.
    """
    if scoring not in {None, *get_args(Scoring)}:
        *names, last = map(repr, get_args(Scoring))
        raise ConfigurationError(f"Expected scoring {', '.join(names)} or {last}, got {scoring!r}.")
    if tolerance is None:
        tolerance = getattr(client, "default_tolerance", DEFAULT_TOLERANCE)
    _check_tolerance(tolerance)
    if scoring in {"sampled", "fused", "verbalised"}:
        own = {"calls": calls, "options": options, "samples": samples, "temperature": temperature}
        return _asking_several(scoring, client, reader, **own)
    if scoring != "auto":
        _refuse_sampling(scoring, samples=samples, temperature=temperature)
    decoding = Decoding(client=client, reader=reader, calls=calls)
    may_hide = scoring == "auto" or (scoring is None and isinstance(model, str))
    if may_hide and not is_in_process(client) and not reader.labels.is_open:
        from calibrant.inference._auto import AutoDecoding  # noqa: PLC0415 (only for models that may hide them)

        decoding = AutoDecoding.of(
            client,
            reader,
            calls=calls,
            options=options,
            samples=samples,
            temperature=temperature,
            is_chosen=scoring == "auto",
        )
    if scoring == "decode" or (scoring != "exact" and not isinstance(client, ContinuingClient)):
        return decoding
    exact_reader = replace(reader.in_form(AnswerForm.SCHEMA), space=LogprobSpace.EXACT)
    exact = _exact_method(client, exact_reader, response_format, tolerance=tolerance, calls=calls)
    if not isinstance(exact, str):
        return exact
    if scoring == "exact":
        raise ConfigurationError(f"scoring='exact' is not possible: {exact}. Use scoring='decode'.")
    _warn_once(client.name, exact)
    return decoding


def _asking_several(scoring: str | None, client: Client, reader: AnswerReader, **settings: Any) -> Method:  # noqa: ANN401
    """Return a method that asks about a row several times, or once for a stated confidence."""
    if scoring == "sampled":
        from calibrant.inference._sampling import Sampling  # noqa: PLC0415 (only when it is asked for)

        return Sampling.of(client, reader, **settings)
    from calibrant.inference._fused import Fused  # noqa: PLC0415 (only when it is asked for)

    if scoring == "verbalised":
        if settings["samples"] not in {None, 1}:
            raise ConfigurationError(
                f"Expected one call a row with scoring='verbalised', got samples={settings['samples']!r}: leave it "
                "out, or add scoring='fused'."
            )
        settings["samples"] = 1
    elif settings["samples"] == 1:
        raise ConfigurationError("Expected at least 2 samples with scoring='fused', got 1: add 'verbalised'.")
    return Fused.of(client, reader, **settings)


def _refuse_sampling(scoring: str | None, **given: object) -> None:
    """Refuse settings of methods that ask several times."""
    hints = {"samples": "it", "temperature": "it, or name it among options"}
    for name, value in given.items():
        if value is not None:
            raise ConfigurationError(
                f"Expected {name} only with scoring='sampled', 'fused' or 'auto', got {name}={value!r} and "
                f"scoring={scoring!r}: add scoring='sampled', or leave out {hints[name]}."
            )


def _check_tolerance(tolerance: Any) -> None:  # noqa: ANN401  (anything a caller writes)
    if tolerance != "exact" and not (is_number(tolerance) and 0.0 <= tolerance <= 1.0):
        raise ConfigurationError(f'Expected a tolerance in [0, 1] or "exact", got {tolerance!r}.')


@cache
def _warn_once(model: str, reason: str) -> None:
    """Log one warning that a model decodes answers although it could score all labels exactly."""
    _LOG.warning(
        "%s could score every label, but decodes its answers: %s. Pass scoring='decode' if that is what you want.",
        model,
        reason,
    )


def _exact_method(
    client: Client,
    reader: AnswerReader,
    response_format: Mapping[str, Any],
    **settings: Any,  # noqa: ANN401  (tolerance and calls)
) -> ExactMethod | str:
    """Return the exact method for a model, labels and schema, or the reason why there is none."""
    if not isinstance(client, ContinuingClient):
        from calibrant.clients._openai_compatible import OpenAICompatibleClient  # noqa: PLC0415 (loaded when it is used)

        served = ", ".join(f"{prefix}NAME" for prefix in OpenAICompatibleClient.PREFIXES)
        return (
            f"{client.name} reports no next-token probabilities after a beginning of an answer; local/NAME and "
            f"llamacpp:PATH do, and with the option api_base a server of llama.cpp, vLLM or SGLang ({served})"
        )
    if reader.answer_field != reader.field:
        return f"the label is read from {reader.answer_field!r}, not from {reader.field!r}, which is scored"
    if reader.labels.holds_several:
        from calibrant.inference._exact_several import exact_several  # noqa: PLC0415 (only for several labels)

        return exact_several(client, reader, response_format, **settings)
    from calibrant.inference._exact import ExactScoring  # noqa: PLC0415 (only where it may be possible)

    return ExactScoring.of(client, reader, response_format, **settings)
