"""Exchange of JSON over HTTP, with a session per event loop and errors as `ProviderError`."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import threading
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

from calibrant.clients._calls import CallGate, RetryPolicy, check_seconds
from calibrant.clients._endpoint import (
    Endpoint,
    hide,
    is_http_address,
    is_loopback,
    public_address,
    redact,
    secret_texts,
    spellings,
    warn_of_plain_http,
)
from calibrant.clients._failures import retry_after_seconds, translate
from calibrant.core._errors import ConfigurationError, ContextLengthError, ProviderError, ProviderTimeoutError
from calibrant.core._prediction import Record
from calibrant.core._reported import clean_line, counted

if TYPE_CHECKING:
    import aiohttp

# Lifetime of DNS entries: addresses of servers change seldom.
_SECONDS_OF_A_NAME: Final = 300
# Size limit of an answer. A thousand tokens with 20 alternatives each take 2 MB.
_MOST_BYTES: Final = 16 * 2**20
# Servers close idle connections after 5 seconds; a connection must not be reused while the server closes it.
_IDLE_SECONDS: Final = 4.0
_SECONDS_TO_CLOSE: Final = 5.0
_SHOWN: Final = 2000
_ABSENT: Final = frozenset({404, 405, 501})
# Servers refuse what is too long with status 400, 413 or 422 and words alone; OpenAI adds a code.
_TOO_LONG: Final = (
    "exceed_context_size",
    "context_length_exceeded",
    "maximum context length",
    "maximum model length",
    "available context size",
)
_T = TypeVar("_T")
_SHORTEN: Final = "Shorten the text or the prompt, or serve the model with a longer context."


class Reply(NamedTuple):
    """Response of a server.

    Attributes
    ----------
    status : int
        HTTP status.
    headers : mapping
        Response headers; their names may be written in any case.
    data : dict or None
        The body, where it is a JSON object.
    content : bytes
        The body.
    """

    status: int
    headers: Mapping[str, str]
    data: dict[str, Any] | None
    content: bytes

    @classmethod
    def of(cls, response: aiohttp.ClientResponse, content: bytes) -> Reply:
        """Return the reply for an aiohttp response with this body."""
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            value = None
        data = value if isinstance(value, dict) else None
        return cls(status=response.status, headers=response.headers, data=data, content=content)

    @property
    def text(self) -> str:
        """Beginning of the body, as text."""
        return self.content[:_SHOWN].decode("utf-8", "replace")

    @property
    def fine(self) -> bool:
        """True for a status of success (2xx)."""
        return 200 <= self.status < 300

    @property
    def absent(self) -> bool:
        """True if the status says that the server lacks the route (404, 405 or 501)."""
        return self.status in _ABSENT

    @property
    def passing(self) -> bool:
        """True if the status is transient, so that the same call may succeed later."""
        return self.status in {408, 425, 429} or (self.status >= 500 and not self.absent)

    def refuses(self, *words: str) -> bool:
        """Return True if the server refuses the request as it is (400 or 422), and says one of these words."""
        return self.status in {400, 422} and any(word in self.words.lower() for word in words)

    @property
    def words(self) -> str:
        """Error message of the server on one line, cleaned for display."""
        data = self.data or {}
        error = data.get("error") or data.get("message") or data.get("detail") or self.text
        problems = error if isinstance(error, list) else [error]
        message = "; ".join(_error_words(problem) for problem in problems)
        return clean_line(message, limit=_SHOWN)


class JsonHttp:
    """Transport for the calls to one server.

    Sessions belong to the event loop they were opened in. Each is held by an asynchronous generator, as
    an event loop finishes its generators when it ends or when they are garbage-collected. So a session is
    closed by `close`, by the end of its loop (`asyncio.run`) or with its client, whichever comes first.

    Parameters
    ----------
    provider : str
        The model, as the user named it; shown in messages.
    endpoint : Endpoint
        The server; its credentials are never shown.
    timeout : float
        Time limit of one call, in seconds.
    calls : int, optional
        Concurrent calls at most, per event loop; by default 256.
    most_bytes : int, default 16 MiB
        Size limit of an answer.
    """

    def __init__(
        self,
        *,
        provider: str,
        endpoint: Endpoint,
        timeout: float,
        calls: int | None = None,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        check_seconds(timeout)
        self.endpoint = endpoint
        self.provider = provider
        self._secrets: frozenset[str] = frozenset()
        self.hide(endpoint.secrets)
        self._timeout = timeout
        self._gate = CallGate(calls, clients=lambda: max(1, len(_open_clients)))
        self._most_bytes = most_bytes
        self._connections: dict[asyncio.AbstractEventLoop, _Connections] = {}
        self._lock = threading.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        _open_clients.add(self)

    def hide(self, secrets: Iterable[str]) -> None:
        """Add secrets to redact from messages."""
        texts = [spelling for secret in secrets for spelling in spellings(secret)]
        self._secrets = self._secrets.union(text for text in texts if len(text) > 3)
        warn_of_plain_http(self.endpoint.root, self._secrets)

    def redacted(self, text: str) -> str:
        """Return a message with secrets, and texts that look like credentials, redacted."""
        return redact(text, secrets=self._secrets)

    def hidden(self, text: str) -> str:
        """Return a text with the known secrets redacted."""
        return hide(text, self._secrets)

    async def call(self, route: str, body: Record | None = None) -> Record:
        """Send `body` by POST, or GET without a body, and return the JSON object of the answer.

        Raises
        ------
        ProviderError
            The call failed.
        """
        return self.checked(await self.exchange(route, body))

    async def exchange(self, route: str, body: Record | None = None) -> Reply:
        """Send `body` by POST, or GET without a body, and return the reply with any status.

        Raises
        ------
        ProviderError
            A transport error: no answer, or only a part of it.
        """
        data = None
        if body is not None:
            data = json.dumps(body).encode()
        query = self.endpoint.query
        if "?" in route:
            query = query.replace("?", "&", 1)
        return await self.send(self.endpoint.root + route + query, data)

    def send(
        self,
        url: str,
        data: bytes | aiohttp.payload.Payload | None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Awaitable[Reply]:
        """Send `data` to a URL by POST, or GET without data, and return the reply with any status.

        Parameters
        ----------
        url : str
            The whole address.
        data : bytes, payload or None
            The body.
        headers : mapping, optional
            Headers of this call alone.
        timeout : float, optional
            Time limit of this call, in seconds.

        Raises
        ------
        ProviderError
            A transport error: no answer, only a part of it, or one above the size limit.
        """

        async def exchange(session: aiohttp.ClientSession) -> Reply:
            options: dict[str, Any] = {}
            if headers:
                options = {"headers": headers}
            if timeout is not None:  # aiohttp's own, whose timer is part of its session
                options["timeout"] = type(session.timeout)(total=timeout)
            method = "GET" if data is None else "POST"
            async with session.request(method, url, data=data, allow_redirects=False, **options) as response:
                return Reply.of(response, await _content(response, self._most_bytes, self.provider))

        return self.through(exchange, seconds=timeout)

    async def through(
        self, work: Callable[[aiohttp.ClientSession], Awaitable[_T]], *, seconds: float | None = None
    ) -> _T:
        """Run `work` with the session of the event loop, and translate its errors.

        Parameters
        ----------
        work : coroutine function
            Takes the session.
        seconds : float, optional
            Its time limit, for the message; by default the client's.

        Raises
        ------
        ProviderError
            `work` failed.
        """
        connections = self._connections.get(asyncio.get_running_loop()) or await self._connect()
        async with self._gate.turn():
            try:
                return await work(connections.session)
            except Exception as error:  # noqa: BLE001 (the seam: anything may come)
                failure = self._failure(error, self._timeout if seconds is None else seconds)
        raise failure from None  # the cause may hold a key

    def checked(self, reply: Reply) -> Record:
        """Return the JSON object of a reply; raise `refused` if the reply has none or is an error.

        Raises
        ------
        ProviderError
            The server refused the call, or sent something else.
        """
        if reply.fine and reply.data is not None:
            return reply.data
        raise self.refused(reply)

    def refused(self, reply: Reply) -> ProviderError:
        """Return the error for a refused or unreadable reply."""
        if not reply.fine:
            return self.refusal(HTTPStatusError(reply))
        kind = reply.headers.get("Content-Type", "no content type")
        begins = self.redacted(" ".join(reply.text[:200].split()))[:80]
        return ProviderError(
            f"broken response: expected a JSON object, got something else ({kind}, it begins {begins!r}).",
            provider=self.provider,
            retryable=True,
        )

    def close(self) -> None:
        """Close the sessions of all event loops that can be reached from here; calls in flight fail."""
        _open_clients.discard(self)
        with self._lock:
            by_loop = self._connections
            self._connections = {}
        for loop, connections in by_loop.items():
            self._end(loop, connections)

    def _end(self, loop: asyncio.AbstractEventLoop, connections: _Connections) -> None:
        if loop.is_closed():
            _forget(connections.session)
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            task = loop.create_task(connections.finish())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        elif loop.is_running():
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(connections.finish(), loop).result(_SECONDS_TO_CLOSE)
        elif here is None:
            loop.run_until_complete(connections.finish())

    async def _connect(self) -> _Connections:
        loop = asyncio.get_running_loop()
        session = self._session()
        connections = _Connections(session, _keep(session))
        with self._lock:
            for other in [other for other in self._connections if other.is_closed()]:
                _forget(self._connections.pop(other).session)
            self._connections[loop] = connections
        await anext(connections.keeper)  # never suspends: no other task of this loop comes in between
        return connections

    def _session(self) -> aiohttp.ClientSession:
        import aiohttp  # noqa: PLC0415 (keeps `import calibrant` light)

        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.endpoint.authorization:
            headers["Authorization"] = self.endpoint.authorization
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_IDLE_SECONDS, ttl_dns_cache=_SECONDS_OF_A_NAME
            ),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            # Read once: trust_env would read the environment and ~/.netrc in a thread for every call.
            proxy=_proxy(self.endpoint.root),
        )

    def _failure(self, error: Exception, seconds: float) -> ProviderError:
        if isinstance(error, TimeoutError):
            return ProviderTimeoutError(
                f"{self.endpoint.shown} gave no complete answer within {counted(seconds, 'second')}.",
                provider=self.provider,
                retryable=True,
            )
        import aiohttp  # noqa: PLC0415 (loaded by whoever made the call)

        failure = translate(error, provider=self.provider, secrets=self._secrets)
        if failure.connection_refused and not isinstance(error, aiohttp.ClientProxyConnectionError):
            message = f"Nothing listens at {self.endpoint.shown}: start the server, or mend its address."
            failure = ProviderError(message, provider=self.provider, retryable=True)
            failure.connection_refused = True
            return failure
        begins = ""
        if isinstance(error, aiohttp.ClientPayloadError):
            begins = "The answer broke off: "
        elif type(error) is aiohttp.ClientResponseError:  # its status is made up, as the answer is no HTTP
            begins = "The answer is broken: "
        if begins or isinstance(error, aiohttp.ClientConnectorCertificateError):
            words = str(failure).removeprefix(f"{self.provider}: ")
            words = words.replace("400, message: ", "")  # made up, too
            return ProviderError(begins + words, provider=self.provider, retryable=bool(begins))
        return failure

    def refusal(self, error: HTTPStatusError) -> ProviderError:
        """Return the error for a status that is not 2xx."""
        failure = translate(error, provider=self.provider, secrets=self._secrets)
        text = str(error).lower()
        if error.status in {400, 413, 422} and any(mark in text for mark in _TOO_LONG):
            message = str(failure).removeprefix(f"{self.provider}: ")
            return ContextLengthError(message, provider=self.provider, status=error.status, hint=_SHORTEN)
        return failure


def _error_words(problem: object) -> str:
    """Return the words of an error, or of a mistake with its place in the body, as FastAPI lists them."""
    if not isinstance(problem, Mapping):
        return str(problem)
    place = problem.get("loc")
    steps = None
    if isinstance(place, list):
        steps = ".".join(map(str, place))
    words = (problem.get(name) for name in ("message", "msg", "type", "error_type", "code"))
    return " / ".join(str(word) for word in (steps, *words) if word) or str(problem)


# Clients that are not closed. They share the process's limit of open files, and are closed when it ends.
_open_clients: WeakSet[JsonHttp] = WeakSet()


@atexit.register
def _close_left_open() -> None:
    """Close the remaining clients at exit, as event loops close sessions only under `asyncio.run`."""
    for client in list(_open_clients):
        client.close()


def _forget(session: aiohttp.ClientSession) -> None:
    """Close a session whose event loop is already closed, without waiting."""
    closing = session.close()
    with contextlib.suppress(StopIteration):
        closing.send(None)
    closing.close()


class HTTPStatusError(Exception):
    """Error for an HTTP status that is not 2xx, before its translation to a `ProviderError`.

    Parameters
    ----------
    reply : Reply
        The server's response.
    status : int, optional
        By default the reply's.
    """

    def __init__(self, reply: Reply, *, status: int | None = None) -> None:
        self.status = status or reply.status
        self.headers = reply.headers
        moved = None
        if 300 <= reply.status < 400:
            moved = reply.headers.get("Location")
        message = reply.words if moved is None else f"moved to {moved}: set api_base to the new address"
        super().__init__(f"{self.status} {message}")


class _Connections(NamedTuple):
    """Session of one event loop, and the async generator that closes it at the end of the loop."""

    session: aiohttp.ClientSession
    keeper: AsyncGenerator[None]

    async def finish(self) -> None:
        """Close the session."""
        await self.keeper.aclose()


async def _keep(session: aiohttp.ClientSession) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await session.close()
        await asyncio.sleep(0)  # the sockets are closed in the loop's next turn


async def _content(response: aiohttp.ClientResponse, most: int, provider: str) -> bytes:
    """Return the body, decompressed; raise ProviderError if it is larger than `most` bytes."""
    content = bytearray()
    if (response.content_length or 0) <= most:
        while len(content) <= most:
            piece = await response.content.readany()
            if not piece:
                return bytes(content)
            content += piece
    response.close()
    raise ProviderError(
        f"Expected an answer of at most {most >> 20} MB, got more: it was not read. Ask for fewer "
        "tokens or log-probabilities, or look at what answers at this address.",
        provider=provider,
        retryable=True,
    )


def _proxy(root: str) -> str | None:
    """Return the environment's proxy for an address; None for addresses of this machine."""
    parts = urlsplit(root)
    if is_loopback(root) or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    proxy = urllib.request.getproxies().get(parts.scheme)
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


