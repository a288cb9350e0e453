"""Tests of the estimator: fit, predict, inputs, failures, pickles and bundles."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

import calibrant
from any_labels import place
from calibrant.core import ConfigurationError, ProviderError
from calibrant.sklearn import CalibrantClassifier
from calibrant.testing import FakeClient, fake_model, fake_response

KNOWN = [f"number {n}" for n in range(40)]
NEW = [f"number {n}" for n in range(100, 120)]


def truth(texts: list[str]) -> list[str]:
    """Return the true classes."""
    return ["spam" if place(text) else "ham" for text in texts]


def biased(text: str) -> Any:
    """Return probabilities that tell the classes apart but favour ham; two kinds of text are no text for a model."""
    if text == "lost":
        return ProviderError("no route", provider="fake", status=400)
    if text == "odd":
        return {"choices": [{"message": {"role": "assistant", "content": "no idea"}}]}
    if text == "hidden":
        return {"choices": [{"message": {"role": "assistant", "content": '{"label": "ham"}'}}]}
    if text == "denied":
        return ProviderError("bad key", provider="fake", status=401)
    ham = 0.6 if place(text) else 0.9
    return {"ham": ham, "spam": 1.0 - ham}


@pytest.fixture
def fake() -> Iterator[FakeClient]:
    """Yield a biased model that is opened as ``fake/mail``."""
    client = FakeClient(["ham", "spam"], biased, field="label", name="fake/mail")
    with fake_model("fake/mail", client):
        yield client


def dataset_column(texts: list[str]) -> Any:
    """Return a column of a Hugging Face dataset."""
    datasets = importlib.import_module("datasets")  # takes a second
    return datasets.Dataset.from_dict({"text": texts})["text"]


def make(**options: Any) -> CalibrantClassifier:
    """Return an estimator of the biased model."""
    return CalibrantClassifier("fake/mail", **options)


def test_fit_repairs_a_biased_model(fake: FakeClient) -> None:
    """The head makes new texts right, with one call a labelled text, and without it the model favours a class."""
    fitted = make().fit(KNOWN, truth(KNOWN))
    assert fitted.score(NEW, truth(NEW)) == 1.0
    assert fitted.classes_.tolist() == ["ham", "spam"]
    assert fitted.n_calls_ == len(KNOWN) == len(fake.requests) - len(NEW)
    found = fitted.predict_proba(NEW)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    np.testing.assert_array_equal(fitted.classes_[found.argmax(axis=1)], fitted.predict(NEW))
    assert "ham, spam" in fitted.prompt_
    plain = make(head="off").fit(KNOWN, truth(KNOWN))
    assert (plain.n_calls_, plain.head_, set(plain.predict(NEW))) == (0, None, {"ham"})


def test_a_model_may_be_a_function() -> None:
    """A function of the messages is asked as a model is."""

    def answer(messages: Any) -> Any:
        return fake_response("ham", field="label", probabilities=biased(messages[-1]["content"]))

    fitted = CalibrantClassifier(answer).fit(KNOWN, truth(KNOWN))
    assert fitted.score(NEW, truth(NEW)) == 1.0


@pytest.mark.usefixtures("fake")
def test_calibrator_knows_its_rows() -> None:
    """The calibrator refuses to be judged on the labelled rows."""
    fitted = make().fit(KNOWN, truth(KNOWN))
    with pytest.raises(ConfigurationError, match="rows that were not fitted"):
        fitted.calibrator_.evaluate([0.9], [1], predicted=["ham"], ids=KNOWN[:1])


@pytest.mark.parametrize(
    "shape",
    [
        np.array,
        lambda texts: np.array(texts, dtype=object).reshape(-1, 1),
        lambda texts: pd.Series(texts, index=range(7, 7 + 3 * len(texts), 3)[::-1]),
        lambda texts: pd.DataFrame({"text": texts}, index=["x"] * len(texts)),
        pl.Series,
        dataset_column,
    ],
    ids=["array", "two dimensions", "odd index", "frame", "polars", "dataset"],
)
@pytest.mark.usefixtures("fake")
def test_texts_come_in_many_shapes(shape: Callable[[list[str]], Any]) -> None:
    """Texts of every shape are classified as a list of them, by position."""
    fitted = make().fit(shape(KNOWN), pd.Series(truth(KNOWN), index=range(40, 0, -1)))
    assert fitted.predict(shape(NEW)).tolist() == truth(NEW)


def test_columns_become_one_text(fake: FakeClient) -> None:
    """Columns are lines with their names; other columns are refused."""
    frame = pd.DataFrame({"subject": KNOWN, "size": range(40)})
    fitted = make(head="off").fit(frame, truth(KNOWN))
    fitted.predict(frame[:1])
    assert fake.requests[-1].messages[-1]["content"] == "subject: number 0\nsize: 0"
    assert fitted.n_features_in_ == 2
    for other in (frame[["size", "subject"]], KNOWN):
        with pytest.raises(ValueError, match=r"feature names|2 columns"):
            fitted.predict(other)


@pytest.mark.parametrize(
    ("X", "y", "said"),
    [
        (
            ["a", None, float("nan"), "b"],
            list("xyxy"),
            r"a text in every row of X.* 2 of 4 rows .positions 1, 2.",
        ),
        (pd.Series(["a", None, "b"]), list("xyx"), r"positions 1"),
        (["a", "b", "c"], ["x", np.nan, "y"], r"a class in every row of y.*positions 1"),
        (["a", 3, "b"], list("xyx"), r"got 3 \(int\) in row 1"),
        (["a", "b", "c"], ["x", "y"], "each of 3 texts, got 2"),
        (["a", "b"], ["x", "x"], "at least two classes in y, got one class, 'x'"),
        ([], [], "at least one text"),
        ("text", ["x", "y"], r"a list or a column of texts as X, got 'text' \(str\)"),
        (["a", "b"], "xy", r"a list or a column of classes as y, got 'xy' \(str\)"),
    ],
)
def test_bad_rows_are_named(fake: FakeClient, X: Any, y: Any, said: str) -> None:  # noqa: N803
    """Missing values, other types, lengths and too few classes raise before a call."""
    with pytest.raises(ConfigurationError, match=said):
        make().fit(X, y)
    assert not fake.requests


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_calls": 0}, "max_calls as a whole number from 1, got 0"),
        ({"head": "linear"}, "head"),
        ({"labels": {"ham", "spam"}}, "a list or a mapping, got a set"),
        ({"cache": 3}, "cache"),
        ({"labels": ["ham", "eggs"]}, "got 'spam'"),
        ({"scoring": "sampled", "max_calls": 9}, "at least 10"),
        (
            {"search": True, "max_calls": 12},
            "max_calls that a search can do with, got one that leaves it 6: ",
        ),
    ],
)
def test_bad_parameters_raise_in_fit(fake: FakeClient, options: dict[str, Any], said: str) -> None:
    """The constructor takes anything; `fit` says what is wrong."""
    with pytest.raises(ConfigurationError, match=said):
        make(**options).fit(KNOWN, truth(KNOWN))
    assert not fake.requests


def test_equal_texts_are_asked_once(fake: FakeClient) -> None:
    """A text that stands in several rows costs one call, and takes one of those that are allowed."""
    fitted = make().fit([*KNOWN, *KNOWN], [*truth(KNOWN), *truth(KNOWN)])
    assert fitted.n_calls_ == len(fake.requests) == len(KNOWN)
    fake.requests.clear()
    fitted = make(max_calls=len(KNOWN)).fit([*KNOWN, *KNOWN], [*truth(KNOWN), *truth(KNOWN)])
    assert {request.messages[-1]["content"] for request in fake.requests} == set(KNOWN)
    assert fitted.score(NEW, truth(NEW)) == 1.0


def test_calls_are_capped(fake: FakeClient) -> None:
    """Of more texts than calls some are drawn, with every class in proportion, and the same ones for a seed."""
    rare = ["spam" if n == 17 else "ham" for n in range(40)]
    drawn = []
    for seed in (1, 1, 2):
        fake.requests.clear()
        assert make(max_calls=10, random_state=seed).fit(KNOWN, rare).n_calls_ == 10
        drawn.append({request.messages[-1]["content"] for request in fake.requests})
    assert drawn[0] == drawn[1] != drawn[2]
    assert all("number 17" in texts for texts in drawn)
    fake.requests.clear()
    make(max_calls=10).fit(KNOWN, ["ham" if n % 5 else "spam" for n in range(40)])
    numbers = [int(request.messages[-1]["content"].split()[1]) for request in fake.requests]
    assert sum(number % 5 == 0 for number in numbers) == 2


@pytest.mark.usefixtures("fake")
def test_classes_are_numbers_with_names() -> None:
    """A mapping gives numbers the names that the model reads; columns follow the sorted classes."""
    codes = [place(text) for text in KNOWN]
    fitted = make(labels={1: "spam", 0: "ham", 2: "other"}).fit(KNOWN, codes)
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert fitted.predict(NEW).tolist() == [place(text) for text in NEW]
    assert "spam, ham, other" in fitted.prompt_
    with pytest.warns(UserWarning, match="reads the classes as '0', '1'"):
        make(head="off").fit(KNOWN, codes)


@pytest.mark.usefixtures("fake")
def test_rows_without_an_answer_are_equal() -> None:
    """A failed and an unreadable row get equal probabilities and a warning; a fault of every call raises."""
    fitted = make().fit([*KNOWN, "odd"], [*truth(KNOWN), "ham"])
    with pytest.warns(UserWarning, match="2 of 3 rows have no answer"):
        found = fitted.predict_proba(["lost", NEW[0], "odd"])
    np.testing.assert_array_equal(found[[0, 2]], 0.5)
    assert found[1].max() > 0.5
    with pytest.raises(ProviderError, match="bad key"):
        make().fit(["denied", "denied"], ["ham", "spam"])


@pytest.mark.usefixtures("fake")
def test_answers_without_probabilities_raise() -> None:
    """A model that answers every text without a distribution raises with the remedy."""
    fitted = make(head="off", scoring="decode").fit(KNOWN, truth(KNOWN))
    with pytest.raises(ConfigurationError, match="over the labels, got none on 2 rows: it came without"):
        fitted.predict_proba(["hidden", "hidden"])


@pytest.mark.usefixtures("fake")
def test_bundle_gives_the_same_probabilities(tmp_path: Path) -> None:
    """The bundle's classifier and a loaded estimator give equal probabilities, to the last bit, and can be saved."""
    codes = [place(text) for text in KNOWN]
    fitted = make(labels={0: "ham", 1: "spam"}).fit(KNOWN, codes)
    found = fitted.predict_proba(NEW)
    fitted.save(tmp_path / "bundle")
    with calibrant.load(tmp_path / "bundle") as service:
        rows = [row.distribution for row in service.classify_many(NEW)]
    np.testing.assert_array_equal([row.probabilities for row in rows if row is not None], found)
    loaded = CalibrantClassifier.load(tmp_path / "bundle", labels={0: "ham", 1: "spam"})
    assert loaded.n_calls_ == 0
    np.testing.assert_array_equal(loaded.predict_proba(NEW), found)
    assert loaded.predict(NEW).tolist() == [place(text) for text in NEW]
    loaded.save(tmp_path / "again")
    by_name = CalibrantClassifier.load(tmp_path / "again")
    assert by_name.predict(NEW).tolist() == truth(NEW)
    assert clone(by_name).fit(KNOWN, truth(KNOWN)).head_.digest == by_name.head_.digest
    with pytest.raises(ConfigurationError, match="a class for each of the labels"):
        CalibrantClassifier.load(tmp_path / "bundle", labels={0: "ham"})


