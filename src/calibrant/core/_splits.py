"""Split of labelled rows into training, validation and test rows by shares."""

from __future__ import annotations

import hashlib
import re
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.core._labels import normalise_label
from calibrant.core._prediction import BoolArray, FloatArray, HalfArray, IndexArray, IntegerArray

_WORD: Final = re.compile(r"[^\W\d_]+|\d+")
_LEAST: Final = 0.5  # share of the word pairs of two texts that near-duplicates have in common
_KEPT_PAIRS: Final = 32  # of a text; of a longer one, those with the smallest hashes
_MOST_PAIRS: Final = 4_000_000  # compared in all, unless _FEWEST_PAIRS of each text are more
_FEWEST_PAIRS: Final = 4
_COMPARED_TEXTS: Final = _MOST_PAIRS // _KEPT_PAIRS  # with all their pairs
_REMEMBERED: Final = 100_000
_COMMON: Final = 4  # texts from which on a pair's labels tell whether it is a greeting
_OWN: Final = 0.7  # share of its texts that one label has, if a pair belongs to that label
_JOIN_PAIRS: Final = 8  # rarest pairs of a text by which others like it are looked up
_NEIGHBOURS: Final = 8  # texts with the same pair that a text is compared with, on either side
_CHUNK: Final = 2**20  # comparisons in memory
_SKETCH_LEAST: Final = 0.35  # of 64 bits; lower than _LEAST, as several pairs may share a bit

_BITS_OF_BYTE: Final = np.array([byte.bit_count() for byte in range(256)])

_Hashes: TypeAlias = NDArray[np.uint32]
_Keys: TypeAlias = NDArray[np.uint64]


def word_pair_hashes(text: str) -> list[int]:
    """Return the ascending 32-bit hashes of a text's word pairs, at most 32; [] without a word.

    Words are compared without regard to case, and numbers are all alike. A text of one word has that word as its pair.
    """
    words = ["#" if word.isdigit() else word for word in _WORD.findall(text.casefold())]
    pairs = [f"{first} {second}" for first, second in pairwise(words)] or words
    hashes = {zlib.crc32(pair.encode("utf-8", "surrogatepass")) for pair in pairs}
    return sorted(hashes)[:_KEPT_PAIRS]


