"""Tests of the scorer that learns from validation rows which answers are right."""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.cascade import LearnedScorer
from calibrant.cascade._protocol import Answered, Assessment, NoEvidence
from calibrant.cascade.methods._learned import confidence_features
from calibrant.core import ConfigurationError, LabelDistribution, NotFittedError, Prediction, StateError
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import LogprobSpace
from calibrant.inference import Classifier
from calibrant.metrics import auroc
from calibrant.testing import FakeClient

LABELS = ("cat", "dog", "cow")
CLASSIFIER = Classifier(model=FakeClient(LABELS, {}), labels=LABELS, field="category")
FINGERPRINT = Fingerprint(prompt="p", model="fake", space=LogprobSpace.MASKED, labels=LABELS)

Rows = tuple[list[str], list[Prediction], np.ndarray[Any, Any]]


def prediction(label: str = "cat", confidence: float = 0.8, mass: float = 1.0) -> Prediction:
    """Return an answer of some confidence; the other labels share the rest unevenly."""
    others = [name for name in LABELS if name != label]
    shares = {label: confidence, others[0]: (1 - confidence) * 0.7, others[1]: (1 - confidence) * 0.3}
    distribution = LabelDistribution(
        labels=LABELS,
        logprobs=np.log([max(shares[name], 1e-12) for name in LABELS]),
        measured=np.ones(3, dtype=bool),
        joint_logprob=math.log(max(confidence, 1e-12)),
        label_mass=mass,
        unresolved_mass=0.0,
        space=LogprobSpace.MASKED,
        emitted=label,
    )
    return Prediction(label=label, confidence=confidence, distribution=distribution)


def bare(label: str = "cat") -> Prediction:
    """Return an answer without confidence."""
    return Prediction(label=label)


def rows(n: int, seed: int, chance: Callable[[str, str, float], float]) -> Rows:
    """Return n rows that are right with the given chance of words, label and confidence."""
    rng = np.random.default_rng(seed)
    questions = [" ".join(rng.choice(["sun", "rain", "wind", "snow", "fog"], 3)) for _ in range(n)]
    predictions = [
        prediction(str(rng.choice(LABELS)), float(rng.uniform(0.4, 1.0)), float(rng.uniform(0.5, 1.0)))
        for _ in range(n)
    ]
    right = [
        rng.uniform() < chance(question, str(one.label), float(one.confidence or 0.0))
        for question, one in zip(questions, predictions, strict=True)
    ]
    return questions, predictions, np.array(right, dtype=int)


RULES: dict[str, Callable[[str, str, float], float]] = {
    "words": lambda question, _label, _confidence: 0.1 if "fog" in question else 0.95,
    "label": lambda _question, label, _confidence: 0.1 if label == "cow" else 0.95,
    "confidence": lambda _question, _label, confidence: 0.05 + 0.9 * (confidence > 0.7),
}


def assess(scorer: LearnedScorer, question: str, one: Prediction) -> Assessment | NoEvidence:
    """Return the scorer's result for one answer."""
    return asyncio.run(scorer.assess(Answered(question=question, prediction=one, classifier=CLASSIFIER)))


@pytest.fixture(scope="module")
def fitted() -> LearnedScorer:
    """Return a scorer that learned from words and confidence."""
    return LearnedScorer(n_buckets=64).fit(
        *rows(300, 0, lambda q, _, c: 0.05 if "fog" in q else 0.3 + 0.65 * (c > 0.7))
    )


# --- what it learns ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_it_learns_from_words_label_and_confidence(rule: str) -> None:
    """Right answers of new rows score higher, whether words, labels or confidence tell."""
    scorer = LearnedScorer().fit(*rows(400, 1, RULES[rule]))
    questions, predictions, right = rows(400, 2, RULES[rule])
    score = scorer.predict(questions, predictions)
    assert auroc(score, right) > 0.8
    assert score.mean() == pytest.approx(right.mean(), abs=0.07)


