"""Texts as weighted words and pieces of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

# Up to as many texts, their words are replaced by coordinates among the texts: the same regression, much faster.
_MOST_IN_SPAN = 2000


class Words:
    """TF-IDF of words, pairs of words, and pieces of words of two to four characters.

    A word that occurs ``k`` times in a text weighs ``1 + log(k)`` times its inverse document frequency; each of the
    two kinds has length 1 in every text (scikit-learn's `TfidfVectorizer` with ``sublinear_tf=True``).
    """

    def __init__(self) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415 - takes half a second

        self._vectorizers = (
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True),
        )
        self._used: tuple[int, ...] = ()
        self._span: tuple[Any, NDArray[np.float64]] | None = None

    def learn(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 (a sparse matrix)
        """Learn the words of `texts`, and return them, shape (n, words)."""
        texts = [_writable(text) for text in texts]
        used = []
        for place, vectorizer in enumerate(self._vectorizers):
            try:
                vectorizer.fit(texts)
            except ValueError:  # no text holds a word
                continue
            used.append(place)
        self._used = tuple(used)
        return self._matrix(texts)

    def fit(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 (a matrix, dense or sparse)
        """Learn the words of `texts`, and return the matrix to fit a linear model on, shape (n, r).

        For few texts its columns are orthogonal directions in which the texts differ: a linear model with a quadratic
        penalty is the same in them as in the words themselves.
        """
        words = self.learn(texts)
        if not self._used or len(texts) > _MOST_IN_SPAN:
            return words
        gram = (words @ words.T).toarray()
        squares, directions = np.linalg.eigh(gram)
        kept = squares > 1e-9 * squares.max()
        lengths = np.sqrt(squares[kept])
        # The product is taken in `weights`: words times texts are too many numbers to keep.
        self._span = words, directions[:, kept] / lengths
        return directions[:, kept] * lengths

    def weights(self, fitted: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a linear model's coefficients of the words, shape (words, L), given those of `fit`'s columns, once."""
        if self._span is None:
            return fitted
        (words, directions), self._span = self._span, None
        found: NDArray[np.float64] = words.T @ (directions @ fitted)
        return found

    def transform(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 (a sparse matrix)
        """Return the words of `texts`, shape (n, words)."""
        return self._matrix(texts)

    def _matrix(self, texts: Sequence[str]) -> Any:  # noqa: ANN401
        from scipy.sparse import csr_array, hstack  # noqa: PLC0415

        if not self._used or len(texts) == 0:
            return csr_array((len(texts), sum(len(self._vectorizers[place].idf_) for place in self._used)))
        texts = [_writable(text) for text in texts]
        return hstack([self._vectorizers[place].transform(texts) for place in self._used], format="csr")

    def to_state(self) -> dict[str, Any]:
        """Return the words and their frequencies as JSON values."""
        return {
            str(place): {
                "words": self._vectorizers[place].get_feature_names_out().tolist(),
                "idf": self._vectorizers[place].idf_.tolist(),
            }
            for place in self._used
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the words of a `to_state` record; KeyError, TypeError or ValueError for any other."""
        words = cls()
        if not set(state) <= {str(place) for place in range(len(words._vectorizers))}:
            raise ValueError("words of an unknown kind")
        words._used = tuple(sorted(map(int, state)))
        for place in words._used:
            vectorizer, stored = words._vectorizers[place], state[str(place)]
            idf = np.asarray(stored["idf"], dtype=np.float64)
            found = stored["words"]
            if not isinstance(found, list) or idf.shape != (len(found),) or not np.isfinite(idf).all():
                raise ValueError("a frequency for each word is missing")
            vectorizer.vocabulary = {str(word): column for column, word in enumerate(found)}
            vectorizer.idf_ = idf
        return words


def _writable(text: str) -> str:
    """Return a text that UTF-8 can encode: a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")
