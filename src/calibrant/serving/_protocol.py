"""HTTP protocol with deadlines for slow clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any, Final

import h11
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from calibrant.serving._settings import ConnectionLimits

_FULL: Final = JSONResponse(
    {"error": "Expected fewer connections: the service is full. Close some, and ask again later."},
    503,
    {"Retry-After": "1", "Connection": "close"},
)
_MOST_UNREAD: Final = 1 << 16
_SECONDS_TO_DRAIN: Final = 1.0
# A piece of a body costs the same time with one byte as with a thousand.
_PIECES: Final = 1_000
_LEAST_BYTES_OF_A_PIECE: Final = 64


async def _refuse_connection(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 503 once the body is here: to close with unread bytes would reset the connection, answer included."""
    unread, more = 0, True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SECONDS_TO_DRAIN):
            while more and unread < _MOST_UNREAD:
                message = await receive()
                unread += len(message.get("body", b""))
                more = message.get("more_body", False)
    await _FULL(scope, receive, send)


class _StrictConnection(h11.Connection):
    """HTTP parser that rejects bodies in very many tiny chunks, which would block others, or of ambiguous length."""

    _pieces = _bytes = 0

    def next_event(self) -> Any:  # noqa: ANN401 (h11's)
        """Return the next event; raise for a body in too many pieces or of ambiguous length."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
            _check_framing(event)
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > _PIECES + self._bytes / _LEAST_BYTES_OF_A_PIECE:
                raise h11.RemoteProtocolError("body in too many pieces")
        return event


def _check_framing(request: h11.Request) -> None:
    """Reject a body of ambiguous length (RFC 9112, sections 6.1 and 6.3).

    A proxy that believes Content-Length where this server believes Transfer-Encoding lets a second request through
    unseen. HTTP/1.0 has no Transfer-Encoding, so a proxy of that version does not look at it either.
    """
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version < b"1.1"):
        raise h11.RemoteProtocolError("Transfer-Encoding beside Content-Length, or in HTTP/1.0")


class PatientProtocol(H11Protocol):
    """HTTP protocol that disconnects clients past a deadline, for which uvicorn would wait for ever.

    A connection is closed if the headers of the next request are late, if the client does not read its answer, or if
    it keeps sending a body after the answer. The body has a deadline of its own, see `bounded_body`. Beyond the
    limit of connections, the longest idle one is closed; if none has been idle for long, the new one gets a 503.

    Parameters
    ----------
    limits : ConnectionLimits
        Timeouts, and the number of connections.
    """

    _since = 0.0
    _unread = 0
    _headers_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, limits: ConnectionLimits, **options: Any) -> None:  # noqa: ANN401 (uvicorn's)
        super().__init__(*args, **options)
        self.limits = limits
        self.conn = _StrictConnection(h11.SERVER)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the headers of the first request."""
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > self.limits.most_connections and not drop_idle(self.connections):
            self.app = _refuse_connection

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        for timer in (self._headers_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read data; close the connection if a body goes on for long after its answer."""
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
            self._unread += len(data)
            if self._unread > _MOST_UNREAD:
                self.transport.abort()
                return
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Start the timer for the headers of the next request."""
        self._await_request()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Send status 400, unless an answer has begun already."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Start the timer for the client to read the answer."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.limits.seconds_to_take, self.transport.abort)

    def resume_writing(self) -> None:
        """Resume writing and cancel the timer."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _await_request(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
        self._since, self._unread = self.loop.time(), 0
        self._headers_timer = self.loop.call_later(self.limits.seconds_for_headers, self._give_up)

    def drop(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)  # at once, not in connection_lost: others may connect in between
        self.transport.abort()

    def _give_up(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and not self.flow.write_paused:  # or else `pause_writing` gives it its time
            self.transport.abort()

    def rank(self) -> tuple[bool, float]:
        """Return whether a request is in progress, and the time since which the connection is idle."""
        cycle = self.cycle
        return cycle is not None and not (cycle.response_complete or cycle.more_body), self._since


def drop_idle(connections: Collection[asyncio.Protocol]) -> bool:
    """Close the longest idle connection; return False if none has been idle for long enough."""
    last = min((one for one in connections if isinstance(one, PatientProtocol)), key=PatientProtocol.rank)
    busy, since = last.rank()
    if busy or last.loop.time() - since < last.limits.seconds_idle:
        return False
    last.drop()
    return True
