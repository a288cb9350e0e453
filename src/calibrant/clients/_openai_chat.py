"""Client for chat completions of OpenAI-compatible servers, without litellm."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from calibrant.clients._calls import FirstCall, check_seconds
from calibrant.clients._endpoint import KNOWN_PREFIXES, Options, resolve_endpoint, secret_texts
from calibrant.clients._failures import HIDDEN, advised, as_status, declined, rate_headers, refusal
from calibrant.clients._http import HTTPStatusError, JsonHttp, Reply
from calibrant.clients._litellm import PRICE_OPTIONS, Price, listed_price, price_of_options
from calibrant.core._completion import CompletionRequest, Message
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._prediction import LogprobSpace, Record
from calibrant.core._reported import reported_mapping, without_none

# Settings of a client, under calibrant's and litellm's names.
_SETTINGS: Final = frozenset(
    {"api_base", "base_url", "api_key", "chat_template", "next_tokens", "max_concurrency"}
    # Also not sent: `RetryPolicy` repeats calls, and no parameter is ever dropped.
    | {"num_retries", "max_retries", "drop_params", "stream", "stream_options"}
)
_NOT_SENT: Final = _SETTINGS | {"timeout", "request_timeout", "organization"} | set(PRICE_OPTIONS)
_BUILT: Final = frozenset({"messages", "response_format"})
_EXTRAS: Final = ("headers", "extra_headers", "extra_body")
# Cached drafts at most. A run has one or a few, one for each set of options and schema.
_MOST_KEPT: Final = 32


class OpenAIChatClient:
    """Client for servers with the route ``/v1/chat/completions``.

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
        self.name = model
        self.space = LogprobSpace(space)
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
        """Return the server's answer as it is; a content-policy block is returned as a refusal.

        Raises
        ------
        ProviderError
            The call failed. Nothing is retried here.
        """
        return await self._first.then(partial(self._call, request))

    async def _call(self, request: CompletionRequest) -> Record:
        draft = self._drafts.draft(request)
        reply = await self._send(draft, self._drafts.body(draft, request))
        data = reply.data
        if data is None or not reply.fine or not data.get("choices"):
            return self._refused(reply)
        if not self._looked_up:
            # In a thread, because the first look reads a file of 3 MB.
            self._listed = await asyncio.to_thread(listed_price, self._model)
            self._looked_up = True
        data.pop(HIDDEN, None)  # a server must not set the cost
        price = draft.price or self._listed
        headers = rate_headers(reply.headers)
        hidden: dict[str, Any] = {}
        if headers is not None:
            hidden = {"additional_headers": headers}
        if price is not None:
            hidden["response_cost"] = price.cost(data.get("usage"))
        return {**data, HIDDEN: hidden} if hidden else data

    def hidden(self, text: str) -> str:
        """Return a text of the server with the client's secrets redacted."""
        return self._http.hidden(text)

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        self._http.close()

    async def _send(self, draft: Draft, body: bytes) -> Reply:
        first, *others = self._addresses
        reply = await self._http.send(first, body, headers=draft.headers, timeout=draft.timeout)
        for address in others if reply.absent else ():
            other = await self._http.send(address, body, headers=draft.headers, timeout=draft.timeout)
            if not other.absent:
                self._addresses = (address,)
                return other
        return reply

    def _refused(self, reply: Reply) -> Record:
        """Return a content-policy block as a refusal, and raise every other failure."""
        status: int | None = reply.status
        if reply.fine:  # some gateways send the status in the body, with 200 around it
            status = as_status(reported_mapping((reply.data or {}).get("error")).get("code"))
        if status is None and reply.data is None:
            raise self._http.refused(reply)
        if status is None:
            is_error = "error" in (reply.data or {})
            content = f"the error {self._http.redacted(reply.words)[:200]!r}" if is_error else "no choices"
            raise ProviderError(f"Expected an answer, got {content}.", provider=self.name, retryable=True)
        error = HTTPStatusError(reply, status=status)
        failure = advised(error, self._http.refusal(error))
        if declined(error, failure):
            return refusal(failure, self.name)
        raise failure


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """Parts of a chat request that are the same for all calls with one set of options.

    Attributes
    ----------
    head : str
        The body up to the messages.
    headers : dict or None
        Headers beyond the session's.
    timeout : float or None
        Time limit of a call in seconds, if it differs from the client's.
    price : Price or None
        Price set by the options.
    """

    head: str
    headers: dict[str, str] | None
    timeout: float | None
    price: Price | None


