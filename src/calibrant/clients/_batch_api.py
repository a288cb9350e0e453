"""Client for the batch interface of OpenAI-compatible servers: upload, create, poll, download."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, urlencode

from calibrant.clients._calls import Call, RetryPolicy
from calibrant.clients._endpoint import redact, resolve_endpoint, secret_texts, server_address
from calibrant.clients._http import JsonHttp, Reply
from calibrant.clients._openai_chat import Drafts
from calibrant.core._completion import CompletionRequest
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._prediction import Record
from calibrant.core._reported import bounded_count, clean_line, reported_mapping

if TYPE_CHECKING:
    import aiohttp


_ROUTE: Final = "/v1/chat/completions"
_WINDOW: Final = "24h"
_OPENAI: Final = "openai/"
_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
# Options that belong to an HTTP call, not to its body, and may hold credentials.
_OF_A_CALL: Final = ("headers", "extra_headers", "default_headers", "extra_query", "extra_body", "stream")
# Options of the client itself, which are never sent.
_OF_A_CLIENT: Final = ("api_key", "api_base", "base_url", "organization")
_PAGE: Final = 100
# A new batch may take some seconds to appear in the provider's list.
_SECONDS_TO_APPEAR: Final = 5.0
# The server's clock and ours may differ.
_CLOCKS_DIFFER_SECONDS: Final = 86_400.0
_SLOWEST_BYTES_PER_SECOND: Final = 100_000
_CHUNK: Final = 1 << 20
_LONGEST_NAME: Final = 200
_LONGEST_MESSAGE: Final = 1000
# Upper bound for Unix seconds that `datetime` can represent.
_LATEST: Final = 1e11

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class RemoteBatch:
    """State of a batch, as the provider reports it.

    Attributes
    ----------
    id : str
        The provider's name for it.
    status : str
        ``validating``, ``in_progress``, ``finalizing``, ``completed``, ``failed``, ``expired``,
        ``cancelling``, ``cancelled``, or another word of the provider.
    output_file, error_file : str or None
        Files with the answers, and with the requests that failed.
    total, completed, failed : int
        Numbers of requests.
    errors : tuple of str
        Reasons for the failure of the batch as a whole, without credentials.
    created : float or None
        Time of creation in Unix seconds.
    metadata : mapping
        The metadata it was created with.
    """

    id: str
    status: str
    output_file: str | None
    error_file: str | None
    total: int
    completed: int
    failed: int
    errors: tuple[str, ...]
    created: float | None
    metadata: Record

    @property
    def ended(self) -> bool:
        """True once the batch has reached a final status."""
        return self.status in _ENDED


class BatchApi:
    """Client for the batch interface of one server.

    Parameters
    ----------
    model : str
        The model's name: ``openai/NAME``, or any name with `api_base`; a prefix that names the kind of
        server is not sent.
    api_base : str, optional
        Address of the server, with or without ``/v1``; for ``openai/NAME`` by default
        ``OPENAI_BASE_URL`` or OpenAI's own.
    api_key : str, optional
        By default ``OPENAI_API_KEY``, for ``hosted_vllm/NAME`` ``HOSTED_VLLM_API_KEY``. Never shown or
        written.
    timeout : float, default 60
        Time limit of a call, in seconds; an upload gets more in proportion to its size.
    retry : RetryPolicy, optional
        Retry policy for transient faults.

    Raises
    ------
    ConfigurationError
        The model has no batch interface, or the address holds credentials.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str | None = None,
        api_key: str | None = None,
        timeout: float = 60.0,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.name = model
        self.address = _address(model, api_base)
        endpoint = resolve_endpoint(model, api_base=self.address, api_key=api_key)
        self._key = endpoint.key
        self._timeout = timeout
        self._retry = retry or RetryPolicy()
        self._http = JsonHttp(provider=model, endpoint=endpoint, timeout=timeout)
        self._drafts = Drafts(endpoint.model, {}, hide=self._http.hide)

    def line(self, custom_id: str, request: CompletionRequest) -> str:
        """Return the line of a request file: a custom id and the body of a live call.

        Raises
        ------
        ConfigurationError
            The request has options that belong to an HTTP call.
        """
        refused = []
        for name, value in sorted(request.options.items()):
            is_secret = name not in _OF_A_CLIENT and any(secret_texts({name: value}))
            if value is not None and (name in _OF_A_CALL or is_secret):
                refused.append(name)
        if refused:
            raise ConfigurationError(
                f"Expected no {', '.join(refused)} among the model's options: a request file holds bodies only, and no "
                "text that may be secret, as it stays on disk. Leave it out, or classify without the batch interface."
            )
        body = self._drafts.body(self._drafts.draft(request), request).decode()
        head = json.dumps({"custom_id": custom_id, "method": "POST", "url": _ROUTE})
        return f'{head[:-1]}, "body": {body}}}'

    async def upload(self, path: Path) -> str:
        """Send a request file and return the provider's name for it.

        Raises
        ------
        ProviderError
            The upload failed.
        """
        seconds = self._timeout + os.path.getsize(path) / _SLOWEST_BYTES_PER_SECOND  # noqa: ASYNC240, PTH202
        answer = await self._insist(lambda: self._upload(path, seconds))
        return self._text(answer, "id")

    async def create(
        self, file_id: str, *, metadata: Mapping[str, str], since: float, look_first: bool
    ) -> RemoteBatch:
        """Create a batch, or return the one that an earlier attempt created, as each batch is paid for.

        The endpoint has no idempotency key, and a call without an answer may still have created the batch. So
        before every retry the provider's list is searched for a batch with the same metadata.

        Parameters
        ----------
        file_id : str
            The request file.
        metadata : mapping of str to str
            Metadata that no other batch has.
        since : float
            Earliest possible time of its creation, in Unix seconds.
        look_first : bool
            Whether an earlier process may have created it.

        Raises
        ------
        ProviderError
            The batch was not created, or its creation is unknown.
        """
        may_exist = look_first
        body = {
            "input_file_id": file_id,
            "endpoint": _ROUTE,
            "completion_window": _WINDOW,
            "metadata": dict(metadata),
        }

        async def attempt() -> RemoteBatch:
            nonlocal may_exist
            if may_exist:
                await self._retry.sleep(_SECONDS_TO_APPEAR)
                batch = await self._search(metadata, since)
                if batch is not None:
                    return batch
            may_exist = True
            return self._batch(await self._http.call("/v1/batches", body))

        return await self._insist(attempt)

    async def look(self, batch_id: str) -> RemoteBatch:
        """Return the current state of a batch.

        Raises
        ------
        ProviderError
            The call failed.
        """
        route = f"/v1/batches/{quote(batch_id, safe='')}"

        async def attempt() -> RemoteBatch:
            return self._batch(await self._http.call(route))

        return await self._insist(attempt)

    async def download(self, file_id: str, target: Path) -> None:
        """Download a file of the provider atomically, with the API key redacted.

        Raises
        ------
        ProviderError
            The download failed.
        """
        await self._insist(lambda: self._download(file_id, target))

    def refusal(self, status: int, body: object) -> ProviderError:
        """Return the error that a live call with this status and body would raise."""
        data = dict(body) if isinstance(body, Mapping) else None
        text = body if isinstance(body, str) else json.dumps(body)
        reply = Reply(status=status, headers={}, data=data, content=text.encode())
        return self._http.refused(reply)

    def redacted(self, text: str) -> str:
        """Return a message without credentials."""
        return self._http.redacted(text)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    async def _insist(self, call: Call[_T]) -> _T:
        return (await self._retry.repeat(call))[0]

    async def _search(self, metadata: Mapping[str, str], since: float) -> RemoteBatch | None:
        """Return the batch with this metadata from the provider's list, or None."""
        after: str | None = None
        while True:
            query = {"limit": str(_PAGE)} | ({} if after is None else {"after": after})
            reply = await self._http.exchange(f"/v1/batches?{urlencode(query)}")
            if reply.absent:
                raise ProviderError(
                    "an earlier call may have made this batch, and the server does not list batches.",
                    provider=self.name,
                    hint="Look it up at the provider; if it is not there, submit into a new directory.",
                )
            page = self._http.checked(reply)
            entries = page.get("data")
            batches = []
            if isinstance(entries, list):
                batches = [self._batch(entry) for entry in entries]
            for batch in batches:
                if metadata.items() <= dict(batch.metadata).items():
                    return batch
            last = batches[-1] if batches else None
            if last is None or not page.get("has_more") or last.id == after:
                return None
            if last.created is not None and last.created < since - _CLOCKS_DIFFER_SECONDS:
                return None
            after = last.id

    async def _upload(self, path: Path, seconds: float) -> Record:
        import aiohttp  # noqa: PLC0415 (keeps `import calibrant` light)

        with path.open("rb") as file:
            form = aiohttp.FormData()
            form.add_field("purpose", "batch")
            form.add_field("file", file, filename=path.name, content_type="application/jsonl")
            payload = form()
            address = f"{self._http.endpoint.root}/v1/files"
            headers = {"Content-Type": payload.content_type}
            reply = await self._http.send(address, payload, headers=headers, timeout=seconds)
            return self._http.checked(reply)

    async def _download(self, file_id: str, target: Path) -> None:
        partial = target.with_name(target.name + ".part")

        async def fetch(session: aiohttp.ClientSession) -> Reply | None:
            import aiohttp  # noqa: PLC0415 (keeps `import calibrant` light)

            async with session.get(
                f"{self._http.endpoint.root}/v1/files/{quote(file_id, safe='')}/content",
                headers={"Accept": "*/*"},
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self._timeout, sock_read=self._timeout
                ),
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    return Reply.of(response, await response.read())
                with partial.open("wb") as file:
                    await self._copy(response.content, file.write)
                return None

        refused = await self._http.through(fetch)
        if refused is not None and refused.status == 404:
            raise ProviderError(
                f"the server has no file {file_id}.", provider=self.name, status=refused.status
            )
        if refused is not None:
            raise self.refusal(refused.status, refused.data or refused.text)
        partial.replace(target)

    async def _copy(self, stream: aiohttp.StreamReader, write: Callable[[bytes], object]) -> None:
        """Copy a stream in whole lines, so that a secret is never split between two writes."""
        rest: list[bytes] = []
        async for chunk in stream.iter_chunked(_CHUNK):
            lines, newline, begun = chunk.rpartition(b"\n")
            if newline:
                write(self._hidden(b"".join(rest) + lines + newline))
                rest = []
            rest.append(begun)
        write(self._hidden(b"".join(rest)))

    def _hidden(self, data: bytes) -> bytes:
        if self._key is None or len(self._key) <= 3:  # as `redact` does
            return data
        return data.replace(self._key.encode(), b"[redacted]")

    def _batch(self, record: object) -> RemoteBatch:
        record = reported_mapping(record)
        counts = reported_mapping(record.get("request_counts"))
        created = record.get("created_at")
        return RemoteBatch(
            id=self._text(record, "id"),
            status=self._text(record, "status"),
            output_file=_clean_name(record.get("output_file_id")),
            error_file=_clean_name(record.get("error_file_id")),
            total=bounded_count(counts.get("total")),
            completed=bounded_count(counts.get("completed")),
            failed=bounded_count(counts.get("failed")),
            errors=tuple(
                clean_line(self.redacted(text), limit=_LONGEST_MESSAGE)
                for text in _messages(record.get("errors"))
            ),
            created=float(created) if isinstance(created, int | float) and abs(created) < _LATEST else None,
            metadata=reported_mapping(record.get("metadata")),
        )

    def _text(self, record: Record, name: str) -> str:
        text = _clean_name(record.get(name))
        if text is not None:
            return text
        raise ProviderError(
            f"Expected an object with {name!r}, got one without: the answer is broken.",
            provider=self.name,
            retryable=True,
        )


def _address(model: str, api_base: str | None) -> str:
    if api_base is None and model.startswith(_OPENAI):
        api_base = server_address(model)
    if api_base is None:
        raise ConfigurationError(
            f"Expected a model with OpenAI's batch interface, openai/NAME or any name with api_base, got {model!r}: "
            "name another model, or classify without the batch interface."
        )
    if redact(str(api_base)) != str(api_base):
        raise ConfigurationError(
            f"Expected api_base without credentials, got {redact(str(api_base))}: set OPENAI_API_KEY instead."
        )
    return api_base


def _clean_name(value: object) -> str | None:
    if isinstance(value, str) and value:
        return clean_line(value, limit=_LONGEST_NAME)
    return None


def _messages(errors: object) -> list[str]:
    """Return the errors of the batch itself, one line each."""
    entries = errors
    if isinstance(errors, Mapping):
        entries = errors.get("data")
    messages = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, Mapping):
            messages.append(str(entry))
            continue
        line = "" if entry.get("line") is None else f"line {entry['line']}: "
        parts = [str(entry[name]) for name in ("code", "message") if entry.get(name)]
        messages.append(line + ": ".join(parts))
    return messages
