"""Fakes for the tests of code that uses calibrant: no model, exact probabilities."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.core._completion import STAND_INS, Client, CompletionRequest, Continuation, NextTokens, Opener
from calibrant.core._errors import ConfigurationError
from calibrant.core._files import json_text
from calibrant.core._labels import LabelSet, as_label_set
from calibrant.core._prediction import LogprobSpace, Prediction, Usage

__all__ = [
    "Answer",
    "FakeClient",
    "FakeContinuingClient",
    "MemoryJournal",
    "fake_model",
    "fake_response",
]


Split = str | Callable[[str], Sequence[str | bytes]]
"""How a label and its closing quote become tokens; see `fake_response`."""

_Rivals = Sequence[tuple[tuple[bytes, ...], float]]
"""The tokens of each text that a model may write, and its probability or any multiple of it."""

_ILLEGAL = "\u2205".encode()
_MARK = re.compile("\ue000([0-9]+)\ue000")
_IMPOSSIBLE = -9999.0  # what OpenAI reports for a token it rules out
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
        The emitted label; it need not be in `labels`. Of `FieldLabels` and `MultiLabels` it is the JSON text of a
        whole answer, ``{"category": "Bills", "urgency": "low"}`` by the fields' names, ``["Bills", "Food"]`` in the
        order the model writes them.
    labels : sequence of str, optional
        The label set; by default the keys of `probabilities`, or `label` alone.
    probabilities : mapping or sequence, optional
        Probability of each label, or of whole answers, in [0, 1]; scaled to sum to 1. By default `label` is certain.
    field : str, default "category"
        JSON path of the label: ``category``, ``classification.name``, ``results[].category``; the array, or the
        label in its elements, of `MultiLabels`; not used with `FieldLabels`.
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

    Examples
    --------
    >>> from calibrant.testing import fake_response
    >>> choice = fake_response("Food", probabilities={"Food": 0.8, "Rent": 0.2})["choices"][0]
    >>> choice["message"]["content"]
    '{"category": "Food"}'
    >>> token = choice["logprobs"]["content"][1]
    >>> [(item["token"], round(item["logprob"], 2)) for item in token["top_logprobs"]]
    [('Food"', -0.22), ('Rent"', -1.61)]
    """
    weights = _weights_of(label, labels, probabilities)
    emitted = _written(label, labels, field=field, tokens=tokens)
    text = b"".join(emitted.pieces).decode("utf-8", "surrogatepass")
    if top_logprobs <= 0:
        return _completion(text, None)
    rivals = []
    for name, weight in weights.items():
        if weight > 0:
            written = _written(name, labels, field=field, tokens=tokens)
            rivals.append((written.pieces, weight))
    content = []
    for position, piece in enumerate(emitted.pieces):
        before = emitted.pieces[:position]
        shares = _scaled(
            (pieces[position], weight)
            for pieces, weight in rivals
            if len(pieces) > position and pieces[:position] == before
        )
        if position in emitted.structure:
            shares = shares or {piece: 1.0}
        if position in emitted.starts:
            shares = _with_illegal(shares, illegal_mass)
        alternatives = [_reported(data, share) for data, share in _ranked(shares, top_logprobs)]
        content.append({**_reported(piece, shares.get(piece, 0.0)), "top_logprobs": alternatives})
    return _completion(text, content)


def _reported(data: bytes, probability: float) -> dict[str, Any]:
    logprob = _IMPOSSIBLE
    if probability > 0:
        logprob = math.log(min(1.0, probability))
    return {"token": data.decode(errors="replace"), "bytes": list(data), "logprob": logprob}


def _completion(text: str, content: list[dict[str, Any]] | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    logprobs = None
    if content is not None:
        logprobs = {"content": content, "refusal": None}
    used = len(content or ())
    return {
        "id": "fake",
        "object": "chat.completion",
        "model": "fake",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message, "logprobs": logprobs}],
        "usage": {"prompt_tokens": 0, "completion_tokens": used, "total_tokens": used},
    }


def _weights_of(
    label: str, labels: Sequence[str] | None, probabilities: Mapping[str, float] | Sequence[float] | None
) -> dict[str, float]:
    """Return the weight of each label; without probabilities, `label` is certain."""
    if probabilities is None:
        return {label: 1.0}
    if isinstance(probabilities, Mapping):
        found = dict(probabilities)
    else:
        names = [label] if labels is None else list(labels)
        if len(names) != len(probabilities):
            raise ConfigurationError(
                f"Expected one probability per label, got {len(probabilities)} for {len(names)} labels."
            )
        found = dict(zip(names, probabilities, strict=True))
    is_legal = all(0.0 <= value < math.inf for value in found.values())
    if not is_legal or sum(found.values()) <= 0.0:
        raise ConfigurationError(f"Expected probabilities of at least 0, one of them above 0, got {found}.")
    return found


