"""Base class of predictors, and the background loop that answers their synchronous calls."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias, TypeVar, overload

from calibrant.core._completion import Client
from calibrant.core._errors import ConfigurationError, LimitReachedError
from calibrant.core._prediction import Prediction
from calibrant.core._predictor import Limits, OnPrediction, Predictor, Query, Stop
from calibrant.core._reported import counted
from calibrant.core._rows import TextWithContext
from calibrant.inference._feed import Feed, RowModel, Runner
from calibrant.inference._limits import Gate

if TYPE_CHECKING:
    from calibrant.core._frames import FrameT
    from calibrant.heads._head import Head

Text: TypeAlias = str | TextWithContext
_LABELS_SHOWN: Final = 5
# Asked about where there is no row yet.
_ANY_TEXT: Final = "Hello."
SECONDS_TO_STOP = 5.0
_THREAD = "calibrant-loop"
# Python runs signal handlers between two steps of the main thread. A signal that reaches the process just before the
# main thread blocks, or in another thread, does not wake it: it has to wake by itself.
_SECONDS_BETWEEN_SIGNALS: Final = 0.1
_T = TypeVar("_T")
_lock = threading.Lock()
_running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
_left_behind: list[tuple[asyncio.AbstractEventLoop, threading.Thread]] = []


class BasePredictor(Predictor):
    """Base class of predictors, with synchronous and asynchronous methods to classify texts."""

    _runner: Runner

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __reduce__(self) -> NoReturn:
        raise ConfigurationError(
            f"Expected something that can be pickled, got a {type(self).__name__}, which holds open connections: send "
            "the path of a bundle or task file, or a Tuned, and open it where it arrives."
        )

    @property
    @abstractmethod
    def row_model(self) -> RowModel:
        """Row model that the feed asks."""

    def find_abilities(self, query: Query | None = None, *, stop: Stop | None = None) -> None:
        """Find out how the models are asked, before that is described.

        Parameters
        ----------
        query : Query, optional
            The first row's, whose answer tells of a model that is no server; by default one that is no row's.
        stop : Stop, optional
            Ends the attempts; so do the deadline and the budgets, which then are its reason.

        Raises
        ------
        ProviderError
            A fault that every call would meet.
        """
        if not self.row_model.knows_abilities:
            feed = Feed(self.row_model, self._runner, lambda *_: None, stop=stop)
            run_sync(feed.run((), opening=self.query(_ANY_TEXT) if query is None else query))

    def asked_as(self, described: Mapping[str, Any]) -> Self:  # noqa: ARG002 (of those that can)
        """Return a copy that asks its models as the method in a description does, without finding out."""
        return self

    def asked_for(self, learned: Path) -> Self:  # noqa: ARG002 (of those that can)
        """Return a predictor that asks in the space in which a head or a label prior was learned."""
        return self

    @property
    @abstractmethod
    def clients(self) -> tuple[Client, ...]:
        """Clients of the predictor's models, in the order in which they are asked."""

    @property
    @abstractmethod
    def scoring(self) -> str:
        """Name of the method, as far as it is known."""

    @property
    def first_head(self) -> Head | None:
        """Head of the model that is asked first; None without one."""
        return None

    @property
    def meter(self) -> Gate:
        """Counters of the predictor: rows, calls, tokens and cost so far."""
        return self._runner.gate

    @property
    def limits(self) -> Limits:
        """Limits of the predictor's calls."""
        return self.meter.limits

    def query(self, text: Text) -> Query:
        """Return the query that asks about a text, under the predictor's own prompt."""
        given = text if isinstance(text, TextWithContext) else TextWithContext(text)
        return Query(
            prompt=self.prompt, text=given.text, user_template=self.user_template, context=given.context
        )

    def classify(self, text: Text) -> Prediction:
        """Classify one text; a cascade's verifier also reads `context`."""
        return self.classify_many([text])[0]

    @overload
    def classify_many(
        self,
        texts: Iterable[Text],
        *,
        text: None = None,
        on_prediction: OnPrediction | None = None,
    ) -> list[Prediction]: ...
    @overload
    def classify_many(
        self, texts: FrameT, *, text: str, on_prediction: OnPrediction | None = None
    ) -> FrameT: ...
    def classify_many(
        self, texts: Any, *, text: str | None = None, on_prediction: OnPrediction | None = None
    ) -> Any:
        """Classify texts concurrently.

        Parameters
        ----------
        texts : sequence of str or TextWithContext, series, array or frame
            Texts to classify: a list, an array, a series of pandas or polars, a column of a Hugging Face dataset, or a
            frame of theirs or of pyarrow.
        text : str, optional
            Column of a frame that holds the texts. Not needed for a frame with a single column.
        on_prediction : callable, optional
            Called with the index and the prediction of each text as it is answered.

        Returns
        -------
        list of Prediction, or a frame
            One per text, in order. A row that failed says so in its ``outcome``. With `text`, a copy of the frame with
            the same index and the columns label, confidence, decision, outcome, provider and cost, each with the prefix
            ``calibrant_`` where the frame has a column of that name.

        Raises
        ------
        ConfigurationError
            The frame lacks the column or is not in memory, or `texts` is a single text.
        DataError
            A row holds no text; the first ones are named by position and index.
        ProviderError
            A fault that every call would meet, such as a bad key.
        LimitReachedError
            A budget or the deadline of the run was reached first.
        """
        return run_sync(self.aclassify_many(texts, text=text, on_prediction=on_prediction))

    async def aclassify(self, text: Text) -> Prediction:
        """Classify one text, for use inside an event loop."""
        return (await self.aclassify_many([text]))[0]

    @overload
    async def aclassify_many(
        self,
        texts: Iterable[Text],
        *,
        text: None = None,
        on_prediction: OnPrediction | None = None,
    ) -> list[Prediction]: ...
    @overload
    async def aclassify_many(
        self, texts: FrameT, *, text: str, on_prediction: OnPrediction | None = None
    ) -> FrameT: ...
    async def aclassify_many(
        self, texts: Any, *, text: str | None = None, on_prediction: OnPrediction | None = None
    ) -> Any:
        """Classify texts concurrently, for use inside an event loop; see `classify_many`."""
        from calibrant.core import _frames  # noqa: PLC0415 (evaluations and searches do without)

        if text is None:
            given = _frames.texts_of(texts)
        else:
            given = _frames.frame_texts(texts, text)
            _frames.answer_names(texts)  # before a call is paid for
        found = await ask_async(self, [self.query(one) for one in given], on_prediction=on_prediction)
        if text is None:
            return found
        return _frames.with_answers(texts, map(_frames.answer_of, found))

    def __repr__(self) -> str:
        labels = ", ".join(map(repr, self.labels.labels[:_LABELS_SHOWN]))
        more = f", ... {len(self.labels)} in all" if len(self.labels) > _LABELS_SHOWN else ""
        head = ""
        if self.first_head is not None:
            head = f", head={self.first_head.title!r}"
        return f"{type(self).__name__}(model={self.name!r}, labels=[{labels}{more}], scoring={self.scoring!r}{head})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        # In a thread: connections of this event loop are closed by the loop itself, which must go on.
        await asyncio.to_thread(self.close)


