"""Exact scoring: the probability of every label, without decoding an answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from calibrant.clients._constraint import Constraint, constraint_for
from calibrant.core._completion import (
    CompletionRequest,
    Continuation,
    ContinuingClient,
    LabelContinuation,
    LabelLogprobs,
    NextTokens,
)
from calibrant.core._errors import ContextLengthError, LogprobsUnavailableError, ProviderError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LabelDistribution, Outcome, Prediction, Usage
from calibrant.core._tokens import TokenContinuation, TokenLogprobs
from calibrant.inference._methods import DEFAULT_TOLERANCE, Method, ModelCalls, Tolerance
from calibrant.inference._reader import AnswerReader
from calibrant.logprobs._distribution import whole_label_distribution
from calibrant.logprobs._tokens import TokenTrie, TokenWalk
from calibrant.logprobs._trie import LabelTrie
from calibrant.logprobs._walk import LabelWalk

_T = TypeVar("_T")

_EXACT: Final = 0.01
_FEW_LABELS: Final = 20
# To ask about all beginnings of more labels takes longer than what it saves; nor would their names fit into a prompt.
_MOST_EXPECTED: Final = 512
# A batch of its own costs as much as two tokens: more than a few that a row may not need do not pay.
_MOST_AT_ONCE: Final = 16
_MOST_TOGETHER: Final = 64  # each answer holds a number for every token of the vocabulary
_PROMPTS: Final = 16  # whose expectations are kept
_SURELY_NEEDED: Final = 0.2  # a tolerance at which hardly any row leaves these out


@dataclass(kw_only=True)
class RowCalls:
    """Record of the model calls of one row: their number, their usage and the text features.

    Attributes
    ----------
    calls : ModelCalls
        Calls with gate, deadline and retries.
    provider : str
        The model, for messages.
    made : int
        Calls made.
    model, usage, features
        As in `Prediction`.
    """

    calls: ModelCalls
    provider: str
    made: int = 0
    model: str | None = None
    usage: Usage = Usage()
    features: NDArray[np.float16] | None = None

    def add(self, answer: NextTokens | LabelLogprobs) -> None:
        """Add the usage of a call, and store the name of the model that answered."""
        self.usage += answer.usage
        self.model = answer.model or self.model

    async def make(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Make a call and count it.

        Raises
        ------
        ProviderError
            It failed; ``attempts`` counts the row's calls.
        """
        try:
            found, attempts = await self.calls.make(call, provider=self.provider)
        except ProviderError as error:
            self.made += error.attempts
            error.attempts = self.made
            raise
        self.made += attempts
        return found

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Convert a LogprobsUnavailableError inside the block to a ProviderError."""
        try:
            yield
        except LogprobsUnavailableError as error:
            failure = ProviderError(f"unusable log-probabilities: {error}", provider=self.provider)
            failure.attempts = self.made
            raise failure from error

    def predicted(self, **content: Any) -> Prediction:  # noqa: ANN401
        """Return a prediction with the row's usage, model and attempts."""
        return Prediction(**content, usage=self.usage, model=self.model, attempts=self.made)

    def unlikely(self, where: str = "") -> Prediction:
        """Return a prediction without a label: no label is among the listed next tokens of the model."""
        return self.predicted(
            label=None,
            outcome=Outcome.UNPARSED,
            reason=(
                f"{where}no label is among what the model would write next, as far as its tokens are listed: name "
                "the labels in the prompt, or use scoring='decode'"
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Expected label probabilities of a prompt, before a row is scored.

    Attributes
    ----------
    trie : TokenTrie or None
        Of the labels that were asked about; None where none were.
    shares : ndarray of shape (nodes, L), or None
        See `TokenWalk`.
    at_once : tuple of int
        Nodes to ask about together with a row's prompt.
    """

    trie: TokenTrie | None = None
    shares: NDArray[np.float64] | None = None
    at_once: tuple[int, ...] = ()


class LabelScorer:
    """Scorer of all labels at one position of an answer.

    Parameters
    ----------
    labels : LabelSet
        The legal labels.
    client : ContinuingClient
        Client of the calls.
    tolerance : float or "exact"
        See `LabelWalk`; ``"exact"`` is 0.01.
    calls : ModelCalls
        Calls with gate, deadline and retries.
    """

    def __init__(
        self, labels: LabelSet, *, client: ContinuingClient, tolerance: Tolerance, calls: ModelCalls
    ) -> None:
        self.labels = labels
        self._client = client
        self._calls = calls
        self._is_exact = tolerance == "exact"
        self._tolerance = _EXACT if tolerance == "exact" else tolerance
        self._spelled = tuple(json.dumps(label, ensure_ascii=False)[1:-1] for label in labels.labels)
        self._label_trie = LabelTrie(labels.labels)
        self._token_trie = lru_cache(maxsize=4)(TokenTrie)
        self._expected: OrderedDict[str, Expected] = OrderedDict()
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def prepare(self, request: CompletionRequest, prefix: str) -> Expected:
        """Return the label probabilities of a prompt without a text; empty unless the model runs in process.

        Raises
        ------
        ProviderError
            A call failed.
        """
        messages = request.without_text
        # Elsewhere a call may cost money.
        if messages is None or not getattr(self._client, "in_process", False):
            return Expected()
        key = json.dumps(messages)
        # Every row goes through the lock, which keeps their order: none is to overtake those that wait.
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            if key not in self._expected:
                calls = RowCalls(calls=self._calls, provider=self._client.name)
                without_text = CompletionRequest(messages=messages, top_logprobs=0)
                self._expected[key] = await calls.make(partial(self._expect, without_text, prefix, calls))
                if len(self._expected) > _PROMPTS:
                    self._expected.popitem(last=False)
            self._expected.move_to_end(key)
            return self._expected[key]

    async def _expect(self, request: CompletionRequest, prefix: str, calls: RowCalls) -> Expected:
        """Return the label probabilities after the messages of `request`; empty if they cannot be computed."""
        async with self._client.continuing(request) as row:
            if not isinstance(row, TokenContinuation):
                return Expected()
            root, trie = self._tokens_of(row, prefix)
            if len(trie.nodes) > _MOST_EXPECTED:
                return Expected()
            walk = TokenWalk(trie, tolerance=0.0, at_once=range(1, len(trie.nodes)))
            try:
                await _follow(walk, row, root, trie, calls)
            except ContextLengthError:
                return Expected()
        needed = walk.needed(max(self._tolerance, _SURELY_NEEDED))
        return Expected(
            trie=trie, shares=walk.shares(), at_once=needed if len(needed) <= _MOST_AT_ONCE else ()
        )

    async def score(
        self,
        row: Continuation | LabelContinuation,
        prefix: str,
        calls: RowCalls,
        *,
        expected: Expected,
    ) -> LabelDistribution:
        """Return the label distribution of a row after `prefix`, which ends with a quote.

        Raises
        ------
        ProviderError
            A call failed; ``attempts`` counts the row's calls.
        """
        if isinstance(row, LabelContinuation):
            return await self._score_labels(row, prefix, calls)
        if isinstance(row, TokenContinuation):
            return await calls.make(partial(self._score_tokens, row, prefix, calls, expected))
        return await self._score_texts(row, prefix, calls)

    async def _score_labels(self, row: LabelContinuation, prefix: str, calls: RowCalls) -> LabelDistribution:
        """Return the label distribution from one call that scores all whole labels."""
        found = await calls.make(partial(row.label_logprobs, prefix, self._spelled))
        calls.add(found)
        return whole_label_distribution(self.labels, found.logprobs)

    async def _score_tokens(
        self, row: TokenContinuation, prefix: str, calls: RowCalls, expected: Expected
    ) -> LabelDistribution:
        """Return the label distribution from scores of tokens; set usage and text features of `calls`."""
        root, trie = self._tokens_of(row, prefix)
        # Behind another prefix the labels may be written with other tokens.
        known = expected if expected.trie is trie else Expected()
        walk = TokenWalk(trie, tolerance=self._tolerance, expected=known.shares, at_once=known.at_once)
        first = await _follow(walk, row, root, trie, calls)
        calls.usage, calls.model, calls.features = row.usage, row.model, first.features()
        return walk.distribution(self.labels.labels)

    def _tokens_of(self, row: TokenContinuation, prefix: str) -> tuple[tuple[int, ...], TokenTrie]:
        """Return the common token prefix of all labels, and the trie of their remaining tokens."""
        written = [row.tokens(f'{prefix}{spelled}"') for spelled in self._spelled]
        root: tuple[int, ...] = os.path.commonprefix(written)  # type: ignore[assignment]  # noqa: RUF071 (no paths)
        return root, self._token_trie(tuple(tokens[len(root) :] for tokens in written), row.vocabulary)

    async def _score_texts(self, row: Continuation, prefix: str, calls: RowCalls) -> LabelDistribution:
        """Return the label distribution from next-token calls at the nodes of the label trie."""
        walk = LabelWalk(self.labels, tolerance=self._tolerance, trie=self._label_trie)
        last = ""
        with calls.reading():
            while texts := walk.pending(after=last):
                texts = texts[:1] if row.serial else texts
                last = texts[0]
                answers = await self._ask(row, prefix, walk, texts, calls)
                for text, answer in zip(texts, answers, strict=True):
                    walk.visit(text, answer.top)
        return walk.distribution()

    async def _ask(
        self, row: Continuation, prefix: str, walk: LabelWalk, texts: list[str], calls: RowCalls
    ) -> list[NextTokens]:
        """Return the next tokens after each text, from concurrent calls that share the row's cached prompt.

        A few alternatives will mostly do, and every further one costs time. Where they do not, the
        whole list is asked for.
        """

        async def once(text: str, *, few: bool) -> NextTokens:
            found = await calls.make(partial(row.next_tokens, prefix + text, few=few))
            calls.add(found)
            return found

        async def ask(text: str) -> NextTokens:
            # With many labels, the first list may not do.
            few = not self._is_exact and (bool(text) or len(self.labels) <= _FEW_LABELS)
            found = await once(text, few=few)
            enough = not found.short or walk.is_enough(text, found.top)
            return found if enough else await once(text, few=False)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(text)) for text in texts]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]


async def _follow(
    walk: TokenWalk, row: TokenContinuation, root: Sequence[int], trie: TokenTrie, calls: RowCalls
) -> TokenLogprobs:
    """Score trie nodes until none is pending; return the log-probabilities at the first node."""
    first: TokenLogprobs | None = None
    while nodes := walk.pending():
        for start in range(0, len(nodes), _MOST_TOGETHER):
            some = nodes[start : start + _MOST_TOGETHER]
            texts = [(*root, *trie.nodes[node].tokens) for node in some]
            with calls.reading():
                for node, found in zip(some, await row.next_logprobs(texts), strict=True):
                    walk.visit(node, found)
                    first = first or found
    assert first is not None  # noqa: S101 (the root is pending)
    return first


@dataclass(kw_only=True)
class ExactMethod(Method):
    """Base class of methods that score labels instead of decoding an answer.

    Attributes
    ----------
    client : ContinuingClient
        Client of the calls.
    tolerance : float or "exact"
        See `LabelWalk`; ``"exact"`` is 0.01.
    """

    client: ContinuingClient
    tolerance: Tolerance = DEFAULT_TOLERANCE
    _checked: bool = field(default=False, init=False, repr=False)

    def scorer(self, labels: LabelSet) -> LabelScorer:
        """Return a label scorer that shares this method's client and calls."""
        return LabelScorer(labels, client=self.client, tolerance=self.tolerance, calls=self.calls)

    async def row_calls(self, values: tuple[str, ...]) -> RowCalls:
        """Return an empty record of a row's calls; the first time, check that the client can score `values`.

        Raises
        ------
        ConfigurationError
            The client cannot score them.
        ProviderError
            The call failed.
        """
        if not self._checked:
            await self.calls.make(lambda: self.client.check_labels(values), provider=self.client.name)
            self._checked = True
        return RowCalls(calls=self.calls, provider=self.client.name)

    def describe(self) -> Mapping[str, Any]:
        """Return the tolerance and the client's settings, for cache keys."""
        settings = getattr(self.client, "settings", None)
        own = {"settings": dict(settings)} if settings and isinstance(settings, Mapping) else {}
        return {"scoring": "exact", "tolerance": self.tolerance, **own}


@dataclass(kw_only=True)
class ExactScoring(ExactMethod):
    """Exact method for one label, by next-token scores along the label trie or by whole-label scores.

    Attributes
    ----------
    constraint : Constraint
        The JSON around the label.
    """

    constraint: Constraint
    _scorer: LabelScorer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._scorer = self.scorer(self.reader.labels)

    @classmethod
    def of(
        cls,
        client: ContinuingClient,
        reader: AnswerReader,
        response_format: Mapping[str, Any],
        **settings: Any,  # noqa: ANN401  (tolerance and calls)
    ) -> Self | str:
        """Return the method for a model, labels and schema, or the reason why there is none."""
        constraint = constraint_for(response_format)
        if constraint is None:
            return "the schema leaves more than the label open, so the text before it is not known"
        if not {constraint.answer(label) for label in reader.labels.labels} <= set(constraint.answers()):
            return "the schema's enum lacks some of the labels"
        return cls(client=client, reader=reader, constraint=constraint, **settings)

    @property
    def might_keep_features(self) -> bool:
        """True if the engine can report text features, but predictions do not include them."""
        return not self.keep_features and bool(getattr(self.client, "in_process", False))

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the most probable label and the distribution over all labels."""
        calls = await self.row_calls(self.constraint.values)
        expected = await self._scorer.prepare(request, self.constraint.prefix)
        async with self.client.continuing(replace(request, top_logprobs=0)) as row:
            distribution = await self._scorer.score(row, self.constraint.prefix, calls, expected=expected)
        label = distribution.emitted
        if not label:
            return calls.unlikely()
        return calls.predicted(
            label=label,
            confidence=distribution.confidence(label),
            distribution=distribution,
            text=self.constraint.answer(label),
            features=calls.features if self.keep_features else None,
        )

    def describe(self) -> Mapping[str, Any]:
        """Return the labels, their position in the answer and the settings of `ExactMethod`."""
        kept = {"features": True} if self.keep_features else {}
        own = {"labels": self.reader.labels.labels, "prefix": self.constraint.prefix}
        return {**super().describe(), **kept, **own}
