"""Tests of the text baseline: it agrees with scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_union

from calibrant.core import ConfigurationError, NotFittedError
from calibrant.heads import TextBaseline
from head_rows import LABELS, halves

WORDS = ["red fox", "red hen", "grey wolf", "grey owl", "a red one", "some grey ones"]
COLOURS = [0, 0, 1, 1, 0, 1]


def reference(texts: list[str], answers: Any, asked: list[str], *, labels: Sequence[str]) -> Any:
    """Return scikit-learn's distributions, taught the names of the labels, too, with one row of equal shares added."""
    taught = [*texts, *labels]
    targets = np.concatenate([answers, np.arange(len(labels))])
    rows_of_label = np.bincount(answers, minlength=len(labels))
    worth = np.repeat([1.0, 2.0], [len(texts), len(labels)])
    weights = worth / (rows_of_label[targets] + 2.0)  # the same sum for each label
    weights *= worth.sum() / weights.sum()
    columns = make_union(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True),
    )
    model = LogisticRegression(C=10, max_iter=2000)
    model.fit(columns.fit_transform(taught), targets, sample_weight=weights)
    found = model.predict_proba(columns.transform(asked))
    return (len(texts) * found + 1.0 / len(labels)) / (len(texts) + 1.0)


@pytest.mark.parametrize("limit", [0, 2000], ids=["in words", "in the span of the texts"])
@pytest.mark.parametrize("n_labels", [2, 4])
def test_it_is_what_scikit_learn_finds(limit: int, n_labels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both solvers agree with scikit-learn, for two labels and for four."""
    monkeypatch.setattr("calibrant.heads._compared.MOST_IN_PRODUCTS", limit)
    rows, fresh = halves(120), halves(60, seed=1)
    answers = rows.answers % n_labels
    found = TextBaseline().fit(rows.texts, answers, labels=LABELS[:n_labels])
    asked = [*fresh.texts, "", "nothing of it", *rows.texts[:5]]
    expected = reference(rows.texts, answers, asked, labels=LABELS[:n_labels])
    assert np.exp(found.predict_log_proba(asked)) == pytest.approx(expected, abs=2e-3)
    assert found.predict(asked) == [LABELS[place] for place in expected.argmax(axis=1)]


def test_many_texts_are_solved_in_words() -> None:
    """With 2,100 texts the baseline agrees with scikit-learn."""
    answers = np.arange(2100) % 2
    texts = [f"{('sun', 'rain')[bit]} {number % 7}" for number, bit in enumerate(answers)]
    asked = ["sun 3", "rain", "3"]
    found = TextBaseline().fit(texts, answers, labels=["dry", "wet"])
    assert np.exp(found.predict_log_proba(asked)) == pytest.approx(
        reference(texts, answers, asked, labels=["dry", "wet"]), abs=2e-3
    )
    assert found.predict(asked[:2]) == ["dry", "wet"]


def test_a_label_without_rows_answers_to_its_name() -> None:
    """A label that no row has is predicted for a text like its name."""
    found = TextBaseline().fit(WORDS, COLOURS, labels=["red", "grey", "blue_sea", "greenWood"])
    assert found.predict(["the blue sea", "green woods", "red deer"]) == ["blue_sea", "greenWood", "red"]


def test_labels_count_alike() -> None:
    """A text without telling words gives a rare label more than its share of the rows."""
    texts = [f"fox {number}" for number in range(18)] + ["owl 1", "owl 2"]
    found = TextBaseline().fit(texts, [0] * 18 + [1] * 2, labels=["day", "dew"])
    assert np.exp(found.predict_log_proba([""]))[0, 1] > 0.2  # 2 of 20 rows


@pytest.mark.parametrize("texts", [["..."] * 6, ["   ", "", "\n", "", "", ""], ["same old"] * 6])
def test_texts_without_words_tell_nothing(texts: list[str]) -> None:
    """Texts without telling words give the labels about equal probabilities."""
    found = TextBaseline().fit(texts, [0, 0, 0, 0, 1, 1], labels=["a", "b"])
    assert np.exp(found.predict_log_proba([""])) == pytest.approx(np.array([[0.5, 0.5]]), abs=0.1)


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
