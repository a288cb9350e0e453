"""Errors that must end a search under an optimiser that goes on whatever a row raises."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from calibrant.adapters._failures import FailureMonitor
from calibrant.core._errors import LimitReachedError, ProviderError
from calibrant.core._prediction import Prediction

_LOG = logging.getLogger("calibrant")


class Watch:
    """Remembers the first error that must end a search, until somebody who can end it asks."""

    def __init__(self) -> None:
        self._failures = FailureMonitor()
        self._lock = threading.Lock()
        self._error: Exception | None = None

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Remember an error that is raised inside."""
        try:
            yield
        except Exception as error:
            self._note(error)
            raise

    def record(self, prediction: Prediction, *, provider: str) -> None:
        """Take note of a row; too many failed ones are an error of the search, not of the row."""
        try:
            self._failures.record([prediction], provider=provider)
        except ProviderError as error:
            self._note(error)

    def stop(self) -> bool:
        """Raise the first error that was noted, once; return True for a limit that the user set, which is no error."""
        with self._lock:
            error, self._error = self._error, None
        if error is None:
            return False
        if isinstance(error, LimitReachedError):
            _LOG.warning("The search ends early: %s", error)
            return True
        raise error

    def _note(self, error: Exception) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
