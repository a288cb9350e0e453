"""One event loop in a background thread, so that synchronous calls work everywhere.

A notebook already runs a loop, and connection pools belong to one loop: running every
coroutine on the same private loop serves both.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from concurrent import futures
from typing import Final, TypeVar

from calibrant.core._errors import ConfigurationError

SECONDS_TO_STOP = 5.0
_THREAD = "calibrant-loop"
# Python runs signal handlers between two steps of the main thread. A signal that reaches the process just before the
# main thread blocks, or in another thread, does not wake it: it has to wake by itself.
_SECONDS_BETWEEN_SIGNALS: Final = 0.1

_T = TypeVar("_T")
_lock = threading.Lock()
_running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None


def run_sync(coroutine: Coroutine[object, object, _T]) -> _T:
    """Run `coroutine` on the background loop and return its result.

    Ctrl-C cancels the coroutine and is raised again once it has stopped. A signal is handled within a tenth of a
    second.

    Raises
    ------
    ConfigurationError
        Called from a coroutine or callback on the loop itself.
    """
    loop = _background_loop()
    if threading.current_thread().name == _THREAD:
        coroutine.close()
        raise ConfigurationError(
            "A synchronous call from inside calibrant's event loop would wait for itself: await the method "
            "that begins with 'a' (aclassify, aclassify_many) instead."
        )
    running: list[asyncio.Task[object]] = []
    given_up, stopped = threading.Event(), threading.Event()

    async def watched() -> _T:
        try:
            if given_up.is_set():
                coroutine.close()
                raise asyncio.CancelledError
            running.extend(filter(None, [asyncio.current_task()]))
            return await coroutine
        finally:
            stopped.set()

    def cancel() -> None:
        for task in running:
            task.cancel()

    try:
        future = asyncio.run_coroutine_threadsafe(watched(), loop)
        while not futures.wait([future], timeout=_SECONDS_BETWEEN_SIGNALS).done:
            pass
        return future.result()
    except BaseException:
        if not stopped.is_set():
            # What the coroutine uses may be closed only after it has stopped.
            given_up.set()
            loop.call_soon_threadsafe(cancel)
            stopped.wait(SECONDS_TO_STOP)
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
            _running = loop, threading.Thread(target=_run, args=(loop,), name=_THREAD, daemon=True)
            _running[1].start()
        return _running[0]


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop() -> None:
    """End the loop and what libraries left running on it (litellm's log queue, which it flushes at exit)."""
    global _running
    with _lock:
        running, _running = _running, None
    if running is not None:
        loop, thread = running
        asyncio.run_coroutine_threadsafe(_end(), loop)
        thread.join(SECONDS_TO_STOP)


async def _end() -> None:
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    # What clients keep open in this loop (connections) is held by generators.
    await loop.shutdown_asyncgens()
    loop.stop()
