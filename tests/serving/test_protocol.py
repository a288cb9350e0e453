"""Tests of clients that are slow, greedy or wrong, over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import resource
import socket
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from calibrant.serving import ServiceSettings
from calibrant.tuned import Tuned
from held import PATH, SECONDS, Held, app, ask, counts

POST = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def rest(line: socket.socket) -> bytes:
    """Return all that is received until the connection ends in any way."""
    found = []
    with contextlib.suppress(ConnectionError):
        while piece := line.recv(1 << 20):
            found.append(piece)
    return b"".join(found)


def until(seen: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    while not seen():
        threading.Event().wait(0.005)


def status(line: socket.socket) -> int:
    """Read a whole answer and return its status."""
    response = http.client.HTTPResponse(line)
    response.begin()
    response.read()
    return response.status


def body(text: str) -> bytes:
    """Return a request for a text."""
    data = b'{"text": "%s"}' % text.encode()
    return b"%sContent-Length: %d\r\n\r\n%s" % (POST, len(data), data)


@contextlib.contextmanager
def sending(running: Any, head: bytes) -> Any:
    """Yield a connection whose body the service waits for."""
    with running.connected() as line:
        line.sendall(POST + b"Expect: 100-continue\r\n" + head)
        assert line.recv(4096).startswith(b"HTTP/1.1 100")
        yield line


def test_a_slow_body_is_408(serve: Any, bundle: Tuned) -> None:
    """A body that arrives too slowly gets 408, and other requests are answered meanwhile."""
    held = Held(held=False)
    running = serve(app(bundle, held))
    with sending(running, b"Content-Length: 100\r\n\r\n") as stated, sending(running, CHUNKED) as chunked:
        stated.sendall(b'{"te')
        for _ in range(3):
            chunked.sendall(b"1\r\n{\r\n")
            assert ask(running, {"text": "a"}).status == 200
            running.clock.advance(ServiceSettings().body_seconds / 3)
        ends = [rest(line) for line in (stated, chunked)]
    assert all(end.startswith(b"HTTP/1.1 408") and b"connection: close" in end for end in ends)
    assert b"got 4 bytes" in ends[0]
    assert b"got 3 bytes" in ends[1]
    assert held.asked == ["a"] * 3


def test_idle_connections_are_closed(serve: Any, bundle: Tuned) -> None:
    """A connection without a new request is closed after a time, and one with a request in progress stays."""
    held = Held()
    running = serve(app(bundle, held))
    with running.connected() as line, running.connected() as working:
        working.sendall(body("a"))
        assert held.begun.acquire(timeout=SECONDS)
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(line) == 200
        running.clock.advance(5.0)
        assert rest(line) == b""
        held.let_go()
        assert status(working) == 200


@pytest.mark.parametrize(("clients", "most"), [(300, 10), pytest.param(2_000, 256, marks=pytest.mark.slow)])
def test_a_crowd_is_not_reset(serve: Any, bundle: Tuned, clients: int, most: int) -> None:
    """In a crowd of clients every connection gets 200 or 429."""
    held = Held()
    running = serve(app(bundle, held, most_rows=most, most_texts=1))

    async def post() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(body("a"))
        first = await reader.readline()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return first.split()[1]

    async def crowd() -> list[bytes]:
        asking = [asyncio.create_task(post()) for _ in range(clients)]
        while held.asked[most - 1 :] == []:  # noqa: ASYNC110 (another thread's)
            await asyncio.sleep(0.01)
        held.let_go()
        return await asyncio.gather(*asking)

    with file_descriptors(2 * clients + 500):
        found = Counter(asyncio.run(crowd()))
    assert set(found) <= {b"200", b"429"}
    assert found[b"200"] >= most
    assert running.ask(path="/healthz", method="GET").status == 200


@contextlib.contextmanager
def file_descriptors(most: int) -> Any:
    """Raise this process's limit of file descriptors in a block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "head",
    [
        POST + b"Content-Length: 13\r\n" + CHUNKED,
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 13\r\n\r\n",
    ],
    ids=["length first", "chunked first"],
)
def test_a_body_of_two_lengths_is_refused(serve: Any, bundle: Tuned, head: bytes) -> None:
    """A body with two lengths gets 400, and nothing after it is read as a request."""
    held = Held(held=False)
    running = serve(app(bundle, held))
    with running.connected() as line:
        line.sendall(head + b'd\r\n{"text": "a"}\r\n0\r\n\r\n' + body("smuggled"))
        found = rest(line)
    assert found.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in found.lower()
    assert found.count(b"HTTP/1.1") == 1
    assert held.asked == []


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the logged errors, without those of litellm's tasks from earlier tests."""
    return [
        record
        for record in caplog.records
        if record.levelno >= logging.ERROR
        and not (record.name == "asyncio" and "litellm" in record.getMessage())
    ]


def test_a_short_unwanted_body_is_read(running: Any) -> None:
    """A short body that nobody wants is read, and the connection goes on."""
    with running.connected() as line:
        for _ in range(2):
            line.sendall(b"POST /no HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n")
            assert status(line) == 404
            line.sendall(b"x" * 60_000 + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status(line) == 200


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00", b"GET /\xff HTTP/1.1\r\n\r\n"])
def test_other_protocols_are_refused(running: Any, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes of another protocol get 400, and the next request gets 200."""
    with running.connected() as line:
        line.sendall(sent + b"\r\n\r\n")
        assert rest(line).startswith(b"HTTP/1.1 400")
    assert running.ask(path="/healthz", method="GET").status == 200
    assert not errors(caplog)


def test_a_lost_sender_is_no_error(running: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A client that leaves while it sends is counted with status 499, and no error is logged."""
    with running.connected() as line:
        line.sendall(POST + b'Content-Length: 100\r\n\r\n{"te')
        assert running.ask(path="/healthz", method="GET").status == 200
    until(lambda: f"calibrant_requests_total {PATH} 499" in counts(running))
    assert not errors(caplog)


def test_endless_headers_are_refused(running: Any) -> None:
    """Endless headers get 400."""
    with running.connected() as line:
        with contextlib.suppress(ConnectionError):
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ")
            for _ in range(1_000):
                line.sendall(b"x" * 65536)
        assert rest(line).startswith(b"HTTP/1.1 400")


def test_a_pipeline_is_answered_in_order(serve: Any, bundle: Tuned) -> None:
    """Requests that were sent together are answered in order."""
    running = serve(app(bundle, Held(held=False), most_texts=1))
    with running.connected() as line:
        line.sendall(body("a") + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        found = rest(line)
    assert found.index(b"results") < found.index(b'"ok"')
    assert found.count(b"HTTP/1.1 200") == 2
