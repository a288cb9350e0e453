"""Tests of the estimator inside scikit-learn and cleanlab."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from cleanlab.classification import CleanLearning
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.utils.estimator_checks import check_estimator

from any_labels import PointReader, biased, place
from calibrant.sklearn import CalibrantClassifier
from calibrant.testing import FakeClient, fake_model

TEXTS = np.array([f"number {n}" for n in range(60)])
CODES = np.array([place(text) for text in TEXTS])
NAMES = {0: "ham", 1: "spam"}
# None fails; a check that comes to be expected to fail is named here with its reason.
EXPECTED_FAILED_CHECKS: dict[str, str] = {}


@pytest.mark.parametrize("head", ["off", pytest.param("auto", marks=pytest.mark.slow)])
def test_estimator_checks_pass(head: Any) -> None:
    """Every check of scikit-learn passes, on points as rows of numbers."""
    with fake_model("fake/points", PointReader()) as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the checks' own
        estimator = CalibrantClassifier(name, head=head)
        results = check_estimator(estimator, expected_failed_checks=EXPECTED_FAILED_CHECKS, on_skip=None)
    passed = [result["check_name"] for result in results if result["status"] == "passed"]
    assert len(passed) >= 50


def test_cross_validation_pays_once_for_a_text(tmp_path: Path) -> None:
    """`cross_val_predict` gives probabilities of held-out rows; a cache asks about each text once."""
    fake = FakeClient(
        ["ham", "spam"], lambda text: {"ham": 0.9 - 0.3 * place(text), "spam": 0.1}, field="label"
    )
    with fake_model("fake/mail", fake) as name:
        estimator = CalibrantClassifier(name, labels=NAMES, cache=tmp_path / "answers.sqlite")
        found = cross_val_predict(estimator, TEXTS, CODES, cv=3, method="predict_proba")
    assert found.shape == (60, 2)
    assert (found.argmax(axis=1) == CODES).mean() >= 0.9
    assert len(fake.requests) == len(TEXTS)


def test_grid_search_compares_prompts() -> None:
    """`GridSearchCV` over the prompt finds the one under which the model tells classes apart."""

    def by_prompt(text: str, prompt: str) -> dict[str, float]:
        ham = 0.9 - 0.8 * place(text) if "spam" in prompt else 0.5
        return {"ham": ham, "spam": 1.0 - ham}

    with fake_model("fake/mail", FakeClient(["ham", "spam"], by_prompt, field="label")) as name:
        estimator = CalibrantClassifier(name, labels=NAMES, head="off")
        search = GridSearchCV(estimator, {"prompt": ["Which?", "Is it spam?"]}, cv=2).fit(TEXTS, CODES)
    assert search.best_params_ == {"prompt": "Is it spam?"}
    assert search.score(TEXTS, CODES) == 1.0


def test_calibration_and_label_cleaning_take_it() -> None:
    """`CalibratedClassifierCV` and cleanlab's `CleanLearning` fit it; the latter finds a wrong label."""
    wrong = CODES.copy()
    wrong[7] = 1 - wrong[7]
    with fake_model("fake/mail", PlaceReader()) as name:
        estimator = CalibrantClassifier(name, labels=NAMES)
        calibrated = CalibratedClassifierCV(estimator, cv=2).fit(TEXTS, CODES)
        assert calibrated.score(TEXTS, CODES) == 1.0
        cleaner = CleanLearning(estimator, cv_n_folds=2)
        issues = cleaner.find_label_issues(TEXTS, wrong)
        assert issues.index[issues["is_label_issue"]].tolist() == [7]
        assert cleaner.fit(TEXTS, wrong, label_issues=issues).predict(TEXTS)[7] == CODES[7]


class PlaceReader(FakeClient):
    """Model that is right and fairly sure."""

    def __init__(self) -> None:
        super().__init__(
            ["ham", "spam"], lambda text: (list(NAMES.values())[place(text)], 0.8), field="label"
        )


@pytest.mark.parametrize("backend", ["multiprocessing", pytest.param("loky", marks=pytest.mark.slow)])
def test_folds_run_in_processes(backend: str) -> None:
    """Folds in other processes, forked ones included, give the same as in this one."""
    estimator = CalibrantClassifier(biased, labels=NAMES)
    here = cross_val_predict(estimator, TEXTS, CODES, cv=2, method="predict_proba")
    with warnings.catch_warnings(), joblib.parallel_config(backend=backend):
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads
        there = cross_val_predict(estimator, TEXTS, CODES, cv=2, method="predict_proba", n_jobs=2)
    np.testing.assert_array_equal(here, there)
    assert (here.argmax(axis=1) == CODES).mean() >= 0.9


def test_search_finds_a_prompt_within_its_budget() -> None:
    """With `search` a better prompt is found, and calls stay within `max_calls`."""

    def answer(text: str, prompt: str) -> Any:
        return (list(NAMES.values())[place(text)], 0.9) if "JSON" in prompt else "ham"

    fake = FakeClient(["ham", "spam"], answer, field="label")
    texts = [f"number {n}" for n in range(150)]
    with fake_model("fake/mail", fake) as name:
        estimator = CalibrantClassifier(name, prompt="Which one?", search=True, max_calls=360)
        fitted = estimator.fit(texts, ["spam" if place(text) else "ham" for text in texts])
        assert len(fake.requests) <= fitted.n_calls_ <= 360
        assert fitted.prompt_ != "Which one?"
        assert fitted.score(TEXTS, [NAMES[code] for code in CODES]) == 1.0
