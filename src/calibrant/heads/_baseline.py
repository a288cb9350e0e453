"""Baseline classifier from the words of a text, which a language model has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError, NotFittedError
from calibrant.core._labels import LabelSet
from calibrant.heads._head import check_rows
from calibrant.heads._linear import HeadRows, LinearModel, tempered


class TextBaseline:
    """Classifies texts by their words: TF-IDF and logistic regression, no language model.

    Words and pairs of words, and pieces of words of two to four characters, both weighted as scikit-learn's
    `TfidfVectorizer` does with ``sublinear_tf=True``; `LogisticRegression` with ``C=10``. A label that no row has keeps
    a small probability.

    Attributes
    ----------
    labels_ : LabelSet
        The labels.

    Examples
    --------
    >>> baseline = TextBaseline().fit(["good film", "bad film"], [1, 0], labels=["negative", "positive"])
    >>> baseline.predict(["a good one"])
    ['positive']
    """

    labels_: LabelSet

    def fit(self, texts: Sequence[str], answers: ArrayLike, *, labels: LabelSet | Sequence[str]) -> Self:
        """Learn from labelled texts.

        Parameters
        ----------
        texts : sequence of str, length n >= 1
            The texts.
        answers : array-like of int, shape (n,)
            Position of the true label of each text, in [0, L).
        labels : LabelSet or sequence of str, length L
            The labels.

        Raises
        ------
        ConfigurationError
            No texts, another number of answers, or a position out of range.
        """
        found = LabelSet.of(labels)
        truth = check_positions(answers, n=len(texts), n_labels=len(found))
        self._model = LinearModel(["text"]).fit(_rows(texts, len(found)), truth)
        self.labels_, self._n_rows = found, len(truth)
        return self

    def predict_log_proba(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return log-probabilities of the labels, shape (n, L).

        Raises
        ------
        NotFittedError
            Nothing was learned yet.
        """
        if not hasattr(self, "labels_"):
            raise NotFittedError("Expected a fitted TextBaseline, got predict before fit: call fit first.")
        found = self._model.log_proba(_rows(texts, len(self.labels_)))
        return tempered(found, temperature=1.0, n_rows=self._n_rows)

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Return the most probable label of each text."""
        best = self.predict_log_proba(texts).argmax(axis=1)
        return [self.labels_.labels[place] for place in best]


def check_positions(answers: ArrayLike, *, n: int, n_labels: int) -> NDArray[np.intp]:
    """Return the positions of the true labels of n rows, shape (n,), each in [0, L).

    Raises
    ------
    ConfigurationError
        No rows, another number of answers, not integers, or a position out of range.
    """
    given = np.asarray(answers)
    if n == 0 or given.shape != (n,) or given.dtype.kind not in "iu":
        raise ConfigurationError(
            f"Expected answers as whole numbers of shape ({n},), one for each of at least one row, got {given.dtype} "
            f"of shape {given.shape}: look each answer up in the label set."
        )
    if not ((given >= 0) & (given < n_labels)).all():
        raise ConfigurationError(
            f"Expected answers in [0, {n_labels}), one position per label, got {given.min()} to {given.max()}."
        )
    return given.astype(np.intp)


def _rows(texts: Sequence[str], n_labels: int) -> HeadRows:
    return check_rows(np.zeros((len(texts), n_labels)), texts=texts, features=None, n_labels=n_labels)