@dataclass(frozen=True, kw_only=True)
class _Written:
    """Answer as a sequence of tokens.

    Attributes
    ----------
    pieces : tuple of bytes
        The tokens: structure up to and including a label's opening quote, the label's own with its closing quote,
        and so on.
    starts : frozenset of int
        Where labels begin.
    structure : frozenset of int
        The tokens that are structure.
    """

    pieces: tuple[bytes, ...]
    starts: frozenset[int]
    structure: frozenset[int]

    def beginnings(self) -> list[bytes]:
        """Return the texts before each label."""
        return [b"".join(self.pieces[:start]) for start in self.starts]


def _written(answer: str, labels: Sequence[str] | None, *, field: str, tokens: Split) -> _Written:
    """Return an answer's tokens: a label, or JSON with several labels in the order of the answer.

    Raises
    ------
    ConfigurationError
        A whole answer is no JSON object or array of texts.
    """
    frame, given = _composed(answer, labels, field)
    pieces: list[bytes] = [frame[0].encode()]
    starts = set()
    structure = {0}
    for label, after in zip(given, frame[1:], strict=True):
        starts.add(len(pieces))
        pieces += _pieces_of(label, tokens)
        if len(after) > 1:
            structure.add(len(pieces))
            pieces.append(after[1:].encode())
    return _Written(pieces=tuple(pieces), starts=frozenset(starts), structure=frozenset(structure))


def _neighbours(answer: str, labels: LabelSet) -> Iterator[str]:
    """Yield the answers that differ from a given answer in a single part.

    Raises
    ------
    ConfigurationError
        The answer is illegal.
    """
    known = labels.canonical(answer)
    if known is None:
        raise ConfigurationError(f"Expected a legal answer with a probability, got {answer!r}.")
    values = labels.values(known)
    for name, value in values.items():
        for other in labels.labels_of(name):
            if other != value:
                yield labels.answer_of({**values, name: other})


def _composed(answer: str, labels: Sequence[str] | None, field: str) -> tuple[list[str], list[str]]:
    """Return the JSON text around an answer's labels, and the labels in the document's order."""
    label_set = as_label_set(labels)
    given: list[str] = []

    def marked(value: Any) -> Any:  # noqa: ANN401
        """Return the answer with a mark in place of every label, which goes to `given`."""
        if isinstance(value, dict):
            return {name: marked(label) for name, label in value.items()}
        if isinstance(value, list):
            return [marked(label) for label in value]
        given.append(str(value))
        return f"\ue000{len(given) - 1}\ue000"

    value = answer
    if label_set.holds_several:
        value = _whole_answer(answer, is_set=label_set.is_set)
    document = label_set.document(marked(value), field)
    text = _MARK.split(json_text(document))
    # In the order of the document, which is that of the fields only as far as their paths allow.
    return text[::2], [given[int(number)] for number in text[1::2]]


def _whole_answer(answer: str, *, is_set: bool) -> Any:  # noqa: ANN401
    """Return the JSON value of an answer that holds several labels."""
    value: Any = None
    with contextlib.suppress(ValueError):
        value = json.loads(answer)
    if not isinstance(value, list if is_set else dict):
        kind = "array" if is_set else "object"
        raise ConfigurationError(f"Expected a whole answer as the text of a JSON {kind}, got {answer!r}.")
    return value


def _pieces_of(label: str, tokens: Split) -> tuple[bytes, ...]:
    """Return the tokens of a label and its closing quote."""
    text = json_text(label)[1:]
    if callable(tokens):
        return tuple(piece if isinstance(piece, bytes) else piece.encode() for piece in tokens(text))
    if tokens == "label":
        return (text.encode(),)
    if tokens == "characters":
        return tuple(character.encode() for character in text)
    if tokens == "bytes":
        return tuple(bytes([byte]) for byte in text.encode())
    raise ConfigurationError(f'tokens must be "label", "characters", "bytes" or a function, got {tokens!r}.')


def _shares_at(text: bytes, rivals: _Rivals) -> dict[bytes, float]:
    """Return the probability of each next token after a text, however the text was cut into tokens."""
    whole: list[tuple[bytes, float]] = []
    rest: list[tuple[bytes, float]] = []
    for tokens, weight in rivals:
        piece = _piece_after(text, tokens)
        if piece is not None:
            data, is_rest = piece
            (rest if is_rest else whole).append((data, weight))
    return _scaled(whole or rest) or {_ILLEGAL: 1.0}


