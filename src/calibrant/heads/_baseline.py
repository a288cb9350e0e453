"""Baseline classifier from the words of a text, which a language model has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._validation import check_answers
from calibrant.core._errors import ConfigurationError, NotFittedError
from calibrant.core._labels import LabelSet
from calibrant.heads._head import check_texts
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
        if len(texts) == 0:
            raise ConfigurationError(
                "Expected at least one row, got none: nothing can be learned from no texts."
            )
        rows = _rows(texts, len(found))
        truth = check_answers(answers, rows.logprobs)
        self._model = LinearModel(["text"]).fit(rows, truth)
        self.labels_, self._n_rows = found, len(truth)
        return self

    def predict_log_proba(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return log-probabilities of the labels, shape (n, L).

        Raises
        ------
        NotFittedError
            The baseline is not fitted.
        """
        if not hasattr(self, "labels_"):
            raise NotFittedError("Expected a fitted TextBaseline, got predict before fit: call fit first.")
        found = self._model.log_proba(_rows(texts, len(self.labels_)))
        return tempered(found, temperature=1.0, n_rows=self._n_rows)

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Return the most probable label of each text."""
        best = self.predict_log_proba(texts).argmax(axis=1)
        return [self.labels_.labels[place] for place in best]


def _rows(texts: Sequence[str], n_labels: int) -> HeadRows:
    check_texts(texts, len(texts))
    return HeadRows.of(np.zeros((len(texts), n_labels)), texts=texts)
