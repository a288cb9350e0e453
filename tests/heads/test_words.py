"""Tests of the TF-IDF features of texts beside scikit-learn's."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import hstack
from sklearn.feature_extraction.text import TfidfVectorizer

from calibrant.heads import Words

TAUGHT = [
    "The card isn't here: I ordered my new card last week, and my card is not here!",
    "Why was I charged twice? Charged twice for ONE payment.",
    "a b c",
    "Überweisung fehlt; wo ist die Überweisung?",
    "top-up failed_again 3 times in 2024",
    "私のカードはどこですか card",
    "",
]


def expected(taught: list[str], texts: list[str]) -> NDArray[Any]:
    """Return scikit-learn's features of texts, of those kinds that the texts to learn from have."""
    found = []
    for settings in ({"ngram_range": (1, 2)}, {"analyzer": "char_wb", "ngram_range": (2, 4)}):
        vectorizer = TfidfVectorizer(sublinear_tf=True, **settings)
        try:
            vectorizer.fit(taught)
        except ValueError:
            continue
        found.append(vectorizer.transform(texts))
    return hstack(found).toarray() if found else np.zeros((len(texts), 0))


def learned(taught: list[str]) -> Words:
    """Return the features of texts."""
    words = Words()
    words.learn(taught)
    return words


@given(
    st.lists(
        st.one_of(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
            st.lists(
                st.sampled_from(
                    ["card", "Card,", "my", "new card", "a", "twice!", "\t", "\x1c", "\x85", "x_y", "ß"]
                ),
                max_size=12,
            ).map(" ".join),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_features_are_those_of_scikit_learn(texts: list[str]) -> None:
    """Whatever the characters and white space of texts, their features are scikit-learn's, learned or new."""
    for taught in (TAUGHT, texts):
        words = Words()
        np.testing.assert_allclose(words.learn(taught).toarray(), expected(taught, taught), atol=1e-12)
        np.testing.assert_allclose(words.transform(texts).toarray(), expected(taught, texts), atol=1e-12)


def test_scores_are_features_times_coefficients() -> None:
    """Scores need no matrix of all features, and are the same."""
    words = learned(TAUGHT)
    features = words.transform(TAUGHT[::-1])
    coefficients = np.random.default_rng(0).standard_normal((features.shape[1], 3))
    np.testing.assert_allclose(words.scores(TAUGHT[::-1], coefficients), features @ coefficients, atol=1e-12)
    assert words.scores([], coefficients).shape == (0, 3)


@pytest.mark.parametrize("copied", [lambda words: Words.from_state(words.to_state()), pickle.dumps])
def test_a_copy_has_the_same_features(copied: Any) -> None:
    """A copy from JSON values, or through pickle, knows the same words."""
    words = learned(TAUGHT)
    copy = copied(words)
    copy = pickle.loads(copy) if isinstance(copy, bytes) else copy  # noqa: S301 (made here)
    assert (copy.transform(TAUGHT) != words.transform(TAUGHT)).nnz == 0


def test_more_words_than_are_remembered_change_nothing() -> None:
    """After a hundred thousand other words the features of a text are what they were."""
    words = learned(TAUGHT)
    before = words.transform(TAUGHT).toarray()
    words.transform([" ".join(map(str, range(100_001)))])
    assert (words.transform(TAUGHT).toarray() == before).all()
    assert (words.transform(["12 card"]).toarray() == learned(TAUGHT).transform(["12 card"]).toarray()).all()


def test_threads_do_not_mix_words_up() -> None:
    """Texts whose features are found at the same time have those that they have alone."""
    texts = [
        [f"card{number % 7} {number} twice" for number in range(start, start + 200)] for start in range(8)
    ]
    alone = [learned(TAUGHT).transform(batch).toarray() for batch in texts]
    words = learned(TAUGHT)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda batch: words.transform(batch).toarray(), texts))
    np.testing.assert_array_equal(together, alone)
