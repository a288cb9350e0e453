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
from calibrant.core._near_duplicates import WordPairs, group_near_duplicates

Shares: TypeAlias = tuple[float, float, float]
"""Shares of training, validation and test rows; they add up to 1."""

_KEY: Final = b"calibrant.split"  # another key would move rows of existing tasks
_END: Final = 2**64
_SLACK: Final = (
    20  # a cut may miss its share by one in 20 texts of the smallest split, so that cuts move less
)


@dataclass(frozen=True, kw_only=True)
class TextGroups:
    """Groups of near-duplicates in labelled rows; see `calibrant.core._near_duplicates`.

    Attributes
    ----------
    hashes : array of shape (n,)
        Hashes of the texts that are in a group with others, ascending.
    keys : array of shape (n,)
        Smallest hash of each one's group.
    labels : array of shape (n,)
        Place of the group's label in `names`: that of most of its texts.
    together : array of bool, shape (n,)
        False where the group is larger than the smallest split of its label may be, so that no split can hold it.
    names : tuple of str
        Normalised labels.
    """

    hashes: NDArray[np.uint64]
    keys: NDArray[np.uint64]
    labels: NDArray[np.int64]
    together: NDArray[np.bool_]
    names: tuple[str, ...]

    def find(self, text: str) -> tuple[int, bool] | None:
        """Return the key of a text's group, and True if it stays in one split; None for a text of its own."""
        place = self.place(text_hash(text))
        return None if place is None else (int(self.keys[place]), bool(self.together[place]))

    def place(self, hashed: int) -> int | None:
        """Return the place of a text in the arrays, by its hash; None for a text of its own."""
        place = int(np.searchsorted(self.hashes, np.uint64(hashed)))
        return place if place < len(self.hashes) and int(self.hashes[place]) == hashed else None


@dataclass(frozen=True, kw_only=True)
class SplitRule:
    """Rule that assigns rows to splits.

    A keyed hash of the text decides, for near-duplicates the smallest hash of their group. Two cuts divide the hashes
    of each label's texts into three ranges, so that neither the order of the rows nor other rows decide where a text
    goes; more rows move the cuts a little.

    Attributes
    ----------
    cuts : mapping of str to (int, int)
        By normalised answer, the hashes from which on texts belong to the second split and to the third.
    conflicts : mapping of int to str
        By hash of a text with several answers, the one whose cuts count.
    groups : TextGroups
        Near-duplicates.
    """

    cuts: Mapping[str, tuple[int, int]]
    conflicts: Mapping[int, str]
    groups: TextGroups

    def part(self, text: str, answer: str) -> int:
        """Return the number of a row's split: 0, 1 or 2."""
        hashed = text_hash(text)
        place = self.groups.place(hashed)
        if place is not None and self.groups.together[place]:
            owner = self.groups.names[self.groups.labels[place]]
            hashed = int(self.groups.keys[place])
        else:
            owner = self.conflicts.get(hashed, normalise_label(answer))
        # An unknown answer was added while the file was read: its rows go to the first split.
        return bisect_right(self.cuts.get(owner, (_END, _END)), hashed)


@dataclass(frozen=True, kw_only=True)
class _Texts:
    """Distinct texts of labelled rows, in the order of their hashes.

    Attributes
    ----------
    names : list of str
        Normalised labels, sorted.
    hashes : array of shape (n,)
        Their hashes, ascending.
    rows : array of shape (n,)
        A row of each.
    labels : array of shape (n,)
        Place of each one's label in `names`; of several, the first.
    conflicts : array of int
        Hashes of the texts with several labels.
    """

    names: list[str]
    hashes: NDArray[np.uint64]
    rows: NDArray[np.intp]
    labels: NDArray[np.int64]
    conflicts: NDArray[np.uint64]

    @classmethod
    def of(cls, hashes: NDArray[np.uint64], answers: NDArray[np.uintc], numbers: Mapping[str, int]) -> _Texts:
        """Return the distinct texts of rows, given their hashes, answers by number, and the numbers of answers."""
        names = sorted(numbers)
        rank = np.empty(len(names), dtype=np.int64)
        rank[[numbers[name] for name in names]] = np.arange(len(names))
        labels = rank[answers]
        order = np.lexsort((labels, hashes))
        hashes, labels = hashes[order], labels[order]
        is_first = np.r_[True, hashes[1:] != hashes[:-1]]
        is_conflict = ~is_first & np.r_[False, labels[1:] != labels[:-1]]
        return cls(
            names=names,
            hashes=hashes[is_first],
            rows=order[is_first],
            labels=labels[is_first],
            conflicts=np.unique(hashes[is_conflict]),
        )


