"""Runs an application until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from calibrant.core import ConfigurationError
from calibrant.serving._bodies import Stopping
from calibrant.serving._protocol import PatientProtocol

__all__ = ["serve_app"]

_BACKLOG: Final = 256
_SECONDS_TO_FINISH: Final = 5
_SECONDS_TO_SPEAK: Final = 0.2


def serve_app(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: int,
    on_ready: Callable[[str], None] | None = None,
    notice_seconds: float = 0.0,
    finish_seconds: int = _SECONDS_TO_FINISH,
) -> None:
    """Serve `app` until SIGINT or SIGTERM, of which ``app.state.stopping`` tells it.

    A call that an embedded engine is computing ends before its model can be freed. Connections are closed whose
    headers are not whole within 10 seconds, whose client does not take what it asked for within 60, and, of more than
    512, the one that has been without a whole request for longest, if for two seconds; else the new one gets a 503.

    Parameters
    ----------
    app : FastAPI
        The application, as `create_verifier_app` or `create_classifier_app` makes it.
    host : str, default "127.0.0.1"
        Name or address of the interface.
    port : int
        From 0 to 65535; 0 takes a free one.
    on_ready : callable, optional
        Called with the address, such as ``http://127.0.0.1:8889``, once it is answered there.
    notice_seconds : float, default 0
        After the signal, how long requests are still taken, so that whoever sends them can turn elsewhere.
    finish_seconds : int, default 5
        What requests that were taken then have.

    Raises
    ------
    ConfigurationError
        The address cannot be listened at.
    """
    listening = _listen(host, port)
    with contextlib.closing(listening), _signals_left_alone():
        server = _Server(
            _settings(app, finish_seconds),
            on_ready=on_ready,
            address=_address(listening),
            stopping=app.state.stopping,
            notice_seconds=notice_seconds,
        )
        server.run(sockets=[listening])


class _Server(uvicorn.Server):
    """Says when it is ready.

    Parameters
    ----------
    config : uvicorn.Config
        The settings.
    address : str
        Where it is.
    on_ready : callable or None
        Called with the address.
    stopping : Stopping
        Set when it ends.
    notice_seconds : float
        From then on, until no connection is taken.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        address: str,
        on_ready: Callable[[str], None] | None,
        stopping: Stopping,
        notice_seconds: float,
    ) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._address = address
        self._on_ready = on_ready
        self._notice_seconds = notice_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets=sockets)
        if self.started and self._on_ready is not None:
            self._on_ready(self._address)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Say so, take requests a while longer, and let those that were taken end."""
        self._stopping.set()
        await self._wait(self._notice_seconds)
        for server in self.servers:
            server.close()
        await self._wait(_SECONDS_TO_SPEAK)  # whoever has just connected is about to send
        await super().shutdown(sockets=sockets)

    async def _wait(self, seconds: float) -> None:
        """Sleep, but not on after a second Ctrl-C."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self.force_exit and (left := end - loop.time()) > 0:  # noqa: ASYNC110 (a signal sets it)
            await asyncio.sleep(min(left, 0.1))


def _settings(app: FastAPI, finish_seconds: int = _SECONDS_TO_FINISH) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=PatientProtocol,
        loop="asyncio",  # where uvloop is installed, too: what is tested is what runs
        log_config=None,  # whoever runs the process says where logs go
        log_level="warning",
        access_log=False,
        ws="none",
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=finish_seconds,
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port <= 65535:
            raise OverflowError("a port is a number from 0 to 65535")  # noqa: TRY301
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigurationError(
            f"Expected an address to listen at, got {host!r} and port {port}: {error}. Take another port or host."
        ) from error


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def _signals_left_alone() -> Iterator[None]:
    """Keep signals that ended the server from ending the process, too: uvicorn raises them again."""
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