@pytest.mark.slow
def test_it_learns_from_words_without_confidence() -> None:
    """A scorer that was fitted without confidences assesses answers without one."""
    questions, _, right = rows(400, 1, RULES["words"])
    scorer = LearnedScorer().fit(questions, [bare()] * 400, right)
    assert not scorer.uses_confidence_
    foggy, sunny = (assess(scorer, text, bare()) for text in ("fog fog fog", "sun sun sun"))
    assert isinstance(foggy, Assessment)
    assert isinstance(sunny, Assessment)
    assert sunny.confidence > 0.7
    assert foggy.confidence < 0.4


@pytest.mark.slow
def test_it_learns_nothing_from_noise() -> None:
    """The penalty chosen for pure noise is strong, and scores hardly differ."""
    scorer = LearnedScorer().fit(*rows(200, 5, lambda *_: 0.6))
    assert scorer.strength_ <= 0.1
    questions, predictions, _ = rows(100, 6, lambda *_: 0.6)
    assert np.ptp(scorer.predict(questions, predictions)) < 0.4


def test_fit_matches_scikit_learn() -> None:
    """The scores equal those of scikit-learn's own TF-IDF, scaling and regression."""
    from sklearn.feature_extraction.text import TfidfTransformer  # noqa: PLC0415 (heavy)
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    questions, predictions, right = rows(120, 3, RULES["confidence"])
    scorer = LearnedScorer(n_buckets=32).fit(questions, predictions, right)
    counts = np.zeros((120, 32))
    for number, question in enumerate(questions):
        words = re.findall(r"\w+", question)
        for term in words + [f"{a} {b}" for a, b in pairwise(words)]:
            counts[number, zlib.crc32(term.encode()) % 32] += 1
    said = np.array([one.distribution.probabilities for one in predictions if one.distribution is not None])
    confidence = np.array([float(one.confidence or 0.0) for one in predictions])
    top = np.sort(said, axis=1)
    columns = [np.log(confidence), np.log(confidence / (1 - confidence)), top[:, -1] - top[:, -2]]
    columns += [-(said * np.log(said)).sum(axis=1), [one.distribution.label_mass for one in predictions]]  # type: ignore[union-attr, list-item]
    one_hot = np.array([[one.label == name for name in LABELS] for one in predictions], dtype=float)
    matrix = np.hstack(
        [
            StandardScaler().fit_transform(np.column_stack(columns)),
            one_hot,
            TfidfTransformer().fit_transform(counts).toarray(),
        ]
    )
    model = LogisticRegression(C=scorer.strength_, max_iter=5000, tol=1e-10).fit(matrix, right)
    assert scorer.predict(questions, predictions) == pytest.approx(
        model.predict_proba(matrix)[:, 1], abs=1e-3
    )


def test_the_same_seed_gives_the_same_scorer() -> None:
    """A seed and a generator with that seed draw the same folds."""
    data = rows(60, 4, RULES["words"])
    one, other = (LearnedScorer(n_buckets=64).fit(*data, rng=seed) for seed in (7, np.random.default_rng(7)))
    assert one.describe() == other.describe()


@pytest.mark.slow
def test_fitting_again_forgets() -> None:
    """A second fit equals a first one on the same rows."""
    first, second = (rows(60, 4, RULES[rule]) for rule in ("words", "confidence"))
    again = LearnedScorer(n_buckets=64).fit(*first).fit(*second)
    assert again.describe() == LearnedScorer(n_buckets=64).fit(*second).describe()


def test_a_single_wrong_row_is_enough_to_fit() -> None:
    """With one wrong row there is nothing to cross-validate, and C stays 1."""
    questions, predictions, _ = rows(10, 0, RULES["words"])
    scorer = LearnedScorer().fit(questions, predictions, [0] + [1] * 9)
    assert scorer.strength_ == 1.0


# --- what it says --------------------------------------------------------------------------------


