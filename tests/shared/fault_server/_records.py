"""What a fault server remembers."""

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
    """Counts and requests; one thread writes, any may read."""

    def __init__(self, keep: int | None) -> None:
        self.keeps = keep != 0
        self._lock = threading.Lock()
        self._kept: deque[RecordedRequest] = deque(maxlen=keep)
        self._texts: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._refused: Counter[int] = Counter()
        self._total = 0
        self._in_flight = 0
        self._most_in_flight = 0

    @property
    def total(self) -> int:
        """Requests so far, which is the number of the next one."""
        return self._total

    @property
    def in_flight(self) -> int:
        """Requests being answered."""
        return self._in_flight

    @property
    def max_in_flight(self) -> int:
        """The most there were."""
        return self._most_in_flight

    @contextlib.contextmanager
    def flight(self) -> Iterator[None]:
        """Count a request as being answered."""
        with self._lock:
            self._in_flight += 1
            self._most_in_flight = max(self._most_in_flight, self._in_flight)
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1

    def count(self, text: str, fault: Fault | None) -> None:
        """Count a request."""
        with self._lock:
            self._total += 1
            self._texts[text] += 1
            if fault is not None:
                self._faults[fault.kind] += 1

    def keep(self, request: RecordedRequest) -> None:
        """Remember a request as a whole."""
        with self._lock:
            self._kept.append(request)

    def refuse(self, status: int) -> None:
        """Count a request that was turned away."""
        with self._lock:
            self._refused[status] += 1

    def requests(self) -> list[RecordedRequest]:
        """Return what was kept, in the order of arrival."""
        with self._lock:
            return list(self._kept)

    def counts(self) -> dict[str, int]:
        """Return requests by text."""
        with self._lock:
            return dict(self._texts)

    def count_of(self, text: str) -> int:
        """Return requests with this text."""
        with self._lock:
            return self._texts.get(text, 0)

    def faults_sent(self) -> dict[str, int]:
        """Return faults by kind."""
        with self._lock:
            return dict(self._faults)

    def refused(self) -> dict[int, int]:
        """Return what was turned away, by status."""
        with self._lock:
            return dict(self._refused)

    def stats(self) -> dict[str, Any]:
        """Return all counts, as ``/stats`` reports them."""
        with self._lock:
            return {
                "requests": self._total,
                "healthy": self._total - self._faults.total(),
                "faults": dict(self._faults),
                "refused": {str(status): count for status, count in self._refused.items()},
                "texts": len(self._texts),
                "most_of_one_text": max(self._texts.values(), default=0),
                "in_flight": self._in_flight,
                "max_in_flight": self._most_in_flight,
            }
