"""The HTTP side of a fault server. It imports aiohttp: load it when a server starts."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from aiohttp import web

from calibrant.core import DataError
from fault_server._answers import ChatRequest, error_body, read_request
from fault_server._faults import Fault
from fault_server._records import RecordedRequest
from probe_text import PROBE

if TYPE_CHECKING:
    from fault_server._server import FaultServer

__all__ = ["Handler"]

_PIECES = 50  # of a slow drip
_RESET = struct.pack("ii", 1, 0)  # linger for 0 seconds: closing sends RST instead of FIN
_KEY_HEADERS = {"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"}
_PAGE = (
    "<!DOCTYPE html>\n<html><head><title>{0} Error</title></head>\n"
    "<body><center><h1>{0} Error</h1></center><hr><center>proxy</center></body></html>\n"
)
_CONTEXT_TOO_LONG = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens. "
    "Please reduce the length of the messages."
)
_ERRORS = {
    400: ("The request was not understood.", "invalid_request_error", None),
    401: ("Incorrect API key provided.", "invalid_request_error", "invalid_api_key"),
    403: ("This key may not use this model.", "permission_error", "forbidden"),
    404: (
        "The model does not exist or you do not have access to it.",
        "invalid_request_error",
        "model_not_found",
    ),
    429: ("Rate limit reached. Please try again later.", "requests", "rate_limit_exceeded"),
}
_SERVER_ERROR = ("The server had an error while processing your request.", "server_error", None)


class Handler:
    """Answers requests as a server behaves; runs on the server's event loop alone."""

    def __init__(self, server: FaultServer) -> None:
        self._server = server
        self._wire: dict[str, Callable[[web.BaseRequest, Fault, bytes], Awaitable[web.StreamResponse]]] = {
            "reset_before_headers": _reset_before_headers,
            "reset_after_headers": _reset_after_headers,
            "hang": _hang,
            "slow_drip": _slow_drip,
        }

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        path = request.raw_path.partition("?")[0]
        if path == "/v1/chat/completions" and request.method == "POST":
            return await self._chat(request)
        if request.method == "GET" and path == "/health":
            return _json(200, b'{"status": "ok"}')
        if request.method == "GET" and path == "/stats":
            return _json(200, json.dumps(self._server.stats).encode())
        if request.method == "GET" and path == "/v1/models":
            return self._list_models(request)
        return _json(404, error_body(f"Unknown request: {request.method} {path}."))

    def _list_models(self, request: web.BaseRequest) -> web.Response:
        if not self._knows_key(request):
            return self._refuse(401)
        data = [
            {"id": name, "object": "model", "owned_by": "fake"} for name in self._server.models or ("fake",)
        ]
        return _json(200, json.dumps({"object": "list", "data": data}).encode())

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:  # noqa: PLR0911 (one per refusal)
        arrived = time.monotonic()
        raw = await request.content.read()
        if not self._knows_key(request):
            return self._refuse(401)
        try:
            asked = read_request(raw)
        except DataError as error:
            return self._refuse(400, str(error))
        if self._server.models is not None and asked.model not in self._server.models:
            return self._refuse(404, f"The model `{asked.model}` does not exist.")
        most = self._server.max_concurrency
        if most is not None and self._server.in_flight >= most:
            return self._refuse(429, "Too many requests at once.", {"Retry-After": "1"})
        wait = self._server.limit.take(asked.prompt_tokens, arrived)
        if wait > 0:
            return self._refuse(429, headers=self._server.limit.headers(arrived) | _retry_after(wait))
        with self._server.flight():
            if asked.text == PROBE:
                return await self._probed(asked)
            return await self._admitted(request, asked, arrived)

    async def _probed(self, asked: ChatRequest) -> web.StreamResponse:
        self._server.probes += 1
        await asyncio.sleep(self._server.latency)
        status = None if self._server.on_probe is None else self._server.on_probe()
        if status is not None:
            return _json(status, error_body("Not now."))
        return _json(200, self._server.probe_answer(asked))

    async def _admitted(
        self, request: web.BaseRequest, asked: ChatRequest, arrived: float
    ) -> web.StreamResponse:
        number = self._server.total
        failed = None
        fault, outcome, extra = None, None, {}
        try:
            extra = self._headers(number, arrived)
            fault = self._server.script(number, asked.body)
            if fault is None or _status_of(fault) is None:
                outcome = self._server.book.outcome(asked)
        except Exception as error:  # noqa: BLE001 (whatever the user's functions raise)
            failed = f"The test's own rule, script or headers failed: {error!r}"
        self._server.note(
            RecordedRequest(
                number=number,
                text=asked.text,
                body=asked.body,
                headers=self._without_key(request),
                arrived=arrived,
                fault=fault,
            )
        )
        if self._server.latency:
            await asyncio.sleep(self._server.latency)
        if failed is not None:
            return _json(400, error_body(failed, kind="test_error"))
        if fault is None:
            return _json(200, self._server.book.healthy(asked, outcome), extra)
        status = _status_of(fault)
        if status is not None:
            return _failure(fault, status, extra)
        wire = self._wire.get(fault.kind)
        if wire is not None:
            return await wire(request, fault, self._server.book.healthy(asked, outcome))
        return _json(200, self._server.book.broken(fault, asked, outcome), extra)

    def _headers(self, number: int, now: float) -> dict[str, str]:
        more = self._server.headers
        return self._server.limit.headers(now) | dict(more(number) if callable(more) else more)

    def _without_key(self, request: web.BaseRequest) -> dict[str, str]:
        lowered = {name.lower(): value for name, value in request.headers.items()}
        key = self._server.api_key
        return {
            name: value
            for name, value in lowered.items()
            if name not in _KEY_HEADERS and (key is None or key not in value)
        }

    def _knows_key(self, request: web.BaseRequest) -> bool:
        return (
            self._server.api_key is None
            or request.headers.get("Authorization") == f"Bearer {self._server.api_key}"
        )

    def _refuse(
        self, status: int, message: str | None = None, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        self._server.refuse(status)
        return _error(status, message, headers)


def _json(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=body, headers=headers, content_type="application/json")


def _error(status: int, message: str | None, headers: Mapping[str, str] | None = None) -> web.Response:
    usual, kind, code = _ERRORS.get(status, _ERRORS[400] if status < 500 else _SERVER_ERROR)
    return _json(status, error_body(message or usual, code=code, kind=kind), headers)


def _status_of(fault: Fault) -> int | None:
    """Return the status of a fault that is an error response."""
    if fault.kind.isdigit():
        return int(fault.kind)
    return {"rate_limit": 429, "context_length": 400, "html": fault.status}.get(fault.kind)


def _failure(fault: Fault, status: int, headers: dict[str, str]) -> web.Response:
    if fault.kind == "html":
        return web.Response(
            status=status, text=_PAGE.format(status), content_type="text/html", headers=headers
        )
    if fault.kind == "context_length":
        message = fault.message or _CONTEXT_TOO_LONG
        return _json(status, error_body(message, code="context_length_exceeded"), headers)
    if fault.kind == "rate_limit" and fault.seconds is not None:
        headers = headers | {"Retry-After": f"{fault.seconds:g}"}
    return _error(status, fault.message, headers)


def _retry_after(wait: float) -> dict[str, str]:
    """Return a real limit's wait as OpenAI sends it: whole seconds, and the same more exactly."""
    return {"Retry-After": str(math.ceil(wait)), "retry-after-ms": str(math.ceil(wait * 1000))}


def _abort(request: web.BaseRequest) -> None:
    transport = request.transport
    if transport is not None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()


async def _reset_before_headers(request: web.BaseRequest, _fault: Fault, _body: bytes) -> web.Response:
    _abort(request)
    return web.Response()  # goes nowhere


async def _reset_after_headers(request: web.BaseRequest, _fault: Fault, body: bytes) -> web.StreamResponse:
    response = await _begun(request, len(body))
    await _write(response, body[: len(body) // 2])
    _abort(request)
    return response


async def _hang(request: web.BaseRequest, fault: Fault, _body: bytes) -> web.Response:
    await asyncio.sleep(math.inf if fault.seconds is None else fault.seconds)
    if request.transport is not None:
        request.transport.close()
    return web.Response()


async def _slow_drip(request: web.BaseRequest, fault: Fault, body: bytes) -> web.StreamResponse:
    response = await _begun(request, len(body))
    step = max(1, math.ceil(len(body) / _PIECES))
    pause = (fault.seconds or 0.0) * step / len(body)
    for start in range(0, len(body), step):
        await asyncio.sleep(pause)
        if not await _write(response, body[start : start + step]):
            break
    return response


async def _begun(request: web.BaseRequest, length: int) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(length)})
    await response.prepare(request)
    return response


async def _write(response: web.StreamResponse, data: bytes) -> bool:
    """Write to the client, and return whether the client is still connected."""
    try:
        await response.write(data)
    except ConnectionError:
        return False
    return True
