"""Request bodies of bounded size, and work cancelled when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

_CLOSE: Final = {"Connection": "close"}  # or else the rest of the body would be read and thrown away
_T = TypeVar("_T")


class Stopping:
    """Shutdown event that, unlike `asyncio.Event`, works across event loops."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: set[asyncio.Event] = set()

    def is_set(self) -> bool:
        """Return whether the service ends."""
        return self._set

    def set(self) -> None:
        """Set the event and wake all waiters; called in their event loop."""
        self._set = True
        for event in tuple(self._waiting):
            event.set()

    async def wait(self) -> None:
        """Wait until the service ends."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            while not self._set:
                await event.wait()
        finally:
            self._waiting.discard(event)


async def bounded_body(request: Request, most_bytes: int, *, seconds: float) -> bytes:
    """Return the body of a request, bounded in size and time.

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
        413 if the body is longer, 408 if it is late, 499 (never delivered) if the client disconnects.
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
    """Await `work`; cancel it if the client disconnects or the service ends.

    Clients that time out ask again, so abandoned work must not be computed.

    Parameters
    ----------
    request : Request
        The request; its body has been read.
    work : coroutine
        Coroutine to await.
    stopping : Stopping, optional
        Set when the service ends; by default the work is then finished.

    Raises
    ------
    HTTPException
        499 (never delivered) if the client disconnects; 503 if the service ends.
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
