"""Protocol of predictors, their queries, the stop signal of a run, and limits on calls with their counter."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from calibrant.core._completion import Message
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Journal, LogprobSpace, Prediction
from calibrant.core._reported import is_number
from calibrant.core._rows import TextWithContext

INPUT_SLOT: Final = "{input}"
"""Stands for the text in a user template."""
OnPrediction: TypeAlias = Callable[[int, Prediction], None]
"""Called with the index of a row and its prediction."""
_T = TypeVar("_T")
_CANCEL_SCOPE: ContextVar[RetryCancelScope | None] = ContextVar("calibrant_cancel_scope", default=None)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the calls of one predictor.

    Budgets count what it has paid since it was made, journals and merged calls aside. They are looked at before a row
    is begun, with the expected cost of the rows under way counted in.

    Attributes
    ----------
    concurrency : int, optional
        Calls in flight at most, at least 1. Fewer while the provider says that it is overloaded. By default 10, and 4
        for an engine in this process (one for each of its slots, where it has more).
    requests_per_minute, tokens_per_minute : float, optional
        Rates that are kept without waiting for the provider to complain. Tokens are those of prompts
        and answers, charged when a row is answered.
    max_requests, max_tokens : int, optional
        Budgets of calls and of tokens.
    max_cost : float, optional
        Budget in US dollars.
    call_seconds : float, optional
        Deadline of one call; one that misses it has failed and may be tried again.
    run_seconds : float, optional
        Deadline of one run; rows under way are given up when it passes.

    Raises
    ------
    ConfigurationError
        A limit is not above 0.

    Examples
    --------
    >>> Limits(concurrency=8, max_cost=0.5).max_cost
    0.5
    """

    concurrency: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    call_seconds: float | None = None
    run_seconds: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.name == "concurrency" and not (is_number(value) and value >= 1 and value == int(value)):
                raise ConfigurationError(f"Expected concurrency of at least 1, got {value!r}.")
            if not is_number(value) or value <= 0:
                raise ConfigurationError(f"Expected {field.name} to be a number above 0, got {value!r}.")

    @property
    def has_budget(self) -> bool:
        """True if calls, tokens or cost are limited."""
        return (self.max_requests, self.max_tokens, self.max_cost) != (None, None, None)


class Pace(Protocol):
    """Token bucket of a rate limit, or the share of one process in it."""

    def wait(self, now: float) -> float:
        """Return the seconds from `now` until the bucket has tokens."""

    def take(self, amount: float) -> None:
        """Take `amount` tokens, even if that overdraws the bucket."""


class CallMeter(Protocol):
    """Counter of calls, tokens and cost that enforces the limits.

    Attributes
    ----------
    provider : str
        The model that the calls go to.
    limits : Limits
        Limits of the calls.
    concurrency : int
        Calls in flight at most.
    requests, successes, failures : int
        Calls begun, answered, and failed for the provider's reasons.
    rows, tokens : int
        Rows charged, and the tokens they took.
    cost : float
        US dollars they took, as far as prices are known.
    unpriced : int
        Rows whose price is not known.
    uncounted : int
        Rows that were answered without a word on their tokens.
    on_pause : callable or None
        Called, from whatever thread, when the provider wants no further call for a while.
    """

    provider: str
    limits: Limits
    concurrency: int
    requests: int
    successes: int
    failures: int
    rows: int
    tokens: int
    cost: float
    unpriced: int
    uncounted: int
    on_pause: Callable[[], None] | None

    @property
    def pause_seconds(self) -> float:
        """Seconds left of the pause that the provider asked for; 0 if it asked for none."""

    def pace(self, open_bucket: Callable[[str, float], Pace]) -> None:
        """Replace the token buckets of the rate limits, for example by ones that processes share.

        Parameters
        ----------
        open_bucket : callable
            Returns the bucket for a rate's name, as in `Limits`, and what flows in, per minute. It is
            asked for the rates that have a limit.
        """


