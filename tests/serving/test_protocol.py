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
import uvicorn
from fastapi import FastAPI
from fastapi.responses import Response
from uvicorn.server import ServerState

from calibrant.serving import ConnectionLimits
from calibrant.serving._server import PatientProtocol
from calibrant.tuned import Tuned
from held import PATH, SECONDS, Held, app, ask, counts

POST = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LIMITS = ConnectionLimits()
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


def test_slow_headers_end_a_connection(running: Any) -> None:
    """Connections without whole headers are closed after a time, and other requests are answered."""
    with running.connected() as silent, running.connected() as begun, running.connected() as second:
        begun.sendall(b"POST /v1/classify HT")
        second.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /he")
        assert status(second) == 200
        assert ask(running, {"text": "a"}).status == 200
        running.clock.advance(LIMITS.seconds_for_headers)
        assert [rest(line) for line in (silent, begun, second)] == [b"", b"", b""]
    assert ask(running, {"text": "a"}).status == 200


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
            running.clock.advance(LIMITS.seconds_for_body / 3)
        ends = [rest(line) for line in (stated, chunked)]
    assert all(end.startswith(b"HTTP/1.1 408") and b"connection: close" in end for end in ends)
    assert b"got 4 bytes" in ends[0]
    assert b"got 3 bytes" in ends[1]
    assert held.asked == ["a"] * 3


def test_bodies_have_their_own_timeout(running: Any) -> None:
    """A body that takes longer than the limit for headers is accepted."""
    with sending(running, b"Content-Length: 13\r\n\r\n") as line:
        line.sendall(b'{"text": ')
        running.clock.advance(LIMITS.seconds_for_headers)
        line.sendall(b'"a"}')
        assert status(line) == 200


def test_the_longest_idle_connection_is_closed(serve: Any, bundle: Tuned) -> None:
    """Idle connections are closed when too many come, and one with a request in progress stays."""
    held = Held()
    running = serve(app(bundle, held, connections=ConnectionLimits(seconds_idle=0.0, most_connections=4)))
    with contextlib.ExitStack() as lines:
        working = lines.enter_context(running.connected())
        working.sendall(body("first"))
        assert held.begun.acquire(timeout=SECONDS)
        idle = []
        for begun in (b"", b"POST /v1/cl", POST + b"Content-Length: 9\r\n\r\n{"):
            idle.append(lines.enter_context(running.connected()))
            idle[-1].sendall(begun)
            assert running.ask(path="/healthz", method="GET").status == 200  # it is taken, and gone again
        for _ in range(20):
            lines.enter_context(running.connected())
        assert [rest(line) for line in idle] == [b"", b"", b""]
        assert running.ask(path="/healthz", method="GET").status == 200
        held.let_go()
        assert status(working) == 200


@pytest.mark.parametrize("idle", [False, True])
def test_without_idle_connections_the_last_is_refused(serve: Any, bundle: Tuned, idle: bool) -> None:
    """When no connection is idle, one too many gets 503, and others wait until there is room."""
    held = Held(held=not idle)
    limits = ConnectionLimits(seconds_idle=float(SECONDS), most_connections=2)
    running = serve(app(bundle, held, connections=limits))
    with contextlib.ExitStack() as lines:
        first = [lines.enter_context(running.connected()) for _ in range(2)]
        for line in first:
            line.sendall(body("a"))
            assert held.begun.acquire(timeout=SECONDS)
        if idle:
            assert [status(line) for line in first] == [200, 200]
        third, fourth = (lines.enter_context(running.connected()) for _ in range(2))
        fourth.sendall(body("a"))
        whole = body("a")
        third.sendall(whole[:-5])
        until(lambda: running.connections == 3)
        third.sendall(whole[-5:])
        for line in (third, fourth):
            refused = rest(line)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"connection: close" in refused
            assert b"retry-after: 1" in refused
            assert b'{"error":"Expected fewer connections' in refused
        held.let_go()
        if idle:
            for line in first:
                line.sendall(body("a"))
        assert [status(line) for line in first] == [200, 200]