def test_assessing_and_predicting_agree(fitted: LearnedScorer) -> None:
    """Assessing one row gives the same score as predicting all of them."""
    questions, predictions, _ = rows(20, 9, RULES["words"])
    for question, one, expected in zip(
        questions, predictions, fitted.predict(questions, predictions), strict=True
    ):
        assert assess(fitted, question, one) == Assessment(confidence=expected, native=expected)


@given(st.text(max_size=30), st.sampled_from(LABELS), st.floats(0.0, 1.0))
def test_every_score_is_a_probability(
    fitted: LearnedScorer, question: str, label: str, confidence: float
) -> None:
    """The scorer gives every text, label and confidence a score in [0, 1]."""
    found = assess(fitted, question, prediction(label, confidence))
    assert isinstance(found, Assessment)
    assert 0.0 <= found.confidence <= 1.0
    assert fitted.to_confidence(found.native) == found.confidence


def test_unseen_labels_are_scored(fitted: LearnedScorer) -> None:
    """A label that was not in the fit is scored by the other features."""
    unseen = replace(prediction(), label="horse")
    assert isinstance(assess(fitted, "sun", unseen), Assessment)


@pytest.mark.parametrize(
    ("labels", "shares", "margin"), [(("cat",), [1.0], 1.0), (("cat", "dog"), [0.9, 0.1], 0.8)]
)
def test_two_labels_or_one_have_a_margin(labels: Any, shares: Any, margin: float) -> None:
    """The margin of a single label is 1."""
    distribution = replace(
        prediction().distribution,  # type: ignore[type-var]
        labels=labels,
        logprobs=np.log(shares),
        measured=np.ones(len(labels), dtype=bool),
    )
    found = confidence_features(Prediction(label="cat", confidence=0.9, distribution=distribution))
    assert found is not None
    assert found[2] == pytest.approx(margin)


@pytest.mark.slow
def test_features_that_never_vary_tell_nothing() -> None:
    """A feature that was constant in the fit has no weight."""
    questions, _, right = rows(100, 1, RULES["words"])
    scorer = LearnedScorer().fit(questions, [prediction()] * 100, right)
    unlike, like = scorer.predict(["sun sun sun"] * 2, [prediction(confidence=0.5, mass=0.1), prediction()])
    assert unlike == pytest.approx(like)


@pytest.mark.parametrize("one", [bare(), replace(prediction(), distribution=None), Prediction(label=None)])
def test_answers_without_fitted_features_are_no_evidence(fitted: LearnedScorer, one: Prediction) -> None:
    """An answer that lacks a fitted feature is no evidence, and predicting it raises ConfigurationError."""
    found = assess(fitted, "sun", one)
    assert isinstance(found, NoEvidence)
    assert "a label, a confidence and a distribution" in found.reason
    with pytest.raises(ConfigurationError, match="got 1 of 2 without"):
        fitted.predict(["sun", "sun"], [one, prediction()])


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("questions", "predictions", "correct", "message"),
    [
        (["a"] * 3, [prediction()] * 3, [1, 1, 1], "only right ones among 3 rows.*Fit on more rows"),
        ([], [], [], "at least one row"),
        (["a"], [prediction()] * 2, [0, 1], "one question per prediction, got 1 for 2"),
        (["a"] * 2, [prediction()] * 2, [0, 1, 1], "each of 2 predictions"),
        (["a"] * 2, [prediction()] * 2, [0, 0.5], "only 0 and 1"),
        (["a"] * 2, [prediction(), Prediction(label=None)], [0, 1], "leave rows that failed out"),
        (["a"] * 2, [prediction(), bare()], [0, 1], "got 1 of 2 without"),
    ],
)
def test_unusable_rows_are_refused(questions: Any, predictions: Any, correct: Any, message: str) -> None:
    """Rows that nothing can be learned from raise ConfigurationError with advice."""
    with pytest.raises(ConfigurationError, match=message):
        LearnedScorer().fit(questions, predictions, correct)


