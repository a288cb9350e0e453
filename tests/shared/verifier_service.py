"""A verifier that answers on loopback."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from calibrant.cascade import Verifier
from calibrant.serving import create_verifier_app


@contextlib.contextmanager
def serving(verifier: Verifier) -> Iterator[str]:
    """Yield the address of a running service."""
    uvicorn = pytest.importorskip("uvicorn")
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(create_verifier_app(verifier), log_level="warning", ws="none", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(60)
    listening.close()
