"""An application on a real socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import uvicorn
from fastapi import FastAPI

from calibrant.assembly import Bundle
from calibrant.serving._server import _settings
from packed import packed

SECONDS = 30
ROWS = [{"input": f"{n} a {'cat' if n % 3 else 'dog'}", "answer": "cat"} for n in range(40)]


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


class Running(NamedTuple):
    """A service."""

    port: int

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def ask(self, body: Any = None, *, path: str = "/verify", method: str = "POST", **headers: str) -> Reply:
        """Send one request; bytes as they are, an iterator in chunks, other values as JSON."""
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
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Return a bundle whose run asked a loopback server that is gone."""
    folder = tmp_path_factory.mktemp("served")
    return packed(folder, ROWS)


@contextlib.contextmanager
def served(app: FastAPI) -> Iterator[Running]:
    """Serve `app` in a thread."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(_settings(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    end = time.monotonic() + SECONDS
    while not server.started and time.monotonic() < end:
        time.sleep(0.01)
    try:
        yield Running(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        listening.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that serves an application until the test ends."""
    with contextlib.ExitStack() as running:
        yield lambda app: running.enter_context(served(app))
