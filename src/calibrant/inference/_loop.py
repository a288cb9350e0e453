"""Queries from synchronous and asynchronous code; synchronous calls share one background event loop.

A notebook already runs a loop, and connection pools belong to one loop: running every coroutine on the same private
loop serves both.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from calibrant.core._errors import ConfigurationError, LimitReachedError
from calibrant.core._prediction import Prediction
from calibrant.core._predictor import OnPrediction, Predictor, Query, Stop

SECONDS_TO_STOP = 5.0
_THREAD = "calibrant-loop"
# Python runs signal handlers between two steps of the main thread. A signal that reaches the process just before the
# main thread blocks, or in another thread, does not wake it: it has to wake by itself.
_SECONDS_BETWEEN_SIGNALS: Final = 0.1

_T = TypeVar("_T")
_lock = threading.Lock()
_running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
_left_behind: list[tuple[asyncio.AbstractEventLoop, threading.Thread]] = []


def ask(
    predictor: Predictor,
    queries: Sequence[Query],
    *,
    on_prediction: OnPrediction | None = None,
    stop: Stop | None = None,
) -> list[Prediction]:
    """Answer queries and return their predictions, in order; `stop` ends it early. See `ask_async`."""
    found: list[Prediction] = []
    feed = predictor.feed(queries, lambda _, row: found.append(row), on_prediction=on_prediction, stop=stop)
    return _complete(found, run_sync(feed))


async def ask_async(
    predictor: Predictor, queries: Sequence[Query], *, on_prediction: OnPrediction | None = None
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
    feed = predictor.feed(queries, lambda _, row: found.append(row), on_prediction=on_prediction)
    return _complete(found, await feed)


def _complete(found: list[Prediction], reason: str) -> list[Prediction]:
    """Return the predictions of a complete run; raise the error of an incomplete one."""
    if reason:
        raise LimitReachedError(f"{reason} ({len(found):,} rows are answered).")
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
