"""Counts and kept requests of a fault server."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fault_server._faults import Fault

__all__ = ["RecordedRequest", "Records"]


@dataclass(frozen=True, kw_only=True)
class RecordedRequest:
    """A chat request that got past the key and the limits.

    Attributes
    ----------
    number : int
        Requests before it; scripts count in the same way.
    text : str
        The last user message.
    body : dict
        The request's JSON.
    headers : dict of str to str
        Names in lower case; those that carry keys are left out.
    arrived : float
        Seconds on the clock of `time.monotonic`.
    fault : Fault or None
        What it met.
    """

    number: int
    text: str
    body: dict[str, Any]
    headers: dict[str, str]
    arrived: float
    fault: Fault | None


class Records:
    """Counts and requests of a server; one thread writes, any may read.

    Parameters
    ----------
    keep : int or None
        Number of the latest requests that are kept; None keeps all. Counts are always complete.
    """

    def __init__(self, keep: int | None) -> None:
        self._lock = threading.Lock()
        self._kept: deque[RecordedRequest] = deque(maxlen=keep)
        self._texts: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._refused: Counter[int] = Counter()
        self.total = 0
        self.in_flight = 0
        self.max_in_flight = 0

    @contextlib.contextmanager
    def flight(self) -> Iterator[None]:
        """Count a request as being answered inside the block."""
        with self._lock:
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            yield
        finally:
            with self._lock:
                self.in_flight -= 1

    def note(self, request: RecordedRequest) -> None:
        """Count a request, and keep it."""
        with self._lock:
            self._kept.append(request)
            self.total += 1
            self._texts[request.text] += 1
            if request.fault is not None:
                self._faults[request.fault.kind] += 1

    def refuse(self, status: int) -> None:
        """Count a request that was rejected with `status`."""
        with self._lock:
            self._refused[status] += 1

    def count(self, text: str) -> int:
        """Return the number of requests with `text` as their last user message."""
        return self._texts.get(text, 0)

    @property
    def requests(self) -> list[RecordedRequest]:
        """The requests that were kept, in the order of arrival."""
        with self._lock:
            return list(self._kept)

    @property
    def counts(self) -> dict[str, int]:
        """Requests by text, in a copy; `count` looks up a single one."""
        with self._lock:
            return dict(self._texts)

    @property
    def faults_sent(self) -> dict[str, int]:
        """Requests that met a fault, by its kind."""
        with self._lock:
            return dict(self._faults)

    @property
    def refused(self) -> dict[int, int]:
        """Requests that did not get past the key, the models or the limits, by status."""
        with self._lock:
            return dict(self._refused)

    @property
    def stats(self) -> dict[str, Any]:
        """All counts, as ``GET /stats`` reports them."""
        with self._lock:
            return {
                "requests": self.total,
                "healthy": self.total - self._faults.total(),
                "faults": dict(self._faults),
                "refused": {str(status): count for status, count in self._refused.items()},
                "texts": len(self._texts),
                "most_of_one_text": max(self._texts.values(), default=0),
                "in_flight": self.in_flight,
                "max_in_flight": self.max_in_flight,
            }