def _scaled(weights: Iterable[tuple[bytes, float]]) -> dict[bytes, float]:
    """Return each token's share of the sum of all weights."""
    shares: dict[bytes, float] = {}
    for data, weight in weights:
        shares[data] = shares.get(data, 0.0) + weight
    total = math.fsum(shares.values())
    return {data: share / total for data, share in shares.items()}


def _piece_after(text: bytes, pieces: Sequence[bytes]) -> tuple[bytes, bool] | None:
    """Return the next token after `text`, True if only its rest; None if `pieces` differ from `text`."""
    for piece in pieces:
        if not text:
            return piece, False
        if not text.startswith(piece):
            if piece.startswith(text):
                return piece[len(text) :], True
            return None
        text = text[len(piece) :]
    return None


def _with_illegal(shares: Mapping[bytes, float], illegal_mass: float) -> dict[bytes, float]:
    """Return the shares with `illegal_mass` moved to a token that leads to no label."""
    if not 0.0 <= illegal_mass < 1.0:
        raise ConfigurationError(f"illegal_mass must be in [0, 1), got {illegal_mass}.")
    left = {data: share * (1.0 - illegal_mass) for data, share in shares.items()}
    return left | {_ILLEGAL: illegal_mass} if illegal_mass else left


def _ranked(shares: Mapping[bytes, float], limit: int) -> list[tuple[bytes, float]]:
    """Return the most probable tokens, most probable first."""
    return sorted(shares.items(), key=lambda item: (-item[1], item[0]))[:limit]


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
    texts = [message["content"] for message in request.messages if message.get("role") == role]
    return texts[-1] if texts else ""


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
        self._answers = answers
        self._default = default
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
            if self._takes_prompt:
                return self._answers(text, prompt)
            return self._answers(text)
        if text in self._answers:
            return self._answers[text]
        for key in self._answers:
            if key in text:
                return self._answers[key]
        if self._default is None:
            raise ConfigurationError(f"The fake model knows no answer to {text!r}: add one, or a default.")
        return self._default


def distribution_of(answer: object, labels: Sequence[str]) -> tuple[str, Mapping[str, float]]:
    """Return the label that the fake model writes, and the weights of labels."""
    if isinstance(answer, str):
        return answer, {answer: 1.0}
    if isinstance(answer, tuple):
        label, probability = answer
        label_set = as_label_set(labels)
        if label_set.holds_several:
            others = tuple(_neighbours(label, label_set))
            return label, {label: probability, **dict.fromkeys(others, (1.0 - probability) / len(others))}
        rest = (1.0 - probability) / max(1, len(labels) - (label in labels))
        return label, dict.fromkeys(labels, rest) | {label: probability}
    if isinstance(answer, Mapping) and answer:
        return max(answer, key=lambda name: answer[name]), answer
    raise ConfigurationError(
        f"Expected a label, (label, probability), a distribution, an exception or a response, got {answer!r}."
    )


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


