"""Fake models: clients that answer by a rule, and names that open them; a journal in memory."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from calibrant.core._completion import STAND_INS, Client, CompletionRequest, Opener
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet, as_label_set
from calibrant.core._prediction import LogprobSpace, Prediction
from calibrant.testing._response import Split, fake_response, neighbours

Answer = str | tuple[str, float] | Mapping[str, Any] | Exception | Sequence[Any]
"""Answer of a fake model to one text.

``"Food"`` (certain), ``("Food", 0.8)`` (the rest spread evenly), ``{"Food": 0.8, "Rent": 0.2}``
(a distribution, the most probable label is emitted), an exception (raised), a dict with
``choices`` (returned as it is), or a list of these for successive calls; the last one stays.
Where answers hold several labels, whole answers, as JSON texts, stand in the place of labels
(see `fake_response`); the rest of a probability goes to those that differ in one part.

Examples
--------
>>> from calibrant.inference import Classifier
>>> from calibrant.testing import FakeClient
>>> fake = FakeClient(["Food", "Rent"], {"lunch": ("Food", 0.9), "May": [{"Food": 0.4, "Rent": 0.6}, "Rent"]})
>>> classifier = Classifier(model=fake, labels=fake.labels, field="category")
>>> [(row.label, round(row.confidence, 2)) for row in classifier.classify_many(["lunch", "May"])]
[('Food', 0.9), ('Rent', 0.6)]
>>> classifier.classify("May").confidence
1.0
"""


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
        """Return the rule's answer to a call; raise the failure planned for the call."""
        if number in self._failures:
            raise self._failures[number]
        return self._rule(_last(request, "user"), _last(request, "system"))


def _last(request: CompletionRequest, role: str) -> str:
    return next((m["content"] for m in reversed(request.messages) if m.get("role") == role), "")


class Rule:
    """Function from a text to the fake model's answer; thread-safe.

    Parameters
    ----------
    answers : mapping or callable
        As in `FakeClient`.
    default : Answer, optional
        For texts a mapping does not know.
    """

    def __init__(
        self, answers: Mapping[str, Answer] | Callable[..., Answer], default: Answer | None = None
    ) -> None:
        self._answers, self._default = answers, default
        self._takes_prompt = callable(answers) and len(inspect.signature(answers).parameters) > 1
        self._lock = threading.Lock()
        self._turns: Counter[str] = Counter()

    def __call__(self, text: str, prompt: str) -> object:
        """Return the answer to a text; raise the answer if it is an exception."""
        answer: object = self._look_up(text, prompt)
        if isinstance(answer, list):
            with self._lock:
                turn = self._turns[text]
                self._turns[text] += 1
            answer = answer[min(turn, len(answer) - 1)]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _look_up(self, text: str, prompt: str) -> Answer | None:
        if not isinstance(self._answers, Mapping):
            return self._answers(text, prompt) if self._takes_prompt else self._answers(text)
        if text in self._answers:
            return self._answers[text]
        for key in self._answers:
            if key in text:
                return self._answers[key]
        if self._default is None:
            msg = f"The fake model knows no answer to {text!r}: add one, or a default."
            raise ConfigurationError(msg)
        return self._default


def distribution_of(answer: object, labels: Sequence[str]) -> tuple[str, Mapping[str, float]]:
    """Return the label that the fake model writes, and the weights of labels."""
    if isinstance(answer, str):
        return answer, {answer: 1.0}
    if isinstance(answer, tuple):
        label, probability = answer
        label_set = as_label_set(labels)
        if label_set.holds_several:
            others = tuple(neighbours(label, label_set))
            return label, {label: probability, **dict.fromkeys(others, (1.0 - probability) / len(others))}
        rest = (1.0 - probability) / max(1, len(labels) - (label in labels))
        return label, dict.fromkeys(labels, rest) | {label: probability}
    if isinstance(answer, Mapping) and answer:
        return max(answer, key=lambda name: answer[name]), answer
    msg = (
        f"Expected a label, (label, probability), a distribution, an exception or a response, got {answer!r}."
    )
    raise ConfigurationError(msg)


@contextlib.contextmanager
def fake_model(name: str, model: Client | Opener) -> Iterator[str]:
    """Register a name that opens a fake model, until the block ends.

    The name works wherever a model is named: in task files, bundles, `Classifier` and on the command line.
    A program that is started in the block knows nothing of it.

    Parameters
    ----------
    name : str
        ``fake/NAME``, which nothing else answers, or the name of a real model, which the fake replaces: a task
        file that names ``openai/gpt-4.1-mini`` can be tested as it stands.
    model : Client or callable
        What the name opens: a client, the same one each time, or a function that is called with the name and
        the keyword arguments of `calibrant.inference.open_client` (``space``, ``concurrency``, ``options``,
        ``scoring``) and returns a client.

    Yields
    ------
    str
        The name.

    Raises
    ------
    ConfigurationError
        The name is empty.

    Examples
    --------
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient, fake_model
    >>> with fake_model("fake/animals", FakeClient(["cat", "dog"], {"meow": ("cat", 0.9)})) as name:
    ...     print(Classifier(model=name, labels=["cat", "dog"], field="category").classify("meow").label)
    cat
    """
    if not name.strip():
        raise ConfigurationError(
            f"Expected the name that is to open the fake, such as fake/model, got {name!r}."
        )
    before = STAND_INS.get(name)
    STAND_INS[name] = (lambda *_, **__: model) if isinstance(model, Client) else model
    try:
        yield name
    finally:
        if before is None:
            STAND_INS.pop(name, None)
        else:
            STAND_INS[name] = before


class MemoryJournal(dict[str, Prediction]):
    """A `calibrant.core.Journal` in memory: a dict from key to prediction.

    Attributes
    ----------
    reads : int
        Calls of `get_many`.

    Examples
    --------
    >>> journal = MemoryJournal()
    >>> journal.put("key", Prediction(label="Food"))
    >>> journal.get_many(["key", "other"])["key"].label
    'Food'
    """

    reads = 0

    def get_many(self, keys: Sequence[str]) -> dict[str, Prediction]:
        """Return the stored predictions of these keys."""
        self.reads += 1
        return {key: self[key] for key in keys if key in self}

    def put(self, key: str, prediction: Prediction) -> None:
        """Store a prediction; an older one is replaced."""
        self[key] = prediction
