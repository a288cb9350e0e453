"""Fixtures for tests of `calibrant.serving`: an application on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI

import held
from calibrant.cli._serve import json_logs
from calibrant.serving._server import run_server, uvicorn_server
from calibrant.tuned import Tuned
from packed import packed

SECONDS = 30
ROWS = [{"input": f"{n} a {'cat' if n % 3 else 'dog'}", "answer": "cat"} for n in range(40)]


class Reply(NamedTuple):
    """Answer of a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the body as a JSON value."""
        return json.loads(self.body)


class Clock(asyncio.SelectorEventLoop):
    """Event loop whose time a test can advance, so that no test waits for a timeout."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    def advance(self, seconds: float) -> None:
        """Advance the time, and return when everything that is due has run; for other threads."""
        done = threading.Event()

        def jump() -> None:
            self.ahead += seconds
            self.call_later(0, self.call_soon, done.set)  # behind all timers that are due now

        self.call_soon_threadsafe(jump)
        assert done.wait(SECONDS)


class Running(NamedTuple):
    """A running service, with what tests ask about it."""

    port: int
    clock: Clock

    @property
    def url(self) -> str:
        """Return the service's address."""
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def connected(self) -> Iterator[socket.socket]:
        """Yield an open connection to the service."""
        with socket.create_connection(("127.0.0.1", self.port)) as line:
            line.settimeout(SECONDS)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small pieces leave at once
            yield line

    def ask(self, body: Any = None, *, path: str = "/verify", method: str = "POST", **headers: str) -> Reply:
        """Send one request: bytes unchanged, an iterator in chunks, any other value as JSON."""
        raw = isinstance(body, bytes) or hasattr(body, "__next__")
        data = body if raw else json.dumps(body).encode()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)) as line:
            with contextlib.suppress(ConnectionError):  # it may have refused already
                line.request(method, path, data if method == "POST" else None, headers)
            response = line.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, named, response.read())


Serve = Callable[[FastAPI], Running]


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """Return a bundle whose run asked a loopback server that is gone."""
    folder = tmp_path_factory.mktemp("served")
    return packed(folder, ROWS)


@contextlib.contextmanager
def served(app: FastAPI) -> Iterator[Running]:
    """Serve `app` in a thread."""
    server = uvicorn_server(app)
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: clock) as runner:
                runner.run(run_server(server, listening))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield Running(port, clock)
        finally:
            server.should_exit = True
            thread.join(SECONDS)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that serves an application until the test ends."""
    with contextlib.ExitStack() as running:
        yield lambda app: running.enter_context(served(app))


@pytest.fixture
def running(serve: Serve, bundle: Tuned) -> Running:
    """Return a service whose classifier answers at once."""
    return serve(held.app(bundle, held.Held(held=False)))


@pytest.fixture
def service_log() -> Iterator[io.StringIO]:
    """Return where the service's logs go."""
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream), json_logs():
        yield stream
