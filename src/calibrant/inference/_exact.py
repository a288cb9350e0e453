"""Exact scoring: the probability of every label, without decoding an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrant.clients._constraint import Constraint
from calibrant.core._completion import (
    CompletionRequest,
    Continuation,
    ContinuingClient,
    LabelContinuation,
    LabelLogprobs,
    NextTokens,
)
from calibrant.core._errors import LogprobsUnavailableError, ProviderError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LabelDistribution, LogprobSpace, Outcome, Prediction, Usage
from calibrant.core._tokens import TokenContinuation
from calibrant.inference._methods import (
    DEFAULT_TOLERANCE,
    FeatureMethod,
    Method,
    ModelCalls,
    Tolerance,
    check_tolerance,
    total_usage,
)
from calibrant.inference._tokens import Expected, TokenScorer
from calibrant.logprobs._trie import LabelTrie
from calibrant.logprobs._walk import LabelWalk

_T = TypeVar("_T")

_EXACT: Final = 0.01
_FEW_LABELS: Final = 20


@dataclass(kw_only=True)
class RowCalls:
    """Calls of one row with their usage, and the model's features of its text."""

    made: int = 0
    model: str | None = None
    usage: Usage = Usage()
    features: NDArray[np.float16] | None = None

    def add(self, answer: NextTokens | LabelLogprobs, attempts: int = 0) -> None:
        """Add a call's answer, and its attempts not counted yet."""
        self.usage = total_usage((self.usage, answer.usage))
        self.made += attempts
        self.model = answer.model or self.model

    async def make(self, call: Callable[[], Awaitable[_T]], *, calls: ModelCalls, provider: str) -> _T:
        """Make a call and count it.

        Raises
        ------
        ProviderError
            It failed; ``attempts`` counts the row's calls.
        """
        try:
            found, attempts = await calls.make(call, provider=provider)
        except ProviderError as error:
            error.attempts += self.made
            raise
        self.made += attempts
        return found

    def predicted(self, **content: Any) -> Prediction:  # noqa: ANN401
        """Return a prediction with the row's usage, model and attempts."""
        return Prediction(**content, usage=self.usage, model=self.model, attempts=self.made)

    def unlikely(self, where: str = "") -> Prediction:
        """Return the prediction of a row in which every label is improbable."""
        return self.predicted(
            label=None,
            outcome=Outcome.UNPARSED,
            reason=(
                f"{where}no label is among what the model would write next, as far as its tokens are listed: name "
                "the labels in the prompt, or use scoring='decode'"
            ),
        )


