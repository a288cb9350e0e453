"""Client for chat completions of OpenAI-compatible servers, without litellm."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final

from calibrant.clients._callable import parse_space
from calibrant.clients._declined import advised, declined, refusal
from calibrant.clients._draft import Draft, Drafts, check_seconds
from calibrant.clients._endpoint import KNOWN_PREFIXES, resolve_endpoint
from calibrant.clients._first_call import FirstCall
from calibrant.clients._http import HTTPStatusError, JsonHttp, Reply
from calibrant.clients._prices import Price, listed_price
from calibrant.clients._rates import rate_headers
from calibrant.core._completion import CompletionRequest
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import ConfigurationError, ProviderError

_HIDDEN: Final = "_hidden_params"
_STATUS: Final = re.compile("[0-9]{3}")


class OpenAIChatClient:
    """Client for any server of ``/v1/chat/completions``.

    The server's JSON is returned unchanged, so a call costs little CPU (litellm takes milliseconds). Cost and rate
    limits are added under the keys litellm uses: ``_hidden_params["response_cost"]`` (US dollars) and
    ``_hidden_params["additional_headers"]``, which `rate_state` reads. OpenAI's own prices are looked up
    for OpenAI's own server only; elsewhere name ``input_cost_per_token`` and ``output_cost_per_token``.

    Parameters
    ----------
    model : str
        The model's name. One of `PREFIXES` is cut off; the server does not see it.
    api_base : str, optional
        Address of the server, with or without ``/v1``; by default, as for litellm, ``OPENAI_BASE_URL`` or
        ``OPENAI_API_BASE`` for ``openai/...`` (else OpenAI's own), ``HOSTED_VLLM_API_BASE``,
        ``LLAMAFILE_API_BASE`` and ``LM_STUDIO_API_BASE`` for the others.
    api_key : str, optional
        Sent as a bearer token; by default the value of ``OPENAI_API_KEY``, or for the other prefixes of
        ``HOSTED_VLLM_API_KEY``, ``LLAMAFILE_API_KEY`` and ``LM_STUDIO_API_KEY``.
    space : LogprobSpace or str, default "masked"
        Log-probability space of the server.
    timeout : float, default 60
        Time limit of one call in seconds, from its beginning to the last byte of its answer.
    max_concurrency : int, optional
        Calls in flight at the same time, per event loop; by default 256.
    **options
        Sent with every call (``seed``, ``max_tokens``, ...); a request's own options override them.
        Temperature is 0 unless it is named; None leaves it out. ``extra_headers``, ``extra_body`` and
        ``organization`` mean what they mean to litellm.

    Attributes
    ----------
    endpoint : str
        The address of the server, without credentials.

    Raises
    ------
    ConfigurationError
        A parameter is out of range, the address is missing, or OpenAI's own server gets no key.
    """

    PREFIXES: ClassVar[tuple[str, ...]] = KNOWN_PREFIXES

    def __init__(
        self,
        model: str,
        *,
        api_base: str | None = None,
        api_key: str | None = None,
        space: LogprobSpace | str = LogprobSpace.MASKED,
        timeout: float = 60.0,
        max_concurrency: int | None = None,
        **options: Any,  # noqa: ANN401 (the server's own parameters)
    ) -> None:
        check_seconds(timeout)
        if max_concurrency is not None and max_concurrency < 1:
            raise ConfigurationError(f"max_concurrency must be at least 1, got {max_concurrency}.")
        self.name = model
        self.space = parse_space(space)
        endpoint = resolve_endpoint(model, api_base=api_base, api_key=api_key)
        self.endpoint = endpoint.identity
        self._model = endpoint.model
        self._addresses = endpoint.chat
        self._first = FirstCall()
        self._http = JsonHttp(provider=model, endpoint=endpoint, timeout=timeout, calls=max_concurrency)
        self._drafts = Drafts(endpoint.model, options, hide=self._http.hide)
        self._drafts.draft(CompletionRequest(messages=()))  # raises for options that cannot be sent
        self._listed: Price | None = None
        self._looked_up = not endpoint.is_openai

    async def complete(self, request: CompletionRequest) -> object:
        """Return the server's answer to a chat request, unread; a content-policy block is a refusal.

        Raises
        ------
        ProviderError
            The call failed. Nothing is retried here.
        """
        return await self._first.then(partial(self._call, request))

    async def _call(self, request: CompletionRequest) -> dict[str, Any]:
        draft = self._drafts.draft(request)
        reply = await self._send(draft, self._drafts.body(draft, request))
        data = reply.data
        if data is None or not reply.fine or not data.get("choices"):
            return self._refused(reply)
        if not self._looked_up:
            # In a thread, because the first look reads a file of 3 MB.
            self._listed = await asyncio.to_thread(listed_price, self._model)
            self._looked_up = True
        hidden = _hidden(data, rate_headers(reply.headers), draft.price or self._listed)
        if hidden is not None:
            data[_HIDDEN] = hidden
        elif _HIDDEN in data:
            del data[_HIDDEN]  # a server must not set the cost
        return data

    def hidden(self, text: str) -> str:
        """Return a text of the server without the client's secrets."""
        return self._http.hidden(text)

    def close(self) -> None:
        """Close the connections; calls under way fail."""
        self._http.close()

    async def _send(self, draft: Draft, body: bytes) -> Reply:
        addresses = self._addresses
        reply = await self._http.send(addresses[0], body, headers=draft.headers, timeout=draft.timeout)
        if len(addresses) == 1 or not reply.absent:
            return reply
        other = await self._http.send(addresses[1], body, headers=draft.headers, timeout=draft.timeout)
        if other.absent:
            return reply
        self._addresses = addresses[1:]
        return other

    def _refused(self, reply: Reply) -> dict[str, Any]:
        """Return a content-policy block as a refusal, and raise every other failure."""
        status = reply.status if not reply.fine else _status_in_body(reply)
        if status is None:
            raise self._empty(reply)
        error = HTTPStatusError(reply, status=status)
        failure = advised(error, self._http.refusal(error))
        if declined(error, failure):
            return refusal(failure, self.name)
        raise failure

    def _empty(self, reply: Reply) -> ProviderError:
        if reply.data is None:
            return self._http.refused(reply)
        content = "no choices"
        if "error" in reply.data:
            content = f"the error {self._http.redacted(reply.words)[:200]!r}"
        return ProviderError(f"Expected an answer, got {content}.", provider=self.name, retryable=True)


def _status_in_body(reply: Reply) -> int | None:
    """Return the error status in the body of an answer with HTTP status 200, as some gateways send."""
    error = (reply.data or {}).get("error")
    code = error.get("code") if isinstance(error, Mapping) else None
    status = int(code) if isinstance(code, str) and _STATUS.fullmatch(code) else code
    is_error = isinstance(status, int) and not isinstance(status, bool) and 400 <= status < 600
    return status if is_error else None


def _hidden(
    data: Mapping[str, Any], headers: dict[str, str] | None, price: Price | None
) -> dict[str, Any] | None:
    if price is None and headers is None:
        return None
    hidden: dict[str, Any] = {}
    if price is not None:
        hidden["response_cost"] = price.cost(data.get("usage"))
    if headers is not None:
        hidden["additional_headers"] = headers
    return hidden
