"""A loopback server of chat completions that answers each text as it is told, faults included."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from calibrant.clients._openai_chat import OpenAIChatClient
from calibrant.testing import fake_response
from loopback import LoopbackServer

Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ChatServer(LoopbackServer):
    """Answers what `answers` holds for the last message: a body, (status, body, headers), or a fault's name."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.default: Any = fake_response("Food", ["Food", "Rent"])
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.absent: set[str] = set()
        self.held = 0.0
        self.running = self.peak = 0
        super().__init__()
        self.url = f"{self.root}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What was sent."""
        return [body for _, body, _ in self.asked]

    @property
    def headers(self) -> list[dict[str, str]]:
        """With which headers."""
        return [headers for *_, headers in self.asked]

    def routed(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{route:.*}", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append((str(request.rel_url), body, dict(request.headers)))
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await asyncio.sleep(self.held)
        finally:
            self.running -= 1
        if request.path in self.absent:
            return web.json_response({"detail": "Not Found"}, status=404)
        answer = self.answers.get(body["messages"][-1]["content"], self.default)
        if isinstance(answer, str):
            return await FAULTS[answer](request)
        status, content, headers = answer if isinstance(answer, tuple) else (200, answer, {})
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        return web.Response(status=status, body=data, headers={"Content-Type": "application/json", **headers})


def _transport(request: web.Request) -> asyncio.Transport:
    found = request.transport
    assert isinstance(found, asyncio.Transport)
    return found


async def reset(request: web.Request) -> web.StreamResponse:
    """Reset the connection before anything is sent."""
    _transport(request).abort()
    return web.Response()


async def cut(request: web.Request) -> web.StreamResponse:
    """Reset the connection behind the headers and a part of the body."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    _transport(request).abort()
    return response


async def hang(_request: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.sleep(60)
    return web.Response()


async def drip(request: web.Request) -> web.StreamResponse:
    """Send a byte now and then, for ever."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    for _ in range(600):
        await response.write(b" ")
        await asyncio.sleep(0.05)
    return response


async def garbage(request: web.Request) -> web.StreamResponse:
    """Send what is no HTTP."""
    _transport(request).write(b"220 mail.example ESMTP\r\n\r\n")
    _transport(request).close()
    return web.Response()


def flood(*, declared: bool, compressed: bool = False) -> Fault:
    """Send 50 MB, with or without saying so before."""

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
def server() -> Iterator[ChatServer]:
    """Return a running loopback server."""
    found = ChatServer()
    yield found
    found.stop()


@pytest.fixture
def make(server: ChatServer) -> Iterator[Callable[..., OpenAIChatClient]]:
    """Return a function that makes a client of the server, closed at the end."""
    made: list[OpenAIChatClient] = []

    def build(model: str = "openai/fake", **options: Any) -> OpenAIChatClient:
        made.append(
            OpenAIChatClient(model, **{"api_base": server.url, "api_key": "plain-key-123", **options})
        )
        return made[-1]

    yield build
    for client in made:
        client.close()
