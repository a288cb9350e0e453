"""Groups of near-duplicate texts, such as messages made from one template.

Two texts are near-duplicates if they share at least half of their word pairs. Digits are masked, so that amounts and
dates make no difference. Pairs that stand under several labels alike, as those of greetings do, are not counted: two
messages are not alike because both begin with "to whom it may concern". Groups are chains of near-duplicates.
"""

from __future__ import annotations

import re
import zlib
from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

_WORD: Final = re.compile(r"[^\W\d_]+|\d+")
_LEAST: Final = 0.5  # share of the word pairs of two texts that near-duplicates have in common
_KEPT_PAIRS: Final = 32  # of a text; of a longer one, those with the smallest hashes
_MOST_PAIRS: Final = 4_000_000  # compared in all, unless _FEWEST_PAIRS of each text are more
_FEWEST_PAIRS: Final = 4
_COMMON: Final = 4  # texts from which on a pair's labels tell whether it is a greeting
_OWN: Final = 0.7  # share of its texts that one label has, if a pair belongs to that label
_JOIN_PAIRS: Final = 8  # rarest pairs of a text by which others like it are looked up
_NEIGHBOURS: Final = 8  # texts with the same pair that a text is compared with, on either side
_CHUNK: Final = 2**20  # comparisons in memory
_SKETCH_LEAST: Final = 0.35  # of 64 bits; lower than _LEAST, as several pairs may share a bit

_BITS_OF_BYTE: Final = np.array([byte.bit_count() for byte in range(256)])

_Indices: TypeAlias = NDArray[np.intp]
_Hashes: TypeAlias = NDArray[np.uint32]


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

    hashes: array[int]
    counts: array[int]

    @classmethod
    def empty(cls) -> WordPairs:
        """Return the pairs of no text."""
        return cls(hashes=array("I"), counts=array("B"))

    def add(self, text: str) -> None:
        """Append a text."""
        found = word_pair_hashes(text)
        self.hashes.extend(found)
        self.counts.append(len(found))

    def of(self, texts: _Indices) -> tuple[_Hashes, _Indices]:
        """Return the hashes of some texts in their order, and the place of each hash's text in that order.

        Of more than 125,000 texts, fewer of the smallest hashes of each are returned, so that memory stays bounded:
        4 of a million.
        """
        counts = np.frombuffer(self.counts, dtype=np.uint8).astype(np.intp)
        starts = np.cumsum(counts) - counts
        chosen = np.minimum(counts[texts], max(_FEWEST_PAIRS, _MOST_PAIRS // max(1, len(texts))))
        places = np.repeat(np.arange(len(texts)), chosen)
        within = np.arange(len(places)) - np.repeat(np.cumsum(chosen) - chosen, chosen)
        hashes = np.frombuffer(self.hashes, dtype=np.uint32)
        return hashes[starts[texts][places] + within], places


def group_near_duplicates(hashes: _Hashes, places: _Indices, labels: NDArray[np.int64]) -> _Indices:
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
            first, second = texts[chunk], texts[chunk + distance]
            apart = groups[first] != groups[second]
            first, second = first[apart], second[apart]
            alike = index.are_alike(first, second)
            groups = _joined(groups, first[alike], second[alike])
    return groups


def _is_counted(hashes: _Hashes, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the pairs that count: those of few texts, or mostly of one label."""
    keys = (hashes.astype(np.uint64) << np.uint64(32)) | labels.astype(np.uint64)
    by_label, counts = np.unique(keys, return_counts=True)
    owners = (by_label >> np.uint64(32)).astype(np.uint32)
    values, starts = np.unique(owners, return_index=True)
    total, most = np.add.reduceat(counts, starts), np.maximum.reduceat(counts, starts)
    counted = (total < _COMMON) | (most >= _OWN * total)
    result: NDArray[np.bool_] = counted[np.searchsorted(values, hashes)]
    return result


class _PairIndex:
    """Word pairs of texts, to look up texts that share some and to compare two texts."""

    def __init__(self, hashes: _Hashes, places: _Indices, *, n_texts: int) -> None:
        self._hashes = hashes
        self._places = places
        self._sizes = np.bincount(places, minlength=n_texts)
        self._starts = np.cumsum(self._sizes) - self._sizes
        # Ascending, as texts follow each other and their hashes ascend.
        self._keys = _keys(places, hashes)
        bits = np.uint64(1) << (hashes & np.uint32(63)).astype(np.uint64)
        self._sketches = np.zeros(n_texts, dtype=np.uint64)
        np.bitwise_or.at(self._sketches, places, bits)

    def join_pairs(self) -> tuple[_Hashes, _Indices]:
        """Return the rarest pairs of every text, without those of one text alone, and their texts; sorted by pair.

        Two texts that share half of their pairs share one of the rarer half (prefix filter of similarity joins).
        """
        _, inverse, counts = np.unique(self._hashes, return_inverse=True, return_counts=True)
        frequency = counts[inverse]
        order = np.lexsort((self._hashes, frequency, self._places))
        places, hashes, frequency = self._places[order], self._hashes[order], frequency[order]
        rank = np.arange(len(places)) - self._starts[places]
        alone = np.bincount(places[frequency == 1], minlength=len(self._sizes))
        in_rarer_half = rank <= self._sizes[places] - np.ceil(_LEAST * self._sizes[places])
        joins = in_rarer_half & (frequency > 1) & (rank < alone[places] + _JOIN_PAIRS)
        hashes, places = hashes[joins], places[joins]
        order = np.lexsort((places, hashes))
        return hashes[order], places[order]

    def are_alike(self, first: _Indices, second: _Indices) -> NDArray[np.bool_]:
        """Return a mask of the near-duplicates among pairs of texts."""
        one, other = self._sketches[first], self._sketches[second]
        # Most texts that share a frequent pair are unlike: this tells without reading their pairs.
        alike = _bit_counts(one & other) >= _SKETCH_LEAST * _bit_counts(one | other)
        kept = np.flatnonzero(alike)
        first, second = first[kept], second[kept]
        n_shared = np.zeros(len(kept), dtype=np.intp)
        for place in range(int(self._sizes[first].max(initial=0))):
            has_more = np.flatnonzero(place < self._sizes[first])
            hashes = self._hashes[self._starts[first[has_more]] + place]
            wanted = _keys(second[has_more], hashes)
            found = np.searchsorted(self._keys, wanted)
            is_shared = self._keys[np.minimum(found, len(self._keys) - 1)] == wanted
            n_shared[has_more] += is_shared
        n_any = self._sizes[first] + self._sizes[second] - n_shared
        alike[kept] = n_shared >= _LEAST * n_any
        return alike


def _keys(places: _Indices, hashes: _Hashes) -> NDArray[np.uint64]:
    return (places.astype(np.uint64) << np.uint64(32)) | hashes.astype(np.uint64)


def _bit_counts(sketches: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of bits set in each sketch."""
    counts: NDArray[np.int64] = _BITS_OF_BYTE[sketches.view(np.uint8)].reshape(-1, 8).sum(axis=1)
    return counts


def _joined(groups: _Indices, first: _Indices, second: _Indices) -> _Indices:
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
