"""A fake model as a `Client`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from calibrant.core._completion import CompletionRequest
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LogprobSpace
from calibrant.testing._response import fake_response
from calibrant.testing._rule import Answer, Rule, distribution_of
from calibrant.testing._tokens import Split


class FakeClient:
    """A fake model that answers by a rule.

    Parameters
    ----------
    labels : sequence of str or LabelSet
        The label set; with `FieldLabels` or `MultiLabels` answers are whole ones.
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
        Declared space of the client's log-probabilities.
    name : str, default "fake"
        The model's name.

    Attributes
    ----------
    requests : list of CompletionRequest
        Every request, in the order of arrival.
    max_in_flight : int
        Most calls that ran at the same time.
    closed : bool
        True once `close` was called.

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
        self.labels = LabelSet.of(labels)
        self.requests: list[CompletionRequest] = []
        self.max_in_flight = 0
        self.closed = False
        self._rule = Rule(answers, default)
        self._failures = dict(failures or {})
        self._latency = latency
        self._style: dict[str, Any] = {"field": field, "tokens": tokens, "illegal_mass": illegal_mass}
        self._lock = threading.Lock()
        self._in_flight = 0

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
        """Set `closed`."""
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
        answer = self._planned_answer(request, number)
        if isinstance(answer, Mapping) and "choices" in answer:
            return answer
        label, probabilities = distribution_of(answer, self.labels)
        return fake_response(
            label, self.labels, probabilities, top_logprobs=request.top_logprobs, **self._style
        )

    def _planned_answer(self, request: CompletionRequest, number: int) -> object:
        """Return the rule's answer to this call; raise the failure planned for it."""
        if number in self._failures:
            raise self._failures[number]
        return self._rule(_last(request, "user"), _last(request, "system"))


def _last(request: CompletionRequest, role: str) -> str:
    return next((m["content"] for m in reversed(request.messages) if m.get("role") == role), "")