@pytest.mark.parametrize(("clients", "most"), [(300, 20), pytest.param(2_000, 512, marks=pytest.mark.slow)])
def test_a_crowd_is_not_reset(serve: Any, bundle: Tuned, clients: int, most: int) -> None:
    """In a crowd of clients every connection gets 200, 429 or 503."""
    held = Held()
    limits = ConnectionLimits(most_connections=most, seconds_idle=float(SECONDS))
    running = serve(app(bundle, held, connections=limits, most_rows=most // 2, most_texts=1))

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
        while held.asked[most // 2 - 1 :] == []:  # noqa: ASYNC110 (another thread's)
            await asyncio.sleep(0.01)
        held.let_go()
        return await asyncio.gather(*asking)

    with file_descriptors(2 * clients + 500):
        found = Counter(asyncio.run(crowd()))
    assert set(found) <= {b"200", b"429", b"503"}
    assert found[b"200"] >= most // 2
    assert running.ask(path="/healthz", method="GET").status == 200


def test_a_crowd_is_accepted_in_parts(serve: Any, bundle: Tuned) -> None:
    """At most one and a half times the limit of connections are open; the others wait."""
    limits = ConnectionLimits(most_connections=4, seconds_idle=float(SECONDS))
    running = serve(app(bundle, Held(held=False), connections=limits))
    with running.connected() as first, contextlib.ExitStack() as lines:
        crowd = [lines.enter_context(running.connected()) for _ in range(20)]
        until(lambda: running.connections == 6)
        for _ in range(20):  # time enough to take more
            first.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status(first) == 200
            assert running.connections == 6
        for line in crowd[:-1]:
            line.close()
        crowd[-1].sendall(body("a"))
        assert status(crowd[-1]) in {200, 503}


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
        POST.replace(b"1.1", b"1.0") + CHUNKED,
    ],
    ids=["length first", "chunked first", "HTTP/1.0"],
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


def test_a_body_in_tiny_chunks_is_refused(serve: Any, bundle: Tuned) -> None:
    """A body in too many tiny chunks gets 400, and a reasonable number of chunks is read."""
    held = Held(held=False)
    running = serve(app(bundle, held))
    with running.connected() as line:
        line.sendall(POST + CHUNKED)
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                line.sendall(b"1\r\n \r\n" * 1_000)
        assert rest(line).startswith(b"HTTP/1.1 400")
    assert held.asked == []
    for count, size in ((900, 1), (3_000, 300)):
        text = b"x" * count * size
        whole = b'{"text": "%s"}' % text
        pieces = (whole[start : start + size] for start in range(0, len(whole), size))
        assert ask(running, pieces).status == 200
        assert held.asked[-1] == text.decode()


def test_pieces_are_counted_by_request(running: Any) -> None:
    """Several requests on one connection may each have a body in many pieces."""
    pieces = b"".join(b"1\r\n%c\r\n" % own for own in b'{"text": "%s"}' % (b"x" * 700)) + b"0\r\n\r\n"
    with running.connected() as line:
        for _ in range(3):
            line.sendall(POST + CHUNKED + pieces)
            assert status(line) == 200


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the logged errors, without those of litellm's tasks from earlier tests."""
    return [
        record
        for record in caplog.records
        if record.levelno >= logging.ERROR
        and not (record.name == "asyncio" and "litellm" in record.getMessage())
    ]


def test_an_unwanted_body_is_cut_off(running: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An unwanted body is read if it is short; else the connection is closed."""
    with running.connected() as line:
        for _ in range(2):
            line.sendall(b"POST /no HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n")
            assert status(line) == 404
            line.sendall(b"x" * 60_000 + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status(line) == 200
    with running.connected() as line:
        line.sendall(b"POST /no HTTP/1.1\r\nHost: x\r\n" + CHUNKED)
        assert status(line) == 404
        with pytest.raises(ConnectionError):
            line.sendall((b"10000\r\n" + b"x" * 65536 + b"\r\n") * 1_000)
    with running.connected() as line:
        line.sendall(b"POST /no HTTP/1.1\r\nHost: x\r\n" + CHUNKED)
        assert status(line) == 404
        line.sendall(b"this is no chunk\r\n")
        assert rest(line) == b""
    assert not errors(caplog)


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


def test_the_headers_timer_restarts(serve: Any, bundle: Tuned) -> None:
    """The timer for headers starts anew after every answer, even after a slow one."""
    held = Held()
    running = serve(app(bundle, held))
    with running.connected() as line:
        line.sendall(body("a"))
        assert held.begun.acquire(timeout=SECONDS)
        running.clock.advance(LIMITS.seconds_for_headers)
        held.let_go()
        assert status(line) == 200
        for wait, end in ((0.9, False), (1.0, True)):
            whole = body("a")
            line.sendall(whole[:9])  # so uvicorn's own clock stands still
            assert running.ask(path="/healthz", method="GET").status == 200  # and it has been read
            running.clock.advance(wait * LIMITS.seconds_for_headers)
            if end:
                assert rest(line) == b""
            else:
                line.sendall(whole[9:])
                assert status(line) == 200


def test_simultaneous_connections_each_drop_an_idle_one() -> None:
    """Of ten connections at once, the seven oldest are closed where three are allowed."""

    class Line(asyncio.Transport):
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    async def run() -> None:
        state, lines = ServerState(), [Line() for _ in range(10)]
        for line in lines:
            protocol(state, ConnectionLimits(most_connections=3, seconds_idle=0.0)).connection_made(line)
        assert [line.aborted for line in lines] == [True] * 7 + [False] * 3

    asyncio.run(run())


def protocol(state: ServerState, limits: ConnectionLimits = LIMITS) -> PatientProtocol:
    """Return the protocol object of a connection that does not exist."""
    config = uvicorn.Config(FastAPI(), ws="none")
    config.load()
    return PatientProtocol(config, state, {}, limits=limits)


@pytest.mark.parametrize("patient", [True, False])
def test_an_unread_answer_ends_the_connection(serve: Any, bundle: Tuned, *, patient: bool) -> None:
    """An answer that nobody reads ends the connection; a slow reader gets all of it."""
    size = 16 << 20  # more than sockets hold
    made = app(bundle, Held(held=False))

    @made.get("/large")
    async def large() -> Response:
        return Response(bytes(size))

    running = serve(made)
    with running.connected() as line:
        line.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: len(line.recv(1 << 12, socket.MSG_PEEK)) == 1 << 12)  # more than the headers is there
        running.clock.advance(LIMITS.seconds_for_headers if patient else LIMITS.seconds_to_take)
        until(lambda: running.connections == (1 if patient else 0))
        found = rest(line)
    assert (len(found) > size) is patient


def test_accepted_connections_have_no_delay(running: Any) -> None:
    """Accepted sockets have TCP_NODELAY."""
    with running.connected():
        until(lambda: running.connections == 1)
        (one,) = running.server.server_state.connections
        accepted = one.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


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