@dataclass(kw_only=True)
class WordPairs:
    """Word-pair hashes of many texts, one after the other: 4 bytes for each pair.

    Attributes
    ----------
    hashes : array of 32-bit integers
        Those of the first text, then of the second, and so on.
    counts : array of 8-bit integers
        Pairs of each text.
    """

    hashes: array[int] = field(default_factory=partial(array, "I"))
    counts: array[int] = field(default_factory=partial(array, "B"))

    def add(self, text: str) -> None:
        """Append a text."""
        found = word_pair_hashes(text)
        self.hashes.extend(found)
        self.counts.append(len(found))

    def of(self, texts: IndexArray) -> tuple[_Hashes, IndexArray]:
        """Return the hashes of some texts in their order, and the place of each hash's text in that order.

        Of more than 125,000 texts, fewer of the smallest hashes of each are returned, so that memory stays bounded:
        4 of a million.
        """
        counts = np.frombuffer(self.counts, dtype=np.uint8).astype(np.intp)
        starts = np.cumsum(counts) - counts
        most = max(_FEWEST_PAIRS, _MOST_PAIRS // max(1, len(texts)))
        chosen = np.minimum(counts[texts], most)
        places = np.repeat(np.arange(len(texts)), chosen)
        before = np.cumsum(chosen) - chosen
        within = np.arange(len(places)) - np.repeat(before, chosen)
        hashes = np.frombuffer(self.hashes, dtype=np.uint32)
        positions = starts[texts][places] + within
        return hashes[positions], places


def group_near_duplicates(hashes: _Hashes, places: IndexArray, labels: IntegerArray) -> IndexArray:
    """Return the group of every text: the place of its first text, shape (n,).

    Parameters
    ----------
    hashes, places : arrays of shape (pairs,)
        Word-pair hashes of texts, and the place of each one's text; as `WordPairs.of`.
    labels : array of int, shape (n,)
        Label of each text, from 0.
    """
    if not len(hashes):
        return np.arange(len(labels))
    counted = _is_counted(hashes, labels[places])
    n_counted = np.bincount(places[counted], minlength=len(labels))
    # Texts of nothing but greetings are compared by these.
    counted |= n_counted[places] == 0
    index = _PairIndex(hashes[counted], places[counted], n_texts=len(labels))
    groups = np.arange(len(labels))
    shared, texts = index.join_pairs()
    for distance in range(1, _NEIGHBOURS + 1):
        same = np.flatnonzero(shared[distance:] == shared[:-distance])
        for start in range(0, len(same), _CHUNK):
            chunk = same[start : start + _CHUNK]
            first = texts[chunk]
            second = texts[chunk + distance]
            apart = groups[first] != groups[second]
            first = first[apart]
            second = second[apart]
            alike = index.are_alike(first, second)
            groups = _joined(groups, first[alike], second[alike])
    return groups


def _is_counted(hashes: _Hashes, labels: IntegerArray) -> BoolArray:
    """Return a mask of the pairs that count: those of few texts, or mostly of one label."""
    by_label, counts = np.unique(_keys(hashes, labels), return_counts=True)
    owners = (by_label >> np.uint64(32)).astype(np.uint32)
    values, starts = np.unique(owners, return_index=True)
    total = np.add.reduceat(counts, starts)
    most = np.maximum.reduceat(counts, starts)
    counted = (total < _COMMON) | (most >= _OWN * total)
    result: BoolArray = counted[np.searchsorted(values, hashes)]
    return result


class _PairIndex:
    """Word pairs of texts, to look up texts that share some and to compare two texts."""

    def __init__(self, hashes: _Hashes, places: IndexArray, *, n_texts: int) -> None:
        self._hashes = hashes
        self._places = places
        self._sizes = np.bincount(places, minlength=n_texts)
        self._starts = np.cumsum(self._sizes) - self._sizes
        # Ascending, as texts follow each other and their hashes ascend.
        self._keys = _keys(places, hashes)
        bits = np.uint64(1) << (hashes & np.uint32(63)).astype(np.uint64)
        self._sketches = np.zeros(n_texts, dtype=np.uint64)
        np.bitwise_or.at(self._sketches, places, bits)

    def join_pairs(self) -> tuple[_Hashes, IndexArray]:
        """Return the rarest pairs of every text, without those of one text alone, and their texts; sorted by pair.

        Two texts that share half of their pairs share one of the rarer half (prefix filter of similarity joins).
        """
        _, inverse, counts = np.unique(self._hashes, return_inverse=True, return_counts=True)
        frequency = counts[inverse]
        order = np.lexsort((self._hashes, frequency, self._places))
        places = self._places[order]
        hashes = self._hashes[order]
        frequency = frequency[order]
        rank = np.arange(len(places)) - self._starts[places]
        alone = np.bincount(places[frequency == 1], minlength=len(self._sizes))
        in_rarer_half = rank <= self._sizes[places] - np.ceil(_LEAST * self._sizes[places])
        is_rare = rank < alone[places] + _JOIN_PAIRS
        joins = in_rarer_half & (frequency > 1) & is_rare
        hashes = hashes[joins]
        places = places[joins]
        order = np.lexsort((places, hashes))
        return hashes[order], places[order]

    def are_alike(self, first: IndexArray, second: IndexArray) -> BoolArray:
        """Return a mask of the near-duplicates among pairs of texts."""
        one = self._sketches[first]
        other = self._sketches[second]
        # Most texts that share a frequent pair are unlike: this tells without reading their pairs.
        shared = _bit_counts(one & other)
        alike = shared >= _SKETCH_LEAST * _bit_counts(one | other)
        kept = np.flatnonzero(alike)
        first = first[kept]
        second = second[kept]
        n_shared = np.zeros(len(kept), dtype=np.intp)
        for place in range(int(self._sizes[first].max(initial=0))):
            has_more = np.flatnonzero(place < self._sizes[first])
            hashes = self._hashes[self._starts[first[has_more]] + place]
            wanted = _keys(second[has_more], hashes)
            found = np.searchsorted(self._keys, wanted)
            near = np.minimum(found, len(self._keys) - 1)
            n_shared[has_more] += self._keys[near] == wanted
        n_any = self._sizes[first] + self._sizes[second] - n_shared
        alike[kept] = n_shared >= _LEAST * n_any
        return alike


def _keys(high: NDArray[Any], low: NDArray[Any]) -> _Keys:
    """Return pairs of whole numbers below 2**32 as one number each."""
    return (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)


def _bit_counts(sketches: _Keys) -> IntegerArray:
    """Return the number of bits set in each sketch."""
    bits = _BITS_OF_BYTE[sketches.view(np.uint8)].reshape(-1, 8)
    counts: IntegerArray = bits.sum(axis=1)
    return counts


def _joined(groups: IndexArray, first: IndexArray, second: IndexArray) -> IndexArray:
    """Return the groups after texts of some of them were found alike."""
    while True:
        lowest = np.minimum(groups[first], groups[second])
        found = groups.copy()
        np.minimum.at(found, groups[first], lowest)
        np.minimum.at(found, groups[second], lowest)
        while (found != (further := found[found])).any():
            found = further
        if (found == groups).all():
            return groups
        groups = found


Shares: TypeAlias = tuple[float, float, float]
"""Shares of training, validation and test rows; they add up to 1."""

_KEY: Final = b"calibrant.split"  # another key would move rows of existing tasks
_END: Final = 2**64
_SLACK: Final = (
    20  # a cut may miss its share by one in 20 texts of the smallest split, so that cuts move less
)


@dataclass(frozen=True, kw_only=True)
class TextGroups:
    """Groups of near-duplicates in labelled rows; see `calibrant.core._splits`.

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

    hashes: _Keys
    keys: _Keys
    labels: IntegerArray
    together: BoolArray
    names: tuple[str, ...]

    def find(self, text: str) -> tuple[int, bool] | None:
        """Return the key of a text's group, and True if it stays in one split; None for a text of its own."""
        place = self.place(text_hash(text))
        if place is None:
            return None
        return int(self.keys[place]), bool(self.together[place])

    def key(self, text: str) -> int:
        """Return the key of a text's group; of a text of its own, its hash."""
        found = self.find(text)
        if found is None:
            return text_hash(text)
        return found[0]

    def place(self, hashed: int) -> int | None:
        """Return the place of a text in the arrays, by its hash; None for a text of its own."""
        place = int(np.searchsorted(self.hashes, np.uint64(hashed)))
        if place < len(self.hashes) and int(self.hashes[place]) == hashed:
            return place
        return None


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
    hashes: _Keys
    rows: IndexArray
    labels: IntegerArray
    conflicts: _Keys

    @classmethod
    def of(cls, hashes: _Keys, answers: NDArray[np.uintc], numbers: Mapping[str, int]) -> _Texts:
        """Return the distinct texts of rows, given their hashes, answers by number, and the numbers of answers."""
        names = sorted(numbers)
        rank = np.empty(len(names), dtype=np.int64)
        rank[[numbers[name] for name in names]] = np.arange(len(names))
        labels = rank[answers]
        order = np.lexsort((labels, hashes))
        hashes = hashes[order]
        labels = labels[order]
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
    hashes = array("Q")
    answers = array("I")
    pairs = WordPairs()
    for text, answer in rows:
        hashes.append(text_hash(text))
        answers.append(numbers.setdefault(normalise_label(answer), len(numbers)))
        pairs.add(text)
    if not numbers:
        return SplitRule(cuts={}, conflicts={}, groups=_NO_GROUPS)
    texts = _Texts.of(
        np.frombuffer(hashes, dtype=np.uint64),
        np.frombuffer(answers, dtype=np.uintc),
        numbers,
    )
    groups = group_near_duplicates(*pairs.of(texts.rows), texts.labels)
    counts = np.bincount(texts.labels, minlength=len(texts.names))
    is_rare = counts * _smallest(shares) <= 0.5
    # Answers with too few texts for every split share their cuts.
    sharing = np.where(is_rare, counts[is_rare].sum(), counts)
    room = np.ceil(sharing * _smallest(shares))
    found = _text_groups(texts, groups, room)
    keys = texts.hashes.copy()
    labels = texts.labels.copy()
    moved = np.searchsorted(texts.hashes, found.hashes[found.together])
    keys[moved] = found.keys[found.together]
    labels[moved] = found.labels[found.together]
    own = texts.labels[np.searchsorted(texts.hashes, texts.conflicts)]
    kept = [texts.names[label] for label in own.tolist()]
    conflicts = dict(zip(texts.conflicts.tolist(), kept, strict=True))
    return SplitRule(
        cuts=_cuts(texts.names, keys, labels, is_rare, shares), conflicts=conflicts, groups=found
    )


def near_duplicate_groups(rows: Sequence[tuple[str, str]]) -> _Keys:
    """Return a number for every row's text and answer, shape (n,): the same for near-duplicates and equal texts."""
    groups = split_rule(rows, _ALL_IN_ONE).groups
    return np.array([groups.key(text) for text, _ in rows], dtype=np.uint64)


@dataclass(kw_only=True)
class RepeatedTexts:
    """Texts that come one by one, and the numbers of those that are right or wrong together.

    Equal texts are, and near-duplicates, which are looked for among at most 125,000 texts: that takes seconds.
    """

    _hashes: array[int] = field(default_factory=partial(array, "Q"))
    _numbers: dict[str | None, int] = field(default_factory=dict)
    _labels: array[int] = field(default_factory=partial(array, "I"))
    _pairs: WordPairs = field(default_factory=WordPairs)

    def add(self, text: str, label: str | None) -> None:
        """Append a text and its label, which tells greetings; see `group_near_duplicates`."""
        self._hashes.append(text_hash(text))
        if self.compared:
            self._labels.append(self._numbers.setdefault(label, len(self._numbers)))
            self._pairs.add(text)

    @property
    def compared(self) -> bool:
        """True if near-duplicates are looked for."""
        return len(self._hashes) <= _COMPARED_TEXTS

    def counts(self) -> IndexArray:
        """Return the number of texts in each group, shape (groups,)."""
        _, first, counts = np.unique(self._hashes, return_index=True, return_counts=True)
        if not self.compared:
            return counts
        groups = group_near_duplicates(*self._pairs.of(first), np.array(self._labels)[first])
        return np.bincount(groups, weights=counts)[np.unique(groups)].astype(np.intp)


@dataclass(kw_only=True)
class SeenTexts:
    """Texts that came so far, as hashes; those of a hundred thousand texts are remembered."""

    _seen: set[tuple[str, int | None]] = field(default_factory=set)

    def add(self, text: int | None, sketch: HalfArray | None) -> bool:
        """Remember a text by its hash, or else by what a head reads of it; return True if it did not come before.

        All texts without a word that a head knows are one to it: where the hash is known, that alone counts.
        """
        found = ("text", text)
        if text is None:
            if sketch is None:
                return True
            found = ("sketch", hash(sketch.tobytes()))
        is_new = found not in self._seen
        if len(self._seen) < _REMEMBERED:
            self._seen.add(found)
        return is_new


_ALL_IN_ONE: Final = (1.0, 0.0, 0.0)
_NO_GROUPS: Final = TextGroups(
    hashes=np.empty(0, dtype=np.uint64),
    keys=np.empty(0, dtype=np.uint64),
    labels=np.empty(0, dtype=np.int64),
    together=np.empty(0, dtype=np.bool_),
    names=(),
)


def _smallest(shares: Shares) -> float:
    return min(share for share in shares if share)


def _text_groups(texts: _Texts, groups: IndexArray, room: FloatArray) -> TextGroups:
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
    pairs = first * n_labels + texts.labels[several]
    by_label, counts = np.unique(pairs, return_counts=True)
    # The most frequent label of each group, of several the first by name.
    order = np.lexsort((by_label, -counts, by_label // n_labels))
    owners = by_label[order] // n_labels
    is_first = np.r_[True, owners[1:] != owners[:-1]]
    starts = np.flatnonzero(is_first[: len(owners)])
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
    keys: _Keys,
    labels: IntegerArray,
    is_rare: BoolArray,
    shares: Shares,
) -> dict[str, tuple[int, int]]:
    """Return the cuts of every answer; rare answers share theirs."""
    shared = _cut(np.sort(keys[is_rare[labels]]), shares)
    cuts = {}
    before = 0
    for name, number in sorted(zip(names, range(len(names)), strict=True)):
        own = np.sort(keys[labels == number])
        if is_rare[number]:
            cuts[name] = shared
        elif _fills_every_split(len(own), shares):
            cuts[name] = _cut(own, shares)
        else:
            cuts[name] = _cut(own, shares, before=before)
            before += len(own)
    return cuts


def _fills_every_split(n: int, shares: Shares) -> bool:
    """Return True if n texts, divided by rounded shares, are in every split that has a share."""
    ends = [0, round(shares[0] * n), round((shares[0] + shares[1]) * n), n]
    return all(last < end or not share for last, end, share in zip(ends, ends[1:], shares, strict=False))


def _cut(keys: _Keys, shares: Shares, *, before: int = 0) -> tuple[int, int]:
    """Return the two cuts that divide sorted keys by the shares, without dividing equal keys.

    Shares are rounded over these keys and `before` others that were cut: what one label loses the next one gets, as of
    four texts of each label none would be in a split of a fifth.
    """
    n = len(keys)
    slack = int(n * _smallest(shares)) // _SLACK
    cuts = []
    last = 0
    first, second, _ = shares
    for own, share in ((first, first), (second, first + second)):
        ideal = min(round(share * _END), _END - 1)
        wanted = round(share * (before + n)) - round(share * before)
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


def _between_groups(keys: _Keys, index: int, *, last: int) -> int:
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
