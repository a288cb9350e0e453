"""Split of labelled rows into training, validation and test rows by shares."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.core._labels import normalise_label

Shares: TypeAlias = tuple[float, float, float]
"""Shares of training, validation and test rows; they add up to 1."""

_KEY: Final = b"calibrant.split"  # another key would move rows of existing tasks
_END: Final = 2**64
_SLACK: Final = (
    20  # a cut may miss its share by one in 20 texts of the smallest split, so that cuts move less
)


@dataclass(frozen=True, kw_only=True)
class SplitRule:
    """Rule that assigns rows to splits.

    A keyed hash of the text decides. Two cuts divide the hashes of each label's texts into three ranges, so that
    neither the order of the rows nor other rows decide where a text goes; more rows move the cuts a little.

    Attributes
    ----------
    cuts : mapping of str to (int, int)
        By normalised answer, the hashes from which on texts belong to the second split and to the third.
    conflicts : mapping of int to str
        By hash of a text with several answers, the one whose cuts count.
    """

    cuts: Mapping[str, tuple[int, int]]
    conflicts: Mapping[int, str]

    def part(self, text: str, answer: str) -> int:
        """Return the number of a row's split: 0, 1 or 2."""
        text_hash = _text_hash(text)
        owner = self.conflicts.get(text_hash, normalise_label(answer))
        # An unknown answer was added while the file was read: its rows go to the first split.
        return bisect_right(self.cuts.get(owner, (_END, _END)), text_hash)


def split_rule(rows: Iterable[tuple[str, str]], shares: Shares) -> SplitRule:
    """Return the rule that splits rows by shares, stratified by answer; equal texts stay together.

    Parameters
    ----------
    rows : iterable of (str, str)
        Text and answer of every row. Twelve bytes are kept of each, and all answers that differ.
    shares : (float, float, float)
        Of the distinct texts of every answer.
    """
    numbers: dict[str, int] = {}
    text_hashes, answers = array("Q"), array("I")
    for text, answer in rows:
        text_hashes.append(_text_hash(text))
        answers.append(numbers.setdefault(normalise_label(answer), len(numbers)))
    if not numbers:
        return SplitRule(cuts={}, conflicts={})
    names = sorted(numbers)
    rank = np.empty(len(names), dtype=np.int64)
    rank[[numbers[name] for name in names]] = np.arange(len(names))
    hashes, owners = np.frombuffer(text_hashes, dtype=np.uint64), rank[np.frombuffer(answers, dtype=np.uintc)]
    order = np.lexsort((owners, hashes))
    hashes, owners = hashes[order], owners[order]
    is_first = np.r_[True, hashes[1:] != hashes[:-1]]
    is_conflict = ~is_first & np.r_[False, owners[1:] != owners[:-1]]
    # Of a text with several answers, the first by name counts.
    shared = np.unique(hashes[is_conflict])
    hashes, owners = hashes[is_first], owners[is_first]
    first_owners = owners[np.searchsorted(hashes, shared)].tolist()
    conflicts = {text: names[owner] for text, owner in zip(shared.tolist(), first_owners, strict=True)}
    return SplitRule(cuts=_cuts(names, hashes, owners, shares), conflicts=conflicts)


def _cuts(
    names: Sequence[str], hashes: NDArray[np.uint64], owners: NDArray[np.int64], shares: Shares
) -> dict[str, tuple[int, int]]:
    """Return the cuts of every answer; answers with too few texts for every split share theirs."""
    counts = np.bincount(owners, minlength=len(names))
    is_rare = counts * min(share for share in shares if share) <= 0.5
    shared = _cut(hashes[is_rare[owners]], shares)
    return {
        name: shared if is_rare[number] else _cut(hashes[owners == number], shares)
        for number, name in enumerate(names)
    }


def _cut(hashes: NDArray[np.uint64], shares: Shares) -> tuple[int, int]:
    """Return the two cuts that divide sorted hashes by the shares."""
    n = len(hashes)
    slack = int(n * min(share for share in shares if share)) // _SLACK
    cuts = []
    for share in (shares[0], shares[0] + shares[1]):
        ideal = min(round(share * _END), _END - 1)
        wanted = round(share * n)
        index = int(np.searchsorted(hashes, np.uint64(ideal)))
        index = min(max(index, wanted - slack), wanted + slack, n)
        cuts.append(int(hashes[index]) if index < n else _END)
    if not shares[2]:
        cuts[1] = _END
    if not shares[0]:
        cuts[0] = 0
    if not shares[1]:
        cuts[0] = cuts[1]
    return cuts[0], cuts[1]


def _text_hash(text: str) -> int:
    """Return a text's hash in [0, 2**64), the same for texts that differ in case and white space alone."""
    data = " ".join(text.split()).casefold().encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=_KEY).digest())
