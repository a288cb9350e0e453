"""Whether the model behind a service answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from calibrant.serving._bodies import Stopping

__all__ = ["Readiness"]

_LOG = logging.getLogger("calibrant.service")
_FAILURES: Final = 3
# Seconds between the ends and beginnings of probes: twice as many after each failed one.
_FIRST_PAUSE: Final = 5.0
_LONGEST_PAUSE: Final = 60.0


class Readiness:
    """Says whether requests should be sent: not after three in a row that failed for the model's reasons.

    A load balancer sends nothing to a service that is not ready, so the service asks the model itself then: with one
    short text, when somebody looks whether it is ready, one call at a time, and less and less often while calls fail.
    Whatever succeeds first, a probe or a request, makes it ready again.

    Parameters
    ----------
    probe : callable
        Asks the model once; returns whether it answered.
    seconds : float
        What a probe may take.
    stopping : Stopping
        Set when the service ends.
    """

    def __init__(self, probe: Callable[[], Awaitable[bool]], *, seconds: float, stopping: Stopping) -> None:
        self._probe = probe
        self._seconds = seconds
        self._stopping = stopping
        self._failures = 0
        self._pause = _FIRST_PAUSE
        self._next_probe = 0.0
        self._probing: asyncio.Task[None] | None = None

    @property
    def status(self) -> str:
        """``ready``, ``model failing`` or ``stopping``."""
        if self._stopping.is_set():
            return "stopping"
        return "ready" if self._failures < _FAILURES else "model failing"

    def note(self, *, answered: bool) -> None:
        """Take note of a request that the model answered, or that failed for its reasons."""
        before = self.status
        self._failures = 0 if answered else self._failures + 1
        if self.status == before:
            return
        if answered:
            _LOG.warning("The model answers again: the service is ready.")
        else:
            _LOG.error("The model failed %d times in a row: the service is not ready.", _FAILURES)
            self._pause = _FIRST_PAUSE
            self._next_probe = asyncio.get_running_loop().time() + self._pause

    def look(self) -> str:
        """Return the status; where the model fails, begin to ask it again if it is time."""
        idle = self._probing is None or self._probing.done()
        if self.status == "model failing" and idle and self._next_probe <= asyncio.get_running_loop().time():
            self._probing = asyncio.create_task(self._ask())
        return self.status

    async def _ask(self) -> None:
        """Ask the model once, and say when to do so again; give up when the service ends."""
        asking = asyncio.ensure_future(self._probe())
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({asking, stopped}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            self.note(answered=asking.done() and asking.result())
        finally:
            self._pause = min(2.0 * self._pause, _LONGEST_PAUSE)
            self._next_probe = asyncio.get_running_loop().time() + self._pause
            for task in (asking, stopped):
                task.cancel()
            await asyncio.gather(asking, stopped, return_exceptions=True)
