"""Interface of the clients: completions, next-token probabilities, and typed questions of decision models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from calibrant.core._prediction import (
    FloatArray,
    HalfArray,
    IntegerArray,
    LogprobSpace,
    SingleArray,
    Token,
    Usage,
)

Message = Mapping[str, str]
STAND_INS: MutableMapping[str, Opener] = {}
"""Models that stand in for others in this process, by name: `calibrant.testing.fake_model` registers them."""
FEATURES: Final = 1024
"""Features that the embedded engine reports, about."""
# Characters that may stand behind a label's closing quote in the same token.
_STRUCTURE: Final = b" \t\r\n,}]"
_LEAST_FEATURE: Final = np.float32(100.0)
QuestionKind: TypeAlias = Literal["choice", "score", "yes_no"]


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """Request for one answer of a model.

    Attributes
    ----------
    messages : tuple of mappings
        Chat messages with ``role`` and ``content``.
    response_format : mapping or None
        OpenAI-style ``{"type": "json_schema", ...}``.
    top_logprobs : int
        Alternatives wanted per token; 0 asks for none.
    options : mapping
        Anything else to hand to the provider (``temperature``, ``max_tokens``, ...).
    without_text : tuple of mappings, optional
        The messages without what differs from row to row.

    Examples
    --------
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(["Food", "Rent"], {"lunch": "Food"})
    >>> prediction = Classifier(model=fake, labels=fake.labels, field="category").classify("lunch")
    >>> request = fake.requests[0]
    >>> request.messages[-1], request.top_logprobs, request.response_format["type"]
    ({'role': 'user', 'content': 'lunch'}, 5, 'json_schema')
    """

    messages: tuple[Message, ...]
    response_format: Mapping[str, Any] | None = None
    top_logprobs: int = 5
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold a key
    without_text: tuple[Message, ...] | None = None


@runtime_checkable
class Client(Protocol):
    """Client of one chat model.

    Attributes
    ----------
    name : str
        The model's name, as the user gave it.
    space : LogprobSpace
        Log-probability space of the model; ``mixed`` where it answers with a `Completion` that
        says so itself.

    Examples
    --------
    >>> import asyncio
    >>> from calibrant.core import Client, Completion, CompletionRequest
    >>> class Parrot:
    ...     name, space = "parrot", "none"
    ...     async def complete(self, request):
    ...         return Completion(text=request.messages[-1]["content"])
    ...     def close(self):
    ...         pass
    >>> isinstance(Parrot(), Client)
    True
    >>> asyncio.run(Parrot().complete(CompletionRequest(messages=({"role": "user", "content": "hi"},)))).text
    'hi'
    """

    name: str
    space: LogprobSpace

    async def complete(self, request: CompletionRequest) -> object:
        """Return the provider's response, unparsed.

        Raises
        ------
        ProviderError
            The call failed; foreign exceptions never pass this seam.
        """

    def close(self) -> None:
        """Close connections and free memory. Do not use the client afterwards."""


@dataclass(frozen=True, kw_only=True)
class ClientTraits:
    """Traits of a client beyond its protocol: attributes that it may have, and what counts where it has none.

    Attributes
    ----------
    endpoint : str or None
        Address of its server, without credentials; of a model in this process, what tells its weights from others.
    weights : str or None
        The name that it reports if it was given a file of weights, with the file's digest; None of all others.
    in_process : bool
        True if its calls run in this process, at no cost.
    n_parallel : int or None
        Rows that a model in this process computes at the same time.
    tokenisation : str or None
        How chats become tokens, where that can change.
    default_tolerance : float or None
        Tolerance of exact scoring by default, as a total variation.
    settings : mapping
        Settings that can change its answers, besides model and request.
    hidden : callable or None
        Returns a text without the client's secrets.
    """

    endpoint: str | None
    weights: str | None
    in_process: bool
    n_parallel: int | None
    tokenisation: str | None
    default_tolerance: float | None
    settings: Mapping[str, Any]
    hidden: Callable[[str], str] | None

    @classmethod
    def of(cls, client: Client) -> ClientTraits:
        """Return the traits of a client; the only place that looks for its optional attributes."""
        settings = getattr(client, "settings", None)
        return cls(
            endpoint=getattr(client, "endpoint", None),
            weights=getattr(client, "weights", None),
            in_process=getattr(client, "in_process", False) is True,
            n_parallel=getattr(client, "n_parallel", None),
            tokenisation=getattr(client, "tokenisation", None),
            default_tolerance=getattr(client, "default_tolerance", None),
            settings=settings if isinstance(settings, Mapping) else {},
            hidden=getattr(client, "hidden", None),
        )


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Answer of a model, in one form for all providers.

    Attributes
    ----------
    text : str
        Text of the answer.
    tokens : tuple of Token or None
        The emitted tokens with their log-probabilities; None where none were reported.
    evidence_problem : str or None
        Why log-probabilities that were reported are no evidence (``tokens`` is then None); empty where they are, or
        there are none; None before `calibrant.logprobs.read_completion` has checked them.
    finish_reason : str or None
        ``stop``, ``length``, ... as OpenAI names them, lower case.
    refusal : str or None
        The model's refusal, where the provider reports one.
    model : str or None
        The model that really answered.
    usage : Usage
        Tokens and cost.
    space : LogprobSpace or None
        Log-probability space, where the client's space is ``mixed``; else None.
    calls : int, default 1
        Calls that the answer took: of several models where they are asked one after the other.

    Examples
    --------
    >>> import math
    >>> from calibrant.core import Completion, Token
    >>> from calibrant.logprobs import extract_distribution
    >>> choice = Token(b'Food"', math.log(0.8), top=((b'Food"', math.log(0.8)), (b'Rent"', math.log(0.2))))
    >>> tokens = (Token(b'{"label": "', 0.0), choice, Token(b"}", 0.0))
    >>> completion = Completion(text='{"label": "Food"}', tokens=tokens, finish_reason="stop")
    >>> extract_distribution(completion, ["Food", "Rent"], "label").probabilities.round(2).tolist()
    [0.8, 0.2]
    """

    text: str
    tokens: tuple[Token, ...] | None = None
    finish_reason: str | None = None
    refusal: str | None = None
    model: str | None = None
    usage: Usage = Usage()
    space: LogprobSpace | None = None
    evidence_problem: str | None = field(default=None, compare=False)
    calls: int = 1


