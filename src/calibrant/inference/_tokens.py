"""Exact scoring in engines that return the log-probabilities of all tokens for several texts."""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from calibrant.core._completion import CompletionRequest, ContinuingClient, Message
from calibrant.core._errors import ContextLengthError, LogprobsUnavailableError, ProviderError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LabelDistribution
from calibrant.core._tokens import TokenContinuation, TokenLogprobs
from calibrant.inference._methods import ModelCalls
from calibrant.logprobs._tokens import TokenTrie, TokenWalk

# To ask about all beginnings of more labels takes longer than what it saves; nor would their names fit into a prompt.
_MOST_EXPECTED: Final = 512
# A batch of its own costs as much as two tokens: more than a few that a row may not need do not pay.
_MOST_AT_ONCE: Final = 16
_MOST_TOGETHER: Final = 64  # each answer holds a number for every token of the vocabulary
_PROMPTS: Final = 16  # whose expectations are kept
_SURELY_NEEDED: Final = 0.2  # a tolerance at which hardly any row leaves these out


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


class TokenScorer:
    """Scorer of labels by their tokens.

    Parameters
    ----------
    labels : LabelSet
        The legal labels.
    spelled : sequence of str, length L
        The labels as they stand inside JSON quotes.
    tolerance : float
        See `TokenWalk`.
    """

    def __init__(self, labels: LabelSet, spelled: Sequence[str], *, tolerance: float) -> None:
        self._labels = labels.labels
        self._spelled = tuple(spelled)
        self._tolerance = tolerance
        self._expected: OrderedDict[str, Expected] = OrderedDict()
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._trie = lru_cache(maxsize=4)(TokenTrie)

    async def prepare(
        self, client: ContinuingClient, messages: Sequence[Message], prefix: str, calls: ModelCalls
    ) -> Expected:
        """Return the expected label probabilities after `messages`, requested once.

        Raises
        ------
        ProviderError
            The call failed.
        """
        key = json.dumps(messages)
        # Every row goes through the lock, which keeps their order: none is to overtake those that wait.
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            if key not in self._expected:
                self._expected[key], _ = await calls.make(
                    lambda: self._ask_all(client, messages, prefix), provider=client.name
                )
                if len(self._expected) > _PROMPTS:
                    self._expected.popitem(last=False)
            self._expected.move_to_end(key)
            return self._expected[key]

    async def _ask_all(self, client: ContinuingClient, messages: Sequence[Message], prefix: str) -> Expected:
        """Score all labels after `messages`."""
        async with client.continuing(CompletionRequest(messages=tuple(messages), top_logprobs=0)) as row:
            if not isinstance(row, TokenContinuation):
                return Expected()
            root, trie = self._tokens_of(row, prefix)
            if len(trie.nodes) > _MOST_EXPECTED:
                return Expected()
            walk = TokenWalk(trie, tolerance=0.0, at_once=range(1, len(trie.nodes)))
            try:
                await _follow(walk, row, root, trie, client.name)
            except ContextLengthError:
                return Expected()
        needed = walk.needed(max(self._tolerance, _SURELY_NEEDED))
        return Expected(
            trie=trie, shares=walk.shares(), at_once=needed if len(needed) <= _MOST_AT_ONCE else ()
        )

    async def score(
        self, row: TokenContinuation, prefix: str, provider: str, *, expected: Expected
    ) -> tuple[LabelDistribution, NDArray[np.float16]]:
        """Return the label distribution of a row after `prefix`, which ends with a quote.

        Beside it stand the model's features of the text (`TokenLogprobs.features`).

        Raises
        ------
        ProviderError
            The call to `provider` failed, or its log-probabilities are not numbers.
        """
        root, trie = self._tokens_of(row, prefix)
        # Behind another prefix the labels may be written with other tokens.
        known = expected if expected.trie is trie else Expected()
        walk = TokenWalk(trie, tolerance=self._tolerance, expected=known.shares, at_once=known.at_once)
        first = await _follow(walk, row, root, trie, provider)
        return walk.distribution(self._labels), first.features()

    def _tokens_of(self, row: TokenContinuation, prefix: str) -> tuple[tuple[int, ...], TokenTrie]:
        """Return the common token prefix of all labels, and the trie of their remaining tokens."""
        written = [row.tokens(f'{prefix}{spelled}"') for spelled in self._spelled]
        root: tuple[int, ...] = os.path.commonprefix(written)  # type: ignore[assignment]  # noqa: RUF071 (no paths)
        return root, self._trie(tuple(tokens[len(root) :] for tokens in written), row.vocabulary)


async def _follow(
    walk: TokenWalk, row: TokenContinuation, root: Sequence[int], trie: TokenTrie, provider: str
) -> TokenLogprobs:
    """Request pending nodes until none is left; return the log-probabilities of the first token."""
    first: TokenLogprobs | None = None
    while nodes := walk.pending():
        for start in range(0, len(nodes), _MOST_TOGETHER):
            some = nodes[start : start + _MOST_TOGETHER]
            texts = [(*root, *trie.nodes[node].tokens) for node in some]
            try:
                for node, found in zip(some, await row.next_logprobs(texts), strict=True):
                    walk.visit(node, found)
                    first = first or found
            except LogprobsUnavailableError as error:
                raise ProviderError(f"unusable log-probabilities: {error}", provider=provider) from error
    assert first is not None  # noqa: S101 (the root is pending)
    return first