class FakeContinuingClient(FakeClient):
    """Fake model that also returns the next tokens after any beginning of an answer.

    It satisfies `ContinuingClient`, as embedded engines do. `complete` answers as `FakeClient` does;
    `continuing` follows the same rule. The answer a label leads to is a row of tokens: the JSON before
    the label, the pieces that `tokens` makes of the label and its closing quote, the JSON after it, and
    the empty token that ends an answer. After a beginning that is made of whole tokens of some labels,
    their next tokens are listed, each with the share of the probability that these labels hold; the
    chain of all next tokens therefore gives the probabilities of the labels back exactly. A beginning
    that no label reaches with whole tokens goes on inside the token it ends in, and one that no label
    of the rule begins with is followed by a token that leads to no label. At the label's first
    position, `illegal_mass` is on that token, and the rest is what the labels share.

    Parameters
    ----------
    labels : sequence of str
        The label set.
    answers : mapping or callable
        The rule, as in `FakeClient`; a ready response cannot be continued.
    listed : int, default 1000
        Next tokens listed at most, where a request leaves the number to the client.
    few : int, optional
        Next tokens listed if the caller asks for few; by default all of them.
    unscorable : collection of str, default ()
        Labels, as JSON spells them, that `check_labels` refuses.
    serial : bool, default False
        True if rows declare that their calls run one after another.
    **options
        ``default``, ``failures``, ``field``, ``tokens``, ``illegal_mass``, ``latency``, ``space`` and
        ``name``, as in `FakeClient`; every question about next tokens is one of the numbered calls.

    Attributes
    ----------
    requests : list of CompletionRequest
        One for every call; for a question about next tokens it is the row's.
    beginnings : list of str
        The beginnings of answers that were asked about, in the order of arrival.
    checked : list of tuple of str
        The labels of every `check_labels`.
    open_rows : int
        Rows that were begun and have not ended.

    Examples
    --------
    >>> import asyncio
    >>> client = FakeContinuingClient(["Food", "Rent"], {"lunch": ("Food", 0.75)})
    >>> request = CompletionRequest(messages=({"role": "user", "content": "lunch"},), top_logprobs=1)
    >>> async def ask(text):
    ...     async with client.continuing(request) as row:
    ...         return (await row.next_tokens(text)).top
    >>> [(token, round(math.exp(logprob), 2)) for token, logprob in asyncio.run(ask('{"category": "'))]
    [(b'Food"', 0.75)]
    """

    def __init__(
        self,
        labels: Sequence[str],
        answers: Mapping[str, Answer] | Callable[..., Answer],
        *,
        listed: int = 1000,
        few: int | None = None,
        unscorable: Collection[str] = (),
        serial: bool = False,
        **options: Any,  # noqa: ANN401 (those of FakeClient)
    ) -> None:
        super().__init__(labels, answers, **options)
        for name, number in (("listed", listed), ("few", few)):
            if number is not None and number < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {number}.")
        self.beginnings: list[str] = []
        self.checked: list[tuple[str, ...]] = []
        self.open_rows = 0
        self.serial = serial
        self._listed = listed
        self._few = few
        self._unscorable = frozenset(unscorable)

    async def check_labels(self, labels: Sequence[str]) -> None:
        """Record the labels; raise ConfigurationError for those that the test forbids.

        Raises
        ------
        ConfigurationError
            One of them is among `unscorable`.
        """
        self.checked.append(tuple(labels))
        for label in labels:
            if label in self._unscorable:
                raise ConfigurationError(
                    f"The tokens of {self.name} do not spell the label {label!r}: rename the label."
                )

    @contextlib.asynccontextmanager
    async def continuing(self, request: CompletionRequest) -> AsyncIterator[Continuation]:
        """Yield a row's session, valid inside the context."""
        row = _FakeRow(self, request, self.serial)
        with self._lock:
            self.open_rows += 1
        try:
            yield row
        finally:
            row.ended = True
            with self._lock:
                self.open_rows -= 1

    async def next_tokens(self, request: CompletionRequest, text: str, *, few: bool = False) -> NextTokens:
        """Return the next tokens after `text`, the beginning of an answer to the request."""
        with self._call(request) as number:
            self.beginnings.append(text)
            if self._latency:
                await asyncio.sleep(self._latency)
            shares = self._shares_after(text, self._planned_answer(request, number))
        most = request.top_logprobs or self._listed
        count = most
        if few:
            count = min(most, self._few or most)
        listed = _ranked(shares, count)
        return NextTokens(
            top=tuple((data, math.log(min(1.0, share))) for data, share in listed),
            usage=Usage(completion_tokens=1),
            model="fake",
            short=count < most,
        )

    def _shares_after(self, text: str, answer: object) -> dict[bytes, float]:
        if isinstance(answer, Mapping) and "choices" in answer:
            raise ConfigurationError(
                "Expected probabilities of labels, got a ready response: it cannot be continued."
            )
        label, probabilities = distribution_of(answer, self.labels)
        style = {name: self._style[name] for name in ("field", "tokens")}
        before = text.encode()
        rivals = []
        begins_label = False
        for name, weight in _weights_of(label, None, probabilities).items():
            if weight > 0:
                answer = _written(name, self.labels, **style)
                rivals.append(((*answer.pieces, b""), weight))
                begins_label = begins_label or before in answer.beginnings()
        shares = _shares_at(before, rivals)
        if begins_label:
            return _with_illegal(shares, self._style["illegal_mass"])
        return shares


@dataclass
class _FakeRow:
    """Session of one row at a `FakeContinuingClient`."""

    client: FakeContinuingClient
    request: CompletionRequest
    serial: bool
    ended: bool = False

    async def next_tokens(self, text: str, *, few: bool = False) -> NextTokens:
        """Return the next tokens after `text`."""
        if self.ended:
            raise ConfigurationError(
                f"{self.client.name}: a row was asked after its context had ended: ask inside `async with`."
            )
        return await self.client.next_tokens(self.request, text, few=few)
