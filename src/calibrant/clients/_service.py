"""Client for a third-party service with JSON requests and answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from calibrant.clients._endpoint import Endpoint, is_http_address
from calibrant.clients._http import JsonHttp, Reply
from calibrant.clients._redact import public_address, secret_texts
from calibrant.clients._retry import RetryPolicy, with_retries
from calibrant.clients._translate import retry_after_seconds
from calibrant.core._errors import ConfigurationError, ProviderError

_MOST_BYTES: Final = 2**20


class JsonService:
    """Client that POSTs JSON objects to a service and returns JSON objects.

    The size of an answer is limited. An error page may hold anything, so of an answer with a status that is
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
    most_bytes : int, default 1 MiB
        Size limit of an answer.
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
        most_bytes: int = _MOST_BYTES,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.url = _checked_url(url, name)
        self._name = name
        self._retry = retry or RetryPolicy()
        secrets = tuple(secret_texts({"api_base": self.url}))
        endpoint = Endpoint(root=self.url, shown=public_address(self.url), secrets=secrets)
        self._http = JsonHttp(
            provider=name, endpoint=endpoint, timeout=timeout_seconds, most_bytes=most_bytes
        )

    async def post(
        self, body: Mapping[str, Any], *, on_object: Callable[[Mapping[str, Any]], None] | None = None
    ) -> tuple[dict[str, Any], int]:
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

        async def once() -> dict[str, Any]:
            reply = await self._http.send(self.url, data)
            if reply.data is not None and on_object is not None:
                on_object(reply.data)
            if reply.fine and reply.data is not None:
                return reply.data
            raise self._failure(reply)

        return await with_retries(once, policy=self._retry)

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
