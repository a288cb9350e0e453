"""Exact scoring: the probability of every label of an answer, without decoding one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, singledispatch
from typing import Any, Final, Self, TypeVar, cast

from calibrant.clients._calls import Call, LoopValues
from calibrant.clients._constraint import (
    Constraint,
    LabelArray,
    SchemaChoice,
    array_for,
    choices_for,
    constraint_for,
    json_escaped,
)
from calibrant.core._completion import (
    ClientTraits,
    CompletionRequest,
    Continuation,
    ContinuingClient,
    LabelContinuation,
    LabelLogprobs,
    NamingContinuation,
    NextTokens,
    TokenContinuation,
    TokenListing,
    TokenLogprobs,
    named_features,
)
from calibrant.core._errors import (
    ConfigurationError,
    ContextLengthError,
    LogprobsUnavailableError,
    ProviderError,
)
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import (
    FloatArray,
    HalfArray,
    LabelDistribution,
    Outcome,
    Part,
    Prediction,
    Usage,
)
from calibrant.core._predictor import concurrently
from calibrant.core._structures import Field, FieldLabels, MultiLabels
from calibrant.inference._methods import Method, ModelCalls, ModelSetup, Tolerance
from calibrant.inference._reader import label_content, parts_content, parts_of_set, scored_part
from calibrant.logprobs._distribution import LabelTrie, whole_label_distribution
from calibrant.logprobs._sets import ArrayPlace, read_place, set_of_places
from calibrant.logprobs._walk import LabelWalk, TokenTrie, TokenWalk

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
    request : CompletionRequest, optional
        The row's messages, for spans.
    made : int
        Calls made.
    model, usage, features
        As in `Prediction`.
    """

    calls: ModelCalls
    provider: str
    request: CompletionRequest | None = None
    made: int = 0
    model: str | None = None
    usage: Usage = Usage()
    features: HalfArray | None = None

    def add(self, answer: NextTokens | LabelLogprobs) -> None:
        """Add the usage of a call, and store the name of the model that answered."""
        self.usage += answer.usage
        self.model = answer.model or self.model

    async def make(self, call: Call[_T]) -> _T:
        """Make a call and count it.

        Raises
        ------
        ProviderError
            It failed; ``attempts`` counts the row's calls, and ``usage`` what they took.
        """
        try:
            found, attempts = await self.calls.make(call, provider=self.provider, request=self.request)
        except ProviderError as error:
            self.made += error.attempts
            error.attempts = self.made
            error.usage = self.usage
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
            failure.usage = self.usage
            raise failure from error

    @property
    def effort(self) -> dict[str, Any]:
        """The row's usage, model and attempts, as a prediction takes them."""
        return {"usage": self.usage, "model": self.model, "attempts": self.made}

    def unlikely(self, where: str = "") -> Prediction:
        """Return a prediction without a label: no label is among the listed next tokens of the model."""
        reason = (
            f"{where}no label is among what the model would write next, as far as its tokens are listed: name "
            "the labels in the prompt, or use scoring='decode'"
        )
        return Prediction(label=None, outcome=Outcome.UNPARSED, reason=reason, **self.effort)


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
    shares: FloatArray | None = None
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
        self._is_in_process = ClientTraits.of(client).in_process
        self._calls = calls
        self._is_exact = tolerance == "exact"
        self._tolerance = _EXACT if tolerance == "exact" else tolerance
        self._spelled = tuple(map(json_escaped, labels.labels))
        self._label_trie = LabelTrie(labels.labels)
        self._token_trie = lru_cache(maxsize=4)(TokenTrie)
        self._expected: OrderedDict[str, Expected] = OrderedDict()
        self._turns: LoopValues[asyncio.Lock] = LoopValues()

    async def prepare(self, request: CompletionRequest, prefix: str) -> Expected:
        """Return the label probabilities of a prompt without a text; empty unless the model runs in process.

        Raises
        ------
        ProviderError
            A call failed.
        """
        messages = request.without_text
        # Elsewhere a call may cost money.
        if messages is None or not self._is_in_process:
            return Expected()
        key = json.dumps(messages)
        # Every row goes through the lock, which keeps their order: none is to overtake those that wait.
        async with self._turns.here(asyncio.Lock):
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
        at_once = needed if len(needed) <= _MOST_AT_ONCE else ()
        return Expected(trie=trie, shares=walk.shares(), at_once=at_once)

    async def score(
        self,
        row: Continuation | LabelContinuation,
        prefix: str,
        calls: RowCalls,
        *,
        expected: Expected,
        tokens: Sequence[int] = (),
    ) -> LabelDistribution:
        """Return the label distribution of a row after `prefix`, which ends with a quote.

        Parameters
        ----------
        row : Continuation or LabelContinuation
            Session of the row.
        prefix : str
            The answer up to the label.
        calls : RowCalls
            Record of the row's calls, which gets the text features.
        expected : Expected
            What is known of the prompt.
        tokens : sequence of int, optional
            Named tokens whose log-probabilities are the text features.

        Raises
        ------
        ProviderError
            A call failed; ``attempts`` counts the row's calls.
        """
        if isinstance(row, LabelContinuation):
            return await self._score_labels(row, prefix, calls, tokens)
        if isinstance(row, TokenContinuation):
            return await calls.make(partial(self._score_tokens, row, prefix, calls, expected))
        return await self._score_texts(row, prefix, calls, tokens)

    async def _score_labels(
        self, row: LabelContinuation, prefix: str, calls: RowCalls, tokens: Sequence[int]
    ) -> LabelDistribution:
        """Return the label distribution from one call that scores all whole labels, and names the tokens."""
        named = {"tokens": tokens} if tokens else {}
        found = await calls.make(partial(row.label_logprobs, prefix, self._spelled, **named))
        calls.add(found)
        if tokens:
            calls.features = named_features(found.named, tokens)
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
        calls.usage = row.usage
        calls.model = row.model
        calls.features = first.features()
        return walk.distribution(self.labels.labels)

    def _tokens_of(self, row: TokenContinuation, prefix: str) -> tuple[tuple[int, ...], TokenTrie]:
        """Return the common token prefix of all labels, and the trie of their remaining tokens."""
        written = [row.tokens(f'{prefix}{spelled}"') for spelled in self._spelled]
        root: tuple[int, ...] = os.path.commonprefix(written)  # type: ignore[assignment]  # noqa: RUF071 (no paths)
        return root, self._token_trie(tuple(tokens[len(root) :] for tokens in written), row.vocabulary)

    async def _score_texts(
        self, row: Continuation, prefix: str, calls: RowCalls, tokens: Sequence[int]
    ) -> LabelDistribution:
        """Return the label distribution from next-token calls at the nodes of the label trie."""
        walk = LabelWalk(self.labels, tolerance=self._tolerance, trie=self._label_trie)
        last = ""
        with calls.reading():
            while texts := walk.pending(after=last):
                texts = texts[:1] if row.serial else texts
                last = texts[0]
                # The tokens are named where every row begins, and most of them are far down the list.
                names_some = bool(tokens) and calls.features is None
                answers = await self._ask(row, prefix, walk, texts, calls, most=names_some)
                if names_some:
                    calls.features = named_features(_by_number(answers[0]), tokens)
                for text, answer in zip(texts, answers, strict=True):
                    walk.visit(text, answer.top)
        return walk.distribution()

    async def _ask(
        self,
        row: Continuation,
        prefix: str,
        walk: LabelWalk,
        texts: list[str],
        calls: RowCalls,
        *,
        most: bool = False,
    ) -> list[NextTokens]:
        """Return the next tokens after each text, from concurrent calls that share the row's cached prompt.

        A few alternatives will mostly do, and every further one costs time. Where they do not, or if `most` are wanted,
        the whole list is asked for.
        """

        async def once(text: str, *, few: bool) -> NextTokens:
            found = await calls.make(partial(row.next_tokens, prefix + text, few=few))
            calls.add(found)
            return found

        async def ask(text: str) -> NextTokens:
            # With many labels, the first list may not do.
            will_do = bool(text) or len(self.labels) <= _FEW_LABELS
            few = not (most or self._is_exact) and will_do
            found = await once(text, few=few)
            enough = not found.short or walk.is_enough(text, found.top)
            return found if enough else await once(text, few=False)

        return await concurrently(map(ask, texts))