@dataclass(frozen=True, kw_only=True)
class NextTokens:
    """Most probable next tokens after a text, with their log-probabilities.

    Attributes
    ----------
    top : tuple of (bytes, float)
        The most probable tokens with the natural logarithm of their probability; every token once.
    usage : Usage
        Tokens and cost of the call.
    model : str or None
        The model that really answered.
    short : bool
        True if the client listed fewer tokens than it could.
    ids : tuple of int
        Numbers of the tokens of `top`; empty where the client does not know them.

    Examples
    --------
    >>> NextTokens(top=((b"yes", -0.1), (b"no", -2.3))).top[0]
    (b'yes', -0.1)
    """

    top: tuple[tuple[bytes, float], ...]
    usage: Usage = Usage()
    model: str | None = None
    short: bool = False
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TokenListing:
    """Log-probabilities of next tokens after a text, by the numbers of the tokens.

    Attributes
    ----------
    logprobs : mapping of int to float
        Natural logarithm of the probability of each listed token.
    most_named : int
        Tokens that a request may name to be told their log-probabilities; 0 where the server knows no such request.
    usage : Usage
        Tokens and cost of the call.
    """

    logprobs: Mapping[int, float] = field(default_factory=dict)
    most_named: int = 0
    usage: Usage = Usage()


@dataclass(frozen=True, kw_only=True)
class LabelLogprobs:
    """Log-probabilities of several labels as continuations of an answer.

    Attributes
    ----------
    logprobs : tuple of float, length L
        Natural logarithms of the probabilities of the labels and their closing quotes, finite, at most 0.
    usage : Usage
        Tokens and cost of the call.
    model : str or None
        The model that really answered.
    named : mapping of int to float
        Natural logarithms of the probabilities of the named tokens, as the next ones after the answer prefix.
    """

    logprobs: tuple[float, ...]
    usage: Usage
    model: str | None
    named: Mapping[int, float]


class Continuation(Protocol):
    """Session for one row, which returns next-token probabilities after any beginning of an answer."""

    @property
    def serial(self) -> bool:
        """True if the calls for a row run one after another, on a server slot that caches the last text."""

    async def next_tokens(self, text: str, *, few: bool = False) -> NextTokens:
        """Return the most probable tokens after the answer prefix `text`.

        Parameters
        ----------
        text : str
            The beginning of the answer.
        few : bool, default False
            Whether the most probable tokens will probably do: a client to which long listings cost
            time may list fewer, and say so (`NextTokens.short`).

        Raises
        ------
        ProviderError
            The call failed.
        """