@pytest.mark.usefixtures("fake")
def test_pickles_predict_and_hold_no_key() -> None:
    """A pickle predicts the same without the options that may be credentials, before and after fit."""
    options = {"api_key": "plainword-secret-123", "temperature": 0.5}
    fitted = make(options=options).fit(KNOWN, truth(KNOWN))
    data = pickle.dumps(fitted)
    assert b"plainword" not in data + pickle.dumps(make(options=options))
    again = pickle.loads(data)  # noqa: S301 (our own)
    assert again.options == {"temperature": 0.5}
    assert fitted.options == options
    np.testing.assert_array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))


@pytest.mark.usefixtures("fake")
def test_nothing_that_is_printed_shows_a_key() -> None:
    """Neither text nor HTML of an estimator, before and after fit, nor what it holds, shows credentials."""
    options = {"api_key": "plainword-secret-123", "temperature": 0.5}
    estimator = clone(make(options=options))
    for one in (estimator, estimator.fit(KNOWN, truth(KNOWN)), estimator.set_params(options=options)):
        printed = repr(one) + one._repr_html_() + repr(GridSearchCV(one, {"head": ["off"]}))
        assert "plainword" not in printed
        assert "temperature" in printed
    with pytest.raises(ValueError, match="Invalid parameter") as caught:
        estimator.set_params(keys=3)
    assert "plainword" not in str(caught.value)
    assert estimator.options == options
    assert clone(estimator).options == options


def test_prediction_needs_a_fit() -> None:
    """Predicting and saving raise scikit-learn's error before fit."""
    with pytest.raises(NotFittedError):
        make().predict(NEW)
    with pytest.raises(NotFittedError):
        make().save("bundle")
