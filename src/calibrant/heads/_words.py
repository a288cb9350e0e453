"""Texts as weighted words and pieces of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Words"]

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
        self._span: NDArray[np.float64] | None = None

    def fit(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 (a matrix, dense or sparse)
        """Learn the words of `texts`, and return the matrix to fit a linear model on, shape (n, r).

        For few texts its columns are orthogonal directions in which the texts differ: a linear model with a quadratic
        penalty is the same in them as in the words themselves.
        """
        used = []
        for place, vectorizer in enumerate(self._vectorizers):
            try:
                vectorizer.fit(texts)
            except ValueError:  # no text holds a word
                continue
            used.append(place)
        self._used = tuple(used)
        words = self._matrix(texts)
        if not used or len(texts) > _MOST_IN_SPAN:
            return words
        gram = (words @ words.T).toarray()
        squares, directions = np.linalg.eigh(gram)
        kept = squares > 1e-9 * squares.max()
        lengths = np.sqrt(squares[kept])
        self._span = words.T @ (directions[:, kept] / lengths)
        return directions[:, kept] * lengths

    def weights(self, fitted: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a linear model's coefficients of the words, shape (words, L), given those of `fit`'s columns."""
        return fitted if self._span is None else self._span @ fitted

    def transform(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 (a sparse matrix)
        """Return the words of `texts`, shape (n, words)."""
        return self._matrix(texts)

    def _matrix(self, texts: Sequence[str]) -> Any:  # noqa: ANN401
        from scipy.sparse import csr_array, hstack  # noqa: PLC0415

        if not self._used:
            return csr_array((len(texts), 0))
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
        """Return the words of `to_state`; KeyError, TypeError or ValueError if it is none."""
        words = cls()
        words._used = tuple(sorted(map(int, state)))
        for place in words._used:
            vectorizer, stored = words._vectorizers[place], state[str(place)]
            vectorizer.vocabulary = {word: column for column, word in enumerate(stored["words"])}
            vectorizer.idf_ = np.asarray(stored["idf"], dtype=np.float64)
        return words