@dataclass(frozen=True, kw_only=True)
class Query:
    """Text to classify, with the prompt for it.

    Attributes
    ----------
    prompt : str
        The system prompt.
    text : str
        The text to classify.
    user_template : str or None
        Template of the user message; every ``{input}`` in it becomes the text.
    context : str or None
        Source text of the answer; not part of the messages.
    demonstrations : str or None
        How those shown beside the text are chosen, as `DemonstrationSettings.to_text` writes it; blank shows none, and
        None leaves the choice to the predictor.
    shown : str
        The demonstrations themselves, below the prompt; the predictor adds them.
    problem : str
        Reason not to ask the model: the prediction is then unparsed, and has this reason. Empty for most queries.
    on_answer : callable or None
        Called with the model's answer as soon as it is there, before a head waits for the vector of the text; by a
        cascade with that of every step, and the steps so far.

    Examples
    --------
    >>> from calibrant.core import Query
    >>> [message["content"] for message in Query(prompt="Which animal?", text="meow").messages()]
    ['Which animal?', 'meow']
    """

    prompt: str
    text: str
    user_template: str | None = None
    context: str | None = None
    demonstrations: str | None = None
    shown: str = ""
    problem: str = ""
    on_answer: Callable[[Prediction], None] | None = None

    def messages(self) -> tuple[Message, ...]:
        """Return the chat messages of this query."""
        return self._messages(self.prompt + self.shown, self.text)

    def messages_without_text(self) -> tuple[Message, ...]:
        """Return the chat messages of this prompt, without a text and without demonstrations."""
        return self._messages(self.prompt, "")

    def _messages(self, system: str, text: str) -> tuple[Message, ...]:
        user = text
        if self.user_template is not None:
            user = self.user_template.replace(INPUT_SLOT, text)
        return {"role": "system", "content": system}, {"role": "user", "content": user}


class Stop:
    """Stop signal of a run.

    Attributes
    ----------
    reason : str
        Reason of the stop; empty before one was requested.
    at_once : bool
        True if rows in flight are cancelled instead of finished.
    waits : bool
        True if rows that wait between calls are cancelled.

    Examples
    --------
    >>> from calibrant.core import Stop
    >>> stop = Stop()
    >>> stop.request("the user pressed Ctrl-C")
    >>> stop.request("the deadline passed", at_once=True)
    >>> stop.reason, stop.at_once
    ('the user pressed Ctrl-C', True)
    """

    def __init__(self) -> None:
        self.reason = ""
        self.at_once = False
        self.waits = False
        self._give_up: set[Callable[[], None]] = set()

    def request(self, reason: str, *, at_once: bool = False, waits: bool = False) -> None:
        """Ask the run to begin no further row; safe in any thread and in signal handlers.

        Parameters
        ----------
        reason : str
            Reason of the stop; an earlier reason is kept.
        at_once : bool, default False
            Give up the rows under way, too; a later run asks about them again.
        waits : bool, default False
            Of the rows under way, give up those that would wait more than half a second for a rate limit or before
            another attempt. Calls in flight are waited for: they are paid for.
        """
        self.reason = self.reason or reason
        self.at_once = self.at_once or at_once
        self.waits = self.waits or waits
        if at_once or waits:
            for give_up in tuple(self._give_up):
                give_up()

    @contextlib.contextmanager
    def calling(self, give_up: Callable[[], None]) -> Iterator[None]:
        """Register a callback, for the time of the block, that cancels pending rows."""
        self._give_up.add(give_up)
        try:
            yield
        finally:
            self._give_up.discard(give_up)


class RetryCancelScope:
    """Cancellation of one asyncio task, limited to its waits between calls.

    Use it inside a task. `end` cancels the task if it waits between calls, then or later, itself or in a task that it
    started; calls under way are left alone.

    Parameters
    ----------
    on_failure : callable, optional
        Called in the task's event loop with the error of every call that is to be repeated, before the wait.

    Attributes
    ----------
    is_cancelled : bool
        True once `end` has cancelled the task.
    """

    def __init__(self, *, on_failure: Callable[[ProviderError], None] | None = None) -> None:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._waits = 0
        self._ended = False
        self.is_cancelled = False

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Use this object for all waits inside the block, unless an outer one is in use."""
        outer = _CANCEL_SCOPE.get()
        token = _CANCEL_SCOPE.set(outer or self)
        try:
            yield
        finally:
            _CANCEL_SCOPE.reset(token)

    def end(self) -> None:
        """Cancel the task now if it waits, otherwise at its next wait. Call in the task's event loop."""
        self._ended = True
        if self._waits:
            self._cancel()

    def failed(self, error: ProviderError) -> None:
        """Report the failure of a call that is to be repeated."""
        if self._on_failure is None:
            return
        if asyncio.get_running_loop() is self._loop:
            self._on_failure(error)
        else:  # a model that asks another one in a thread of its own
            self._loop.call_soon_threadsafe(self._on_failure, error)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the task as waiting inside the block."""
        if (
            asyncio.get_running_loop() is not self._loop
        ):  # a model that asks another one in a thread of its own
            yield
            return
        self._waits += 1
        if self._ended:
            self._cancel()
        try:
            yield
        finally:
            self._waits -= 1

    def _cancel(self) -> None:
        if self._task is not None and not self.is_cancelled:
            self.is_cancelled = True
            self._task.cancel()


class CallGroup(asyncio.TaskGroup):
    """Task group whose first failure is raised as it is, and which leaves the task that waits for it uncancelled."""

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        self._cancelling = 0 if task is None else task.cancelling()
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        except BaseExceptionGroup as errors:
            task = asyncio.current_task()
            # Before Python 3.13 the cancellation that ends the wait stays behind, and whoever waits further up (a
            # timeout, a task group of anyio) takes it for its own.
            if sys.version_info < (3, 13) and task is not None and task.cancelling() > self._cancelling:
                task.uncancel()
            raise errors.exceptions[0] from None


async def concurrently(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return the results of calls in their order; the first failure cancels the others, and is raised as it is."""
    async with CallGroup() as group:
        tasks = [group.create_task(call) for call in calls]
    return [task.result() for task in tasks]


