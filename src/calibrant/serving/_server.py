"""Server that runs an application until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from calibrant.core._errors import ConfigurationError
from calibrant.serving._protocol import PatientProtocol, drop_idle
from calibrant.serving._settings import ConnectionLimits

_BACKLOG: Final = 2048  # the kernel's own limit, often 4,096, bounds it
_SECONDS_TO_FINISH: Final = 5
_SECONDS_TO_REFUSE: Final = 1.0
_CROWD: Final = (
    1.5  # times as many connections as are served are taken, so that the rest can be refused politely
)
_SECONDS_BETWEEN_LOOKS: Final = 0.02
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
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
        """Announce the shutdown, accept requests a while longer, and finish those in progress."""
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
        """Wait until connections are below the limit; idle ones are closed meanwhile."""
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
