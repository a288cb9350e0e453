"""Server that runs an application until a signal, with deadlines for slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import h11
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from calibrant.core._errors import ConfigurationError
from calibrant.serving._settings import ConnectionLimits

_BACKLOG: Final = 2048  # the kernel's own limit, often 4,096, bounds it
_SECONDS_TO_FINISH: Final = 5
_SECONDS_TO_REFUSE: Final = 1.0
# Times as many connections as are served are taken, so that the rest can be refused politely.
_CROWD: Final = 1.5
_SECONDS_BETWEEN_LOOKS: Final = 0.02
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
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
_LOG = logging.getLogger("calibrant.service")


def serve_app(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: int,
    on_ready: Callable[[str], None] | None = None,
    notice_seconds: float = 0.0,
    finish_seconds: int = _SECONDS_TO_FINISH,
) -> None:
    """Serve `app` until SIGINT or SIGTERM, which sets ``app.state.stopping``.

    Requests in progress have `finish_seconds` to end, and are then given up. A call that an embedded engine is
    computing ends before its model can be freed. ``app.state.connections`` holds
    the timeouts for clients and the number of connections; see `ConnectionLimits`.

    Parameters
    ----------
    app : FastAPI
        The application, as `create_verifier_app` or `create_classifier_app` makes it.
    host : str, default "127.0.0.1"
        Name or address of the interface.
    port : int
        From 0 to 65535; 0 takes a free one.
    on_ready : callable, optional
        Called with the address, such as ``http://127.0.0.1:8889``, once it accepts connections.
    notice_seconds : float, default 0
        Time after the signal in which requests are still accepted, so that clients can turn elsewhere.
    finish_seconds : int, default 5
        Time that accepted requests then have to finish.

    Raises
    ------
    ConfigurationError
        The address cannot be listened at.
    """
    with contextlib.closing(_listen(host, port)) as listening, _signals_left_alone():
        AppServer(
            app, listening, on_ready=on_ready, notice_seconds=notice_seconds, finish_seconds=finish_seconds
        ).run()


async def _refuse_connection(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, then answer 503: closing with unread bytes would reset the connection."""
    unread, more = 0, True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SECONDS_TO_DRAIN):
            while more and unread < _MOST_UNREAD:
                message = await receive()
                unread += len(message.get("body", b""))
                more = message.get("more_body", False)
    await _FULL(scope, receive, send)


class _StrictConnection(h11.Connection):
    """HTTP parser that rejects bodies in very many small chunks or of ambiguous length."""

    _pieces = _bytes = 0

    def next_event(self) -> Any:  # noqa: ANN401 (h11's)
        """Return the next HTTP event; raise for a body in too many chunks or of ambiguous length."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
            # A proxy that believes Content-Length where this server believes Transfer-Encoding lets a second request
            # through unseen (RFC 9112, sections 6.1 and 6.3). One of HTTP/1.0 does not look at Transfer-Encoding.
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("Transfer-Encoding beside Content-Length, or in HTTP/1.0")
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > _PIECES + self._bytes / _LEAST_BYTES_OF_A_PIECE:
                raise h11.RemoteProtocolError("body in too many pieces")
        return event


class PatientProtocol(H11Protocol):
    """HTTP protocol with deadlines for slow clients, for which uvicorn would wait for ever.

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
        """Return whether a request is in progress, and the time at which the connection became idle."""
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


class AppServer(uvicorn.Server):
    """Server of an application on one socket, with a limit on connections.

    Parameters
    ----------
    app : FastAPI
        The application; its state has ``stopping`` and ``connections``.
    listening : socket
        Socket that clients connect to.
    on_ready : callable, optional
        Called with the address.
    notice_seconds : float, default 0
        Time after the signal in which requests are still accepted.
    finish_seconds : int, default 5
        Time that accepted requests then have to finish.
    """

    def __init__(
        self,
        app: FastAPI,
        listening: socket.socket,
        *,
        on_ready: Callable[[str], None] | None = None,
        notice_seconds: float = 0.0,
        finish_seconds: int = _SECONDS_TO_FINISH,
    ) -> None:
        self._limits: ConnectionLimits = app.state.connections
        super().__init__(
            uvicorn.Config(
                app,
                http=PatientProtocol,
                loop="asyncio",  # even if uvloop is installed: run the loop that is tested
                log_config=None,  # the process configures logging
                log_level="warning",
                access_log=False,
                ws="none",
                lifespan="off",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=finish_seconds,
            )
        )
        self._stopping: threading.Event = app.state.stopping
        self._listening = listening
        self._on_ready = on_ready
        self._notice_seconds = notice_seconds
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        del sockets  # asyncio's own server would take connections without end
        await super().startup(sockets=[])
        # Accepted sockets inherit it: or else a body waits for the client to confirm the head, which may take 40 ms.
        self._listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listening.listen(_BACKLOG)
        self._listening.settimeout(0.0)
        self._accepting = asyncio.create_task(self._accept())
        if self._on_ready is not None:
            self._on_ready(_address(self._listening))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Announce the shutdown, accept requests a while longer, and finish requests in progress."""
        self._stopping.set()
        await self._wait(self._notice_seconds)
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        self._listening.close()
        await self._wait(self._limits.seconds_to_speak)  # a client that has just connected is about to send
        await super().shutdown(sockets=sockets)
        if given_up := list(self.server_state.tasks):  # they are cancelled, and have to tell their clients
            await asyncio.wait(given_up, timeout=_SECONDS_TO_REFUSE)

    async def _accept(self) -> None:
        """Accept connections below the limit; others wait in the kernel's backlog."""
        loop = asyncio.get_running_loop()
        protocol = functools.partial(
            PatientProtocol,
            limits=self._limits,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        while True:
            await self._room()
            try:
                line, _ = await loop.sock_accept(self._listening)
                await loop.connect_accepted_socket(protocol, line)
            except OSError as error:  # the client has disconnected, or no file descriptor is left
                _LOG.warning("A connection could not be taken.", extra={"fields": {"error": error.strerror}})
                await asyncio.sleep(1.0 if error.errno in _EXHAUSTED else 0.0)

    async def _room(self) -> None:
        """Wait until there are fewer connections than the limit; close idle ones meanwhile."""
        connections = self.server_state.connections
        while len(connections) >= _CROWD * self._limits.most_connections:
            if not drop_idle(connections):
                await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)

    async def _wait(self, seconds: float) -> None:
        """Sleep; return early after a second Ctrl-C."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self.force_exit and (left := end - loop.time()) > 0:  # noqa: ASYNC110 (a signal sets it)
            await asyncio.sleep(min(left, 0.1))


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port <= 65535:
            raise OverflowError("a port is a number from 0 to 65535")  # noqa: TRY301
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigurationError(
            f"Expected an address to listen at, got {host!r} and port {port}: {error}. Take another port or host."
        ) from error


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def _signals_left_alone() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM in the block, as uvicorn raises the server's signals again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
