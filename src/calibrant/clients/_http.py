"""JSON over HTTP: one session per event loop, and every fault a `ProviderError`."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from calibrant.clients._redact import redact
from calibrant.clients._translate import translate
from calibrant.core import (
    ConfigurationError,
    ContextLengthError,
    ProviderError,
    ProviderTimeoutError,
)

if TYPE_CHECKING:
    import aiohttp

__all__ = ["JsonHttp", "Reply"]

# Calls under way per event loop; the others wait before their time starts to run. Each has a socket,
# of which a process may usually have 1,024.
_CALLS: Final = 256
# Servers close idle connections after 5 seconds; one they are just closing must not be used again.
_IDLE_SECONDS: Final = 4.0
_SECONDS_TO_CLOSE: Final = 5.0
_SHOWN: Final = 2000
_ABSENT: Final = frozenset({404, 405, 501})
_TOO_LONG: Final = (
    "exceed_context_size",
    "context_length_exceeded",
    "maximum context length",
    "maximum model length",
    "available context size",
)
_T = TypeVar("_T")
_SHORTEN: Final = "Shorten the text or the prompt, or serve the model with a longer context."


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a server sent.

    Attributes
    ----------
    status : int
        HTTP status.
    headers : mapping
        Response headers.
    data : dict or None
        The body, where it is a JSON object.
    text : str
        The beginning of the body.
    """

    status: int
    headers: Mapping[str, str]
    data: dict[str, Any] | None
    text: str

    @property
    def fine(self) -> bool:
        """Whether the server did what was asked."""
        return 200 <= self.status < 300

    @property
    def absent(self) -> bool:
        """Whether the server has no such route."""
        return self.status in _ABSENT

    @property
    def passing(self) -> bool:
        """Whether the refusal says something about the moment, not about the call."""
        return self.status in {408, 425, 429} or (self.status >= 500 and not self.absent)

    @property
    def words(self) -> str:
        """What the server says about a call it refused."""
        data = self.data or {}
        error = data.get("error")
        if isinstance(error, Mapping):
            said = [str(error.get(name)) for name in ("message", "type", "code") if error.get(name)]
            return " / ".join(said)
        return str(error or data.get("message") or data.get("detail") or self.text)


