"""Probability that an array continues or ends at one of its places, from the tokens reported there.

The decision may fall inside a token. So all reported tokens count, from the token that holds the byte before the
decision (a closing quote or bracket, the opening bracket) up to the token that decides. A token that spells the answer
so far and then a further element counts for "continues"; a token that spells the answer so far and then the closing
bracket counts for "ends". ``",``, ``"]}`` and `` ]`` are read alike. White space counts as in JSON laid out on many
lines: after the opening bracket an element follows, after an element the end. Where no reported token takes one of the
sides, that side gets an upper bound (the least reported probability, and at most the unreported rest), marked as
assumed.

`next_decision` has the log-probabilities of all tokens of the vocabulary, `read_decisions` only the alternatives
reported beside each token of a decoded answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import LogprobsUnavailableError
from calibrant.core._tokens import TokenLogprobs, Vocabulary
from calibrant.logprobs._distribution import least_bound, listed_at
from calibrant.logprobs._fields import AlignedField, FieldPath, value_span
from calibrant.logprobs._trie import SPACES

_ENDS: Final = b"]"
_FLOOR: Final = 1e-300
_DECIDE: Final = frozenset({_ENDS, b",", b'"', b"{", b"[", b" "})
_tokens_by_vocabulary: WeakKeyDictionary[Vocabulary, dict[bytes, dict[bytes, NDArray[np.int64]]]] = (
    WeakKeyDictionary()
)


@dataclass(frozen=True, slots=True)
class ArrayDecision:
    """Probabilities that an array continues or ends at one place.

    Attributes
    ----------
    goes_on, ends : float
        Probabilities, which sum to 1.
    assumed : bool
        Whether one of them is a bound, as no reported token takes that side.
    mass : float
        Reported probability of both sides together, in [0, 1].
    token : int
        Index of the token that decides.
    """

    goes_on: float
    ends: float
    assumed: bool
    mass: float
    token: int


def read_decisions(aligned: AlignedField, inside: FieldPath) -> list[ArrayDecision]:
    """Return the decision before each element, and the one after the last element."""
    element = b'"' if not inside else b"[" if isinstance(inside[0], int) else b"{"
    decisions = [_decision_at(aligned, aligned.begin + 1, element, space=element)]
    for index in range(len(aligned.value) if isinstance(aligned.value, list) else 0):
        _, end = value_span(aligned.stream, aligned.begin, (index,))
        decisions.append(_decision_at(aligned, end, b",", space=_ENDS))
    return decisions


def _decision_at(aligned: AlignedField, at: int, more: bytes, *, space: bytes) -> ArrayDecision:
    """Return the decision at the byte `at`.

    There the byte `more` begins another element and a bracket ends the array. White space in an alternative counts as
    the byte `space`.
    """
    path = 0.0
    masses = {more: 0.0, _ENDS: 0.0}
    first = aligned.holder(at - 1)
    for index, token in enumerate(aligned.tokens[first:], first):
        before = aligned.stream[aligned.start(index) : at].lstrip(SPACES)
        listed = listed_at(token)
        for data, logprob in listed.items():
            side = _side(data, before)
            if side == b" " and data != token.data:
                side = space
            if side in masses:
                masses[side] += math.exp(path + logprob)
        if _side(token.data, before).strip():
            return _decision_of(masses[more], masses[_ENDS], path + least_bound(token, listed), token=index)
        path += listed[token.data]
    raise LogprobsUnavailableError("The answer's tokens end inside its array.")


def _decision_of(goes_on: float, ends: float, bound: float, *, token: int) -> ArrayDecision:
    """Return the decision from the reported masses; a side without any gets exp(`bound`)."""
    mass, assumed = goes_on + ends, False
    if not (goes_on and ends) and math.exp(bound) > 0.0:
        assumed = True
        goes_on, ends = goes_on or math.exp(bound), ends or math.exp(bound)
    whole = goes_on + ends
    if whole <= _FLOOR:  # neither side has any mass, so that no ratio can be formed
        return ArrayDecision(0.5, 0.5, assumed=True, mass=0.0, token=token)
    return ArrayDecision(goes_on / whole, ends / whole, assumed=assumed, mass=min(1.0, mass), token=token)


def _side(data: bytes, before: bytes) -> bytes:
    """Return the first byte behind `before` in a token, white space left out: the byte that decides.

    Empty for a token that ends before that byte or does not spell `before`; a blank if only white space follows.
    """
    if before:
        data = data.lstrip(SPACES)
    rest = data[len(before) :] if data.startswith(before) else b""
    return rest.lstrip(SPACES)[:1] or (b" " if rest else b"")


def next_decision(
    tokens: Sequence[int], found: Sequence[TokenLogprobs], *, element: str, first: bool
) -> ArrayDecision:
    """Return the decision at one place, from the log-probabilities of all tokens; see `read_place`.

    Parameters
    ----------
    tokens, found, element
        As for `read_place`.
    first : bool
        Whether no element stands before it.

    Raises
    ------
    LogprobsUnavailableError
        The log-probabilities are not numbers.
    """
    more = element[:1].encode() if first else b","
    space = more if first else _ENDS
    vocabulary = found[0].vocabulary
    path, masses = 0.0, {more: 0.0, _ENDS: 0.0}
    for place, logprobs in enumerate(found):
        before = b"".join(vocabulary.pieces[token] for token in tokens[place:])
        for side, side_tokens in _deciding_tokens(vocabulary, before).items():
            if (side := space if side == b" " else side) in masses:
                masses[side] += float(np.exp(path + logprobs.at(side_tokens)).sum())
        path += math.fsum(logprobs.at(np.array(tokens[place : place + 1], dtype=np.int64)))
    if not math.isfinite(math.fsum(masses.values())):
        raise LogprobsUnavailableError("The log-probabilities are not numbers.")
    return _decision_of(masses[more], masses[_ENDS], -math.inf, token=len(tokens))


def _deciding_tokens(vocabulary: Vocabulary, before: bytes) -> dict[bytes, NDArray[np.int64]]:
    """Return the tokens that spell `before` and then decide, by their deciding byte (see `_side`)."""
    cache = _tokens_by_vocabulary.setdefault(vocabulary, {})
    if before not in cache:
        by_side: dict[bytes, list[int]] = {}
        for token in vocabulary.beginning_with(before):
            side = _side(vocabulary.pieces[token][len(before) :], b"")
            if side in _DECIDE:
                by_side.setdefault(side, []).append(token)
        cache[before] = {side: np.array(tokens) for side, tokens in by_side.items()}
    return cache[before]
