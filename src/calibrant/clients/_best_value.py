"""Best-first search for the most probable of a schema's values."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

import numpy as np

from calibrant.clients._constraint import Constraint
from calibrant.core._tokens import TokenContinuation, Vocabulary

# Characters that may stand behind a value's closing quote in the same token.
_STRUCTURE: Final = b" \t\r\n,}]"


async def best_value(row: TokenContinuation, choice: Constraint, begun: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of the most probable value, closing quote included, behind the tokens `begun`.

    A value's probability is the product of the probabilities of its tokens, as the tokeniser writes them in place. The
    most probable beginning is expanded first, so the first complete value is the best one. Greedy decoding would not
    find it: its most probable token may be the beginning of many improbable values.

    Empty where one token spans the value's beginning and the text before it.
    """
    spelled = [row.tokens(f'{choice.prefix}{value}"') for value in choice.values]
    size = len(begun)
    if any(tokens[:size] != tuple(begun) or len(tokens) == size for tokens in spelled):
        return ()
    paths = {tokens[size:] for tokens in spelled}
    waiting: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    while waiting:
        cost, path = heapq.heappop(waiting)
        if path in paths:
            return path
        steps = {one[len(path)] for one in paths if one[: len(path)] == path}
        (logprobs,) = await row.next_logprobs([(*begun, *path)])
        for step in steps:
            longer = (*path, step)
            tokens = _ends(row.vocabulary, step) if longer in paths else [step]
            share = float(np.exp(logprobs.at(np.array(tokens))).sum())
            heapq.heappush(waiting, (cost - np.log(max(share, np.finfo(float).tiny)), longer))
    return ()


def _ends(vocabulary: Vocabulary, last: int) -> list[int]:
    """Return the tokens that spell `last`, optionally followed by JSON structure."""
    piece = vocabulary.pieces[last]
    return [
        token
        for token in vocabulary.beginning_with(piece)
        if not vocabulary.pieces[token][len(piece) :].strip(_STRUCTURE)
    ]
