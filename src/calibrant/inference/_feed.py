"""Row engine: predicts rows concurrently in bounded memory, and delivers them in input order."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from calibrant.clients._calls import LoopValues
from calibrant.core._errors import CalibrantError, ContextLengthError, ProviderError
from calibrant.core._prediction import Journal, Outcome, Prediction, failed_prediction
from calibrant.core._predictor import INPUT_SLOT, CallGroup, OnPrediction, Query, RetryCancelScope, Stop
from calibrant.core._reported import counted
from calibrant.inference._limits import Gate

if TYPE_CHECKING:
    from calibrant.inference._tracing import Tracing

UNTRACED: Final = nullcontext()
# Rows looked up in the journal at a time.
_BLOCK: Final = 256
# Prompts whose digests are kept; those with demonstrations differ from row to row.
_PROMPTS: Final = 256
# Rows answered behind one that is not: they wait in memory, and no further ones are begun.
_WINDOW: Final = 1024
# Blocks of rows that may still be under way, or wait for their vectors, when another is looked up.
_BLOCKS_BEFORE: Final = 2 * _WINDOW // _BLOCK
# Rows between two turns of the event loop at most.
_ROWS_BETWEEN_YIELDS: Final = 64
# Failures without any answer, and in a row, after which no row can be expected to succeed.
_FAILURES_AT_FIRST: Final = 20
_FAILURES_IN_A_ROW: Final = 100
# A row that waits longer than this between calls, once the run was told not to wait, is given up.
_GRACE_SECONDS: Final = 0.5


class RowModel(Protocol):
    """Protocol of what the row engine asks: one prompted model, or a cascade."""

    @property
    def name(self) -> str:
        """Name of the model, for messages."""
        ...

    @property
    def knows_abilities(self) -> bool:
        """True if it is known how its models are asked; `find_abilities` finds out, before the first key."""
        ...

    async def find_abilities(self, first: Query, journal: Journal | None = None) -> None:
        """Find out how its models are asked, before they are asked about the first row."""
        ...

    def prepare(self, queries: Sequence[Query]) -> list[tuple[Query, str]]:
        """Return the queries as sent, each with an error text; the text is empty if the query can be sent."""
        ...

    def key(self, query: Query) -> str:
        """Return the journal key: a digest of the settings and texts that can change the prediction."""
        ...

    def richer_key(self, query: Query) -> str | None:
        """Return the journal key of the same query asked with text features; None if there is none."""
        ...

    async def predict(self, query: Query) -> Prediction:
        """Return the prediction of a query; raise ProviderError if the model cannot be asked."""
        ...

    def is_final(self, prediction: Prediction) -> bool:
        """Return True if a retry could not change the prediction, so that a journal may keep it."""
        ...

    def ends_run(self, error: ProviderError, *, answered: bool) -> bool:
        """Return True if `error` must end the run; `answered` is True if any row has succeeded."""
        ...


class Ahead(Protocol):
    """Protocol of what computes something about texts while the model answers."""

    def over(self, rows: Iterable[QueuedRow]) -> Iterator[QueuedRow]:
        """Yield rows, and begin to compute for those that come soon."""
        ...

    async def checked(self, query: Query, prediction: Prediction) -> Prediction:
        """Wait for what a query needs; return the prediction, or a failed one if it could not be computed."""
        ...


class QueryKeys:
    """Journal keys of queries: digests of the settings and texts that can change the prediction."""

    def __init__(self) -> None:
        self._digests: dict[tuple[str, str | None], Any] = {}

    def clear(self) -> None:
        """Forget the digests of all prompts, as settings have changed."""
        self._digests.clear()

    def key(self, query: Query, settings_of: Callable[[Query], Sequence[object]]) -> str:
        """Return the digest of a query, 64 hexadecimal digits.

        Parameters
        ----------
        query : Query
            The query.
        settings_of : callable
            Returns all settings that can change the prediction, but the text, as JSON values; called once for each
            prompt. It is not kept: a reference back to the model would keep a client from being closed.
        """
        prompt = (query.prompt + query.shown, query.user_template)
        digest = self._digests.get(prompt)
        if digest is None:
            if len(self._digests) >= _PROMPTS:
                self._digests.clear()
            settings = json.dumps(list(settings_of(query)), sort_keys=True, default=repr)
            digest = self._digests[prompt] = hashlib.sha256(settings.encode())
        digest = digest.copy()
        digest.update(query.text.encode("utf-8", "surrogatepass"))
        return str(digest.hexdigest())


class QueuedRow(NamedTuple):
    """Query of a run, with its journal key and its stored prediction.

    Attributes
    ----------
    query : Query
        The query as it is asked.
    key : str
        Digest of everything that can change the prediction.
    stored : Prediction or None
        The journal's prediction under the key; one with the reason where the query cannot be asked.
    repeated : bool
        True if a row shortly before has the same key.
    """

    query: Query
    key: str
    stored: Prediction | None
    repeated: bool


@dataclass(kw_only=True)
class Runner:
    """Source of row predictions: the journal, an equal row in flight, or a model call.

    It holds no reference to the model, which would keep a client from being closed with its last user.

    Attributes
    ----------
    gate : Gate
        Limits of the rows; the model's calls go through it, or through gates of its own.
    journal : Journal or None
        Finished predictions; what it holds is not asked again. Errors are never stored.
    answered : bool
        True once the model answered a row.
    """

    gate: Gate = field(default_factory=Gate)
    journal: Journal | None = None
    answered: bool = field(default=False, init=False, repr=False)
    # Rows under way, by event loop: equal rows wait for the same answer.
    _flying: LoopValues[dict[str, asyncio.Future[Prediction]]] = field(
        default_factory=LoopValues, init=False, repr=False
    )

    def rows(self, model: RowModel, queries: Iterable[Query]) -> Iterator[QueuedRow]:
        """Yield queries as rows, each with its prediction from the journal, if any."""
        waiting = iter(queries)
        # Rows of blocks before may be answered after a block is looked up, and before its own rows begin.
        before: deque[set[str]] = deque(maxlen=_BLOCKS_BEFORE)
        while block := list(islice(waiting, _BLOCK)):
            prepared = model.prepare(block)
            asked = [query for query, _ in prepared]
            keys = [model.key(query) for query in asked]
            stored = self._stored(model, asked, keys)
            seen = set().union(*before)
            before.append(set(keys))
            for (query, problem), key in zip(prepared, keys, strict=True):
                problem = problem or query.problem  # noqa: PLW2901
                if not problem and query.user_template is not None and INPUT_SLOT not in query.user_template:
                    problem = f"the user template lacks {INPUT_SLOT}, so the model never saw the text"  # noqa: PLW2901
                refused = (
                    Prediction(label=None, outcome=Outcome.UNPARSED, reason=problem) if problem else None
                )
                yield QueuedRow(query, key, refused or stored.get(key), key in seen)
                seen.add(key)

    def _stored(
        self, model: RowModel, queries: Sequence[Query], keys: Sequence[str]
    ) -> dict[str, Prediction]:
        """Return the journal's predictions by key.

        A prediction that was stored with features answers the question without them as well.
        """
        if self.journal is None:
            return {}
        found = dict(self.journal.get_many(keys))
        richer = {
            other: key
            for query, key in zip(queries, keys, strict=True)
            if key not in found and (other := model.richer_key(query)) is not None
        }
        kept = self.journal.get_many(list(richer)) if richer else {}
        return found | {richer[key]: replace(one, features=None) for key, one in kept.items()}

    async def answer(self, model: RowModel, row: QueuedRow) -> Prediction:
        """Return the prediction of a row; most failures become a prediction without a label.

        Raises
        ------
        ProviderError
            A fault that every call would meet, before any call has succeeded.
        """
        stored = row.stored
        if stored is None and row.repeated and self.journal is not None:
            stored = self.journal.get_many([row.key]).get(row.key)
        if stored is not None:
            return stored.with_effort(attempts=0)
        flying = self._flying.here(dict)
        while (other := flying.get(row.key)) is not None:
            await asyncio.wait([other])
            if not other.cancelled() and other.exception() is None:
                return other.result().with_effort(attempts=0)
        future = flying[row.key] = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        try:
            try:
                prediction = await model.predict(row.query)
                self.answered = self.answered or prediction.outcome is not Outcome.ERROR
            except (SystemExit, KeyboardInterrupt) as error:
                # Either would end the event loop, and every later call would wait for ever.
                raise CalibrantError(f"{model.name}: the model raised {error!r}.") from error
            except ProviderError as error:
                is_too_long = isinstance(error, ContextLengthError)
                if not is_too_long and model.ends_run(error, answered=self.answered):
                    raise
                outcome = Outcome.UNPARSED if is_too_long else Outcome.ERROR
                prediction = failed_prediction(error, outcome=outcome)
            prediction = prediction.with_effort(latency_seconds=time.perf_counter() - start)
            self.gate.finish_row(prediction)
            if self.journal is not None and model.is_final(prediction):
                self.journal.put(row.key, prediction)
            future.set_result(prediction)
            return prediction
        finally:
            del flying[row.key]
            future.cancel()  # nothing came: an equal row asks for itself


@dataclass(eq=False)
class Feed:
    """One run of the row engine over a stream of queries; see `calibrant.core.Predictor.feed`.

    Attributes
    ----------
    model : RowModel
        Answers the rows.
    runner : Runner
        Journal and limits of the rows.
    deliver, on_prediction, stop
        As `calibrant.core.Predictor.feed` has them.
    finish : callable, optional
        Returns what is handed over for a query and its prediction; the journal keeps the prediction as it came.
    ahead : Ahead, optional
        Computes what `finish` needs while the model answers.
    """

    model: RowModel
    runner: Runner
    deliver: OnPrediction
    _: KW_ONLY
    finish: Callable[[Query, Prediction], Prediction] | None = None
    ahead: Ahead | None = None
    on_prediction: OnPrediction | None = None
    stop: Stop | None

    def __post_init__(self) -> None:
        self._stop = self.stop or Stop()
        self._gate = self.runner.gate
        self._answered = self.runner.answered
        # Rows by number: begun, delivered in order, and answered before their turn.
        self._begun = self._delivered = self._under_way = 0
        self._finished: dict[int, Prediction] = {}
        self._failures = 0
        self._error: ProviderError | None = None
        self._room = asyncio.Event()
        self._retry_scopes: list[RetryCancelScope] = []
        self._opening: asyncio.Task[None] | None = None

    async def run(self, queries: Iterable[Query], *, opening: Query | None = None) -> str:
        """Predict the queries; return the reason of an early end, or an empty text.

        With `opening`, it is found out how the model is asked, and that query is not predicted.

        Raises
        ------
        ProviderError
            A fault that every call would meet (bad key, unknown model) before any succeeded, or
            nothing but failures.
        """
        n_workers = self._gate.concurrency
        if isinstance(queries, Sequence):
            n_workers = min(n_workers, len(queries))
        queries, first = (queries, opening) if self.model.knows_abilities or opening else _with_first(queries)
        rows = self.runner.rows(self.model, queries)
        rows = rows if self.ahead is None else self.ahead.over(rows)
        seconds = self._gate.limits.run_seconds
        deadline = asyncio.timeout(seconds)
        loop = asyncio.get_running_loop()
        workers: list[asyncio.Task[None]] = []

        def give_up() -> None:
            if self._stop.at_once:
                for worker in workers:
                    worker.cancel()
            else:
                loop.call_later(_GRACE_SECONDS, self._end_waits)

        def from_any_thread() -> None:
            loop.call_soon_threadsafe(give_up)

        try:
            with self._stop.calling(from_any_thread):
                async with deadline, CallGroup() as group:
                    if first is not None:
                        self._opening = group.create_task(self._open(first))
                        workers.append(self._opening)
                    workers += [group.create_task(self._work(rows)) for _ in range(n_workers)]
        except TimeoutError:
            if not deadline.expired():
                raise
            self._stop.request(f"The deadline of {counted(seconds or 0, 'second')} has passed")
        if self._error is not None:
            raise self._error
        return self._stop.reason

    def _end_waits(self) -> None:
        for retries in self._retry_scopes:
            retries.end()
        self._room.set()  # the row that others wait for may be one of those given up

    async def _work(self, rows: Iterator[QueuedRow]) -> None:
        retries = RetryCancelScope()
        self._retry_scopes.append(retries)
        with retries.applied():
            if self._opening is not None:
                await self._opening
            while await self._may_begin():
                row = next(rows, None)
                if row is None:
                    return
                index = self._begun
                self._begun += 1
                self._under_way += 1
                tracer = tracing()
                with UNTRACED if tracer is None else tracer.row(self.model.name) as span:
                    try:
                        prediction = await self.runner.answer(self.model, row)
                        if row.query.on_answer is not None:
                            row.query.on_answer(prediction)
                        if self.ahead is not None and prediction.label is not None:
                            prediction = await self.ahead.checked(row.query, prediction)
                    finally:
                        self._under_way -= 1
                    final = prediction
                    if self.finish is not None:
                        final = self.finish(row.query, prediction)
                    if span is not None:
                        span.end(final)
                self._hand_over(index, final)
                self._watch(prediction)
                if index % _ROWS_BETWEEN_YIELDS == 0:
                    await asyncio.sleep(0)  # what a journal holds is answered without any wait

    async def _open(self, first: Query) -> None:
        """Find out how the model is asked, while the workers wait."""
        retries = RetryCancelScope()
        self._retry_scopes.append(retries)
        with retries.applied():
            if await self._may_begin():
                await self.model.find_abilities(first, self.runner.journal)

    async def _may_begin(self) -> bool:
        gate = self._gate
        while not self._stop.reason and (
            self._begun - self._delivered >= _WINDOW
            # The finished rows tell what a row costs. Few of them tell little, as in a cascade, to whose dearer models
            # a first row need not come: so no more are under way than are finished.
            or (gate.limits.has_budget and self._under_way >= max(1, gate.rows))
        ):
            self._room.clear()
            await self._room.wait()
        if not self._stop.reason:
            self._stop.request(gate.used_up(self._under_way))
        return not self._stop.reason

    def _hand_over(self, index: int, prediction: Prediction) -> None:
        """Report a prediction, and deliver the finished ones that are next in input order."""
        if self.on_prediction is not None:
            self.on_prediction(index, prediction)
        self._finished[index] = prediction
        while self._delivered in self._finished:
            ready = self._finished.pop(self._delivered)
            self.deliver(self._delivered, ready)
            self._delivered += 1
        self._room.set()

    def _watch(self, prediction: Prediction) -> None:
        """Count consecutive failed rows; end the run if there are too many, once the rows under way are answered.

        Rows that the model was not asked about, such as those without a text, do not count.
        """
        if prediction.outcome is Outcome.UNPARSED and prediction.attempts == 0:
            return
        if prediction.outcome is not Outcome.ERROR:
            self._failures = 0
            self._answered = True
            return
        spent = self._gate.used_up(self._under_way)
        if spent:  # which is why the row failed, or stops the run in any case
            self._stop.request(spent)
            return
        self._failures += 1
        limit = _FAILURES_IN_A_ROW if self._answered else _FAILURES_AT_FIRST
        if self._error is None and self._failures >= limit and self._failures >= self._gate.concurrency:
            self._error = ProviderError(
                f"The last {self._failures} rows all failed, so the others were not asked. The last one: "
                f"{prediction.reason}",
                provider=self.model.name,
            )
            self._stop.request(str(self._error), waits=True)


def tracing() -> Tracing | None:
    """Return the tracer of spans; None unless the program has set up OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from calibrant.inference import _tracing  # noqa: PLC0415 (of an extra)

    return _tracing.current()


def _with_first(queries: Iterable[Query]) -> tuple[Iterable[Query], Query | None]:
    """Return queries that can still be read from the first one on, and the first one."""
    if isinstance(queries, Sequence):
        return queries, queries[0] if queries else None
    rest = iter(queries)
    first = next(rest, None)
    if first is None:
        return rest, None
    return chain([first], rest), first