@dataclass(kw_only=True)
class LabelScorer:
    """Scorer of all labels at one position of an answer.

    Attributes
    ----------
    client : ContinuingClient
        Client of the calls.
    labels : LabelSet
        The legal labels.
    tolerance : float or "exact"
        See `LabelWalk`; ``"exact"`` is 0.01.
    calls : ModelCalls
        Calls with gate, deadline and retries.
    """

    client: ContinuingClient
    labels: LabelSet
    tolerance: Tolerance
    calls: ModelCalls
    _trie: LabelTrie = field(init=False, repr=False)
    _limit: float = field(init=False, repr=False)
    _spelled: tuple[str, ...] = field(init=False, repr=False)
    _tokens: TokenScorer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)
        self._trie = LabelTrie(self.labels.labels)
        self._limit = _EXACT if self.tolerance == "exact" else self.tolerance
        self._spelled = tuple(json.dumps(label, ensure_ascii=False)[1:-1] for label in self.labels.labels)
        self._tokens = TokenScorer(self.labels, self._spelled, tolerance=self._limit)

    async def prepare(self, request: CompletionRequest, prefix: str) -> Expected:
        """Return the label expectations without a text, requested once per prompt.

        Raises
        ------
        ProviderError
            A call failed.
        """
        # Elsewhere a call may cost money.
        if request.without_text is None or not getattr(self.client, "in_process", False):
            return Expected()
        return await self._tokens.prepare(self.client, request.without_text, prefix, self.calls)

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
            return await self._score_tokens(row, prefix, calls, expected)
        return await self._walk(row, prefix, calls)

    async def _score_tokens(
        self, row: TokenContinuation, prefix: str, calls: RowCalls, expected: Expected
    ) -> LabelDistribution:
        """Score the labels' tokens, many in one call."""
        distribution, features = await calls.make(
            lambda: self._tokens.score(row, prefix, self.client.name, expected=expected),
            calls=self.calls,
            provider=self.client.name,
        )
        calls.usage, calls.model, calls.features = row.usage, row.model, features
        return distribution

    async def _walk(self, row: Continuation, prefix: str, calls: RowCalls) -> LabelDistribution:
        """Walk the label trie, with one next-token call per node."""
        walk = LabelWalk(self.labels, tolerance=self._limit, trie=self._trie)
        last = ""
        try:
            while texts := walk.pending(after=last):
                texts = texts[:1] if row.serial else texts
                last = texts[0]
                answers = await self._ask(row, prefix, walk, texts, calls)
                for text, answer in zip(texts, answers, strict=True):
                    walk.visit(text, answer.top)
        except LogprobsUnavailableError as error:
            failure = ProviderError(f"unusable log-probabilities: {error}", provider=self.client.name)
            failure.attempts = calls.made
            raise failure from error
        return walk.distribution()

    async def _score_labels(self, row: LabelContinuation, prefix: str, calls: RowCalls) -> LabelDistribution:
        """Score all whole labels in one call."""
        found = await calls.make(
            lambda: row.label_logprobs(prefix, self._spelled), calls=self.calls, provider=self.client.name
        )
        calls.add(found)
        from calibrant.logprobs._distribution import whole_label_distribution  # noqa: PLC0415 (only of some servers)

        return whole_label_distribution(self.labels, found.logprobs)

    def _takes_short_list(self, text: str) -> bool:
        """Return True if a short top list probably suffices; with many labels, the first list may not."""
        return self.tolerance != "exact" and (bool(text) or len(self.labels) <= _FEW_LABELS)

    async def _ask(
        self, row: Continuation, prefix: str, walk: LabelWalk, texts: list[str], calls: RowCalls
    ) -> list[NextTokens]:
        """Request the next tokens of several nodes at once; they share the row's cached prompt.

        A few alternatives will mostly do, and every further one costs time. Where they do not, the
        whole list is asked for.
        """

        async def once(text: str, *, few: bool) -> NextTokens:
            try:
                found, attempts = await self.calls.make(
                    lambda: row.next_tokens(prefix + text, few=few), provider=self.client.name
                )
            except ProviderError as error:
                calls.made += error.attempts
                raise
            calls.add(found, attempts)
            return found

        async def ask(text: str) -> NextTokens:
            found = await once(text, few=self._takes_short_list(text))
            if found.short and not walk.is_enough(text, found.top):
                return await once(text, few=False)
            return found

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(text)) for text in texts]
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
            if isinstance(first, ProviderError):
                first.attempts = calls.made
            raise first from None
        return [task.result() for task in tasks]


@dataclass(kw_only=True)
class ExactMethod(Method):
    """Base class of methods that score labels instead of decoding an answer.

    Attributes
    ----------
    client : ContinuingClient
        Client of the calls.
    tolerance : float or "exact"
        See `LabelWalk`; ``"exact"`` is 0.01.
    calls : ModelCalls
        Calls with gate, deadline and retries.
    """

    client: ContinuingClient
    tolerance: Tolerance = DEFAULT_TOLERANCE
    calls: ModelCalls = field(default_factory=ModelCalls)
    _checked: bool = field(default=False, init=False, repr=False)

    @property
    def space(self) -> LogprobSpace:
        """Always ``exact``."""
        return LogprobSpace.EXACT

    def scorer(self, labels: LabelSet) -> LabelScorer:
        """Return a label scorer that shares this method's client and calls."""
        return LabelScorer(client=self.client, labels=labels, tolerance=self.tolerance, calls=self.calls)

    async def check(self, values: tuple[str, ...]) -> None:
        """Ask the client once to refuse labels it cannot score.

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

    def describe(self) -> Mapping[str, Any]:
        """Return the tolerance and the client's settings, for cache keys."""
        settings = getattr(self.client, "settings", None)
        own = {"settings": dict(settings)} if settings and isinstance(settings, Mapping) else {}
        return {"scoring": "exact", "tolerance": self.tolerance, **own}


@dataclass(kw_only=True)
class ExactScoring(ExactMethod, FeatureMethod):
    """Exact method for one label: next-token walks of the label trie, or whole-label scores.

    Attributes
    ----------
    labels : LabelSet
        The legal labels.
    constraint : Constraint
        The JSON around the label.
    """

    labels: LabelSet
    constraint: Constraint
    _scorer: LabelScorer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._scorer = self.scorer(self.labels)

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the most probable label and the distribution over all of them."""
        await self.check(self.constraint.values)
        expected = await self._scorer.prepare(request, self.constraint.prefix)
        calls = RowCalls()
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
        """Return the labels, their position in the answer and the common exact settings."""
        kept = {"features": True} if self.keep_features else {}
        own = {"labels": self.labels.labels, "prefix": self.constraint.prefix}
        return {**super().describe(), **kept, **own}
