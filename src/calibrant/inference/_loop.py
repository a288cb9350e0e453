"""One event loop in a background thread, so that synchronous calls work everywhere.

A notebook already runs a loop, and connection pools belong to one loop: running every
coroutine on the same private loop serves both.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import TypeVar

__all__ = ["run_sync"]

SECONDS_TO_STOP = 5.0

_T = TypeVar("_T")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def run_sync(coroutine: Coroutine[object, object, _T]) -> _T:
    """Run `coroutine` on the background loop and return its result.

    Ctrl-C cancels the coroutine and is raised again once it has stopped.
    """
    stopped = threading.Event()

    async def watched() -> _T:
        try:
            return await coroutine
        finally:
            stopped.set()

    future = asyncio.run_coroutine_threadsafe(watched(), _background_loop())
    try:
        return future.result()
    except BaseException:
        if future.cancel():  # what the coroutine uses may be closed only after it has stopped
            stopped.wait(SECONDS_TO_STOP)
        raise


def _background_loop() -> asyncio.AbstractEventLoop:
    global _loop  # noqa: PLW0603  (one loop per process is the point)
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="calibrant-loop", daemon=True).start()
        return _loop