@runtime_checkable
class LabelContinuation(Protocol):
    """Session for one row, on a server that returns the log-probability of a whole label."""

    async def label_logprobs(
        self, text: str, values: Sequence[str], *, tokens: Sequence[int] = ()
    ) -> LabelLogprobs:
        """Return the log-probability of each label after the answer prefix `text`.

        Each label is scored as the model's tokeniser writes it. Where a token holds the end of `text` and the
        beginning of a label, the ratios of the probabilities are exact, and they are too large by one factor at
        most.

        Parameters
        ----------
        text : str
            The beginning of the answer; ends with the quote before the label.
        values : sequence of str, length L
            The labels as JSON spells them, without quotes.
        tokens : sequence of int, optional
            Numbers of tokens whose own log-probabilities after `text` are wanted as well.

        Raises
        ------
        ProviderError
            The call failed.
        """


@runtime_checkable
class NamingContinuation(Protocol):
    """Session for one row on a server whose tokens may be named by their numbers."""

    async def candidate_tokens(self, text: str) -> TokenListing:
        """Return next tokens after the answer prefix `text`, among which to choose those that are named later.

        Raises
        ------
        ProviderError
            The call failed.
        """


@runtime_checkable
class ContinuingClient(Client, Protocol):
    """Client that returns log-probabilities of next tokens, or of labels, after any answer prefix."""

    async def check_labels(self, labels: Sequence[str]) -> None:
        """Raise ConfigurationError if a label, spelled as in an answer, cannot be scored.

        Raises
        ------
        ConfigurationError
            A label holds a special token of the model, has no tokens, or is longer than the context.
        """

    def continuing(
        self, request: CompletionRequest
    ) -> AbstractAsyncContextManager[Continuation | LabelContinuation]:
        """Open a session for one row; all calls inside the context continue the same prompt.

        Parameters
        ----------
        request : CompletionRequest
            Its messages are the row's. ``top_logprobs`` says how many next tokens are wanted; 0 takes
            the client's own number.
        """


Opener: TypeAlias = Callable[..., Client]
"""A function ``(name, *, space, concurrency, options, scoring) -> Client``."""


