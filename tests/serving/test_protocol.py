"""Clients that are slow, greedy or wrong, over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import socket
import threading
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import Response
from uvicorn.server import ServerState

from calibrant.assembly import Bundle
from calibrant.serving import _bodies
from calibrant.serving._protocol import PatientProtocol
from calibrant.serving._server import _settings
from held import PATH, SECONDS, Held, app, ask, counts, later

POST = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def connected(running: Any) -> Any:
    """Yield a connection."""
    with socket.create_connection(("127.0.0.1", running.port)) as line:
        line.settimeout(SECONDS)
        yield line


def rest(line: socket.socket) -> bytes:
    """Return what comes until the connection ends, however it ends."""
    found = []
    with contextlib.suppress(ConnectionError):
        while piece := line.recv(1 << 20):
            found.append(piece)
    return b"".join(found)


def status(line: socket.socket) -> int:
    """Return an answer's status; all of the answer is read."""
    response = http.client.HTTPResponse(line)
    response.begin()
    response.read()
    return response.status


def body(text: str) -> bytes:
    """Return a request for a text."""
    data = b'{"text": "%s"}' % text.encode()
    return b"%sContent-Length: %d\r\n\r\n%s" % (POST, len(data), data)


def test_slow_headers_end_a_connection(serve: Any, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that trickles, or says nothing, first or after an answer, is hung up on; others are served."""
    monkeypatch.setattr(PatientProtocol, "seconds_for_headers", 0.4)
    running = serve(app(bundle, Held(held=False)))
    begun = [b"", b"POST /v1/classify HT", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /he"]
    with contextlib.ExitStack() as lines:
        slow = [lines.enter_context(socket.create_connection(("127.0.0.1", running.port))) for _ in begun]
        for line, start in zip(slow, begun, strict=True):
            line.settimeout(SECONDS)
            line.sendall(start)
        assert ask(running, {"text": "a"}).status == 200
        ends = [b"".join(iter(lambda own=line: own.recv(4096), b"")) for line in slow]
    assert ends[:2] == [b"", b""]
    assert ends[2].startswith(b"HTTP/1.1 200")


def test_a_slow_answer_outlives_the_time_for_headers(
    serve: Any, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock runs for headers only."""
    monkeypatch.setattr(PatientProtocol, "seconds_for_headers", 0.2)
    held = Held()
    running = serve(app(bundle, held))
    thread, found = later(lambda: ask(running, {"text": "a"}))
    assert held.begun.acquire(timeout=SECONDS)
    threading.Timer(0.3, held.let_go).start()
    thread.join(SECONDS)
    assert found[0].status == 200


def test_a_slow_body_is_408(serve: Any, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little by little it comes; others are served meanwhile, and nothing was asked."""
    monkeypatch.setattr(_bodies, "SECONDS_TO_SEND", 0.15)
    held = Held(held=False)
    running = serve(app(bundle, held))
    with connected(running) as stated, connected(running) as chunked:
        stated.sendall(POST + b'Content-Length: 100\r\n\r\n{"te')
        chunked.sendall(POST + CHUNKED)
        with contextlib.suppress(ConnectionError):
            for _ in range(10):
                chunked.sendall(b"1\r\n{\r\n")
                threading.Event().wait(0.03)
        ends = [rest(line) for line in (stated, chunked)]
    assert all(end.startswith(b"HTTP/1.1 408") and b"connection: close" in end for end in ends)
    assert b"got 4 bytes" in ends[0]
    assert held.asked == []
    assert ask(running, {"text": "a"}).status == 200


def test_the_time_for_a_body_is_not_that_for_headers(
    serve: Any, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body may take longer."""
    monkeypatch.setattr(PatientProtocol, "seconds_for_headers", 0.15)
    running = serve(app(bundle, Held(held=False)))
    with connected(running) as line:
        whole = body("a")
        line.sendall(whole[:-5])
        threading.Event().wait(0.2)
        line.sendall(whole[-5:])
        assert status(line) == 200


def test_of_too_many_connections_the_longest_idle_goes(
    serve: Any, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes is answered; connections that hold back bodies go, those that are worked for stay."""
    monkeypatch.setattr(PatientProtocol, "seconds_idle", 0.0)
    monkeypatch.setattr(PatientProtocol, "most_connections", 4)
    held = Held()
    running = serve(app(bundle, held))
    with contextlib.ExitStack() as lines:
        working = lines.enter_context(connected(running))
        working.sendall(body("first"))
        assert held.begun.acquire(timeout=SECONDS)
        idle = []
        for begun in (b"", b"POST /v1/cl", POST + b"Content-Length: 9\r\n\r\n{"):
            idle.append(lines.enter_context(connected(running)))
            idle[-1].sendall(begun)
            assert running.ask(path="/healthz", method="GET").status == 200  # it is taken, and gone again
        for _ in range(20):
            lines.enter_context(connected(running))
        assert [rest(line) for line in idle] == [b"", b"", b""]
        assert running.ask(path="/healthz", method="GET").status == 200
        held.let_go()
        assert status(working) == 200


@pytest.mark.parametrize("idle", [False, True])
def test_where_nobody_is_idle_for_long_the_last_is_refused(
    serve: Any, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    """With 503, and of still more the connection is closed; those that came before are answered."""
    monkeypatch.setattr(PatientProtocol, "most_connections", 2)
    monkeypatch.setattr(PatientProtocol, "seconds_idle", float(SECONDS))
    held = Held(held=not idle)
    running = serve(app(bundle, held))
    with contextlib.ExitStack() as lines:
        first = [lines.enter_context(connected(running)) for _ in range(2)]
        for line in first:
            line.sendall(body("a"))
            assert held.begun.acquire(timeout=SECONDS)
        if idle:
            assert [status(line) for line in first] == [200, 200]
        third, fourth = (lines.enter_context(connected(running)) for _ in range(2))
        assert rest(fourth) == b""
        third.sendall(body("a"))
        refused = rest(third)
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"connection: close" in refused
        assert b"retry-after: 1" in refused
        assert b'{"error":"Expected fewer connections' in refused
        held.let_go()
        if idle:
            for line in first:
                line.sendall(body("a"))
        assert [status(line) for line in first] == [200, 200]


def test_a_body_in_tiny_chunks_is_refused_early(serve: Any, bundle: Bundle) -> None:
    """Each costs as much as a large one; a reasonable number is read."""
    held = Held(held=False)
    running = serve(app(bundle, held))
    with connected(running) as line:
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


def test_many_pieces_of_one_request_do_not_count_for_the_next(serve: Any, bundle: Bundle) -> None:
    """On one connection."""
    running = serve(app(bundle, Held(held=False)))
    pieces = b"".join(b"1\r\n%c\r\n" % own for own in b'{"text": "%s"}' % (b"x" * 700)) + b"0\r\n\r\n"
    with connected(running) as line:
        for _ in range(3):
            line.sendall(POST + CHUNKED + pieces)
            assert status(line) == 200


def test_nobody_reads_on_for_ever_once_it_has_answered(
    serve: Any, bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of an unwanted body: a little is thrown away and the connection kept, of more it is closed."""
    running = serve(app(bundle, Held(held=False)))
    with connected(running) as line:
        for _ in range(2):
            line.sendall(b"POST /no HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n")
            assert status(line) == 404
            line.sendall(b"x" * 60_000 + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status(line) == 200
    with connected(running) as line:
        line.sendall(b"POST /no HTTP/1.1\r\nHost: x\r\n" + CHUNKED)
        assert status(line) == 404
        with pytest.raises(ConnectionError):
            line.sendall((b"10000\r\n" + b"x" * 65536 + b"\r\n") * 1_000)
    with connected(running) as line:
        line.sendall(b"POST /no HTTP/1.1\r\nHost: x\r\n" + CHUNKED)
        assert status(line) == 404
        line.sendall(b"this is no chunk\r\n")
        assert rest(line) == b""
    assert not [own for own in caplog.records if own.levelno >= logging.ERROR]


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00", b"GET /\xff HTTP/1.1\r\n\r\n"])
def test_what_is_no_http_is_refused(
    serve: Any, bundle: Bundle, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """With 400; the service stays up."""
    running = serve(app(bundle, Held(held=False)))
    with connected(running) as line:
        line.sendall(sent + b"\r\n\r\n")
        assert rest(line).startswith(b"HTTP/1.1 400")
    assert running.ask(path="/healthz", method="GET").status == 200
    assert not [own for own in caplog.records if own.levelno >= logging.ERROR]


def test_headers_without_end_are_refused(serve: Any, bundle: Bundle) -> None:
    """Before they fill the memory."""
    running = serve(app(bundle, Held(held=False)))
    with connected(running) as line:
        with contextlib.suppress(ConnectionError):
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ")
            for _ in range(1_000):
                line.sendall(b"x" * 65536)
        assert rest(line).startswith(b"HTTP/1.1 400")


def test_a_client_that_goes_while_it_sends_is_no_error(
    serve: Any, bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted with 499."""
    running = serve(app(bundle, Held(held=False)))
    with connected(running) as line:
        line.sendall(POST + b'Content-Length: 100\r\n\r\n{"te')
        assert running.ask(path="/healthz", method="GET").status == 200
    name = f"calibrant_requests_total {PATH} 499"
    for _ in range(500):
        if name in (seen := counts(running)):
            break
        threading.Event().wait(0.01)
    assert seen[name] == 1
    assert not [own for own in caplog.records if own.levelno >= logging.ERROR]


def test_after_an_answer_the_time_for_headers_begins_anew(
    serve: Any, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first time was over while the answer was worked at."""
    monkeypatch.setattr(PatientProtocol, "seconds_for_headers", 0.2)
    held = Held()
    running = serve(app(bundle, held))
    with connected(running) as line:
        line.sendall(body("a"))
        assert held.begun.acquire(timeout=SECONDS)
        threading.Timer(0.3, held.let_go).start()
        assert status(line) == 200
        line.sendall(b"GET /he")  # so uvicorn's own clock stands still
        assert rest(line) == b""


def test_connections_that_come_at_once_each_take_the_place_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the event loop has told any that it is closed."""
    monkeypatch.setattr(PatientProtocol, "most_connections", 3)
    monkeypatch.setattr(PatientProtocol, "seconds_idle", 0.0)

    class Line(asyncio.Transport):
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    async def run() -> None:
        config = _settings(FastAPI())
        config.load()
        state, lines = ServerState(), [Line() for _ in range(10)]
        for line in lines:
            PatientProtocol(config, state, {}).connection_made(line)
        assert [line.aborted for line in lines] == [True] * 7 + [False] * 3

    asyncio.run(run())


def test_a_client_that_has_taken_what_was_there_is_waited_for_no_more() -> None:
    """The clock runs while something is left only."""

    async def run() -> None:
        config = _settings(FastAPI())
        config.load()
        protocol = PatientProtocol(config, ServerState(), {})
        protocol.connection_made(asyncio.Transport())
        protocol.pause_writing()
        (first,) = [protocol._taken]
        protocol.resume_writing()
        protocol.pause_writing()
        assert (first.cancelled(), protocol._taken.cancelled()) == (True, False)
        protocol.connection_lost(OSError())
        assert protocol._taken.cancelled()
        assert protocol._asked.cancelled()

    asyncio.run(run())


@pytest.mark.parametrize("patient", [True, False])
def test_a_client_that_does_not_take_its_answer_is_hung_up_on(
    serve: Any, monkeypatch: pytest.MonkeyPatch, *, patient: bool
) -> None:
    """One that takes it late gets all of it, though the time for its next request is over."""
    size = 16 << 20  # more than sockets hold
    monkeypatch.setattr(PatientProtocol, "seconds_to_take", SECONDS if patient else 0.1)
    monkeypatch.setattr(PatientProtocol, "seconds_for_headers", 0.15)
    made = FastAPI()

    @made.get("/")
    async def large() -> Response:
        return Response(bytes(size))

    running = serve(made)
    with connected(running) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        threading.Event().wait(0.2)
        found = rest(line)
    assert (len(found) > size) is patient


def test_an_expected_continue_is_not_sent_to_whom_is_refused(serve: Any, bundle: Bundle) -> None:
    """So that a hundred megabytes stay where they are."""
    running = serve(app(bundle, Held(held=False)))
    for length, first in ((100_000_000, b"HTTP/1.1 413"), (13, b"HTTP/1.1 100")):
        with connected(running) as line:
            line.sendall(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % length)
            assert line.recv(4096).startswith(first)


def test_a_pipeline_is_answered_in_order(serve: Any, bundle: Bundle) -> None:
    """One after the other."""
    running = serve(
        app(bundle, Held(held=False), most_texts=1),
    )
    with connected(running) as line:
        line.sendall(body("a") + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        found = rest(line)
    assert found.index(b"results") < found.index(b'"ok"')
    assert found.count(b"HTTP/1.1 200") == 2


def test_the_body_of_an_answer_does_not_wait_for_the_head_to_be_confirmed() -> None:
    """A listening socket without a protocol number, as uvicorn opens it, is none that asyncio cares for."""
    seen: list[int] = []

    class Watched(PatientProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            own = transport.get_extra_info("socket")
            seen.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async def run() -> None:
        config = _settings(FastAPI())
        config.load()
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            loop = asyncio.get_running_loop()
            server = await loop.create_server(lambda: Watched(config, ServerState(), {}), sock=listening)
            _, writer = await asyncio.open_connection(*listening.getsockname())
            while not seen:  # noqa: ASYNC110 (bounded by the timeout of every test)
                await asyncio.sleep(0.001)
            writer.close()
            await writer.wait_closed()
            server.close()

    asyncio.run(run())
    assert seen[0] != 0
