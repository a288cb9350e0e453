"""HTTP over a connection whose client may be slow, but not for ever."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

import h11
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["PatientProtocol"]

_SECONDS_FOR_HEADERS: Final = 10.0
_SECONDS_TO_TAKE: Final = 60.0
_SECONDS_IDLE: Final = 2.0
_CONNECTIONS: Final = 512  # each takes a file descriptor, of which a process often has 1,024
_SPARE: Final = 1.5  # times as many are told that there are too many
_FULL: Final = JSONResponse(
    {"error": "Expected fewer connections: the service is full. Close some, and ask again later."},
    503,
    {"Retry-After": "1", "Connection": "close"},
)
_MOST_UNREAD: Final = 1 << 16
# Reading a piece of a body takes as long whether it has a byte or a thousand.
_PIECES: Final = 1_000
_LEAST_BYTES_OF_A_PIECE: Final = 64


class _FewPieces(h11.Connection):
    """Refuses bodies that come in very many very small chunks, which would keep others waiting."""

    _pieces = _bytes = 0

    def next_event(self) -> Any:  # noqa: ANN401 (h11's)
        """Return what came next."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > _PIECES + self._bytes / _LEAST_BYTES_OF_A_PIECE:
                raise h11.RemoteProtocolError("body in too many pieces")
        return event


class PatientProtocol(H11Protocol):
    """Hangs up on clients that uvicorn would wait for, or read from, for ever.

    That is: whose next request's headers are not whole in time, who do not take what they asked for, and who go on
    sending a body of which nobody wants the rest. The body has a time of its own, see `bounded_body`. Of too many
    connections, the one goes that has been without a whole request for longest, if for two seconds; else the new one is
    answered with 503.
    """

    seconds_for_headers = _SECONDS_FOR_HEADERS
    seconds_to_take = _SECONDS_TO_TAKE
    seconds_idle = _SECONDS_IDLE
    most_connections = _CONNECTIONS
    _since = 0.0
    _unread = 0
    _asked: asyncio.TimerHandle | None = None
    _taken: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 (uvicorn's)
        super().__init__(*args, **options)
        self.conn = _FewPieces(h11.SERVER)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        _send_at_once(transport)
        self._await_request()
        if len(self.connections) > self.most_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        for timer in (self._asked, self._taken):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless it is the rest of a body whose answer has been sent."""
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
            self._unread += len(data)
            if self._unread > _MOST_UNREAD:
                self.transport.abort()
                return
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._await_request()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Say that this is not HTTP, unless an answer has begun already."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Begin to wait for the client to take what was written."""
        super().pause_writing()
        self._taken = self.loop.call_later(self.seconds_to_take, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        super().resume_writing()
        if self._taken is not None:
            self._taken.cancel()

    def _await_request(self) -> None:
        if self._asked is not None:
            self._asked.cancel()
        self._since, self._unread = self.loop.time(), 0
        self._asked = self.loop.call_later(self.seconds_for_headers, self._give_up)

    def _make_room(self) -> None:
        """Hang up on whoever has been idle for longest; where nobody has for long, refuse this one."""
        own = [other for other in self.connections if isinstance(other, PatientProtocol)]
        last = min(own, key=PatientProtocol.rank)
        busy, since = last.rank()
        if not busy and self.loop.time() - since >= self.seconds_idle:
            last.drop()
        elif len(own) > _SPARE * self.most_connections:
            self.drop()
        else:
            self.app = _FULL

    def drop(self) -> None:
        """Hang up at once."""
        self.connections.discard(self)  # now, and not when it is told so: others may come in between
        self.transport.abort()

    def _give_up(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and not self.flow.write_paused:  # or else `pause_writing` gives it its time
            self.transport.abort()

    def rank(self) -> tuple[bool, float]:
        """Return whether there is work for its client, and since when a request is waited for."""
        cycle = self.cycle
        return cycle is not None and not (cycle.response_complete or cycle.more_body), self._since


def _send_at_once(transport: asyncio.BaseTransport) -> None:
    """Send the body of an answer without waiting for the client to confirm the head, which may take it 40 ms.

    asyncio sees to that itself, but not for sockets whose protocol number was left to the system, as uvicorn's is.
    """
    own = transport.get_extra_info("socket")
    if own is not None and own.family in {socket.AF_INET, socket.AF_INET6}:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
