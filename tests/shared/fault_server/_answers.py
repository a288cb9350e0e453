"""Chat requests read, and answered in bytes: healthy ones from a cache, broken ones one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.core import DataError, FieldLabels, LabelSet, MultiLabels
from calibrant.testing import Rule, distribution_of, fake_response
from fault_server._faults import Fault

__all__ = ["AnswerBook", "ChatRequest", "error_body", "read_request", "some_answer"]

_CACHED = 4096  # answers; a rule rarely has that many
_IDENTITY = {"id": "chatcmpl-fake", "object": "chat.completion", "created": 1_700_000_000}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """Content of a chat request; `top` is None where log-probabilities are not wanted."""

    model: str
    text: str
    prompt: str
    top: int | None
    prompt_tokens: int
    body: dict[str, Any]


def read_request(raw: bytes) -> ChatRequest:
    """Return what a request asks for.

    Raises
    ------
    DataError
        It is no chat request, or asks for a stream.
    """
    try:
        body = json.loads(raw)
        texts = [(str(message["role"]), _content(message.get("content"))) for message in body["messages"]]
        model = body["model"]
        top = int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
        roles = dict(texts)  # the last message of each role stays
        if not texts:
            raise ValueError  # noqa: TRY301 (the message is the same)
    except (ValueError, TypeError, KeyError, AttributeError):
        msg = "Expected a JSON object with model and messages, each with role and content."
        raise DataError(msg) from None
    if body.get("stream"):
        msg = "This server does not stream: leave stream out."
        raise DataError(msg)
    return ChatRequest(
        model=str(model),
        text=roles.get("user", ""),
        prompt=roles.get("system", ""),
        top=top,
        prompt_tokens=1 + sum(len(text) for _, text in texts) // 4,
        body=body,
    )


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return "" if content is None else str(content)


def error_body(message: str, *, code: str | None = None, kind: str = "invalid_request_error") -> bytes:
    """Return an error object as OpenAI sends it."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    return json.dumps({"error": error}).encode()


def some_answer(labels: Sequence[str], text: str = "", number: int = 0) -> str:
    """Return the answer that a text names; missing parts are drawn by `number`."""
    if isinstance(labels, MultiLabels):
        return labels.answer_with(label for label in labels if label in text)
    if isinstance(labels, FieldLabels):
        return labels.answer_of({one.name: _named(one.labels, text, number) for one in labels.fields})
    return _named(labels, text, number)


def _named(labels: Sequence[str], text: str, number: int) -> str:
    longest_first = sorted(labels, key=len, reverse=True)
    return next((label for label in longest_first if label in text), labels[number % len(labels)])