def _by_number(answer: NextTokens) -> dict[int, float]:
    """Return the listed log-probabilities by the numbers of the tokens.

    Raises
    ------
    LogprobsUnavailableError
        The server tells no numbers.
    """
    if not answer.ids:
        raise LogprobsUnavailableError("the listed tokens have no numbers")
    return {number: logprob for number, (_, logprob) in zip(answer.ids, answer.top, strict=True)}


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
    tolerance : float or "exact"
        See `LabelWalk`; ``"exact"`` is 0.01.
    """

    tolerance: Tolerance
    _checked: bool = field(default=False, init=False, repr=False)

    @property
    def client(self) -> ContinuingClient:
        """Client of the calls."""
        return cast("ContinuingClient", self.setup.client)  # `choose_method` has looked

    def scorer(self, labels: LabelSet) -> LabelScorer:
        """Return a label scorer that shares this method's client and calls."""
        return LabelScorer(labels, client=self.client, tolerance=self.tolerance, calls=self.calls)

    async def row_calls(self, values: tuple[str, ...], request: CompletionRequest) -> RowCalls:
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
        return RowCalls(calls=self.calls, provider=self.client.name, request=request)

    def describe(self) -> Mapping[str, Any]:
        """Return the tolerance and the client's settings, for cache keys."""
        return {"scoring": "exact", "tolerance": self.tolerance, **self.client_settings}


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

    def with_features(self, named_tokens: Sequence[int] = ()) -> Self:
        """Return a method whose predictions hold text features; on a server those of named tokens."""
        if self.traits.in_process:
            return super().with_features()
        return replace(self, keep_features=bool(named_tokens), named_tokens=tuple(named_tokens))

    async def candidate_tokens(self, request: CompletionRequest) -> TokenListing:
        """Return first tokens of the label, among which to choose those to name; none if the server names none."""
        calls = RowCalls(calls=self.calls, provider=self.client.name)
        async with self.client.continuing(replace(request, top_logprobs=0)) as row:
            if not isinstance(row, NamingContinuation):
                return TokenListing()
            return await calls.make(partial(row.candidate_tokens, self.constraint.prefix))

    @property
    def might_keep_features(self) -> bool:
        """True if the engine can report text features, but predictions do not include them."""
        return not self.keep_features and self.traits.in_process

    async def answer(self, request: CompletionRequest) -> Prediction:
        """Return the most probable label and the distribution over all labels."""
        calls = await self.row_calls(self.constraint.values, request)
        expected = await self._scorer.prepare(request, self.constraint.prefix)
        async with self.client.continuing(replace(request, top_logprobs=0)) as row:
            distribution = await self._scorer.score(
                row, self.constraint.prefix, calls, expected=expected, tokens=self.named_tokens
            )
        label = distribution.emitted
        if not label:
            return calls.unlikely()
        return Prediction(
            **label_content(label, distribution),
            text=self.constraint.answer(label),
            features=calls.features if self.keep_features else None,
            **calls.effort,
        )

    def describe(self) -> Mapping[str, Any]:
        """Return the labels, their position in the answer and the settings of `ExactMethod`."""
        kept = {}
        if self.keep_features:
            kept = {"features": list(self.named_tokens) or True}
        own = {"labels": self.reader.labels.labels, "prefix": self.constraint.prefix}
        return {**super().describe(), **kept, **own}