def ask(
    predictor: Predictor,
    queries: Sequence[Query],
    *,
    on_prediction: OnPrediction | None = None,
    stop: Stop | None = None,
) -> list[Prediction]:
    """Answer queries and return their predictions, in order; `stop` ends it early. See `ask_async`."""
    return run_sync(ask_async(predictor, queries, on_prediction=on_prediction, stop=stop))


async def ask_async(
    predictor: Predictor,
    queries: Sequence[Query],
    *,
    on_prediction: OnPrediction | None = None,
    stop: Stop | None = None,
) -> list[Prediction]:
    """Answer queries and return their predictions, in order.

    Parameters
    ----------
    predictor : Predictor
        Answers them.
    queries : sequence of Query
        Queries to answer.
    on_prediction : callable, optional
        Called with the index and the prediction of each query as it is answered.
    stop : Stop, optional
        Ends it early.

    Returns
    -------
    list of Prediction
        One per query; a failed call has the outcome ``error``.

    Raises
    ------
    ProviderError
        A fault that every call would meet (bad key, unknown model) before any succeeded, or
        nothing but failures.
    LimitReachedError
        A budget or the deadline of the run was reached first.
    """
    found: list[Prediction] = []
    feed = predictor.feed(queries, lambda _, row: found.append(row), on_prediction=on_prediction, stop=stop)
    reason = await feed
    if reason:
        raise LimitReachedError(f"{reason} ({counted(len(found), 'row is', 'rows are')} answered).")
    return found


def run_sync(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run `coroutine` on the background loop and return its result.

    Ctrl-C cancels the coroutine and is raised again once it has stopped. A signal is handled within a tenth of a
    second.

    Raises
    ------
    ConfigurationError
        Called from a coroutine or callback on the loop itself.
    """
    if threading.current_thread().name == _THREAD:
        coroutine.close()
        raise ConfigurationError(
            "A synchronous call from inside calibrant's event loop would wait for itself: await the method "
            "that begins with 'a' (aclassify, aclassify_many) instead."
        )
    loop = _background_loop()
    tasks: list[asyncio.Task[_T]] = []
    done = threading.Event()

    def start() -> None:
        tasks.append(loop.create_task(coroutine))
        tasks[0].add_done_callback(lambda _: done.set())

    def cancel() -> None:
        tasks[0].cancel()

    try:
        loop.call_soon_threadsafe(start)
        while not done.wait(_SECONDS_BETWEEN_SIGNALS):
            pass
        return tasks[0].result()
    except BaseException:
        if not done.is_set():
            # What the coroutine uses may be closed only after it has stopped. In the loop this comes after `start`.
            loop.call_soon_threadsafe(cancel)
            done.wait(SECONDS_TO_STOP)
        raise
    finally:
        # Last registered, first called: before the libraries the coroutine has imported clean up.
        atexit.unregister(_stop)
        atexit.register(_stop)


def _background_loop() -> asyncio.AbstractEventLoop:
    global _running  # noqa: PLW0603  (one loop per process is the point)
    with _lock:
        if _running is None:
            loop = asyncio.new_event_loop()
            _running = loop, threading.Thread(target=loop.run_forever, name=_THREAD, daemon=True)
            _running[1].start()
        return _running[0]


def _after_fork_in_child() -> None:
    """Forget the background loop: its thread runs in the parent alone."""
    global _lock, _running  # noqa: PLW0603  (one loop per process is the point)
    _lock = threading.Lock()
    if _running is not None:
        _left_behind.append(_running)  # a loop that is dropped open warns
        _running = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _stop() -> None:
    """Stop the background loop; cancel tasks that libraries left there, such as litellm's log queue."""
    global _running
    with _lock:
        running, _running = _running, None
    if running is not None:
        loop, thread = running
        asyncio.run_coroutine_threadsafe(_end(), loop)
        thread.join(SECONDS_TO_STOP)
        if not thread.is_alive():
            loop.close()


async def _end() -> None:
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    # What clients keep open in this loop (connections) is held by generators.
    await loop.shutdown_asyncgens()
    loop.stop()
