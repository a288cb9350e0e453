"""HTTP over a connection whose client may be slow, but not for ever."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["PatientProtocol"]

_SECONDS_FOR_HEADERS: Final = 10.0


class PatientProtocol(H11Protocol):
    """Closes connections whose next request's headers are not whole in time, which uvicorn would wait for.

    The body has a time of its own, see `bounded_body`.
    """

    seconds_for_headers = _SECONDS_FOR_HEADERS
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, if they are not whole."""
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self.seconds_for_headers, self._give_up)

    def _unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
