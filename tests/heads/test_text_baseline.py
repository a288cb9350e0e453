"""Tests of the text baseline: it agrees with scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline, make_union

from calibrant.core import ConfigurationError, NotFittedError
from calibrant.heads import TextBaseline
from head_rows import LABELS, halves

WORDS = ["red fox", "red hen", "grey wolf", "grey owl", "a red one", "some grey ones"]
COLOURS = [0, 0, 1, 1, 0, 1]


def reference(texts: list[str], answers: Any, asked: list[str], *, n_labels: int) -> Any:
    """Return scikit-learn's distributions, with one row of equal shares added."""
    model = make_pipeline(
        make_union(
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True),
        ),
        LogisticRegression(C=10, max_iter=2000),
    ).fit(texts, answers)
    found = np.zeros((len(asked), n_labels))
    found[:, model.classes_] = model.predict_proba(asked)
    return (len(texts) * found + 1.0 / n_labels) / (len(texts) + 1.0)


@pytest.mark.parametrize("limit", [0, 2000], ids=["in words", "in the span of the texts"])
@pytest.mark.parametrize("n_labels", [2, 4])
def test_it_is_what_scikit_learn_finds(limit: int, n_labels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both solvers agree with scikit-learn, for two labels and for four."""
    monkeypatch.setattr("calibrant.heads._linear._MOST_IN_SPAN", limit)
    rows, fresh = halves(120), halves(60, seed=1)
    answers = rows.answers % n_labels
    found = TextBaseline().fit(rows.texts, answers, labels=LABELS[:n_labels])
    asked = [*fresh.texts, "", "nothing of it", *rows.texts[:5]]
    expected = reference(rows.texts, answers, asked, n_labels=n_labels)
    assert np.exp(found.predict_log_proba(asked)) == pytest.approx(expected, abs=1e-3)
    assert found.predict(asked) == [LABELS[place] for place in expected.argmax(axis=1)]


def test_many_texts_are_solved_in_words() -> None:
    """With 2,100 texts the baseline agrees with scikit-learn."""
    answers = np.arange(2100) % 2
    texts = [f"{('sun', 'rain')[bit]} {number % 7}" for number, bit in enumerate(answers)]
    asked = ["sun 3", "rain", "3"]
    found = TextBaseline().fit(texts, answers, labels=["dry", "wet"])
    assert np.exp(found.predict_log_proba(asked)) == pytest.approx(
        reference(texts, answers, asked, n_labels=2), abs=1e-3
    )
    assert found.predict(asked[:2]) == ["dry", "wet"]


def test_a_label_without_rows_keeps_a_small_probability() -> None:
    """A label without rows has its share of the one row that holds every label equally."""
    found = np.exp(TextBaseline().fit(WORDS, COLOURS, labels=LABELS).predict_log_proba(["red", "grey"]))
    assert found[:, 2:] == pytest.approx(1 / 4 / 7)
    assert found.sum(axis=1) == pytest.approx(1.0)


def test_one_label_alone_is_what_it_says() -> None:
    """If all six rows have one label, its probability is 6.5 of 7."""
    found = TextBaseline().fit(WORDS, [1] * 6, labels=["a", "b"])
    assert np.exp(found.predict_log_proba(["red", ""])) == pytest.approx(np.array([[0.5, 6.5]] * 2) / 7)


@pytest.mark.parametrize("texts", [["..."] * 6, ["   ", "", "\n", "", "", ""], ["same old"] * 6])
def test_texts_without_words_leave_the_shares_of_the_labels(texts: list[str]) -> None:
    """Texts without telling words give the shares of the labels."""
    found = TextBaseline().fit(texts, [0, 0, 0, 0, 1, 1], labels=["a", "b"])
    assert np.exp(found.predict_log_proba(["same old", ""])) == pytest.approx(
        np.array([[4.5, 2.5]] * 2) / 7, abs=2e-2
    )


@settings(max_examples=25)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=5), st.data())
def test_any_texts_have_distributions(texts: list[str], data: st.DataObject) -> None:
    """Log-probabilities are finite and normalised for any characters and labels."""
    answers = data.draw(st.lists(st.integers(0, 2), min_size=len(texts), max_size=len(texts)))
    found = TextBaseline().fit(texts, answers, labels=["a", "b", "c"]).predict_log_proba([*texts, "else"])
    assert np.isfinite(found).all()
    assert np.exp(found).sum(axis=1) == pytest.approx(1.0)


def test_no_texts_have_no_labels() -> None:
    """No texts give an empty result; one string, or an unfitted baseline, raises an error."""
    found = TextBaseline().fit(WORDS, COLOURS, labels=["a", "b"])
    assert found.predict([]) == []
    assert found.predict_log_proba([]).shape == (0, 2)
    with pytest.raises(ConfigurationError, match="sequence of strings"):
        found.predict("red")
    with pytest.raises(NotFittedError, match="before fit"):
        TextBaseline().predict(["red"])


@pytest.mark.parametrize(
    ("texts", "answers", "message"),
    [
        ([], [], "at least one row"),
        (WORDS, [0, 1, 2, 0, 1, 0], "got 2 in row 2"),
        ("sunset", COLOURS, "sequence of strings"),
    ],
)
def test_bad_input_is_refused(texts: Any, answers: Any, message: str) -> None:
    """Bad input raises ConfigurationError with what was expected."""
    with pytest.raises(ConfigurationError, match=message):
        TextBaseline().fit(texts, answers, labels=["a", "b"])
