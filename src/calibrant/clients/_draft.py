"""Bodies of chat requests, with their constant parts cached as JSON."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from calibrant.clients._prices import PRICE_OPTIONS, Price, price_of_options
from calibrant.clients._redact import secret_texts
from calibrant.core._completion import CompletionRequest, Message
from calibrant.core._errors import ConfigurationError

# Settings of a client, under calibrant's and litellm's names.
_SETTINGS: Final = frozenset(
    {"api_base", "base_url", "api_key", "chat_template", "next_tokens", "max_concurrency"}
    # Also not sent: `with_retries` repeats calls, and no parameter is ever dropped.
    | {"num_retries", "max_retries", "drop_params", "stream", "stream_options"}
)
_NOT_SENT: Final = _SETTINGS | {"timeout", "request_timeout", "organization"} | set(PRICE_OPTIONS)
_BUILT: Final = frozenset({"messages", "response_format"})
_EXTRAS: Final = ("headers", "extra_headers", "extra_body")
# Cached drafts at most. A run has one or a few, one for each set of options and schema.
_MOST_KEPT: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """Constant part of the calls with one set of options.

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
    """Writer of chat requests' bodies.

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

    def __init__(
        self, model: str, options: Mapping[str, Any], *, hide: Callable[[Iterable[str]], None]
    ) -> None:
        self._hide = hide
        self._model = model
        self._options = dict(options)
        self._drafts: dict[tuple[str, int], Draft] = {}
        self._schemas: dict[int, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {}
        self._messages: dict[tuple[str, str], str] = {}

    def draft(self, request: CompletionRequest) -> Draft:
        """Return the constant part of the calls with a request's options.

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
        schema = "" if request.response_format is None else self._schema(request.response_format)
        messages = request.messages
        # Only the last message differs from row to row.
        texts = [self._constant(message) for message in messages[:-1]]
        texts += [_dumps(dict(message)) for message in messages[-1:]]
        return f'{draft.head}{schema}, "messages": [{", ".join(texts)}]}}'.encode()

    def _new_draft(self, options: Mapping[str, Any], top_logprobs: int) -> Draft:
        body: dict[str, Any] = {"temperature": 0}
        body |= {name: value for name, value in options.items() if name not in {*_NOT_SENT, *_EXTRAS}}
        body["model"] = self._model
        if top_logprobs > 0:
            body |= {"logprobs": True, "top_logprobs": top_logprobs}
        body = {name: value for name, value in body.items() if value is not None}
        extra = _mapping(options, "extra_body")
        body |= {name: value for name, value in extra.items() if name not in _BUILT}
        headers = _headers(options)
        self._hide(secret_texts({**options, "headers": headers}))
        timeout = next((options[name] for name in ("timeout", "request_timeout") if options.get(name)), None)
        if timeout is not None:
            check_seconds(timeout)
        return Draft(
            head=_dumps(body)[:-1],
            headers=headers or None,
            timeout=timeout,
            price=price_of_options(options),
        )

    def _schema(self, schema: Mapping[str, Any]) -> str:
        kept = self._schemas.get(id(schema))
        if kept is not None and kept[0] is schema and kept[1] == schema:
            return kept[2]
        text = f', "response_format": {_dumps(dict(schema))}'
        _keep(self._schemas, id(schema), (schema, copy.deepcopy(dict(schema)), text))
        return text

    def _constant(self, message: Message) -> str:
        if len(message) != 2 or not isinstance(message.get("content"), str):
            return _dumps(dict(message))
        key = (message.get("role", ""), message["content"])
        text = self._messages.get(key)
        if text is None:
            text = _dumps(dict(message))
            if "role" in message:
                _keep(self._messages, key, text)
        return text


def check_seconds(value: object) -> None:
    """Check that a timeout is a number of seconds above 0.

    Raises
    ------
    ConfigurationError
        It is no number, or not above 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigurationError(f"Expected timeout to be a number of seconds above 0, got {value!r}.")


def _keep(kept: dict[Any, Any], key: object, value: object) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value


def _headers(options: Mapping[str, Any]) -> dict[str, str]:
    headers: dict[str, str] = {}
    organization = options.get("organization") or os.environ.get("OPENAI_ORGANIZATION")
    if organization:
        headers["OpenAI-Organization"] = str(organization)
    for name in ("headers", "extra_headers"):
        headers |= {str(header): str(value) for header, value in _mapping(options, name).items()}
    return headers


def _mapping(options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = options.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"Expected the model's option {name} to be a mapping, got {type(value).__name__}."
        )
    return value


def _dumps(value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"Expected options, schema and messages to be JSON values: {error}. Leave out what is not."
        ) from None
