"""Request bodies of bounded size, and work that ends when the one who asked for it has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

__all__ = ["Stopping", "bounded_body", "while_connected"]

_CLOSE: Final = {"Connection": "close"}  # or else the rest of the body would be read and thrown away
_T = TypeVar("_T")


class Stopping:
    """Says that the service ends; unlike an `asyncio.Event`, to whatever event loop a request runs in."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: set[asyncio.Event] = set()

    def is_set(self) -> bool:
        """Return whether the service ends."""
        return self._set

    def set(self) -> None:
        """Wake all who wait; called in their event loop."""
        self._set = True
        for event in tuple(self._waiting):
            event.set()

    async def wait(self) -> None:
        """Return when the service ends."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            while not self._set:
                await event.wait()
        finally:
            self._waiting.discard(event)


async def bounded_body(request: Request, most_bytes: int, *, seconds: float) -> bytes:
    """Return the body.

    Parameters
    ----------
    request : Request
        The request.
    most_bytes : int
        The longest body that is read.
    seconds : float
        How long it may take to come.

    Raises
    ------
    HTTPException
        413 where it is longer, 408 where it does not come in time, 499 where the client goes, which nobody reads.
    """
    too_long = HTTPException(
        413, f"Expected a body of at most {most_bytes:,} bytes, got more: shorten the texts.", _CLOSE
    )
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most_bytes:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > most_bytes:
                    raise too_long
    except TimeoutError:
        message = f"Expected the whole body within {seconds:g} seconds, got {len(body):,} bytes."
        raise HTTPException(408, message, _CLOSE) from None
    except ClientDisconnect:
        raise _went() from None
    return bytes(body)


async def while_connected(
    request: Request, work: Coroutine[Any, Any, _T], *, stopping: Stopping | None = None
) -> _T:
    """Return what `work` returns; give it up when the client closes the connection, or the service ends.

    Clients that have waited too long ask again: what they no longer wait for must not be computed.

    Parameters
    ----------
    request : Request
        The request; its body has been read.
    work : coroutine
        What to wait for.
    stopping : Stopping, optional
        Set when the service ends; by default work goes on then.

    Raises
    ------
    HTTPException
        499 where the client has gone, which nobody reads; 503 where the service ends.
    """
    working = asyncio.create_task(work)
    others = [asyncio.create_task(_gone(request))]
    if stopping is not None:
        others.append(asyncio.create_task(stopping.wait()))
    try:
        await asyncio.wait({working, *others}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if stopping is not None and stopping.is_set():
            raise HTTPException(503, "The service is being stopped: ask again later.")
        raise _went()
    finally:
        for task in (working, *others):
            task.cancel()
        await asyncio.gather(working, *others, return_exceptions=True)


def _went() -> HTTPException:
    return HTTPException(499, "The client has closed the connection.")


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