def exact_method(setup: ModelSetup, tolerance: Tolerance) -> ExactMethod | str:
    """Return the exact method for a continuing client, labels and schema, or the reason why there is none."""
    return _exact_of(setup.reader.labels, setup, tolerance)


@singledispatch
def _exact_of(labels: LabelSet, setup: ModelSetup, tolerance: Tolerance) -> ExactMethod | str:
    """Return the exact method for one kind of labels; a kind whose answers hold several is registered here.

    This is no method of the label set, as `core` knows nothing of engines.
    """
    if labels.holds_several:
        return f"answers with the structure {labels.structure!r} are not scored label by label"
    constraint = constraint_for(setup.response_format)
    if constraint is None:
        return "the schema leaves more than the label open, so the text before it is not known"
    if not constraint.allows(labels.labels):
        return "the schema's enum lacks some of the labels"
    return ExactScoring(setup=setup, tolerance=tolerance, constraint=constraint)


@_exact_of.register(FieldLabels)
def _field_chain(labels: FieldLabels, setup: ModelSetup, tolerance: Tolerance) -> ExactMethod | str:
    choices = choices_for(setup.response_format)
    if choices is None:
        return (
            "the schema leaves more than the labels of the fields open, so the text before them is not known"
        )
    by_path = {tuple(one.place.split(".")): one for one in labels.fields}
    steps = tuple((by_path[one.path], one) for one in choices.choices if one.path in by_path)
    if not len(steps) == len(choices.choices) == len(labels.fields):
        return "the schema's choices are not the fields"
    for one, choice in steps:
        written = {choice.before + value for value in choice.values}
        if not {choice.take("", label) for label in one.labels.labels} <= written:
            return f"the schema's enum lacks some of the labels of the field {one.name!r}"
    return FieldChain(setup=setup, tolerance=tolerance, labels=labels, steps=steps, behind=choices.behind)