def test_an_unfitted_scorer_raises(tmp_path: Path) -> None:
    """Assessing, predicting and saving raise NotFittedError before the fit."""
    scorer = LearnedScorer()
    assert scorer.describe() == {"method": "learned", "learned": None}
    for attempt in (
        lambda: assess(scorer, "a", prediction()),
        lambda: scorer.predict(["a"], [prediction()]),
        lambda: scorer.save(tmp_path / "scorer.json", fingerprint=FINGERPRINT),
    ):
        with pytest.raises(NotFittedError, match="call fit or load first"):
            attempt()


@pytest.mark.parametrize("n_buckets", [1, 2.5])
def test_the_number_of_buckets_is_checked(n_buckets: Any) -> None:
    """A number of buckets below two, or a fraction, raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="n_buckets"):
        LearnedScorer(n_buckets=n_buckets)


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_confidence", [True, False])
def test_a_saved_scorer_says_the_same(tmp_path: Path, *, with_confidence: bool) -> None:
    """The scores of a loaded scorer agree to the last bit."""
    questions, predictions, right = rows(80, 0, RULES["words"])
    if not with_confidence:
        predictions = [bare(str(one.label)) for one in predictions]
    scorer = LearnedScorer(n_buckets=50).fit(questions, predictions, right)
    scorer.save(tmp_path / "scorer.json", fingerprint=FINGERPRINT)
    again = LearnedScorer.load(tmp_path / "scorer.json", fingerprint=FINGERPRINT)
    assert again.predict(questions, predictions).tolist() == scorer.predict(questions, predictions).tolist()
    assert again.describe() == scorer.describe()
    assert (again.n_buckets, again.strength_) == (50, scorer.strength_)
    assert again.uses_confidence_ is with_confidence


def _without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda state: state.pop(key)


@pytest.mark.parametrize(
    "damage",
    [
        _without("text"),
        lambda state: state.update(intercept="x"),
        lambda state: state["labels"].update(cat=1e999),
        lambda state: state["confidence"]["weights"].pop(),
        lambda state: state["text"]["buckets"].append([1, 2]),
        lambda state: state["text"].update(rare=-1.0),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, fitted: LearnedScorer, damage: Any) -> None:
    """A damaged, foreign or missing file raises StateError."""
    path = tmp_path / "scorer.json"
    fitted.save(path, fingerprint=FINGERPRINT)
    record = json.loads(path.read_text())
    damage(record["state"])
    path.write_text(json.dumps(record))
    with pytest.raises(StateError, match="damaged"):
        LearnedScorer.load(path, fingerprint=FINGERPRINT)
    other = replace(FINGERPRINT, model="other")
    with pytest.raises(StateError, match="'fake' then, 'other' now"):
        LearnedScorer.load(path, fingerprint=other)
    path.write_text(json.dumps({**record, "kind": "confidence calibrator"}))
    with pytest.raises(StateError, match="expected a learned scorer"):
        LearnedScorer.load(path, fingerprint=FINGERPRINT)
    with pytest.raises(StateError, match="cannot be read"):
        LearnedScorer.load(tmp_path / "none.json", fingerprint=FINGERPRINT)


def test_a_loaded_scorer_needs_no_scikit_learn(tmp_path: Path, fitted: LearnedScorer) -> None:
    """Loading a scorer imports neither scikit-learn nor SciPy."""
    fitted.save(tmp_path / "scorer.json", fingerprint=FINGERPRINT)
    code = f"""
import sys
from calibrant.core._fingerprint import Fingerprint
from calibrant.cascade import LearnedScorer
from calibrant.core._prediction import LogprobSpace
fingerprint = Fingerprint(prompt="p", model="fake", space=LogprobSpace.MASKED, labels={LABELS!r})
scorer = LearnedScorer.load({str(tmp_path / "scorer.json")!r}, fingerprint=fingerprint)
assert "sklearn" not in sys.modules and "scipy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)  # noqa: S603 (our own code)
