"""Classifiers without a language model, for the benchmarks: scikit-learn on words, sentence vectors, or both.

All have a constant of 10 that nobody tuned, and weigh labels alike. Those on words take the name of every label for
one more text of it, worth two rows, as the heads of `calibrant.heads.fit_head` do: all sides read the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_union

Shares = NDArray[np.float64]
"""Probabilities of the labels, shape (rows, labels)."""

C: Final = 10.0
ROWS_OF_A_NAME: Final = 2.0


def words_alone(
    labelled: Sequence[tuple[str, str]],
    texts: Sequence[str],
    labels: Sequence[str],
    *,
    with_names: bool = True,
) -> Shares:
    """Return what TF-IDF of words, pairs and pieces of words says of texts."""
    names = names_of(labels) if with_names else []
    teaching = [text for text, _ in labelled] + names
    tfidf = _tfidf()
    taught = tfidf.fit_transform(teaching)
    return _fitted(taught, tfidf.transform(texts), labelled, labels, n_names=len(names))


def vectors_alone(
    labelled: Sequence[tuple[str, str]], texts: Sequence[str], labels: Sequence[str], encoder: Any
) -> Shares:
    """Return what sentence vectors say of texts, as they are mostly used: without the names of the labels."""
    taught = encoder.vectors([text for text, _ in labelled])
    return _fitted(taught, encoder.vectors(texts), labelled, labels, n_names=0)


def vectors_and_names(
    labelled: Sequence[tuple[str, str]], texts: Sequence[str], labels: Sequence[str], encoder: Any
) -> Shares:
    """Return what sentence vectors say of texts, the names of the labels among those to learn from."""
    names = names_of(labels)
    taught = encoder.vectors([text for text, _ in labelled] + names)
    return _fitted(taught, encoder.vectors(texts), labelled, labels, n_names=len(names))


def vectors_and_words(
    labelled: Sequence[tuple[str, str]], texts: Sequence[str], labels: Sequence[str], encoder: Any
) -> Shares:
    """Return what sentence vectors and TF-IDF together say of texts."""
    names = names_of(labels)
    teaching = [text for text, _ in labelled] + names
    tfidf = _tfidf()
    words = tfidf.fit_transform(teaching)
    taught = hstack([words, csr_array(encoder.vectors(teaching))], format="csr")
    judged = hstack([tfidf.transform(texts), csr_array(encoder.vectors(texts))], format="csr")
    return _fitted(taught, judged, labelled, labels, n_names=len(names))


def names_of(labels: Sequence[str]) -> list[str]:
    """Return labels as texts: `card_arrival` becomes `card arrival`."""
    return [re.sub(r"[\W_]+", " ", label) for label in labels]


def _tfidf() -> Any:
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    pieces = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    return make_union(words, pieces)


def _fitted(
    taught: Any, judged: Any, labelled: Sequence[tuple[str, str]], labels: Sequence[str], *, n_names: int
) -> Shares:
    places = {label: place for place, label in enumerate(labels)}
    targets = np.array([places[label] for _, label in labelled] + list(range(n_names)))
    model = LogisticRegression(C=C, max_iter=2000)
    model.fit(taught, targets, sample_weight=_weights(targets, n_names))
    shares = np.zeros((judged.shape[0], len(labels)))
    shares[:, model.classes_] = model.predict_proba(judged)
    return shares


def _weights(targets: NDArray[np.intp], n_names: int) -> NDArray[np.float64]:
    """Return weights of rows and then names, with the same sum for every label."""
    weights = np.ones(len(targets))
    weights[len(targets) - n_names :] = ROWS_OF_A_NAME
    totals = np.bincount(targets, weights=weights)
    balanced = weights / totals[targets]
    found: NDArray[np.float64] = balanced * (weights.sum() / balanced.sum())
    return found
