"""Readiness of the model behind a service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Final

_LOG = logging.getLogger("calibrant.service")
_FAILURES: Final = 3
# Seconds from the end of a probe to the next one, doubled after each failure.
_FIRST_PAUSE: Final = 5.0
_LONGEST_PAUSE: Final = 60.0


class Readiness:
    """Circuit breaker that reports the service unready after three model failures in a row.

    A load balancer sends nothing to a service that is not ready, so the service probes the model itself: with one
    short text, on a readiness check, one call at a time, with exponential backoff while calls fail. The first
    success, of a probe or a request, makes it ready again.

    Parameters
    ----------
    probe : callable
        Asks the model once; returns whether it answered.
    seconds : float
        Timeout of a probe.
    stopping : threading.Event
        Set when the service ends.
    """

    def __init__(
        self, probe: Callable[[], Awaitable[bool]], *, seconds: float, stopping: threading.Event
    ) -> None:
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
        """Record a request that the model answered, or that failed because of the model."""
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
        """Return the status; while the model fails, start a probe when one is due."""
        idle = self._probing is None or self._probing.done()
        if self.status == "model failing" and idle and self._next_probe <= asyncio.get_running_loop().time():
            self._probing = asyncio.create_task(self._run_probe())
        return self.status

    async def _run_probe(self) -> None:
        """Probe the model once and schedule the next probe; the end of the event loop cancels it."""
        answered = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    answered = await self._probe()
            self.note(answered=answered)
        finally:
            self._pause = min(2.0 * self._pause, _LONGEST_PAUSE)
            self._next_probe = asyncio.get_running_loop().time() + self._pause