def split_rule(rows: Iterable[tuple[str, str]], shares: Shares) -> SplitRule:
    """Return the rule that splits rows by shares, stratified by answer; near-duplicates stay together.

    Parameters
    ----------
    rows : iterable of (str, str)
        Text and answer of every row. Twelve bytes are kept of each, four for each of its word pairs (at most 32), and
        all answers that differ.
    shares : (float, float, float)
        Of the distinct texts of every answer.
    """
    numbers: dict[str, int] = {}
    hashes, answers, pairs = array("Q"), array("I"), WordPairs.empty()
    for text, answer in rows:
        hashes.append(text_hash(text))
        answers.append(numbers.setdefault(normalise_label(answer), len(numbers)))
        pairs.add(text)
    if not numbers:
        return SplitRule(cuts={}, conflicts={}, groups=_NO_GROUPS)
    texts = _Texts.of(np.frombuffer(hashes, dtype=np.uint64), np.frombuffer(answers, dtype=np.uintc), numbers)
    groups = group_near_duplicates(*pairs.of(texts.rows), texts.labels)
    counts = np.bincount(texts.labels, minlength=len(texts.names))
    is_rare = counts * _smallest(shares) <= 0.5
    # Answers with too few texts for every split share their cuts.
    room = np.ceil(np.where(is_rare, counts[is_rare].sum(), counts) * _smallest(shares))
    found = _text_groups(texts, groups, room)
    keys, labels = texts.hashes.copy(), texts.labels.copy()
    moved = np.searchsorted(texts.hashes, found.hashes[found.together])
    keys[moved], labels[moved] = found.keys[found.together], found.labels[found.together]
    own = texts.labels[np.searchsorted(texts.hashes, texts.conflicts)].tolist()
    conflicts = {text: texts.names[label] for text, label in zip(texts.conflicts.tolist(), own, strict=True)}
    return SplitRule(
        cuts=_cuts(texts.names, keys, labels, is_rare, shares), conflicts=conflicts, groups=found
    )


_NO_GROUPS: Final = TextGroups(
    hashes=np.empty(0, dtype=np.uint64),
    keys=np.empty(0, dtype=np.uint64),
    labels=np.empty(0, dtype=np.int64),
    together=np.empty(0, dtype=np.bool_),
    names=(),
)


def _smallest(shares: Shares) -> float:
    return min(share for share in shares if share)


def _text_groups(texts: _Texts, groups: NDArray[np.intp], room: NDArray[np.float64]) -> TextGroups:
    """Return the groups of several texts.

    Parameters
    ----------
    texts : _Texts
        The texts.
    groups : array of int, shape (n,)
        Place of the first text of each one's group, as of `group_near_duplicates`.
    room : array of float, shape (labels,)
        Texts that the smallest split may have of each label.
    """
    sizes = np.bincount(groups, minlength=len(groups))
    several = np.flatnonzero(sizes[groups] > 1)
    first = groups[several]
    n_labels = len(texts.names)
    by_label, counts = np.unique(first * n_labels + texts.labels[several], return_counts=True)
    # The most frequent label of each group, of several the first by name.
    order = np.lexsort((by_label, -counts, by_label // n_labels))
    owners = by_label[order] // n_labels
    starts = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]][: len(owners)])
    label_of_group = np.zeros(len(groups), dtype=np.int64)
    label_of_group[owners[starts]] = by_label[order][starts] % n_labels
    labels = label_of_group[first]
    return TextGroups(
        hashes=texts.hashes[several],
        keys=texts.hashes[first],  # the smallest, as texts are sorted by hash
        labels=labels,
        together=sizes[first] <= room[labels],
        names=tuple(texts.names),
    )


def _cuts(
    names: Sequence[str],
    keys: NDArray[np.uint64],
    labels: NDArray[np.int64],
    is_rare: NDArray[np.bool_],
    shares: Shares,
) -> dict[str, tuple[int, int]]:
    """Return the cuts of every answer; rare answers share theirs."""
    shared = _cut(np.sort(keys[is_rare[labels]]), shares)
    return {
        name: shared if is_rare[number] else _cut(np.sort(keys[labels == number]), shares)
        for number, name in enumerate(names)
    }


def _cut(keys: NDArray[np.uint64], shares: Shares) -> tuple[int, int]:
    """Return the two cuts that divide sorted keys by the shares, without dividing equal keys."""
    n = len(keys)
    slack = int(n * _smallest(shares)) // _SLACK
    cuts, last = [], 0
    for share, own in ((shares[0], shares[0]), (shares[0] + shares[1], shares[1])):
        ideal = min(round(share * _END), _END - 1)
        wanted = round(share * n)
        index = int(np.searchsorted(keys, np.uint64(ideal)))
        index = min(max(index, wanted - slack), wanted + slack, n)
        # No split that has a share is left empty for the sake of a group.
        index = _between_groups(keys, index, last=last if own else -1)
        cuts.append(int(keys[index]) if index < n else _END)
        last = index
    if not shares[2]:
        cuts[1] = _END
    if not shares[0]:
        cuts[0] = 0
    if not shares[1]:
        cuts[0] = cuts[1]
    return cuts[0], cuts[1]


def _between_groups(keys: NDArray[np.uint64], index: int, *, last: int) -> int:
    """Return the end of a group that is nearest to an index, or its second end if the first is not after `last`."""
    if index >= len(keys):
        return index
    first = int(np.searchsorted(keys, keys[index], side="left"))
    end = int(np.searchsorted(keys, keys[index], side="right"))
    is_alone = end == first + 1
    is_nearer = index - first <= end - index and first > last
    return first if is_alone or is_nearer else end


def text_hash(text: str) -> int:
    """Return a text's hash in [0, 2**64), the same for texts that differ in case and white space alone."""
    data = " ".join(text.split()).casefold().encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=_KEY).digest())