class Drafts:
    """Builder of the bodies of chat requests.

    Schema, options and system prompt are the same for all rows of a run, so their JSON is cached. A cached
    schema is compared with the request's, so that a schema may be changed in place.

    Parameters
    ----------
    model : str
        The model's name, as the server knows it.
    options : mapping
        Sent with every call, unless the request has others.
    hide : function
        Receives secrets that must never be shown.
    """

    def __init__(self, model: str, options: Options, *, hide: Callable[[Iterable[str]], None]) -> None:
        self._hide = hide
        self._model = model
        self._options = dict(options)
        self._drafts: dict[tuple[str, int], Draft] = {}
        self._schemas: dict[int, tuple[Record, Record, str]] = {}

    def draft(self, request: CompletionRequest) -> Draft:
        """Return the parts that are the same for all requests with the options of this one.

        Raises
        ------
        ConfigurationError
            An option is out of range or no JSON.
        """
        key = (repr(request.options), request.top_logprobs)
        draft = self._drafts.get(key)
        if draft is None:
            draft = self._new_draft({**self._options, **request.options}, request.top_logprobs)
            _keep(self._drafts, key, draft)
        return draft

    def body(self, draft: Draft, request: CompletionRequest) -> bytes:
        """Return the body of a request."""
        schema = ""
        if request.response_format is not None:
            schema = self._schema(request.response_format)
        messages = request.messages
        # Only the last message differs from row to row.
        texts = [_constant(message) for message in messages[:-1]]
        texts += [_dumps(dict(message)) for message in messages[-1:]]
        return f'{draft.head}{schema}, "messages": [{", ".join(texts)}]}}'.encode()

    def _new_draft(self, options: Options, top_logprobs: int) -> Draft:
        body: dict[str, Any] = {"temperature": 0}
        body |= {name: value for name, value in options.items() if name not in {*_NOT_SENT, *_EXTRAS}}
        body["model"] = self._model
        if top_logprobs > 0:
            body |= {"logprobs": True, "top_logprobs": top_logprobs}
        body = without_none(body)
        extra = _mapping(options, "extra_body")
        body |= {name: value for name, value in extra.items() if name not in _BUILT}
        headers = _headers(options)
        self._hide(secret_texts({**options, "headers": headers}))
        timeout = options.get("timeout") or options.get("request_timeout") or None
        if timeout is not None:
            check_seconds(timeout)
        price = price_of_options(options)
        head = _dumps(body).removesuffix("}")
        return Draft(head=head, headers=headers or None, timeout=timeout, price=price)

    def _schema(self, schema: Record) -> str:
        kept = self._schemas.get(id(schema))
        if kept is not None and kept[0] is schema and kept[1] == schema:
            return kept[2]
        text = f', "response_format": {_dumps(dict(schema))}'
        _keep(self._schemas, id(schema), (schema, copy.deepcopy(dict(schema)), text))
        return text


def _constant(message: Message) -> str:
    content = message.get("content")
    if message.keys() == {"role", "content"} and isinstance(content, str):
        return _text_message(message["role"], content)
    return _dumps(dict(message))


@functools.lru_cache(maxsize=_MOST_KEPT)
def _text_message(role: str, content: str) -> str:
    """Return a message as JSON, from a cache, as some messages are the same in all rows."""
    return _dumps({"role": role, "content": content})


def _keep(kept: dict[Any, Any], key: object, value: object) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value


def _headers(options: Options) -> dict[str, str]:
    headers: dict[str, str] = {}
    organization = options.get("organization") or os.environ.get("OPENAI_ORGANIZATION")
    if organization:
        headers["OpenAI-Organization"] = str(organization)
    for name in ("headers", "extra_headers"):
        headers |= {str(header): str(value) for header, value in _mapping(options, name).items()}
    return headers


def _mapping(options: Options, name: str) -> Record:
    value = options.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"Expected the model's option {name} to be a mapping, got {type(value).__name__}."
        )
    return value


def _dumps(value: Record) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"Expected options, schema and messages to be JSON values: {error}. Leave out what is not."
        ) from None
