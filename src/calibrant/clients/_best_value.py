"""The most probable of a schema's values, found without writing the others."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

import numpy as np

from calibrant.clients._constraint import Constraint
from calibrant.core import TokenContinuation, Vocabulary

__all__ = ["best_value"]

# What may stand behind the quote that ends a value, in the same token.
_STRUCTURE: Final = b" \t\r\n,}]"


async def best_value(row: TokenContinuation, choice: Constraint, begun: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of the most probable value, closing quote included, behind those of what comes before it.

    A value's probability is the product of those of its tokens, as the tokeniser writes them in place. The most
    probable beginning is looked into first, so the first value that is reached is the best one. Taking the most
    probable token at every step is not the same: many improbable values may begin with it.

    Empty where the tokeniser writes the value's beginning and what comes before it with one token.
    """
    written = [row.tokens(f'{choice.prefix}{value}"') for value in choice.values]
    size = len(begun)
    if any(tokens[:size] != tuple(begun) or len(tokens) == size for tokens in written):
        return ()
    paths = {tokens[size:] for tokens in written}
    waiting: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    while waiting:
        cost, path = heapq.heappop(waiting)
        if path in paths:
            return path
        steps = {one[len(path)] for one in paths if one[: len(path)] == path}
        (found,) = await row.next_logprobs([(*begun, *path)])
        for step in steps:
            longer = (*path, step)
            tokens = _ends(row.vocabulary, step) if longer in paths else [step]
            share = float(np.exp(found.at(np.array(tokens))).sum())
            heapq.heappush(waiting, (cost - np.log(max(share, np.finfo(float).tiny)), longer))
    return ()


def _ends(vocabulary: Vocabulary, last: int) -> list[int]:
    """Return the tokens that end a value as `last` does, structure behind the quote included."""
    piece = vocabulary.pieces[last]
    return [
        token
        for token in vocabulary.beginning_with(piece)
        if not vocabulary.pieces[token][len(piece) :].strip(_STRUCTURE)
    ]
