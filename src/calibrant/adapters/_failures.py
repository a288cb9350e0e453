"""Stops a run whose rows fail for the server's reasons."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from calibrant.core._errors import ProviderError
from calibrant.core._prediction import Outcome, Prediction

WINDOW = 50
MIN_FAILURES = 5
MAX_SHARE = 0.20


class FailureMonitor:
    """Raises when too many recent rows ended in ``error``.

    A search that goes on would optimise on noise: the run stops when more than 20 % of the
    last 50 rows (of the whole batch, when it is larger), and at least 5, failed.
    """

    def __init__(self) -> None:
        self._recent: deque[str | None] = deque(maxlen=WINDOW)
        self._lock = threading.Lock()

    def record(self, predictions: Sequence[Prediction], *, provider: str) -> None:
        """Take note of a batch.

        Raises
        ------
        ProviderError
            Too many rows failed.
        """
        with self._lock:
            rows = [p.reason if p.outcome is Outcome.ERROR else None for p in predictions]
            self._recent.extend(rows)
            # The whole of a large batch, and its end: a server that dies halfway is noticed.
            for window in (rows, list(self._recent)):
                reasons = [reason for reason in window if reason is not None]
                if (
                    len(window) >= WINDOW
                    and len(reasons) >= MIN_FAILURES
                    and len(reasons) > MAX_SHARE * len(window)
                ):
                    break
            else:
                return
            self._recent.clear()
        common = max(sorted(set(reasons)), key=reasons.count)
        raise ProviderError(
            f"{len(reasons)} of the last {len(window)} rows failed for reasons that are not the prompt's, "
            f"most often: {common}",
            provider=provider,
            hint="The run stopped instead of optimising on noise; mend the connection and start it again.",
        )
