"""Fixtures for asking a fault server without a client of the library."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from fault_server import FaultServer

LABELS = ["Food", "Rent", "Sports"]


class Answer(NamedTuple):
    """Holds a response of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the parsed body."""
        return json.loads(self.body)

    @property
    def choice(self) -> Any:
        """Return the first choice."""
        return self.json["choices"][0]

    @property
    def content(self) -> Any:
        """Return the text of the answer."""
        return self.choice["message"]["content"]

    @property
    def reported(self) -> list[dict[str, Any]]:
        """Return the tokens with their log-probabilities."""
        found: list[dict[str, Any]] = self.choice["logprobs"]["content"]
        return found


def chat(text: str = "lunch", **fields: Any) -> dict[str, Any]:
    """Return the JSON of a request with log-probabilities; a field that is None is left out."""
    messages = [{"role": "system", "content": "Classify."}, {"role": "user", "content": text}]
    body = {"model": "m", "messages": messages, "logprobs": True, "top_logprobs": 3, **fields}
    return {name: value for name, value in body.items() if value is not None}


def ask(
    server: FaultServer,
    text: str = "lunch",
    *,
    path: str = "/v1/chat/completions",
    method: str = "POST",
    raw: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout: float = 20.0,
    **fields: Any,
) -> Answer:
    """Return the answer to one request on a connection of its own."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)) as line:
        data = json.dumps(chat(text, **fields)).encode() if raw is None else raw
        line.request(method, path, data if method == "POST" else None, headers or {})
        response = line.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, named, response.read())


@contextlib.contextmanager
def raw_call(server: FaultServer, text: str = "lunch") -> Iterator[socket.socket]:
    """Send a request on a bare socket, and yield the socket."""
    data = json.dumps(chat(text)).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as line:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        line.sendall(head.encode() + data)
        yield line


@pytest.fixture
def serve() -> Iterator[Callable[..., FaultServer]]:
    """Return a function that starts a server of three labels, stopped at the end of the test."""
    with contextlib.ExitStack() as running:
        yield lambda *arguments, **options: running.enter_context(FaultServer(LABELS, *arguments, **options))


@pytest.fixture(name="ask")
def ask_fixture() -> Callable[..., Answer]:
    """Return a function that sends one request on a connection of its own."""
    return ask


@pytest.fixture(name="raw_call")
def raw_call_fixture() -> Callable[..., contextlib.AbstractContextManager[socket.socket]]:
    """Return a context that sends a request on a bare socket."""
    return raw_call


@pytest.fixture
def in_flight() -> Callable[[FaultServer, int], None]:
    """Return a function that waits until a server is answering so many requests."""

    def wait(server: FaultServer, count: int) -> None:
        deadline = time.monotonic() + 60
        while server.in_flight != count and time.monotonic() < deadline:
            time.sleep(0.005)
        assert server.in_flight == count

    return wait
