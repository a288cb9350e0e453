"""Fakes for the tests of code that uses calibrant: no model, no network, exact probabilities."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from calibrant.core import CompletionRequest, ConfigurationError, LabelSet, LogprobSpace

__all__ = ["Answer", "FakeClient", "fake_response"]

Answer = str | tuple[str, float] | Mapping[str, Any] | Exception | Sequence[Any]
"""What a fake model says to one text.

``"Food"`` (certain), ``("Food", 0.8)`` (the rest spread evenly), ``{"Food": 0.8, "Rent": 0.2}``
(a distribution, the most probable label is emitted), an exception (raised), a dict with
``choices`` (returned as it is), or a list of these for successive calls; the last one stays.
"""

Split = str | Callable[[str], Sequence[str | bytes]]
_PLACEHOLDER = "\ue000"
_ILLEGAL = "\u2205".encode()
_IMPOSSIBLE = -9999.0  # what OpenAI reports for a token it rules out


def fake_response(  # noqa: PLR0913 (independent, all with defaults)
    label: str,
    labels: Sequence[str] | None = None,
    probabilities: Mapping[str, float] | Sequence[float] | None = None,
    *,
    field: str = "category",
    tokens: Split = "label",
    top_logprobs: int = 5,
    illegal_mass: float = 0.0,
) -> dict[str, Any]:
    """Return an OpenAI-shaped chat completion that answers `label`.

    The alternatives at each token are those of a model that holds `probabilities` over the labels:
    where the tokens of two labels part, their probabilities are what the tokens report.

    Parameters
    ----------
    label : str
        The emitted label; it need not be in `labels`.
    labels : sequence of str, optional
        The label set; by default the keys of `probabilities`, or `label` alone.
    probabilities : mapping or sequence, optional
        Probability of each label, in [0, 1]; scaled to sum to 1. By default `label` is certain.
    field : str, default "category"
        JSON path of the label: ``category``, ``classification.name``, ``results[].category``.
    tokens : {"label", "characters", "bytes"} or callable, default "label"
        How a label and its closing quote become tokens: one, one per character or per byte; a
        callable returns the pieces of the text it is given (``Food"``).
    top_logprobs : int, default 5
        Alternatives reported per token; 0 leaves log-probabilities out.
    illegal_mass : float, default 0
        Probability, in [0, 1), of a text that is no label at all, as ``raw`` engines report it.

    Raises
    ------
    ConfigurationError
        Probabilities are negative, all zero, or do not match `labels`.
    """
    if not 0.0 <= illegal_mass < 1.0:
        msg = f"illegal_mass must be in [0, 1), got {illegal_mass}."
        raise ConfigurationError(msg)
    weights = _weights(label, labels, probabilities)
    prefix, suffix = _frame(field)
    text = prefix + _inside(label) + suffix
    if top_logprobs <= 0:
        return _completion(text, None)
    emitted = _pieces(label, tokens)
    rivals = [(_pieces(name, tokens), weight) for name, weight in weights.items() if weight > 0]
    content = [_token(prefix.encode(), {prefix.encode(): 1.0}, top_logprobs)]
    for position, piece in enumerate(emitted):
        shares = _shares(emitted[:position], rivals)
        if position == 0 and illegal_mass:
            shares = {data: share * (1.0 - illegal_mass) for data, share in shares.items()}
            shares[_ILLEGAL] = illegal_mass
        content.append(_token(piece, shares, top_logprobs))
    if len(suffix) > 1:
        content.append(_token(suffix[1:].encode(), {suffix[1:].encode(): 1.0}, top_logprobs))
    return _completion(text, content)


class FakeClient:
    """A model that answers as it is told.

    Parameters
    ----------
    labels : sequence of str
        The label set.
    answers : mapping or callable
        The rule. A mapping goes from texts to answers: the user message itself, or else the first
        key it contains. A callable takes the user message, and the system prompt if it has a second
        parameter, and returns an `Answer`.
    default : Answer, optional
        For texts a mapping does not know; without one such a text is an error.
    failures : mapping of int to Exception, optional
        Raised by the calls with these numbers (the first call is 0), whatever the row.
    field, tokens, illegal_mass
        As in `fake_response`.
    latency : float, default 0
        Seconds every call takes.
    space : LogprobSpace or str, default "masked"
        What the client says its log-probabilities are.
    name : str, default "fake"
        The model's name.

    Attributes
    ----------
    requests : list of CompletionRequest
        Every request, in the order of arrival.
    max_in_flight : int
        Most calls that ran at the same time.
    closed : bool
        Whether `close` was called.

    Examples
    --------
    >>> import asyncio
    >>> client = FakeClient(["Food", "Rent"], {"lunch": ("Food", 0.9)}, default="Rent")
    >>> request = CompletionRequest(messages=({"role": "user", "content": "lunch with Ana"},))
    >>> asyncio.run(client.complete(request))["choices"][0]["message"]["content"]
    '{"category": "Food"}'
    """

    def __init__(  # noqa: PLR0913 (independent, all with defaults)
        self,
        labels: Sequence[str],
        answers: Mapping[str, Answer] | Callable[..., Answer],
        *,
        default: Answer | None = None,
        failures: Mapping[int, Exception] | None = None,
        field: str = "category",
        tokens: Split = "label",
        illegal_mass: float = 0.0,
        latency: float = 0.0,
        space: LogprobSpace | str = LogprobSpace.MASKED,
        name: str = "fake",
    ) -> None:
        self.name = name
        self.space = LogprobSpace(space)
        self.labels = LabelSet.of(labels).labels
        self.requests: list[CompletionRequest] = []
        self.max_in_flight = 0
        self.closed = False
        self._rule = _rule(answers, default)
        self._failures = dict(failures or {})
        self._latency = latency
        self._style: dict[str, Any] = {"field": field, "tokens": tokens, "illegal_mass": illegal_mass}
        self._lock = threading.Lock()
        self._in_flight = 0
        self._asked: dict[str, int] = {}

    async def complete(self, request: CompletionRequest) -> object:
        """Answer the last user message as the rule says."""
        with self._call(request) as number:
            if self._latency:
                await asyncio.sleep(self._latency)
            return self._answer(request, number)

    def as_callable(self, *, top_logprobs: int = 5) -> Callable[[list[dict[str, str]]], object]:
        """Return the same model as a function ``messages -> response``, thread-safe."""

        def fake_model(messages: list[dict[str, str]]) -> object:
            request = CompletionRequest(messages=tuple(messages), top_logprobs=top_logprobs)
            with self._call(request) as number:
                if self._latency:
                    time.sleep(self._latency)
                return self._answer(request, number)

        return fake_model

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True

    @contextlib.contextmanager
    def _call(self, request: CompletionRequest) -> Iterator[int]:
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
            self._in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self._in_flight)
        try:
            yield number
        finally:
            with self._lock:
                self._in_flight -= 1

    def _answer(self, request: CompletionRequest, number: int) -> object:
        if number in self._failures:
            raise self._failures[number]
        text = _last(request, "user")
        answer = self._rule(text, _last(request, "system"))
        if isinstance(answer, list):
            with self._lock:
                turn = self._asked.get(text, 0)
                self._asked[text] = turn + 1
            answer = answer[min(turn, len(answer) - 1)]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Mapping) and "choices" in answer:
            return answer
        label, probabilities = _distribution(answer, self.labels)
        return fake_response(
            label, self.labels, probabilities, top_logprobs=request.top_logprobs, **self._style
        )


def _rule(
    answers: Mapping[str, Answer] | Callable[..., Answer], default: Answer | None
) -> Callable[[str, str], Answer]:
    if not isinstance(answers, Mapping):
        takes_prompt = len(inspect.signature(answers).parameters) > 1
        return answers if takes_prompt else lambda text, _prompt: answers(text)
    known = dict(answers)

    def look_up(text: str, _prompt: str) -> Answer:
        key = text if text in known else next((key for key in known if key in text), None)
        if key is not None:
            return known[key]
        if default is None:
            msg = f"FakeClient knows no answer to {text!r}: add one, or a default."
            raise ConfigurationError(msg)
        return default

    return look_up


def _distribution(answer: object, labels: Sequence[str]) -> tuple[str, Mapping[str, float]]:
    if isinstance(answer, str):
        return answer, {answer: 1.0}
    if isinstance(answer, tuple):
        label, probability = answer
        rest = (1.0 - probability) / max(1, len(labels) - (label in labels))
        return label, dict.fromkeys(labels, rest) | {label: probability}
    if isinstance(answer, Mapping) and answer:
        return max(answer, key=lambda name: answer[name]), answer
    msg = (
        f"Expected a label, (label, probability), a distribution, an exception or a response, got {answer!r}."
    )
    raise ConfigurationError(msg)


def _last(request: CompletionRequest, role: str) -> str:
    return next((m["content"] for m in reversed(request.messages) if m.get("role") == role), "")


def _weights(
    label: str, labels: Sequence[str] | None, probabilities: Mapping[str, float] | Sequence[float] | None
) -> dict[str, float]:
    if probabilities is None:
        return {label: 1.0}
    if isinstance(probabilities, Mapping):
        found = dict(probabilities)
    else:
        names = [label] if labels is None else list(labels)
        if len(names) != len(probabilities):
            msg = f"Expected one probability per label, got {len(probabilities)} for {len(names)} labels."
            raise ConfigurationError(msg)
        found = dict(zip(names, probabilities, strict=True))
    if any(not 0.0 <= value < math.inf for value in found.values()) or sum(found.values()) <= 0.0:
        msg = f"Expected probabilities of at least 0, one of them above 0, got {found}."
        raise ConfigurationError(msg)
    return found


def _frame(path: str) -> tuple[str, str]:
    """Return the JSON before and after the text inside the label's quotes."""
    value: object = _PLACEHOLDER
    for name in reversed(path.split(".")):
        value = {name.removesuffix("[]"): [value] if name.endswith("[]") else value}
    before, _, after = json.dumps(value, ensure_ascii=False).partition(_PLACEHOLDER)
    return before, after


def _inside(label: str) -> str:
    return json.dumps(label, ensure_ascii=False)[1:-1]


def _pieces(label: str, tokens: Split) -> tuple[bytes, ...]:
    text = _inside(label) + '"'
    if callable(tokens):
        return tuple(piece if isinstance(piece, bytes) else piece.encode() for piece in tokens(text))
    if tokens == "label":
        return (text.encode(),)
    if tokens == "characters":
        return tuple(character.encode() for character in text)
    if tokens == "bytes":
        return tuple(bytes([byte]) for byte in text.encode())
    msg = f'tokens must be "label", "characters", "bytes" or a function, got {tokens!r}.'
    raise ConfigurationError(msg)


def _shares(
    before: tuple[bytes, ...], rivals: Sequence[tuple[tuple[bytes, ...], float]]
) -> dict[bytes, float]:
    """Return the probability of each next token, given the tokens before it."""
    depth = len(before)
    shares: dict[bytes, float] = {}
    for pieces, weight in rivals:
        if len(pieces) > depth and pieces[:depth] == before:
            shares[pieces[depth]] = shares.get(pieces[depth], 0.0) + weight
    total = math.fsum(shares.values())
    return {data: share / total for data, share in shares.items()}


def _token(data: bytes, shares: Mapping[bytes, float], limit: int) -> dict[str, Any]:
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))[:limit]
    return {
        **_reported(data, shares.get(data, 0.0)),
        "top_logprobs": [_reported(other, share) for other, share in ranked],
    }


def _reported(data: bytes, probability: float) -> dict[str, Any]:
    logprob = math.log(min(1.0, probability)) if probability > 0 else _IMPOSSIBLE
    return {"token": data.decode(errors="replace"), "bytes": list(data), "logprob": logprob}


def _completion(text: str, content: list[dict[str, Any]] | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": message,
        "logprobs": None if content is None else {"content": content, "refusal": None},
    }
    used = len(content or ())
    return {
        "id": "fake",
        "object": "chat.completion",
        "model": "fake",
        "choices": [choice],
        "usage": {"prompt_tokens": 0, "completion_tokens": used, "total_tokens": used},
    }
