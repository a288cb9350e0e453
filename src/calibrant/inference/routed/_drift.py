"""Watching whether answers stay coherent, beside the requests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Final

from calibrant.inference._embeddings import CachedEmbedder
from calibrant.routing._coherence import CoherenceMonitor

_MOST_TASKS: Final = 64


class DriftWatch:
    """Embeds answers in the background and keeps the penalty for each provider's next observation.

    No request waits for it. While 64 answers are being embedded, further ones are not looked at.

    Parameters
    ----------
    monitor : CoherenceMonitor
        Compares answers.
    embedder : CachedEmbedder
        Where the vectors come from.
    """

    def __init__(self, monitor: CoherenceMonitor, embedder: CachedEmbedder) -> None:
        self._monitor = monitor
        self._embedder = embedder
        self._lock = threading.Lock()
        self._penalties: dict[str, float] = {}
        self._tasks: dict[asyncio.Task[None], asyncio.AbstractEventLoop] = {}
        self._closed = False

    def look_at(self, provider: str, text: str) -> None:
        """Have an answer compared with the earlier ones, soon."""
        if not text.strip():
            return
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed or len(self._tasks) >= _MOST_TASKS:
                return
            task = loop.create_task(self._compare(provider, text))
            self._tasks[task] = loop
        task.add_done_callback(self._ended)

    def penalty(self, provider: str) -> float:
        """Return the penalty since the provider's last observation, in [0, 1]; it counts once."""
        with self._lock:
            return self._penalties.pop(provider, 0.0)

    def close(self) -> None:
        """Give up what is under way."""
        with self._lock:
            self._closed = True
            tasks, self._tasks = self._tasks, {}
        for task, loop in tasks.items():
            with contextlib.suppress(RuntimeError):  # its loop is closed, and the task with it
                loop.call_soon_threadsafe(task.cancel)

    async def _compare(self, provider: str, text: str) -> None:
        vector = await self._embedder.embed_one(text)
        with self._lock:
            penalty = self._monitor.observe(provider, vector)
            if penalty > 0.0:
                self._penalties[provider] = max(penalty, self._penalties.get(provider, 0.0))

    def _ended(self, task: asyncio.Task[None]) -> None:
        with self._lock:
            self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # an embedder that raises has been told of; nobody else asks
