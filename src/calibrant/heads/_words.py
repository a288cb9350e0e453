"""TF-IDF features of texts: words, word pairs and characters inside words."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from threading import Lock
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core._prediction import FloatArray, IndexArray, IntegerArray
from calibrant.core._reported import writable

_WORD: Final = re.compile(r"(?u)\b\w\w+\b")
_LENGTHS: Final = (2, 3, 4)  # of pieces of words
_REMEMBERED: Final = 100_000  # parts of texts whose columns are remembered: some 30 MB

Places = NDArray[np.int32]


class Words:
    """TF-IDF features of words, of word pairs, and of two to four characters inside words.

    A word that occurs ``k`` times in a text weighs ``1 + log(k)`` times its inverse document frequency; each of the
    two kinds has length 1 in every text (scikit-learn's `TfidfVectorizer` with ``sublinear_tf=True``, and the analyzer
    ``char_wb`` for the second). Most parts of texts, between white space, occur again and again, so that their columns
    are remembered.

    Examples
    --------
    >>> words = Words()
    >>> words.learn(["a red fox", "a grey owl"]).shape == words.transform(["a red owl", "an owl"]).shape
    True
    """

    def __init__(self) -> None:
        self._kinds: dict[int, _Kind] = {}

    def learn(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 (a sparse matrix)
        """Fit the TF-IDF features on `texts` and return them, shape (n, words)."""
        from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415 - takes half a second

        texts = [writable(text) for text in texts]
        vectorizers = (
            TfidfVectorizer(ngram_range=(1, 2)),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(min(_LENGTHS), max(_LENGTHS))),
        )
        self._kinds = {}
        for place, vectorizer in enumerate(vectorizers):
            try:
                vectorizer.fit(texts)
            except ValueError:  # no text holds a word
                continue
            words = vectorizer.get_feature_names_out().tolist()
            self._kinds[place] = _KINDS[place](words, vectorizer.idf_)
        return self.transform(texts)

    def transform(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 (a sparse matrix)
        """Return the TF-IDF features of `texts`, shape (n, words)."""
        from scipy.sparse import csr_array, hstack  # noqa: PLC0415

        if not self._kinds or len(texts) == 0:
            n_words = sum(len(kind.words) for kind in self._kinds.values())
            return csr_array((len(texts), n_words))
        return hstack(self._by_kind(texts), format="csr")

    def scores(self, texts: Sequence[str], coefficients: FloatArray) -> FloatArray:
        """Return the features of `texts` times coefficients of shape (words, L), shape (n, L)."""
        found = np.zeros((len(texts), coefficients.shape[1]))
        begin = 0
        for features in self._by_kind(texts):
            end = begin + features.shape[1]
            found += features @ coefficients[begin:end]
            begin = end
        return found

    def _by_kind(self, texts: Sequence[str]) -> list[Any]:
        parts_of = [writable(text).lower().split() for text in texts]
        return [kind.features(parts_of) for kind in self._kinds.values()]

    def to_state(self) -> dict[str, Any]:
        """Return the words and their inverse document frequencies as JSON values."""
        return {
            str(place): {"words": kind.words, "idf": kind.idf.tolist()} for place, kind in self._kinds.items()
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the features of a `to_state` record; KeyError, TypeError or ValueError if invalid."""
        words = cls()
        if not set(state) <= {str(place) for place in range(len(_KINDS))}:
            raise ValueError("words of an unknown kind")
        for place in sorted(map(int, state)):
            stored = state[str(place)]
            idf = np.asarray(stored["idf"], dtype=np.float64)
            found = stored["words"]
            is_complete = isinstance(found, list) and idf.shape == (len(found),)
            if not is_complete or not np.isfinite(idf).all():
                raise ValueError("a frequency for each word is missing")
            words._kinds[place] = _KINDS[place](list(map(str, found)), idf)
        return words


class _Remembered:
    """Columns that parts of texts have, remembered by part.

    Parameters
    ----------
    columns_of : callable
        Returns the columns of a part.
    """

    def __init__(self, columns_of: Callable[[str], list[int]]) -> None:
        self._columns_of = columns_of
        self._lock = Lock()
        self._forget()

    def _forget(self) -> None:
        self._number_of: defaultdict[str, int] = defaultdict()
        self._number_of.default_factory = self._number_of.__len__  # a new part has the next number
        self._ends = array("i", [0])
        self._columns = array("i")

    def read(self, parts_of: Sequence[Sequence[str]]) -> tuple[Places, Places, Places]:
        """Return numbers of all parts of texts, the columns of every number, and where these end, from 0 on."""
        with self._lock:
            if len(self._number_of) > _REMEMBERED:
                self._forget()
            known = len(self._number_of)
            number_of = self._number_of.__getitem__
            parts = chain.from_iterable(parts_of)
            numbers = np.array([*map(number_of, parts)], dtype=np.int32)
            for part in islice(self._number_of, known, None):
                self._columns.extend(self._columns_of(part))
                self._ends.append(len(self._columns))
            # Of what is remembered only the parts of these texts are copied, which get numbers without gaps.
            is_here = np.zeros(len(self._number_of), dtype=np.bool_)
            is_here[numbers] = True
            here = np.flatnonzero(is_here)
            renumbered = np.cumsum(is_here, dtype=np.int32) - 1
            all_ends = np.asarray(self._ends)
            widths = np.diff(all_ends)[here]
            places = _stretches(all_ends[here], widths)
            columns = np.asarray(self._columns)[places]
            ends = np.cumsum(np.append(0, widths), dtype=np.int32)
            return renumbered[numbers], columns, ends


