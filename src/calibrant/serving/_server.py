"""Server that runs an application until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from calibrant.core._errors import ConfigurationError

_SECONDS_TO_FINISH: Final = 5
_SECONDS_TO_REFUSE: Final = 1.0
_SECONDS_BETWEEN_LOOKS: Final = 0.05


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

    Requests in progress have `finish_seconds` to end, and are then given up; a second signal gives them up at once.
    A call that an embedded engine is computing ends before its model can be freed.

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
    stopping: threading.Event = app.state.stopping
    hurry = threading.Event()
    ended = threading.Event()
    server = uvicorn_server(app, finish_seconds=finish_seconds)

    def stop() -> None:
        if stopping.is_set():
            server.force_exit = True
            hurry.set()
        stopping.set()

    # The server has a thread of its own: in the main thread uvicorn handles signals itself, and accepts no more
    # requests after the first one.
    with (
        contextlib.closing(_listen(host, port)) as listening,
        _on_signals(stop),
        ThreadPoolExecutor(1, "calibrant-server") as threads,
    ):
        address = _address(listening)
        running = threads.submit(asyncio.run, run_server(server, listening))
        running.add_done_callback(lambda _: stopping.set())
        running.add_done_callback(lambda _: ended.set())
        try:
            if on_ready is not None:
                on_ready(address)
            _wait_for(stopping)
            _wait_for(hurry, seconds=notice_seconds)
        finally:
            server.should_exit = True
        _wait_for(ended)
        running.result()


def uvicorn_server(app: FastAPI, *, finish_seconds: int = _SECONDS_TO_FINISH) -> uvicorn.Server:
    """Return the server of an application."""
    config = uvicorn.Config(
        app,
        http="h11",  # even if httptools or uvloop are installed: run what is tested
        loop="asyncio",
        log_config=None,  # the process configures logging
        log_level="warning",
        access_log=False,
        ws="none",
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=finish_seconds,
    )
    return uvicorn.Server(config)


async def run_server(server: uvicorn.Server, listening: socket.socket) -> None:
    """Run a server on a socket until it should exit."""
    await server.serve(sockets=[listening])
    given_up = list(server.server_state.tasks)
    if given_up:  # they are cancelled, and have to tell their clients
        await asyncio.wait(given_up, timeout=_SECONDS_TO_REFUSE)


def _wait_for(event: threading.Event, *, seconds: float = math.inf) -> None:
    """Wait for an event, awake often: handlers of signals run while the main thread does."""
    end = time.monotonic() + seconds
    while not event.is_set() and time.monotonic() < end:
        event.wait(_SECONDS_BETWEEN_LOOKS)


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port <= 65535:
            raise OverflowError("a port is a number from 0 to 65535")  # noqa: TRY301
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.create_server(address[:2], family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigurationError(
            f"Expected an address to listen at, got {host!r} and port {port}: {error}. Take another port or host."
        ) from error
    # Connections inherit it. asyncio sets it only on sockets that name their protocol; without it an answer's body
    # waits some 40 ms for the client to acknowledge its headers.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for SIGINT and SIGTERM in the block; in other threads than the main one, leave them alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {
        number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
