"""Whether an array goes on at one of its places, or ends: told by the tokens that may stand there.

The decision is read where the tokens make it, which may be inside a token: of all tokens reported from the one that
holds the byte before it (a closing quote or bracket, the opening bracket) up to the one that decides, those that
spell what the answer spells so far and then go on count for going on, those that then end the array for the end.
``",``, ``"]}`` and `` ]`` are read alike. White space that might have been written instead counts as JSON on many
lines is laid out: behind the opening bracket for an element, behind an element for the end. A side that no reported
token takes holds at most the least reported probability and at most what was not reported; that bound stands for it,
and is marked as no measurement.

All tokens are reported where a model was asked about its next ones (`next_decision`), else those beside each token of a
decoded answer (`read_decisions`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from calibrant.core import LogprobsUnavailableError, TokenLogprobs, Vocabulary
from calibrant.logprobs._align import AlignedField
from calibrant.logprobs._distribution import least_bound, listed_at
from calibrant.logprobs._fields import FieldPath, value_span
from calibrant.logprobs._trie import SPACES

__all__ = ["Decision", "next_decision", "read_decisions"]

_ENDS: Final = b"]"
_FLOOR: Final = 1e-300
_DECIDE: Final = frozenset({_ENDS, b",", b'"', b"{", b"[", b" "})
_deciding_tokens: WeakKeyDictionary[Vocabulary, dict[bytes, dict[bytes, NDArray[np.int64]]]] = (
    WeakKeyDictionary()
)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an array goes on at one place, as far as its tokens tell.

    Attributes
    ----------
    goes_on, ends : float
        Probabilities, which sum to 1.
    assumed : bool
        Whether one of them is a bound, as no reported token takes that side.
    mass : float
        What was reported on both together, in [0, 1].
    token : int
        The token that decides.
    """

    goes_on: float
    ends: float
    assumed: bool
    mass: float
    token: int


def read_decisions(aligned: AlignedField, inside: FieldPath) -> list[Decision]:
    """Return the decision before each element, and the last one."""
    element = b'"' if not inside else b"[" if isinstance(inside[0], int) else b"{"
    found = [_decision(aligned, aligned.begin + 1, element, space=element)]
    for index in range(len(aligned.value) if isinstance(aligned.value, list) else 0):
        _, end = value_span(aligned.stream, aligned.begin, (index,))
        found.append(_decision(aligned, end, b",", space=_ENDS))
    return found


def _decision(aligned: AlignedField, at: int, more: bytes, *, space: bytes) -> Decision:
    """Return what the tokens say at the byte `at`.

    There `more` begins another element, a bracket ends the array, and white space that was not written would have
    led to `space`.
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
            return _decided(masses[more], masses[_ENDS], path + least_bound(token, listed), token=index)
        path += listed[token.data]
    raise LogprobsUnavailableError("The answer's tokens end inside its array.")


def _decided(goes_on: float, ends: float, bound: float, *, token: int) -> Decision:
    """Return the decision from what was reported; a side that was not holds `bound`, a logarithm, at most."""
    mass, assumed = goes_on + ends, False
    if not (goes_on and ends) and math.exp(bound) > 0.0:
        assumed = True
        goes_on, ends = goes_on or math.exp(bound), ends or math.exp(bound)
    whole = goes_on + ends
    if whole <= _FLOOR:  # nothing that was reported is possible
        return Decision(0.5, 0.5, assumed=True, mass=0.0, token=token)
    return Decision(goes_on / whole, ends / whole, assumed=assumed, mass=min(1.0, mass), token=token)


def _side(data: bytes, before: bytes) -> bytes:
    """Return the byte that decides in a token which must spell `before` first.

    Empty where it does not decide, or spells something else; a blank where only white space follows.
    """
    if before:
        data = data.lstrip(SPACES)
    rest = data[len(before) :] if data.startswith(before) else b""
    return rest.lstrip(SPACES)[:1] or (b" " if rest else b"")


def next_decision(
    tokens: Sequence[int], found: Sequence[TokenLogprobs], *, element: str, first: bool
) -> Decision:
    """Return what a model says of all its tokens at one place; see `read_place`.

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
    for place, here in enumerate(found):
        deciding = _deciding(vocabulary, b"".join(vocabulary.pieces[token] for token in tokens[place:]))
        for side, some in deciding.items():
            if (side := space if side == b" " else side) in masses:
                masses[side] += float(np.exp(path + here.at(some)).sum())
        path += math.fsum(here.at(np.array(tokens[place : place + 1], dtype=np.int64)))
    if not math.isfinite(math.fsum(masses.values())):
        raise LogprobsUnavailableError("The log-probabilities are not numbers.")
    return _decided(masses[more], masses[_ENDS], -math.inf, token=len(tokens))


def _deciding(vocabulary: Vocabulary, before: bytes) -> dict[bytes, NDArray[np.int64]]:
    """Return the tokens that spell `before` and then decide, by the byte that does (see `_side`)."""
    known = _deciding_tokens.setdefault(vocabulary, {})
    if before not in known:
        found: dict[bytes, list[int]] = {}
        for token in vocabulary.beginning_with(before):
            side = _side(vocabulary.pieces[token][len(before) :], b"")
            if side in _DECIDE:
                found.setdefault(side, []).append(token)
        known[before] = {side: np.array(tokens) for side, tokens in found.items()}
    return known[before]
