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

_T = TypeVar("_T")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def run_sync(coroutine: Coroutine[object, object, _T]) -> _T:
    """Run `coroutine` on the background loop and return its result.

    Ctrl-C cancels the coroutine and is raised again once it has stopped.
    """
    future = asyncio.run_coroutine_threadsafe(coroutine, _background_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _background_loop() -> asyncio.AbstractEventLoop:
    global _loop  # noqa: PLW0603  (one loop per process is the point)
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="calibrant-loop", daemon=True).start()
        return _loop