class Vocabulary:
    """The tokens of a model.

    Parameters
    ----------
    pieces : sequence of bytes, length V
        Bytes of each token; empty for control tokens.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = tuple(pieces)

    def __len__(self) -> int:
        return len(self.pieces)

    def beginning_with(self, data: bytes) -> tuple[int, ...]:
        """Return the tokens that begin with `data`."""
        return tuple(token for token, piece in enumerate(self.pieces) if piece.startswith(data))

    def closing(self, last: int) -> IntegerArray:
        """Return all tokens with the text of `last`, optionally followed by JSON structure, shape (n,)."""
        piece = self.pieces[last]
        spellings = self.beginning_with(piece)
        tokens = [token for token in spellings if not self.pieces[token][len(piece) :].strip(_STRUCTURE)]
        return np.array(tokens, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class TokenLogprobs:
    """Log-probabilities of every token at one position of a text.

    Attributes
    ----------
    vocabulary : Vocabulary
        The tokens.
    logits : ndarray of float32, shape (V,)
        Their log-probabilities up to a constant.
    """

    vocabulary: Vocabulary
    logits: SingleArray

    @cached_property
    def log_total(self) -> float:
        """Log-partition: natural logarithm of the sum of the logits' exponentials."""
        most = float(self.logits.max())
        relative = np.exp(self.logits - np.float32(most))
        return most + math.log(float(relative.sum(dtype=np.float64)))

    def at(self, tokens: IntegerArray) -> FloatArray:
        """Return the natural log-probabilities of `tokens`, at most 0, shape (n,)."""
        logits = self.logits[tokens].astype(np.float64)
        found: FloatArray = np.minimum(logits - self.log_total, 0.0)
        return found

    def features(self) -> HalfArray:
        """Return centred logits of about 1,024 tokens, as features of the text for a regression.

        They are linear in the model's last hidden state; tokens spread evenly over the vocabulary tell as much as it
        for a regression, and cost nothing.
        """
        some = self.logits[:: max(1, len(self.logits) // FEATURES)][:FEATURES]
        return _centred(some, most=self.logits.max())

    def most_probable(self, count: int) -> tuple[tuple[bytes, float], ...]:
        """Return bytes and log-probabilities of the `count` most probable tokens, the best first."""
        count = min(count, len(self.logits))
        some = np.argpartition(-self.logits, count - 1)[:count]
        ordered = some[np.lexsort((some, -self.logits[some]))]
        pieces = self.vocabulary.pieces
        return tuple(
            (pieces[token], logprob)
            for token, logprob in zip(ordered.tolist(), self.at(ordered).tolist(), strict=True)
        )


def named_features(logprobs: Mapping[int, float], tokens: Sequence[int]) -> HalfArray:
    """Return centred log-probabilities of named tokens, as features of the text for a regression, shape (n,).

    A token that is not listed is taken to be as probable as the least probable one that is.

    Parameters
    ----------
    logprobs : mapping of int to float
        Natural log-probabilities of the listed tokens, by their numbers; at least one.
    tokens : sequence of int, length n
        Numbers of the named tokens.
    """
    least = min(logprobs.values())
    some = np.array([logprobs.get(token, least) for token in tokens], dtype=np.float32)
    return _centred(some, most=np.float32(max(logprobs.values())))


def _centred(logits: SingleArray, *, most: np.float32) -> HalfArray:
    # What is ruled out may be any small number, or none; so may all of them.
    top = most
    if not np.isfinite(most):
        top = np.float32(0.0)
    some = np.fmin(np.fmax(logits, top - _LEAST_FEATURE), top)
    centred: HalfArray = (some - some.mean()).astype(np.float16)
    return centred


@runtime_checkable
class TokenContinuation(Continuation, Protocol):
    """Session for one row that returns the log-probabilities of all possible next tokens."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens."""

    @property
    def usage(self) -> Usage:
        """Usage of the row so far: the prompt counts once, and each scored text as one token."""

    @property
    def model(self) -> str:
        """Name of the model."""

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the tokens of an answer prefix, as tokenised after the prompt."""

    async def next_logprobs(self, texts: Sequence[Sequence[int]]) -> list[TokenLogprobs]:
        """Return the next-token log-probabilities after each answer prefix of `texts`, given as tokens.

        Raises
        ------
        ProviderError
            The engine refused.
        """


@dataclass(frozen=True, kw_only=True)
class DecisionQuestion:
    """Question with a fixed set of options.

    Attributes
    ----------
    kind : {"choice", "score", "yes_no"}
        One of several options; one of several levels, lowest first; or whether a statement holds.
    options : tuple of str, length n
        The options in the order in which they are sent; of ``yes_no`` the words for no and yes.
    instructions : str
        What is asked.
    descriptions : tuple of str or None
        Meaning of each option, None where nothing is said; empty without any.

    Examples
    --------
    >>> DecisionQuestion(kind="choice", options=("cat", "dog"), instructions="Which animal?").options
    ('cat', 'dog')
    """

    kind: QuestionKind
    options: tuple[str, ...]
    instructions: str
    descriptions: tuple[str | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DecisionAnswer:
    """Answer to one question, as it was reported.

    Attributes
    ----------
    probabilities : tuple of float, length n
        Probability of each option, in the order of the question.
    chosen : int or None
        Index of the option that the model names; None where it names none, or another one.

    Examples
    --------
    >>> DecisionAnswer(probabilities=(0.9, 0.1), chosen=0).chosen
    0
    """

    probabilities: tuple[float, ...]
    chosen: int | None = None


@dataclass(frozen=True, kw_only=True)
class DecisionResponse:
    """Response of a decision model: answers to the questions of one call.

    Attributes
    ----------
    answers : tuple of DecisionAnswer or None
        One for each question, in order; None for a question that the model refused.
    usage : Usage
        Tokens and cost of the call.
    model : str or None
        The model that really answered.
    calls : int, default 1
        Calls of a model that it took; 0 from what answers without one.

    Examples
    --------
    >>> DecisionResponse(answers=(DecisionAnswer(probabilities=(0.9, 0.1)), None)).usage.prompt_tokens
    0
    """

    answers: tuple[DecisionAnswer | None, ...]
    usage: Usage = Usage()
    model: str | None = None
    calls: int = 1


@runtime_checkable
class DecisionClient(Client, Protocol):
    """Client of a model that answers typed questions with probabilities and writes no text.

    Examples
    --------
    >>> from calibrant import Classifier
    >>> from calibrant.core import DecisionAnswer, DecisionResponse, ProviderError
    >>> class CatLover:
    ...     name, space, endpoint = "cat-lover", "decision", None
    ...
    ...     async def complete(self, request):
    ...         raise ProviderError("writes no text: ask it typed questions.", provider=self.name)
    ...
    ...     async def decide(self, text, questions):
    ...         is_cat = 0.9 if "purrs" in text else 0.2
    ...         answer = DecisionAnswer(probabilities=(is_cat, 1 - is_cat))
    ...         return DecisionResponse(answers=(answer,) * len(questions))
    ...
    ...     def close(self):
    ...         pass
    >>> Classifier(model=CatLover(), labels=["cat", "dog"]).classify("It purrs.").label
    'cat'
    """

    async def decide(self, text: str, questions: Sequence[DecisionQuestion]) -> DecisionResponse:
        """Return the answers to questions about a text.

        Raises
        ------
        ProviderError
            The call failed, or an answer does not fit its question.
        """