_SERVICE_BYTES: Final = 2**20  # of the answer of a service


class JsonService:
    """Client that POSTs JSON objects to a service and returns JSON objects.

    An answer has at most 1 MiB. An error page may hold anything, so of an answer with a status that is
    not 2xx only the size is shown. Transient faults (no connection, timeout, 408, 425, 429, 5xx, a body that
    is no JSON object) are retried. Redirects are not followed. Each event loop has one session.

    Parameters
    ----------
    url : str
        Address of the service: http or https, with a host, without credentials, query, fragment and white space.
    name : str
        Name of the service in messages.
    timeout_seconds : float
        Time limit of one call in seconds, above 0.
    retry : RetryPolicy, optional
        Retry policy for transient faults.

    Raises
    ------
    ConfigurationError
        `url` is not of that form.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        timeout_seconds: float,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.url = _checked_url(url, name)
        self._name = name
        self._retry = retry or RetryPolicy()
        secrets = tuple(secret_texts({"api_base": self.url}))
        endpoint = Endpoint(root=self.url, shown=public_address(self.url), secrets=secrets)
        self._http = JsonHttp(
            provider=name, endpoint=endpoint, timeout=timeout_seconds, most_bytes=_SERVICE_BYTES
        )

    async def post(
        self, body: Record, *, on_object: Callable[[Record], None] | None = None
    ) -> tuple[Record, int]:
        """Send `body` by POST; return the JSON object of the answer, and the number of attempts.

        Parameters
        ----------
        body : mapping
            JSON values.
        on_object : callable, optional
            Called with every JSON object received, those of refused calls included.

        Returns
        -------
        answer : dict
            The object.
        attempts : int
            Calls made.

        Raises
        ------
        ProviderError
            No JSON object arrived, after retries; its ``attempts`` counts the calls made.
        """
        data = json.dumps(body).encode()

        async def once() -> Record:
            reply = await self._http.send(self.url, data)
            if reply.data is not None and on_object is not None:
                on_object(reply.data)
            if reply.fine and reply.data is not None:
                return reply.data
            raise self._failure(reply)

        return await self._retry.repeat(once)

    def close(self) -> None:
        """Close the sessions; calls in flight fail."""
        self._http.close()

    def _failure(self, reply: Reply) -> ProviderError:
        size = f"{len(reply.content):,} bytes"
        message = (
            f"answered with status {reply.status} and {size} that are not shown; its own log may say more."
        )
        if reply.fine:
            message = (
                f"expected a JSON object, got {size} of something else: look at what answers at {self.url}."
            )
        return ProviderError(
            message,
            provider=self._name,
            status=None if reply.fine else reply.status,
            retryable=reply.fine or reply.passing,
            retry_after=retry_after_seconds(reply),
        )


def _checked_url(url: object, name: str) -> str:
    expected = f"Expected the address of the {name}, such as http://127.0.0.1:8889"
    if not isinstance(url, str) or not url:
        raise ConfigurationError(f"{expected}, got {url!r}.")
    refused = {  # the address is not shown with them: queries hold keys, too
        "white space or control characters": any(one.isspace() or not one.isprintable() for one in url),
        "credentials": "@" in url,
        "a query or a fragment": "?" in url or "#" in url,
    }
    for part, is_there in refused.items():
        if is_there:
            raise ConfigurationError(f"{expected}, got one with {part}: leave them out.")
    if not is_http_address(url):
        raise ConfigurationError(f"{expected} (http or https, a host, a port from 1 to 65535), got {url!r}.")
    return url
