"""Request handling of both services: refusals, body limits, cancellation when a client disconnects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from calibrant.core._prediction import JsonObject
from calibrant.core._reported import counted

_THROWN_AWAY: Final = 16  # times the longest body: what is read of a longer one, and dropped
_CLOSE: Final = {"Connection": "close"}  # or else the rest of the body would be read and thrown away
_FAILED: Final = "The service failed; its log says why."
_T = TypeVar("_T")

ErrorForm: TypeAlias = Callable[[Scope, AnyHTTPException], tuple[int, JsonObject]]
"""Returns status and body of an error."""


def plain_error(scope: Scope, error: AnyHTTPException) -> tuple[int, JsonObject]:
    """Return status and body of an error: ``{"error": ...}``."""
    del scope
    return error.status_code, {"error": error.detail}


def prepare_app(app: FastAPI, *, routes: str, form: ErrorForm = plain_error) -> threading.Event:
    """Set up the state that `serve_app` needs, and errors as JSON.

    Parameters
    ----------
    app : FastAPI
        The application.
    routes : str
        Its routes, for the message of 404 and 405.
    form : callable
        Gives errors their form; by default `plain_error`.

    Returns
    -------
    threading.Event
        Set by `serve_app` when the service ends; one application may be served in several event loops.
    """

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, AnyHTTPException):  # the server logs it
            error = HTTPException(500, _FAILED)
        elif error.status_code in {404, 405}:
            error = HTTPException(error.status_code, f"There is only {routes}.", error.headers)
        status, body = form(request.scope, error)
        return JSONResponse(body, status, error.headers)

    app.add_exception_handler(AnyHTTPException, refuse)
    app.add_exception_handler(Exception, refuse)
    app.state.stopping = stopping = threading.Event()
    return stopping


async def bounded_body(request: Request, most_bytes: int, *, seconds: float) -> bytes:
    """Return the body of a request; refuse one that is too large or too slow.

    Parameters
    ----------
    request : Request
        The request.
    most_bytes : int
        The longest body that is read.
    seconds : float
        Deadline for the whole body.

    Raises
    ------
    HTTPException
        413 if the body is longer, 408 if it is late, 400 if its length is ambiguous, 499 (never delivered) if the
        client disconnects.
    """
    # A proxy that believes Content-Length where this server believes Transfer-Encoding lets a second request through
    # unseen (RFC 9112, section 6.3).
    if {"transfer-encoding", "content-length"}.issubset(request.headers):
        raise HTTPException(400, "Expected Content-Length or Transfer-Encoding, got both: send one.", _CLOSE)
    message = f"Expected a body of at most {most_bytes:,} bytes, got more: shorten the texts."
    too_long = HTTPException(413, message, _CLOSE)
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most_bytes:
        # A client that sends all before it reads would lose the answer with the connection.
        is_thrown_away = int(stated) <= _THROWN_AWAY * most_bytes
        raise HTTPException(413, message) if is_thrown_away else too_long
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > most_bytes:
                    raise too_long
    except TimeoutError:
        message = (
            f"Expected the whole body within {counted(seconds, 'second')}, got {counted(len(body), 'byte')}."
        )
        raise HTTPException(408, message, _CLOSE) from None
    except ClientDisconnect:
        raise _disconnect() from None
    return bytes(body)


async def while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Await `work`; cancel it if the client disconnects.

    Clients that time out ask again, so abandoned work must not be computed.

    Parameters
    ----------
    request : Request
        The request; its body has been read.
    work : coroutine
        Coroutine to await.

    Raises
    ------
    HTTPException
        499 (never delivered) if the client disconnects; 503 if the service gives the request up at its end.
    """
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise _disconnect()
    except asyncio.CancelledError:
        if request.app.state.stopping.is_set():  # the time to finish is over
            raise HTTPException(503, "The service is being stopped: ask again later.", _CLOSE) from None
        raise
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


def _disconnect() -> HTTPException:
    return HTTPException(499, "The client has closed the connection.")


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