async def interruptible_sleep(
    seconds: float, *, sleep: Callable[[float], Awaitable[None]], failure: ProviderError | None = None
) -> None:
    """Sleep between two calls; `RetryCancelScope.end` can cancel the task during this sleep.

    Parameters
    ----------
    seconds : float
        Duration of the sleep.
    sleep : coroutine function
        Sleep function; receives the seconds.
    failure : ProviderError, optional
        Failure of the call that is repeated after the sleep.
    """
    retries = _CANCEL_SCOPE.get()
    if retries is not None and failure is not None:
        retries.failed(failure)
    with contextlib.nullcontext() if retries is None else retries.waiting():
        await sleep(seconds)


@runtime_checkable
class Predictor(Protocol):
    """Protocol of objects that predict labels of texts: classifiers, cascades, opened bundles.

    Attributes
    ----------
    labels : LabelSet
        The legal labels.
    field : str
        JSON path of the label in an answer.
    prompt : str
        The system prompt that `query` asks under.
    user_template : str or None
        The user template that `query` asks with.

    Examples
    --------
    >>> from calibrant.core import Predictor
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(["Food", "Rent"], {"lunch": "Food"})
    >>> classifier = Classifier(model=fake, labels=fake.labels, field="category", prompt="Sort the payment.")
    >>> isinstance(classifier, Predictor), classifier.query("lunch").prompt
    (True, 'Sort the payment.')
    """

    labels: LabelSet
    field: str
    prompt: str
    user_template: str | None

    @property
    def name(self) -> str:
        """Name of the model or cascade, for messages and records."""

    @property
    def space(self) -> LogprobSpace:
        """Kind of the log-probabilities that its predictions carry."""

    @property
    def in_process(self) -> bool:
        """True if the model runs in this process, where concurrency brings no speed."""

    @property
    def is_free(self) -> bool:
        """True if no call is paid for, as every model runs in this process."""
        return self.in_process

    @property
    def journal(self) -> Journal | None:
        """Store of finished predictions, which are not requested again; None without a store."""

    @property
    def limits(self) -> Limits:
        """Limits on the calls of this predictor."""

    @property
    def meter(self) -> CallMeter:
        """Counter of the rows, calls, tokens and cost so far."""

    @property
    def gates(self) -> Sequence[CallMeter]:
        """Counters of the calls to each model, which also enforce the rate limits."""

    def query(self, text: str | TextWithContext) -> Query:
        """Return the query for a text, with the predictor's own prompt."""

    async def feed(
        self,
        queries: Iterable[Query],
        deliver: OnPrediction,
        *,
        on_prediction: OnPrediction | None = None,
        stop: Stop | None = None,
    ) -> str:
        """Answer a stream of queries in bounded memory.

        What was learned for its own prompt (a head, a label prior) is applied to the queries under that prompt.

        Parameters
        ----------
        queries : iterable of Query
            Read as rows are begun, not ahead.
        deliver : callable
            Called with the index and the prediction of every query once, in the order of the queries.
        on_prediction : callable, optional
            Called with both as soon as a query is answered.
        stop : Stop, optional
            Ends the run after the rows under way.

        Returns
        -------
        str
            Why it ended early (a budget, a deadline, `stop`); empty when every query was answered.

        Raises
        ------
        ProviderError
            A fault that every call would meet, or nothing but failures.
        """

    def with_prompt(self, prompt: str, *, user_template: str | None = None) -> Self:
        """Return a copy with another prompt; clients and journal are shared, learned state is dropped."""

    def with_limits(self, limits: Limits) -> Self:
        """Return a copy with other limits and a new meter; clients and journal are shared."""

    def use_journal(self, journal: Journal | None) -> None:
        """Use `journal` for looking up and storing predictions from now on."""

    def describe(self) -> dict[str, Any]:
        """Return the settings that can change a prediction, as JSON values without credentials."""

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint that binds a calibration to this predictor."""

    def close(self) -> None:
        """Close the clients and other resources that the predictor owns."""