class JsonHttp:
    """Calls to one server.

    Sessions belong to the event loop they were opened in. Each is held by an asynchronous generator,
    because those are what a loop finishes when it ends, and what it is told of when they are collected:
    a session is closed by `close`, by the end of its loop (`asyncio.run`) or with its client, whichever
    comes first.

    Parameters
    ----------
    provider : str
        The model, as the user named it; shown in messages.
    api_base : str
        Address of the server, with or without ``/v1``.
    api_key : str or None
        Sent as a bearer token; never shown.
    timeout : float
        Seconds one call may take.

    Raises
    ------
    ConfigurationError
        `api_base` is no HTTP address.
    """

    def __init__(self, *, provider: str, api_base: str, api_key: str | None, timeout: float) -> None:
        self.root = _root(api_base)
        self._provider = provider
        self._key = api_key
        self._timeout = timeout
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}
        self._lock = threading.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def shown(self) -> str:
        """The server's address, without credentials."""
        return self.redacted(self.root)

    def redacted(self, text: str) -> str:
        """Return `text` without credentials."""
        return redact(text, secrets=[self._key])

    async def call(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST `body` and return the JSON object that comes back.

        Raises
        ------
        ProviderError
            The call failed.
        """
        return self.checked(await self.exchange(route, body))

    async def exchange(self, route: str, body: Mapping[str, Any] | None = None) -> Reply:
        """POST `body`, or GET where there is none, and return what comes back, whatever its status.

        Raises
        ------
        ProviderError
            Nothing came back, or only a part.
        """
        line = await self._line()
        async with line.gate:
            try:
                return await _exchange(line.session, self.root + route, body)
            except Exception as error:  # noqa: BLE001 (the seam: anything may come)
                failure = self._failure(error)
        raise failure from None  # the cause may hold a key

    async def through(self, work: Callable[[aiohttp.ClientSession, str], Awaitable[_T]]) -> _T:
        """Do with the session, and the server's address, what is no call with JSON: files sent and fetched.

        Raises
        ------
        ProviderError
            `work` failed.
        """
        line = await self._line()
        async with line.gate:
            try:
                return await work(line.session, self.root)
            except Exception as error:  # noqa: BLE001 (the seam: anything may come)
                failure = self._failure(error)
        raise failure from None  # the cause may hold a key

    def checked(self, reply: Reply) -> dict[str, Any]:
        """Return the JSON object of a reply.

        Raises
        ------
        ProviderError
            The server refused the call, or sent something else.
        """
        if reply.fine and reply.data is not None:
            return reply.data
        if reply.fine:
            raise ProviderError(
                "Expected a JSON object, got something else: the answer is broken or cut off.",
                provider=self._provider,
                retryable=True,
            )
        raise self._refusal(reply)

    def close(self) -> None:
        """Close every session, from whatever thread; calls under way fail."""
        with self._lock:
            lines, self._lines = self._lines, {}
        for loop, line in lines.items():
            self._end(loop, line)

    def _end(self, loop: asyncio.AbstractEventLoop, line: _Line) -> None:
        if loop.is_closed():
            return
        here = _running_loop()
        if here is loop:
            task = loop.create_task(_finish(line.keeper))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        elif loop.is_running():
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_finish(line.keeper), loop).result(_SECONDS_TO_CLOSE)
        elif here is None:
            loop.run_until_complete(_finish(line.keeper))

    async def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._lines.get(loop)
        if found is not None:
            return found
        session = self._session()
        line = _Line(session=session, keeper=_keep(session), gate=asyncio.Semaphore(_CALLS))
        with self._lock:
            self._lines = {other: kept for other, kept in self._lines.items() if not other.is_closed()}
            self._lines[loop] = line
        await anext(line.keeper)  # never suspends: no other task of this loop comes in between
        return line

    def _session(self) -> aiohttp.ClientSession:
        import aiohttp  # noqa: PLC0415 (keeps `import calibrant` light)

        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            # A proxy of the environment is not asked for this machine's own address.
            trust_env=not _is_loopback(self.root),
        )

    def _failure(self, error: Exception) -> ProviderError:
        if isinstance(error, TimeoutError):
            return ProviderTimeoutError(
                f"{self.shown} gave no complete answer within {self._timeout:g} seconds.",
                provider=self._provider,
                retryable=True,
            )
        found = translate(error, provider=self._provider, secrets=[self._key])
        if type(error).__name__ == "ClientPayloadError":
            told = str(found).removeprefix(f"{self._provider}: ")
            return ProviderError(f"The answer broke off: {told}", provider=self._provider, retryable=True)
        return found

    def _refusal(self, reply: Reply) -> ProviderError:
        error = HTTPStatusError(reply)
        found = translate(error, provider=self._provider, secrets=[self._key])
        told = str(error).lower()
        if reply.status in {400, 413, 422} and any(mark in told for mark in _TOO_LONG):
            message = str(found).removeprefix(f"{self._provider}: ")
            return ContextLengthError(message, provider=self._provider, status=reply.status, hint=_SHORTEN)
        return found


class HTTPStatusError(Exception):
    """A status that is not 2xx, on its way to translation.

    Parameters
    ----------
    reply : Reply
        What the server sent.
    """

    def __init__(self, reply: Reply) -> None:
        self.status = reply.status
        self.headers = reply.headers
        moved = reply.headers.get("Location") if 300 <= reply.status < 400 else None
        said = reply.words if moved is None else f"moved to {moved}: set api_base to the new address"
        super().__init__(f"{reply.status} {said}")


@dataclass(frozen=True, kw_only=True)
class _Line:
    """What one event loop has.

    Attributes
    ----------
    session : aiohttp.ClientSession
        The connections.
    keeper : asynchronous generator
        Closes the session when it is finished.
    gate : asyncio.Semaphore
        Bounds the calls under way.
    """

    session: aiohttp.ClientSession
    keeper: AsyncGenerator[None]
    gate: asyncio.Semaphore


async def _keep(session: aiohttp.ClientSession) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await session.close()
        await asyncio.sleep(0)  # the sockets are closed in the loop's next turn


async def _finish(keeper: AsyncGenerator[None]) -> None:
    await keeper.aclose()


async def _exchange(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any] | None) -> Reply:
    method, data = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
    async with session.request(method, url, data=data, allow_redirects=False) as response:
        content = await response.read()
        return Reply(
            status=response.status,
            headers=dict(response.headers),
            data=_object(content),
            text=content[:_SHOWN].decode("utf-8", "replace"),
        )


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _root(api_base: object) -> str:
    """Return the address without ``/v1``."""
    address = api_base.strip() if isinstance(api_base, str) else ""
    try:
        parts = urlsplit(address)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        shown = redact(repr(api_base))
        msg = f"Expected api_base to be an address such as http://localhost:8000/v1, got {shown}."
        raise ConfigurationError(msg)
    return address.rstrip("/").removesuffix("/v1").rstrip("/")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