@_exact_of.register(MultiLabels)
def _array_scoring(labels: MultiLabels, setup: ModelSetup, tolerance: Tolerance) -> ExactMethod | str:
    if not ClientTraits.of(setup.client).in_process:
        return (
            "how many labels an answer holds is left to the model, which is asked at every place whether it goes on: "
            "only an embedded engine (local/NAME, llamacpp:PATH) tells that"
        )
    array = array_for(setup.response_format)
    if array is None:
        return "the schema leaves more open than one array of labels, or says how many it may hold"
    if not array.element.allows(labels.labels):
        return "the schema's enum lacks some of the labels"
    return ArrayScoring(setup=setup, tolerance=tolerance, labels=labels, array=array)


@dataclass(kw_only=True)
class FieldChain(ExactMethod):
    """Exact method for several fields, scored one after the other.

    The first field of the answer is scored as `ExactScoring` does; the answer is continued with its most probable
    label, behind which the next field is scored. So every distribution but the first is conditional on the labels
    chosen before it, and the product of the confidences is the probability of the whole answer. It need not be the
    most probable whole answer, as no beginning but the best is looked into.

    Attributes
    ----------
    labels : FieldLabels
        The fields and their labels.
    steps : sequence of (Field, SchemaChoice)
        The fields in the order in which the answer holds them, each with the JSON before it.
    behind : str
        JSON from the last label's closing quote on.
    """

    labels: FieldLabels
    steps: Sequence[tuple[Field, SchemaChoice]]
    behind: str
    _scorers: tuple[LabelScorer, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._scorers = tuple(self.scorer(one.labels) for one, _ in self.steps)

    async def answer(self, request: CompletionRequest) -> Prediction:
        """Return the most probable label of each field, given the labels chosen for the fields before it."""
        values = dict.fromkeys(value for _, choice in self.steps for value in choice.values)
        calls = await self.row_calls(tuple(values), request)
        text, expected = "", []
        for (_, choice), scorer in zip(self.steps, self._scorers, strict=True):
            expected.append(await scorer.prepare(request, text + choice.before))
            text = choice.take(text, scorer.labels.labels[0])
        parts: dict[str, Part] = {}
        text = ""
        async with self.client.continuing(replace(request, top_logprobs=0)) as row:
            for (one, choice), scorer, known in zip(self.steps, self._scorers, expected, strict=True):
                distribution = await scorer.score(row, text + choice.before, calls, expected=known)
                label = distribution.emitted
                if not label:
                    return calls.unlikely(f"field {one.name!r}: ")
                parts[one.name] = scored_part(one.name, label, distribution)
                text = choice.take(text, label)
        ordered = [parts[one.name] for one in self.labels.fields]
        content = parts_content(self.labels, ordered)
        return Prediction(**content, text=text + self.behind, **calls.effort)

    def describe(self) -> Mapping[str, Any]:
        """Return the fields in order and the settings of `ExactMethod`."""
        return {
            **super().describe(),
            "fields": [[one.name, choice.before, list(one.labels.labels)] for one, choice in self.steps],
            "order": [one.name for one in self.labels.fields],
        }


@dataclass(kw_only=True)
class ArrayScoring(ExactMethod):
    """Exact method for label sets: greedy choice of a label or the array's end at each position.

    Two things are asked at each place, behind the labels given before: does the array go on, and if so, with which
    label? The first is read from all tokens of the model that decide it, whatever they hold besides (see `read_place`);
    the second is what `ExactScoring` would say of one label there. A label is as probable as both together. A label
    that is in the array already adds nothing to it, so that its probability is that of the end. What is the most
    probable, of the new labels and the end, is written, until that is the end or all labels are in.

    What the places say of each label and of the whole answer is what `set_of_places` makes of them.

    Attributes
    ----------
    labels : MultiLabels
        The legal labels.
    array : LabelArray
        The JSON around the labels.
    """

    labels: MultiLabels
    array: LabelArray
    _scorer: LabelScorer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._scorer = self.scorer(self.labels)

    async def answer(self, request: CompletionRequest) -> Prediction:
        """Return the predicted set of labels with the confidence in each label."""
        calls = await self.row_calls(self.array.element.values, request)
        expected = await self._scorer.prepare(request, self.array.beginning(()) + self.array.separator(()))
        given: list[str] = []
        places: list[ArrayPlace] = []
        async with self.client.continuing(replace(request, top_logprobs=0)) as row:
            if not isinstance(row, TokenContinuation):
                raise ConfigurationError(
                    f"{self.client.name} does not tell the log-probabilities of all tokens: use scoring='decode'."
                )
            while len(given) < len(self.labels):
                place = await self._place(row, given, calls, expected)
                if not place.labels.emitted or not place.mass:
                    return calls.unlikely(f"place {len(given) + 1} of the list: ")
                places.append(place)
                label = place.next_label
                if label is None:
                    break
                given.append(label)
        evidence = set_of_places(self.labels.labels, places)
        answer = self.labels.answer_with(given)
        return Prediction(
            label=answer,
            confidence=evidence.confidence,
            text=self.array.beginning(given) + self.array.behind,
            parts=parts_of_set(self.labels, answer, evidence),
            **calls.effort,
        )

    async def _place(
        self, row: TokenContinuation, given: Sequence[str], calls: RowCalls, expected: Expected
    ) -> ArrayPlace:
        """Return the probabilities of each next label and of the array's end."""
        prefix = self.array.beginning(given) + self.array.separator(given)
        labels = await self._scorer.score(row, prefix, calls, expected=expected)
        return await calls.make(lambda: self._decision(row, given, labels, calls))

    async def _decision(
        self, row: TokenContinuation, given: Sequence[str], labels: LabelDistribution, calls: RowCalls
    ) -> ArrayPlace:
        """Combine the distribution of the next label with the model's probability that the array ends."""
        begun = self.array.beginning(given)
        more = self.array.separator(given)
        tokens = row.tokens(begun)
        # The tokens up to here are others where they hold what follows.
        others = [row.tokens(begun + behind) for behind in (f"{more}{labels.labels[0]}", self.array.behind)]
        same = len(os.path.commonprefix([tokens, *others]))  # noqa: RUF071 (no paths)
        found = await row.next_logprobs([tokens[:end] for end in range(same, len(tokens) + 1)])
        with calls.reading():
            return read_place(tokens[same:], found, labels, given=given, element=self.array.element.prefix)

    def describe(self) -> Mapping[str, Any]:
        """Return the labels, the surrounding JSON and the settings of `ExactMethod`."""
        element = self.array.element
        return {
            **super().describe(),
            "several": True,
            "labels": self.labels.labels,
            "array": [self.array.opening, element.prefix, element.suffix, self.array.behind],
        }
