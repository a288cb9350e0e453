"""The body of a chat request, whose constant part is written once."""

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
from calibrant.core import CompletionRequest, ConfigurationError, Message

__all__ = ["Draft", "Drafts", "check_seconds"]

# What a client is set up with, under calibrant's and litellm's names.
_SETTINGS: Final = frozenset(
    {"api_base", "base_url", "api_key", "chat_template", "next_tokens", "max_concurrency"}
    # Calls are repeated elsewhere, and no parameter is dropped, whatever these say.
    | {"num_retries", "max_retries", "drop_params", "stream", "stream_options"}
)
_NOT_SENT: Final = _SETTINGS | {"timeout", "request_timeout", "organization"} | set(PRICE_OPTIONS)
_BUILT: Final = frozenset({"messages", "response_format"})
_EXTRAS: Final = ("headers", "extra_headers", "extra_body")
# Drafts kept; there are as many as there are different options and schemas, which is one or a few.
_MOST_KEPT: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """What the calls with one set of options have in common.

    Attributes
    ----------
    head : str
        The body up to the messages.
    headers : dict or None
        Headers beyond the session's.
    timeout : float or None
        Seconds a call may take, where it is not the client's own number.
    price : Price or None
        Named among the options.
    """

    head: str
    headers: dict[str, str] | None
    timeout: float | None
    price: Price | None


class Drafts:
    """Writes bodies of chat requests.

    Schema, options and system prompt are the same for all rows of a run, so their JSON is kept. What is
    kept is compared with what is asked for, so that a schema may be changed in place.

    Parameters
    ----------
    model : str
        The model's name, as the server knows it.
    options : mapping
        Sent with every call, unless the request has others.
    hide : function
        Told what is never to be shown.
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
        """Return what the calls with a request's options have in common.

        Raises
        ------
        ConfigurationError
            An option is out of range or no JSON.
        """
        key = (repr(request.options), request.top_logprobs)
        found = self._drafts.get(key)
        if found is None:
            found = self._drafted({**self._options, **request.options}, request.top_logprobs)
            _keep(self._drafts, key, found)
        return found

    def body(self, draft: Draft, request: CompletionRequest) -> bytes:
        """Return the body of a request."""
        schema = "" if request.response_format is None else self._schema(request.response_format)
        messages = request.messages
        told = [self._constant(message) for message in messages[:-1]]
        told += [_dumps(dict(message)) for message in messages[-1:]]
        return f'{draft.head}{schema}, "messages": [{", ".join(told)}]}}'.encode()

    def _drafted(self, options: Mapping[str, Any], top_logprobs: int) -> Draft:
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
    """Refuse what is no number of seconds above 0.

    Raises
    ------
    ConfigurationError
        It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigurationError(f"Expected timeout to be a number of seconds above 0, got {value!r}.")


def _keep(kept: dict[Any, Any], key: object, value: object) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value


def _headers(options: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    organization = options.get("organization") or os.environ.get("OPENAI_ORGANIZATION")
    if organization:
        found["OpenAI-Organization"] = str(organization)
    for name in ("headers", "extra_headers"):
        found |= {str(header): str(value) for header, value in _mapping(options, name).items()}
    return found


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
