"""Waits between calls, for a rate limit or before another attempt, that an interrupted run gives up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar


class Patience:
    """Permission of the current task to wait between its calls.

    Use it inside a task. `end` cancels the task if it waits between calls, then or later, itself or in a task that it
    started; calls under way are left alone.
    """

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._waits = 0
        self._ended = False

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Let it govern the waits of the current task inside the block; an outer one stays in charge."""
        outer = _PATIENCE.get()
        token = _PATIENCE.set(outer or self)
        try:
            yield
        finally:
            _PATIENCE.reset(token)

    def end(self) -> None:
        """Cancel the task if it waits, and as soon as it begins to wait. Call it in the task's event loop."""
        self._ended = True
        if self._waits:
            self._cancel()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that the task waits inside the block."""
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
        if self._task is not None:
            self._task.cancel()


_PATIENCE: ContextVar[Patience | None] = ContextVar("calibrant_patience", default=None)


async def interruptible_sleep(seconds: float, *, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Sleep between two calls; an interrupted run cancels the row instead of waiting.

    Parameters
    ----------
    seconds : float
        How long.
    sleep : coroutine function
        Takes the seconds.
    """
    patience = _PATIENCE.get()
    with contextlib.nullcontext() if patience is None else patience.waiting():
        await sleep(seconds)