def _stretches(begins: NDArray[Any], lengths: NDArray[Any]) -> IndexArray:
    """Return the places of stretches with these beginnings and lengths, one after the other."""
    offsets = begins - (np.cumsum(lengths) - lengths)
    return np.repeat(offsets, lengths) + np.arange(lengths.sum())


class _Kind(ABC):
    """Features of one kind: what is counted, with its inverse document frequencies.

    Parameters
    ----------
    words : list of str
        What is counted, in the order of the columns.
    idf : ndarray of shape (words,)
        Its inverse document frequencies.
    """

    def __init__(self, words: list[str], idf: FloatArray) -> None:
        self.words = words
        self.idf = idf
        self._place_of = {word: place for place, word in enumerate(words)}
        self._remembered = _Remembered(self._columns_of)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor and its arguments for pickle, without what is remembered."""
        arguments = (self.words, self.idf)
        return type(self), arguments

    @abstractmethod
    def _columns_of(self, part: str) -> list[int]:
        """Return the columns of a part of a text."""

    @abstractmethod
    def _counts(self, parts_of: Sequence[Sequence[str]]) -> Any:  # noqa: ANN401 (a sparse matrix)
        """Return the counts in texts, given as their parts, shape (n, words)."""

    def features(self, parts_of: Sequence[Sequence[str]]) -> Any:  # noqa: ANN401 (a sparse matrix)
        """Return the features of texts, given as their parts in lower case; of length 1 in every text that has any."""
        found = self._counts(parts_of)
        weights = np.log(found.data)
        weights += 1.0
        weights *= self.idf[found.indices]
        n_weights = np.diff(found.indptr)
        has_weights = n_weights > 0
        begins = found.indptr[:-1][has_weights]
        if len(begins):
            squares = np.add.reduceat(weights**2, begins)
            lengths = np.sqrt(squares)
            weights /= np.repeat(lengths, n_weights[has_weights])
        found.data = weights
        return found


class _WordPairs(_Kind):
    """Words of two characters or more, and pairs of them, with a space between the two."""

    @cached_property
    def _pairs(self) -> tuple[IntegerArray, Places]:
        """Keys of the pairs, ascending, and their columns; both words of a pair are columns, too."""
        keys = []
        for place, pair in enumerate(self.words):
            first, _, second = pair.partition(" ")
            if not second:
                continue
            first_place = self._place_of[first]
            second_place = self._place_of[second]
            key = first_place * len(self.words) + second_place
            keys.append((key, place))
        found = np.array(sorted(keys), dtype=np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1].astype(np.int32)

    def _columns_of(self, part: str) -> list[int]:
        return [self._place_of.get(word, -1) for word in _WORD.findall(part)]

    def _counts(self, parts_of: Sequence[Sequence[str]]) -> Any:  # noqa: ANN401 (a sparse matrix)
        from scipy.sparse import csr_array  # noqa: PLC0415

        numbers, columns, ends = self._remembered.read(parts_of)
        n_parts = np.fromiter(map(len, parts_of), dtype=np.int32, count=len(parts_of))
        rows = np.repeat(np.arange(len(parts_of), dtype=np.int32), n_parts)
        # A part has one word as a rule, but may have none or several.
        n_words = np.diff(ends)[numbers]
        places = columns[_stretches(ends[numbers], n_words)]
        rows = np.repeat(rows, n_words)
        known = places >= 0
        same_text = rows[:-1] == rows[1:]
        follows = known[:-1] & known[1:] & same_text
        first = places[:-1][follows]
        second = places[1:][follows]
        pairs = self._pair_columns(first, second)
        pair_rows = rows[:-1][follows]
        is_pair = pairs >= 0
        found_rows = np.concatenate([rows[known], pair_rows[is_pair]])
        found_columns = np.concatenate([places[known], pairs[is_pair]])
        shape = len(parts_of), len(self.words)
        ones = np.ones(len(found_rows))
        return csr_array((ones, (found_rows, found_columns)), shape=shape)

    def _pair_columns(self, first: Places, second: Places) -> Places:
        """Return the columns of pairs of words; -1 for those that are none."""
        keys, columns = self._pairs
        if not len(keys):
            return np.full(len(first), -1, dtype=np.int32)
        wanted = first.astype(np.int64) * len(self.words) + second
        found = np.searchsorted(keys, wanted)
        near = np.minimum(found, len(keys) - 1)
        return np.where(keys[near] == wanted, columns[near], np.int32(-1))


class _Pieces(_Kind):
    """Two to four characters inside words, which have a space at both ends."""

    def _columns_of(self, part: str) -> list[int]:
        padded = f" {part} "
        places: list[int | None] = []
        for length in _LENGTHS:
            last = len(padded) - length
            pieces = [padded[begin : begin + length] for begin in range(last + 1)]
            places += map(self._place_of.get, pieces)
        return [place for place in places if place is not None]

    def _counts(self, parts_of: Sequence[Sequence[str]]) -> Any:  # noqa: ANN401 (a sparse matrix)
        from scipy.sparse import csr_array  # noqa: PLC0415

        numbers, columns, ends = self._remembered.read(parts_of)
        n_parts = len(ends) - 1
        ones = np.ones(len(columns))
        pieces = csr_array((ones, columns, ends), shape=(n_parts, len(self.words)))
        begins = np.cumsum([0, *map(len, parts_of)], dtype=np.int32)
        ones = np.ones(len(numbers))
        parts = csr_array((ones, numbers, begins), shape=(len(parts_of), n_parts))
        return parts @ pieces


_KINDS: Final[tuple[type[_Kind], ...]] = (_WordPairs, _Pieces)