class AnswerBook:
    """A fake model's answers, as bytes.

    Parameters
    ----------
    labels : sequence of str
        The label set.
    rule : Rule
        What is said to a text.
    style : mapping
        ``field``, ``tokens`` and ``illegal_mass`` of `fake_response`.
    """

    def __init__(self, labels: Sequence[str], rule: Rule, style: Mapping[str, Any]) -> None:
        self._labels = LabelSet.of(labels)
        self._rule = rule
        self._style = dict(style)
        self._cache: dict[object, tuple[bytes, int]] = {}
        self.broken(
            Fault("truncated"), _PROBE, some_answer(self._labels)
        )  # a wrong style fails here, not in a request

    def outcome(self, asked: ChatRequest) -> object:
        """Return the rule's answer to a request, or raise its exception."""
        found = self._rule(asked.text, asked.prompt)
        if not _is_response(found):
            distribution_of(found, self._labels)
        return found

    def healthy(self, asked: ChatRequest, outcome: object) -> bytes:
        """Return the answer that the rule's outcome stands for."""
        if _is_response(outcome):
            return json.dumps(outcome).encode()
        said = tuple(outcome.items()) if isinstance(outcome, Mapping) else outcome
        key = (said, type(outcome), asked.model, asked.top)
        found = self._cache.get(key)
        if found is None:
            found = self._opening(asked, outcome)
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            self._cache[key] = found
        opening, used = found
        total = asked.prompt_tokens + used
        return b'%b, "usage": {"prompt_tokens": %d, "completion_tokens": %d, "total_tokens": %d}}' % (
            opening,
            asked.prompt_tokens,
            used,
            total,
        )

    def broken(self, fault: Fault, asked: ChatRequest, outcome: object) -> bytes:
        """Return the answer with the fault in its body."""
        if fault.kind == "truncated":
            whole = self.healthy(asked, outcome)
            return whole[: len(whole) // 2]
        response = self._response(asked, outcome)
        _break(fault, response)
        return json.dumps(_as_asked(response, asked.top)).encode()

    def _opening(self, asked: ChatRequest, outcome: object) -> tuple[bytes, int]:
        """Return the answer but for its usage and last brace, and its number of tokens."""
        response = _as_asked(self._response(asked, outcome), asked.top)
        used: int = response.pop("usage")["completion_tokens"]
        return json.dumps(response).encode()[:-1], used

    def _response(self, asked: ChatRequest, outcome: object) -> dict[str, Any]:
        """Return a healthy answer with its log-probabilities, wanted or not."""
        if _is_response(outcome):
            found: dict[str, Any] = json.loads(json.dumps(outcome))  # a copy, to be broken
            return found
        label, probabilities = distribution_of(outcome, self._labels)
        response = fake_response(
            label, self._labels, probabilities, top_logprobs=max(1, asked.top or 1), **self._style
        )
        used = response["usage"]["completion_tokens"]
        response |= _IDENTITY | {"model": asked.model}
        response["usage"] = {
            "prompt_tokens": asked.prompt_tokens,
            "completion_tokens": used,
            "total_tokens": asked.prompt_tokens + used,
        }
        return response


_PROBE = ChatRequest(model="fake", text="", prompt="", top=1, prompt_tokens=1, body={})


def _is_response(outcome: object) -> bool:
    return isinstance(outcome, Mapping) and "choices" in outcome


def _as_asked(response: dict[str, Any], top: int | None) -> dict[str, Any]:
    """Return the response with as many log-probabilities as were requested."""
    for choice in response["choices"]:
        if top is None:
            choice["logprobs"] = None
        elif top == 0 and choice.get("logprobs"):
            for token in choice["logprobs"].get("content") or ():
                token["top_logprobs"] = []
    return response


def _break(fault: Fault, response: dict[str, Any]) -> None:
    """Put a fault into the body of a response."""
    choice = response["choices"][0]
    match fault.kind:
        case "empty_choices":
            response["choices"] = []
        case "refusal":
            choice["message"] |= {
                "content": None,
                "refusal": fault.message or "I'm sorry, I can't help with that.",
            }
            choice["logprobs"] = None
        case "length":
            _cut_off(response, choice)
        case "no_logprobs":
            choice["logprobs"] = None
        case "nan_logprobs":
            _change_logprobs(choice, lambda _: math.nan)
        case "positive_logprobs":
            _change_logprobs(choice, lambda value: 0.5 + abs(value))


def _cut_off(response: dict[str, Any], choice: dict[str, Any]) -> None:
    """Cut an answer off inside the label, like a token limit."""
    kept = _tokens(choice)
    del kept[max(1, len(kept) // 2) :]  # with one token per label that ends before it
    text = choice["message"]["content"] or ""
    pieces = b"".join(bytes(token.get("bytes") or token["token"].encode()) for token in kept)
    choice["message"]["content"] = pieces.decode(errors="ignore") if kept else text[: len(text) // 2]
    choice["finish_reason"] = "length"
    usage = response.get("usage")
    if usage and kept:
        usage["completion_tokens"] = len(kept)
        usage["total_tokens"] = usage["prompt_tokens"] + len(kept)


def _tokens(choice: dict[str, Any]) -> list[dict[str, Any]]:
    return (choice.get("logprobs") or {}).get("content") or []


def _change_logprobs(choice: dict[str, Any], change: Callable[[float], float]) -> None:
    for token in _tokens(choice):
        for reported in (token, *token.get("top_logprobs", ())):
            reported["logprob"] = change(reported["logprob"])
