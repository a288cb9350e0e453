"""Division of labelled rows into training, validation and test rows by shares."""

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
_SLACK: Final = 20  # cuts may miss their place by one in so many texts of the smallest part, to move less


@dataclass(frozen=True, kw_only=True)
class SplitRule:
    """Rule that tells the part of every row.

    A text has a place, which a keyed hash gives. Texts of one label are cut at two places, so that neither the order
    of the rows nor other rows decide where a text goes; more rows move the cuts a little.

    Attributes
    ----------
    cuts : mapping of str to (int, int)
        By normalised answer, the places where the second part and the third begin.
    conflicts : mapping of int to str
        The answer whose cuts count for a text with several, by place.
    """

    cuts: Mapping[str, tuple[int, int]]
    conflicts: Mapping[int, str]

    def part(self, text: str, answer: str) -> int:
        """Return the number of a row's part: 0, 1 or 2."""
        place = _place(text)
        owner = self.conflicts.get(place, normalise_label(answer))
        # An answer that is not known came while the file was read: its rows go to the first part.
        return bisect_right(self.cuts.get(owner, (_END, _END)), place)


def split_rule(rows: Iterable[tuple[str, str]], shares: Shares) -> SplitRule:
    """Return the rule that divides rows by shares, stratified by answer; equal texts stay together.

    Parameters
    ----------
    rows : iterable of (str, str)
        Text and answer of every row. Twelve bytes are kept of each, and all answers that differ.
    shares : (float, float, float)
        Of the distinct texts of every answer.
    """
    numbers: dict[str, int] = {}
    places, answers = array("Q"), array("I")
    for text, answer in rows:
        places.append(_place(text))
        answers.append(numbers.setdefault(normalise_label(answer), len(numbers)))
    if not numbers:
        return SplitRule(cuts={}, conflicts={})
    names = sorted(numbers)
    rank = np.empty(len(names), dtype=np.int64)
    rank[[numbers[name] for name in names]] = np.arange(len(names))
    place, owners = np.frombuffer(places, dtype=np.uint64), rank[np.frombuffer(answers, dtype=np.uintc)]
    order = np.lexsort((owners, place))
    place, owners = place[order], owners[order]
    first = np.r_[True, place[1:] != place[:-1]]
    others = ~first & np.r_[False, owners[1:] != owners[:-1]]
    # Of a text with several answers, the first by name counts.
    shared = np.unique(place[others])
    place, owners = place[first], owners[first]
    owner = owners[np.searchsorted(place, shared)].tolist()
    conflicts = {at: names[number] for at, number in zip(shared.tolist(), owner, strict=True)}
    return SplitRule(cuts=_cuts(names, place, owners, shares), conflicts=conflicts)


def _cuts(
    names: Sequence[str], place: NDArray[np.uint64], answer: NDArray[np.int64], shares: Shares
) -> dict[str, tuple[int, int]]:
    """Return the cuts of every answer; answers with too few texts for every part are cut together."""
    counts = np.bincount(answer, minlength=len(names))
    rare = counts * min(share for share in shares if share) < 0.5
    together = _cut(place[rare[answer]], shares)
    cuts = {}
    for number, name in enumerate(names):
        cuts[name] = together if rare[number] else _cut(place[answer == number], shares)
    return cuts


def _cut(places: NDArray[np.uint64], shares: Shares) -> tuple[int, int]:
    """Return the two places that cut sorted places into parts of the wanted shares."""
    n = len(places)
    slack = int(n * min(share for share in shares if share)) // _SLACK
    found = []
    for share in (shares[0], shares[0] + shares[1]):
        ideal = min(round(share * _END), _END - 1)
        wanted = round(share * n)
        index = int(np.searchsorted(places, np.uint64(ideal)))
        index = min(max(index, wanted - slack), wanted + slack, n)
        found.append(int(places[index]) if index < n else _END)
    if not shares[2]:
        found[1] = _END
    if not shares[0]:
        found[0] = 0
    if not shares[1]:
        found[0] = found[1]
    return found[0], found[1]


def _place(text: str) -> int:
    """Return a text's place in [0, 2**64), the same for texts that differ in case and white space alone."""
    data = " ".join(text.split()).casefold().encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=_KEY).digest())
