"""Choice of the tokens whose log-probabilities a server is asked for by name, as features of a head."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np

from calibrant.core._completion import TokenListing, named_features
from calibrant.core._errors import ContextLengthError
from calibrant.core._prediction import Journal, Prediction, Usage
from calibrant.core._predictor import Query
from calibrant.inference._methods import Method

_LOG = logging.getLogger("calibrant")

_ROWS: Final = 150


async def choose_tokens(method: Method, queries: Sequence[Query], journal: Journal | None) -> tuple[int, ...]:
    """Return the numbers of the tokens to name; none if the server reports no named tokens.

    Parameters
    ----------
    method : Method
        Asks a server.
    queries : sequence of Query
        Rows under one prompt; the next tokens of the first 150 decide.
    journal : Journal, optional
        Keeps the choice, so that a resumed run names the same tokens.

    Raises
    ------
    ProviderError
        A call failed.
    """
    asked = [query for query, problem in method.prepare(queries[:_ROWS]) if not problem]
    digest = hashlib.sha256(b"named tokens")
    for query in asked:
        digest.update(method.key(query).encode())
    key = digest.hexdigest()
    stored = None if journal is None else journal.get_many([key]).get(key)
    if stored is not None:
        return tuple(json.loads(stored.text))
    listings = await _listings(method, asked)
    tokens = tokens_of(listings)
    if not tokens:
        tell_once(method.name)
    elif journal is not None:
        usage = sum((listing.usage for listing in listings), Usage())
        journal.put(key, Prediction(label=None, text=json.dumps(tokens), usage=usage))
    return tokens


async def _listings(method: Method, queries: Sequence[Query]) -> list[TokenListing]:
    """Return the next tokens of each row that fits into the context; none if the server cannot name tokens."""
    found: list[TokenListing] = []

    async def ask(query: Query) -> None:
        with contextlib.suppress(ContextLengthError):
            listing = await method.candidate_tokens(method.request(query))
            method.calls.gate.charge(listing.usage)
            found.append(listing)

    await ask(queries[0])
    if not any(listing.most_named for listing in found):
        return []
    try:
        async with asyncio.TaskGroup() as group:
            for query in queries[1:]:
                group.create_task(ask(query))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return found


def tokens_of(listings: Sequence[TokenListing]) -> tuple[int, ...]:
    """Return the tokens to name, as many as a request may: those whose log-probability differs most from row to row.

    Log-probabilities are centred in each row. A token that is not listed in a row is taken to be as probable as the
    least probable one that is.

    Parameters
    ----------
    listings : sequence of TokenListing
        Next tokens of some rows under one prompt.
    """
    numbers = np.unique([number for listing in listings for number in listing.logprobs])
    if not len(numbers):
        return ()
    rows = np.array([named_features(listing.logprobs, numbers.tolist()) for listing in listings])
    spread = rows.astype(np.float64).var(axis=0)
    most = np.argsort(-spread, kind="stable")[: listings[0].most_named]
    return tuple(np.sort(numbers[most]).tolist())


@cache
def tell_once(model: str) -> None:
    """Log one line that a server names no tokens."""
    _LOG.warning(
        "%s reports no log-probabilities of named tokens, so that a head learns without features of its texts. "
        "vLLM (logprob_token_ids), SGLang (/generate) and llama.cpp's server report them.",
        model,
    )
