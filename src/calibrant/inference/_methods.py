"""Prediction methods: model calls with retries, how one model is asked about rows, and decoding."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar

from calibrant.clients._calls import Call, RetryPolicy
from calibrant.clients._failures import rate_state
from calibrant.core._completion import (
    Client,
    ClientTraits,
    Completion,
    CompletionRequest,
    TokenListing,
)
from calibrant.core._errors import (
    CalibrantError,
    ConfigurationError,
    DataError,
    LogprobsUnsupportedError,
    ProviderError,
    ProviderTimeoutError,
)
from calibrant.core._prediction import Journal, LogprobSpace, Outcome, Prediction, Usage
from calibrant.core._predictor import Query
from calibrant.core._reported import counted
from calibrant.inference._abilities import refuses_form, tell_form
from calibrant.inference._feed import UNTRACED, QueryKeys, tracing
from calibrant.inference._limits import Gate
from calibrant.inference._reader import AnswerReader
from calibrant.logprobs._completion import read_completion

if TYPE_CHECKING:
    from calibrant.inference._demonstrations import Retrieval

_LOG = logging.getLogger("calibrant")

Scoring: TypeAlias = Literal["auto", "fused", "verbalised", "exact", "decode", "sampled"]
Tolerance: TypeAlias = float | Literal["exact"]
DEFAULT_TOLERANCE: Final = 0.2

_T = TypeVar("_T")
# Options that cannot change an answer.
_NOT_IN_KEY: Final = frozenset({"api_key", "timeout"})
# Answers to one text that may lack log-probabilities before the next one is kept as it is.
_MOST_SILENT: Final = 2


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

    async def _once(
        self,
        call: Call[_T],
        provider: str,
        operation: str,
        request: CompletionRequest | None,
    ) -> _T:
        """Make one call through the gate, within its deadline; it is traced as one span."""
        gate = self.gate
        epoch = gate.try_enter()
        if epoch is None:
            epoch = await gate.enter()
        try:
            seconds = gate.limits.call_seconds
            tracer = tracing()
            with UNTRACED if tracer is None else tracer.call(provider, operation, request) as span:
                if seconds is None:  # mostly, and every row would pay for a deadline
                    found = await call()
                else:
                    async with call_deadline(seconds, provider):
                        found = await call()
                if span is not None:
                    span.answer(found)
        except BaseException as error:
            pause = None
            if isinstance(error, ProviderError):
                if self.policy.worth_retrying(error):
                    pause = error.retry_after
                error.retryable = error.retryable and not gate.hopeless
            gate.leave(epoch, error, pause=pause)
            raise
        gate.leave(epoch)
        return found

    def make(
        self,
        call: Call[_T],
        *,
        provider: str,
        operation: str = "chat",
        request: CompletionRequest | None = None,
        paid: Sequence[Usage] = (),
    ) -> Awaitable[tuple[_T, int]]:
        """Make a call through the gate, with retries while the failure is retryable.

        Parameters
        ----------
        call : coroutine function
            Makes the call.
        provider : str
            The model, for messages and spans.
        operation : str, default "chat"
            Kind of the call, for its span.
        request : CompletionRequest, optional
            Request with the messages, for its span.
        paid : sequence of Usage, optional
            What the answered calls took; `call` adds to it.

        Returns
        -------
        answer : object
            Result of the call.
        attempts : int
            Calls made.

        Raises
        ------
        ProviderError
            The last failure, which may be a deadline; its attribute ``attempts`` holds the number of calls made, and
            ``usage`` what they took.
        """
        return self.policy.repeat(partial(self._once, call, provider, operation, request), paid=paid)

    async def respond(self, client: Client, request: CompletionRequest) -> tuple[object, int]:
        """Return the response to a request, and the number of calls made; a broken one is retried like a failed call.

        Raises
        ------
        ProviderError
            As `make`.
        CalibrantError
            The model tried to end the program, which would end the event loop for all others.
        """

        async def once() -> tuple[object, Completion]:
            try:
                response = await client.complete(request)
            except (SystemExit, KeyboardInterrupt) as error:
                raise CalibrantError(f"{client.name}: the model raised {error!r}.") from error
            self.note_rates(response)
            try:
                completion = read_completion(response)
            except DataError as error:
                raise ProviderError(
                    f"broken response: {error}", provider=client.name, retryable=True
                ) from error
            return response, completion

        (response, completion), attempts = await self.make(once, provider=client.name, request=request)
        return response, attempts - 1 + completion.calls

    async def complete(self, client: Client, request: CompletionRequest) -> tuple[Completion, int]:
        """Return the answer to a request that is no classification, and the number of calls made; see `respond`.

        It counts towards the budgets.
        """
        response, attempts = await self.respond(client, request)
        completion = read_completion(response)
        self.gate.charge(completion.usage)
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
            f"no complete answer within {counted(seconds or 0, 'second')}.", provider=provider, retryable=True
        ) from error


@dataclass(frozen=True, kw_only=True)
class ModelSetup:
    """Client of a model, with what its calls have in common.

    Attributes
    ----------
    client : Client
        Client of the calls.
    reader : AnswerReader
        Reader of the responses, with the legal labels and the space of the distributions.
    calls : ModelCalls
        Calls with gate, deadline and retries.
    response_format : mapping or None
        JSON schema sent with every call.
    top_logprobs : int
        Alternatives asked for per token.
    options : mapping
        Handed to the provider with every call.
    label_descriptions : mapping of str to str
        What some labels mean, for models that take this beside the labels.
    """

    client: Client
    reader: AnswerReader
    calls: ModelCalls
    response_format: Mapping[str, Any] | None
    top_logprobs: int
    options: Mapping[str, Any] = field(repr=False)  # may hold a key
    label_descriptions: Mapping[str, str]

    def with_space(self, space: LogprobSpace) -> ModelSetup:
        """Return a setup that reads answers as of another log-probability space."""
        return replace(self, reader=replace(self.reader, space=space))


@dataclass(frozen=True, kw_only=True)
class ScoringChoice:
    """Wish for a method.

    Attributes
    ----------
    scoring, tolerance, samples, temperature
        See `calibrant.inference.Classifier`.
    is_named : bool
        True for a model by name, of which it is found out whether it gives log-probabilities; of others only with
        ``auto``. Answers that lack them are else predictions without a confidence.
    space : LogprobSpace
        Space of the log-probabilities of decoded answers.
    """

    scoring: Scoring | None
    tolerance: Tolerance | None
    samples: int | None
    temperature: float | None
    is_named: bool
    space: LogprobSpace


@dataclass(kw_only=True)
class Method(ABC):
    """Method by which one model is asked about texts; what the row engine asks (see `RowModel`).

    Attributes
    ----------
    setup : ModelSetup
        Client, reader and calls.
    keep_features : bool
        True if predictions hold text features.
    retrieval : Retrieval or None
        Chooses the demonstrations that prompts show.
    named_tokens : tuple of int
        Numbers of the tokens that a server is asked for by name, for the features; empty in process.
    """

    setup: ModelSetup
    keep_features: bool = False
    retrieval: Retrieval | None = None
    named_tokens: tuple[int, ...] = ()
    # False if the method can do with answers that have none.
    needs_logprobs: ClassVar[bool] = False
    _keys: QueryKeys = field(default_factory=QueryKeys, init=False, repr=False, compare=False)
    _richer_keys: QueryKeys = field(default_factory=QueryKeys, init=False, repr=False, compare=False)

    @property
    def client(self) -> Client:
        """Client of the calls."""
        return self.setup.client

    @property
    def reader(self) -> AnswerReader:
        """Reader of the responses."""
        return self.setup.reader

    @property
    def calls(self) -> ModelCalls:
        """Calls with gate, deadline and retries."""
        return self.setup.calls

    @cached_property
    def traits(self) -> ClientTraits:
        """Traits of the client, looked up once: every row needs some."""
        return ClientTraits.of(self.client)

    @property
    def client_settings(self) -> dict[str, Any]:
        """The client's settings that can change a prediction, for cache keys; empty without any."""
        settings = self.traits.settings
        return {"settings": dict(settings)} if settings else {}

    @property
    def name(self) -> str:
        """The client's name."""
        return self.client.name

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
    def might_keep_features(self) -> bool:
        """True if the method could add text features to predictions, but does not."""
        return False

    def with_features(self, named_tokens: Sequence[int] = ()) -> Self:  # noqa: ARG002 (of those that name some)
        """Return a method whose predictions hold text features, if its engine reports them.

        Parameters
        ----------
        named_tokens : sequence of int, optional
            Numbers of the tokens whose log-probabilities are the features, on a server.
        """
        if self.might_keep_features:
            return replace(self, keep_features=True)
        return self

    async def candidate_tokens(self, request: CompletionRequest) -> TokenListing:  # noqa: ARG002 (of those that name some)
        """Return first tokens of the label, among which to choose those to name; none if the server names none.

        Raises
        ------
        ProviderError
            The call failed.
        """
        return TokenListing()

    def with_gate(self, gate: Gate) -> Self:
        """Return a method whose calls go through another gate."""
        calls = replace(self.calls, gate=gate)
        return replace(self, setup=replace(self.setup, calls=calls))

    def with_retrieval(self, retrieval: Retrieval | None) -> Self:
        """Return a method whose prompts show demonstrations; what it knows of the model is shared."""
        found = copy(self)
        found.retrieval = retrieval
        return found

    def request(self, query: Query) -> CompletionRequest:
        """Return the request for a query whose demonstrations are rendered already."""
        return CompletionRequest(
            messages=query.messages(),
            response_format=self.setup.response_format,
            top_logprobs=self.setup.top_logprobs,
            options=self.setup.options,
            without_text=query.messages_without_text(),
        )

    def prepare(self, queries: Sequence[Query]) -> list[tuple[Query, str]]:
        """Return queries with rendered demonstrations, each with an error text or an empty one."""
        if self.retrieval is not None:
            return self.retrieval.prepare(queries)
        if any(query.demonstrations and query.demonstrations.strip() for query in queries):
            raise ConfigurationError(
                "Expected labelled texts to show as demonstrations, got none: hand in a DemonstrationIndex of the "
                "training rows (with_demonstrations), or leave the component demonstrations out."
            )
        return [(query, "") for query in queries]

    @property
    def knows_abilities(self) -> bool:
        """True if it is known how the model is asked, or nothing can tell before it is asked."""
        return not self.reader.abilities.is_to_probe

    async def find_abilities(self, first: Query, journal: Journal | None = None) -> None:
        """Find out how the model is asked, unless that is known.

        Parameters
        ----------
        first : Query
            The first row's.
        journal : Journal, optional
            May hold the answer to it.

        Raises
        ------
        ProviderError
            A fault that every call would meet.
        """
        ((prepared, problem),) = self.prepare([first])
        if problem:
            prepared = first
        key = self.key(prepared)
        self._keys.clear()  # it may be another one from now on
        stored = None
        if journal is not None:
            stored = journal.get_many([key]).get(key)
        await self.probe(self.request(prepared), stored)

    async def probe(self, request: CompletionRequest, stored: Prediction | None = None) -> None:
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
        self.calls.gate.charge(usage)
        tell_form(self.client.name, abilities.used.form)

    async def predict(self, query: Query) -> Prediction:
        """Return the prediction of a query; client secrets echoed by the server are removed.

        Raises
        ------
        ProviderError
            The model could not be asked.
        """
        answered = await self.answer(self.request(query))
        return _without_echoes(answered, self.traits.hidden, asked=self.client.name)

    @abstractmethod
    async def answer(self, request: CompletionRequest) -> Prediction:
        """Return the prediction of a request; its ``attempts`` counts the calls made, and ``usage`` what they took.

        Raises
        ------
        ProviderError
            The model could not be asked, after retries; it counts likewise.
        """

    def key(self, query: Query) -> str:
        """Return the journal key: a digest of the settings and texts that can change the prediction."""
        return self._keys.key(query, self._key_settings)

    def richer_key(self, query: Query) -> str | None:
        """Return the journal key of the same query asked with text features; None if there is none."""
        if not self.might_keep_features:
            return None
        return self._richer_keys.key(query, self.with_features()._key_settings)  # noqa: SLF001 (of its own kind)

    def _key_settings(self, query: Query) -> list[object]:
        setup = self.setup
        return [
            setup.client.name,
            self.traits.endpoint,
            dict(self.describe()),
            query.prompt + query.shown,
            query.user_template,
            setup.response_format,
            setup.top_logprobs,
            {name: value for name, value in setup.options.items() if name not in _NOT_IN_KEY},
            self.traits.tokenisation,
        ]

    def is_final(self, prediction: Prediction) -> bool:
        """Return True if a retry could not change the prediction."""
        return prediction.outcome is not Outcome.ERROR

    def ends_run(self, error: ProviderError, *, answered: bool) -> bool:
        """Return True if every call would meet `error` and no row has succeeded so far."""
        return error.systemic and not answered

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return the settings that can change a prediction, as JSON values for cache keys."""


def _without_echoes(prediction: Prediction, hidden: Callable[[str], str] | None, *, asked: str) -> Prediction:
    """Return a prediction without echoed client secrets; label, evidence and the model that was asked stay."""
    if hidden is None:
        return prediction
    reason = prediction.reason and hidden(prediction.reason)
    text = prediction.text and hidden(prediction.text)
    model = prediction.model
    if model and model not in asked:  # a short key may be a part of the name, which is no secret
        model = hidden(model)
    if (reason, text, model) == (prediction.reason, prediction.text, prediction.model):
        return prediction
    return replace(prediction, reason=reason, text=text, model=model)


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
        if self._any_logprobs:
            return 0
        return len(self._gives_logprobs)

    async def answer(self, request: CompletionRequest) -> Prediction:
        """Return the prediction from a decoded answer; a broken response is retried like a failed call.

        So is one without log-probabilities, where others came with them. Of those that never have any,
        each row is asked once.
        """
        request = self.reader.shaped(request)
        silent: list[Prediction] = []
        paid: list[Usage] = []

        async def call() -> Prediction:
            response = await self.client.complete(request)
            self.calls.note_rates(response)
            prediction = self.reader.read(response)
            paid.append(prediction.usage)
            self._refuse(prediction, response, silent, asks_for_logprobs=request.top_logprobs > 0)
            return prediction

        try:
            prediction, attempts = await self.calls.make(
                call, provider=self.client.name, request=request, paid=paid
            )
            attempts += prediction.attempts - 1
        except ProviderError as error:
            if not silent:
                self._doubt(error)
                raise
            prediction = silent[-1]
            attempts = error.attempts
        if attempts == prediction.attempts:
            return prediction
        return prediction.with_effort(attempts=attempts, usage=sum(paid, Usage()))

    def _doubt(self, error: ProviderError) -> None:
        """Forget the finding about the model if it is refused now; the next run finds out anew."""
        if refuses_form(error) or isinstance(error, LogprobsUnsupportedError):
            self.reader.abilities.forget()

    def _refuse(
        self, prediction: Prediction, response: object, silent: list[Prediction], *, asks_for_logprobs: bool
    ) -> None:
        """Raise an error for a broken answer; one to which a retry may add log-probabilities is stored.

        Raises
        ------
        ProviderError
            Another call may bring a better response.
        """
        if prediction.outcome is Outcome.ERROR:
            raise ProviderError(prediction.reason, provider=self.client.name, retryable=True)
        wants_evidence = (
            asks_for_logprobs
            and prediction.outcome is Outcome.OK
            and self.reader.space_of(response) is not LogprobSpace.NONE
            and not self.reader.is_unaligned(response, prediction)
        )
        before = sum(earlier.model == prediction.model for earlier in silent)
        if wants_evidence and self._lacks_logprobs(prediction, response, before=before):
            silent.append(prediction)
            error = ProviderError(
                "the answer has no log-probabilities.", provider=self.client.name, retryable=True
            )
            error.calls = prediction.attempts
            raise error

    def _lacks_logprobs(self, prediction: Prediction, response: object, *, before: int) -> bool:
        """Record an answer; return True if a retry may bring its missing log-probabilities.

        A server that left them out of so many answers `before` this one leaves them out for the text.
        """
        if prediction.confidence is not None:
            self._gives_logprobs[prediction.model] = self._any_logprobs = True
            return False
        if not self._any_logprobs:
            completion = read_completion(response)
            self._any_logprobs = completion.tokens is not None or bool(completion.evidence_problem)
        if before:
            self._gives_logprobs.setdefault(prediction.model, False)
        return before < _MOST_SILENT and self._gives_logprobs.get(prediction.model, True)

    def describe(self) -> Mapping[str, Any]:
        """Return the settings of the reader, for cache keys."""
        kept = {}
        if self.reader.keep_tokens:
            kept = {"tokens": True}
        return {**kept, "scoring": "decode", **self.reader.describe()}
