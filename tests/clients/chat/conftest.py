"""Fixtures: a server whose connections can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from calibrant.inference import open_client

Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _transport(request: web.Request) -> asyncio.Transport:
    found = request.transport
    assert isinstance(found, asyncio.Transport)
    return found


async def reset(request: web.Request) -> web.StreamResponse:
    """Reset the connection before any byte is sent."""
    _transport(request).abort()
    return web.Response()


async def cut(request: web.Request) -> web.StreamResponse:
    """Reset the connection after the headers and a part of the body."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    _transport(request).abort()
    return response


async def hang(_request: web.Request) -> web.StreamResponse:
    """Keep the connection open without an answer."""
    await asyncio.sleep(60)
    return web.Response()


async def drip(request: web.Request) -> web.StreamResponse:
    """Send single bytes with pauses, without end."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    for _ in range(600):
        await response.write(b" ")
        await asyncio.sleep(0.05)
    return response


async def garbage(request: web.Request) -> web.StreamResponse:
    """Send bytes that are no HTTP."""
    _transport(request).write(b"220 mail.example ESMTP\r\n\r\n")
    _transport(request).close()
    return web.Response()


def flood(*, declared: bool, compressed: bool = False) -> Fault:
    """Return a fault that sends 50 MB, with or without a content length."""

    async def send(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if declared:
            response.content_length = 50 * 2**20
        if compressed:
            response.enable_compression(web.ContentCoding.gzip)
        await response.prepare(request)
        for _ in range(50):
            await response.write(b" " * 2**20)
        return response

    return send


FAULTS: dict[str, Fault] = {
    "reset": reset,
    "cut": cut,
    "hang": hang,
    "drip": drip,
    "garbage": garbage,
    "declared flood": flood(declared=True),
    "flood": flood(declared=False),
    "compressed flood": flood(declared=False, compressed=True),
}


@pytest.fixture
def server(server: Any) -> Any:
    """Return a running server that can produce the faults of connections."""
    server.faults = FAULTS
    return server


@pytest.fixture
def make(server: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that makes a client of the server, closed at the end."""
    made: list[Any] = []

    def build(model: str = "openai/fake", **options: Any) -> Any:
        own = {name: options.pop(name) for name in ("space",) if name in options}
        settings = {"api_base": server.url, "api_key": "plain-key-123", **options}
        made.append(open_client(model, options=settings, **own))
        return made[-1]

    yield build
    for client in made:
        client.close()
