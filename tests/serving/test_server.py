"""Tests of running an application until a signal comes."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from calibrant.cascade import Verifier
from calibrant.core import ConfigurationError
from calibrant.serving import create_verifier_app
from calibrant.serving._server import serve_app
from calibrant.testing import FakeClient


def has_ipv6() -> bool:
    """Return whether this machine has an IPv6 loopback interface."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def connection(address: str) -> Any:
    """Return a connection that is closed at the end of a block."""
    return contextlib.closing(http.client.HTTPConnection(address.removeprefix("http://"), timeout=30))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "http://127.0.0.1:"),
        pytest.param("::1", "http://[::1]:", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")),
    ],
)
def test_a_signal_ends_the_server(number: signal.Signals, host: str, shown: str) -> None:
    """The server answers at the reported address; a signal ends it and handlers are restored."""
    before = [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)]
    told: list[str] = []
    found: list[int] = []

    def ask(address: str) -> None:
        with connection(address) as line:
            line.request("GET", "/health")
            found.append(line.getresponse().status)
        signal.raise_signal(number)

    def ready(address: str) -> None:
        told.append(address)
        threading.Thread(target=ask, args=(address,)).start()

    serve_app(create_verifier_app(None), host=host, port=0, on_ready=ready)
    assert told[0].startswith(shown)
    assert found == [503]
    assert [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)] == before


def no_delay(client: socket.socket) -> int:
    """Return whether the other end of a connection, in this process, sends small packets at once."""
    for entry in Path("/proc/self/fd").iterdir():
        if not (entry.is_symlink() and entry.readlink().name.startswith("socket:")):
            continue
        with socket.socket(fileno=os.dup(int(entry.name))) as found, contextlib.suppress(OSError):
            if found.getpeername() == client.getsockname():
                return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    raise AssertionError("there is no such connection")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at the sockets of this process")
def test_answers_are_sent_without_delay() -> None:
    """Connections send small packets at once: an answer's body does not wait until its headers are acknowledged."""
    found: list[int] = []

    def ask(address: str) -> None:
        with connection(address) as line:
            line.request("GET", "/health")
            line.getresponse().read()
            found.append(no_delay(line.sock))
        signal.raise_signal(signal.SIGTERM)

    serve_app(
        create_verifier_app(None),
        port=0,
        on_ready=lambda address: threading.Thread(target=ask, args=(address,)).start(),
    )
    assert found == [1]


def test_late_requests_are_cancelled_at_shutdown() -> None:
    """At shutdown a late request's call is cancelled, and the client gets 503."""
    model = FakeClient(["correct", "incorrect"], {}, field="verdict", latency=60.0)
    found: list[int] = []
    threads: list[threading.Thread] = []

    def ask(address: str) -> None:
        with connection(address) as line:
            line.request("POST", "/verify", b'{"question": "q", "answer": "a"}')
            found.append(line.getresponse().status)

    def stop() -> None:
        while not model.max_in_flight:
            threading.Event().wait(0.01)
        signal.raise_signal(signal.SIGINT)

    def ready(address: str) -> None:
        threads.extend([threading.Thread(target=ask, args=(address,)), threading.Thread(target=stop)])
        for thread in threads:
            thread.start()

    serve_app(create_verifier_app(Verifier(model, k=2)), port=0, on_ready=ready, finish_seconds=1)
    for thread in threads:
        thread.join(30)
    assert model._in_flight == 0
    assert found == [503]


def test_connected_clients_are_answered_after_a_signal() -> None:
    """A connected client is answered in the time after the first signal, and a second signal ends that time."""
    app = create_verifier_app(None)
    found: list[bytes] = []

    def ask(address: str) -> None:
        with connection(address) as line:
            line.connect()
            signal.raise_signal(signal.SIGINT)
            assert app.state.stopping.wait(30)
            line.request("GET", "/health")
            found.append(line.getresponse().read())
        signal.raise_signal(signal.SIGINT)

    serve_app(
        app,
        port=0,
        notice_seconds=300.0,
        on_ready=lambda address: threading.Thread(target=ask, args=(address,)).start(),
    )
    assert [b"no model" in body for body in found] == [True]


def test_an_application_that_stops_ends_the_server() -> None:
    """Setting the application's `stopping` ends the server as a signal does, in any thread."""
    app = create_verifier_app(None)
    thread = threading.Thread(
        target=lambda: serve_app(app, port=0, on_ready=lambda _: app.state.stopping.set())
    )
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_a_failing_announcement_ends_the_server() -> None:
    """An error of `on_ready` ends the server and is raised."""

    def fail(address: str) -> None:
        raise BrokenPipeError(address)

    with pytest.raises(BrokenPipeError, match="http://127"):
        serve_app(create_verifier_app(None), port=0, on_ready=fail)


@pytest.mark.parametrize(
    ("host", "port"), [("256.1.1.1", 0), ("127.0.0.1", 99999), ("no.such.host.invalid", 0)]
)
def test_an_unusable_address_is_refused(monkeypatch: pytest.MonkeyPatch, host: str, port: int) -> None:
    """An address that cannot be listened at raises ConfigurationError."""

    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    if "." in host and not host[0].isdigit():
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigurationError, match="address to listen at"):
        serve_app(create_verifier_app(None), host=host, port=port)
