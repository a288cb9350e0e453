"""Log-probabilities of the next token, over a model's whole vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from calibrant.core._completion import Continuation
from calibrant.core._prediction import Usage

FEATURES: Final = 1024
"""Features that the embedded engine reports, about."""

# Characters that may stand behind a label's closing quote in the same token.
_STRUCTURE: Final = b" \t\r\n,}]"
_LEAST_FEATURE: Final = np.float32(100.0)


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

    def closing(self, last: int) -> NDArray[np.int64]:
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
    logits: NDArray[np.float32]

    @cached_property
    def log_total(self) -> float:
        """Log-partition: natural logarithm of the sum of the logits' exponentials."""
        most = float(self.logits.max())
        return most + math.log(float(np.exp(self.logits - np.float32(most)).sum(dtype=np.float64)))

    def at(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the natural log-probabilities of `tokens`, at most 0, shape (n,)."""
        found: NDArray[np.float64] = np.minimum(self.logits[tokens].astype(np.float64) - self.log_total, 0.0)
        return found

    def features(self) -> NDArray[np.float16]:
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


def named_features(logprobs: Mapping[int, float], tokens: Sequence[int]) -> NDArray[np.float16]:
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


def _centred(logits: NDArray[np.float32], *, most: np.float32) -> NDArray[np.float16]:
    # What is ruled out may be any small number, or none; so may all of them.
    top = most if np.isfinite(most) else np.float32(0.0)
    some = np.fmin(np.fmax(logits, top - _LEAST_FEATURE), top)
    centred: NDArray[np.float16] = (some - some.mean()).astype(np.float16)
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
