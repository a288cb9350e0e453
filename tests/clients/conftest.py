"""A loopback server that answers chat requests as it is told."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from calibrant.core import CompletionRequest
from calibrant.testing import fake_response


class ScriptedServer:
    """Answers every POST with the next scripted (status, body, headers); the last one stays."""

    def __init__(self) -> None:
        self.script: list[tuple[int, Any, dict[str, str]]] = [
            (200, fake_response("Food", ["Food", "Rent"]), {})
        ]
        self.bodies: list[dict[str, Any]] = []
        self.delay = 0.0
        self.running = self.peak = 0
        self.asked = threading.Event()
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server._serve(self)

            def log_message(self, *_arguments: object) -> None:
                """Stay silent."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        """Make this the only answer."""
        error = {"error": {"message": "scripted", "type": "scripted", "code": None}}
        self.script = [(status, error if body is None else body, headers)]

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.running += 1
            self.peak = max(self.peak, self.running)
            self.bodies.append(json.loads(handler.rfile.read(int(handler.headers["content-length"]))))
            status, body, headers = self.script[0] if len(self.script) == 1 else self.script.pop(0)
        self.asked.set()
        time.sleep(self.delay)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with self._lock:
            self.running -= 1
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        with contextlib.suppress(BrokenPipeError):  # a client that timed out is gone
            handler.end_headers()
            handler.wfile.write(data)

    def stop(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """Return a running loopback server."""
    found = ScriptedServer()
    yield found
    found.stop()


@pytest.fixture
def request_for_label() -> CompletionRequest:
    """Return a request for one of two labels."""
    schema = {
        "type": "object",
        "properties": {"category": {"type": "string", "enum": ["Food", "Rent"]}},
        "required": ["category"],
        "additionalProperties": False,
    }
    return CompletionRequest(
        messages=({"role": "system", "content": "Classify."}, {"role": "user", "content": "lunch"}),
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": schema},
        },
    )


@pytest.fixture
def unused_port() -> int:
    """A loopback port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
