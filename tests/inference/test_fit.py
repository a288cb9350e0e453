"""Tests of heads on a classifier, learned from labelled texts."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.core import (
    ConfigurationError,
    Field,
    FieldLabels,
    Limits,
    MultiLabels,
    Outcome,
    Prediction,
    ProviderError,
)
from calibrant.heads import Head, fit_head
from calibrant.inference import Classifier, RetryPolicy
from calibrant.testing import FakeClient, MemoryJournal
from distributions import distribution_of
from saved_prediction import saved_and_read, to_record
from synonyms import KNOWN, UNSEEN, install_model2vec, without_model2vec
from token_engine import Engine, Telling

LABELS = ("cat", "dog")
TAUGHT = [f"number {n}" for n in range(40)]
OTHERS = [f"number {n}" for n in range(100, 120)]


def place(text: str) -> int:
    """Return the position of the true label, which depends on no word of the text."""
    return hashlib.sha256(text.encode()).digest()[0] % 2


def truth(texts: Sequence[str]) -> list[str]:
    """Return the true labels of texts."""
    return [LABELS[place(text)] for text in texts]


def biased(text: str) -> dict[str, float]:
    """Return probabilities that tell the labels apart but favour cats."""
    cat = 0.6 if place(text) else 0.9
    return {"cat": cat, "dog": 1.0 - cat}


def make(client: Any = None, **options: Any) -> Classifier:
    """Return a classifier, by default of a biased model."""
    settings = {"labels": LABELS, "field": "category", "prompt": "Which?", **options}
    return Classifier(model=client or FakeClient(LABELS, biased), retry=RetryPolicy(attempts=1), **settings)


def head_of(classifier: Classifier) -> Head:
    """Return the head of a classifier that has one."""
    assert classifier.head is not None
    return classifier.head


def labels_of(predictions: Sequence[Prediction]) -> list[str | None]:
    """Return the labels of predictions."""
    return [found.label for found in predictions]


def confidences(predictions: Sequence[Prediction]) -> list[tuple[str | None, float | None]]:
    """Return labels and confidences of predictions."""
    return [(found.label, found.confidence) for found in predictions]


# --- what it does -------------------------------------------------------------------------------


def test_fit_repairs_a_biased_model() -> None:
    """Before `fit` half of the unseen rows are right, and after it all of them."""
    classifier = make()
    assert labels_of(classifier.classify_many(OTHERS)) == ["cat"] * len(OTHERS)
    assert classifier.fit(TAUGHT, truth(TAUGHT)) is classifier
    assert head_of(classifier).n_rows == len(TAUGHT)
    assert labels_of(classifier.classify_many(OTHERS)) == truth(OTHERS)


@pytest.mark.parametrize(("labels", "kind"), [(("0", "1"), int), (("false", "true"), bool)])
def test_whole_numbers_are_answers(labels: tuple[str, str], kind: type) -> None:
    """Whole numbers and truth values, as a column of labels may hold, stand for the labels of that name."""
    answers = {text: labels[place(text)] for text in TAUGHT + OTHERS}
    classifier = make(FakeClient(labels, lambda text: (answers[text], 0.9)), labels=labels)
    classifier.fit(TAUGHT, np.array([place(text) for text in TAUGHT]).astype(kind))
    assert labels_of(classifier.classify_many(OTHERS)) == [answers[text] for text in OTHERS]


def test_final_distribution_is_consistent() -> None:
    """With a head the distribution sums to 1 and agrees with label and confidence."""
    classifier = make().fit(TAUGHT, truth(TAUGHT))
    for found in classifier.classify_many(OTHERS):
        probabilities = distribution_of(found).probabilities
        assert probabilities.sum() == pytest.approx(1.0)
        assert found.label == distribution_of(found).emitted == LABELS[int(probabilities.argmax())]
        assert found.confidence == pytest.approx(probabilities.max())
        assert json.loads(found.text) == {"category": "cat"}


def test_every_way_to_classify_agrees() -> None:
    """`classify`, `classify_many` and `feed` give equal predictions, with the head applied once."""
    classifier = make().fit(TAUGHT, truth(TAUGHT))
    raw = np.array([distribution_of(found).logprobs for found in make().classify_many(OTHERS)])
    once = head_of(classifier).transform(raw, OTHERS)
    expected = [
        (LABELS[int(row.argmax())], pytest.approx(float(np.exp(row.max())), abs=1e-9)) for row in once
    ]
    heard: dict[int, Prediction] = {}
    many = classifier.classify_many(OTHERS, on_prediction=heard.__setitem__)
    assert confidences(many) == expected
    assert confidences([heard[index] for index in range(len(OTHERS))]) == expected
    assert confidences([classifier.classify(text) for text in OTHERS]) == expected
    rows: list[Prediction] = []
    soon: dict[int, Prediction] = {}
    each = classifier.feed(
        map(classifier.query, OTHERS), lambda _, found: rows.append(found), on_prediction=soon.__setitem__
    )
    assert asyncio.run(each) == ""
    assert confidences(rows) == expected
    assert confidences([soon[index] for index in range(len(OTHERS))]) == expected


def test_journal_keeps_the_models_answers() -> None:
    """The journal stores the model's own answers, so a second fit makes no call and learns the same."""
    journal, client = MemoryJournal(), FakeClient(LABELS, biased)
    classifier = make(client, journal=journal).fit(TAUGHT, truth(TAUGHT))
    first = head_of(classifier)
    assert labels_of(classifier.classify_many(TAUGHT)) == truth(TAUGHT)
    assert labels_of(list(journal.values())) == ["cat"] * len(TAUGHT)
    classifier.fit(TAUGHT, truth(TAUGHT))
    assert len(client.requests) == len(TAUGHT)
    assert head_of(classifier).digest == first.digest


def test_head_belongs_to_its_prompt() -> None:
    """Copies with another prompt drop the head; copies with other limits keep it."""
    classifier = make().fit(TAUGHT, truth(TAUGHT))
    head = classifier.head
    assert classifier.with_prompt("Another?").head is None
    assert classifier.with_features().head is None
    assert classifier.with_prompt("Another?").classify(OTHERS[1]).label == "cat"
    for copy in (classifier.with_limits(Limits(concurrency=1)), classifier.with_tokens()):
        assert copy.head is head
        assert labels_of(copy.classify_many(OTHERS)) == truth(OTHERS)
    assert classifier.head is head


def test_head_is_set_and_removed() -> None:
    """A head is given at construction, and setting None removes it."""
    head = make().fit(TAUGHT, truth(TAUGHT)).head
    classifier = make(head=head)
    assert repr(classifier).endswith(f", head={head.title!r})")
    assert labels_of(classifier.classify_many(OTHERS)) == truth(OTHERS)
    classifier.head = None
    assert labels_of(classifier.classify_many(OTHERS)) == ["cat"] * len(OTHERS)


def test_description_holds_the_head() -> None:
    """`describe` holds the digest of the head, which changes with the fitted rows."""
    classifier = make()
    plain = classifier.describe()
    assert "head" not in plain
    first = classifier.fit(TAUGHT, truth(TAUGHT)).describe()
    assert first == {**plain, "head": getattr(classifier.head, "digest", None)}
    assert classifier.fit(TAUGHT[:30], truth(TAUGHT[:30])).describe()["head"] != first["head"]


def test_failed_rows_stay_failures() -> None:
    """A failed row adds nothing to the head and gets no label; the other rows get the right one."""

    def flaky(text: str) -> Any:
        if text.endswith("5"):
            return ProviderError("not now", provider="fake", retryable=False)
        return "neither" if text.endswith("7") else biased(text)

    classifier = make(FakeClient(LABELS, flaky)).fit(TAUGHT, truth(TAUGHT))
    assert head_of(classifier).n_rows == len(TAUGHT) - 8
    for text, found in zip(OTHERS, classifier.classify_many(OTHERS), strict=True):
        if text[-1] in "57":
            assert (found.label, found.confidence) == (None, None)
            assert found.outcome is (Outcome.ERROR if text.endswith("5") else Outcome.UNPARSED)
        else:
            assert found.label == LABELS[place(text)]


# --- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (["horse", *truth(TAUGHT[1:])], "'horse'"),
        (truth(TAUGHT[1:]), "for each of 40 texts, got 39"),
        ([], "for each of 40 texts, got 0"),
        (["cat"] * 40, "two labels or more, got 'cat' for every text"),
    ],
)
def test_bad_answers_raise_before_calls(answers: list[str], said: str) -> None:
    """Illegal or missing answers, and answers of one label, raise ConfigurationError before any call."""
    client = FakeClient(LABELS, biased)
    with pytest.raises(ConfigurationError, match=said):
        make(client).fit(TAUGHT, answers)
    assert client.requests == []


@pytest.mark.parametrize(
    "labels",
    [
        MultiLabels(LABELS),
        FieldLabels([Field(name="animal", labels=LABELS), Field(name="size", labels=["big", "small"])]),
    ],
)
def test_several_labels_are_refused(labels: Any) -> None:
    """`fit` and a head of one label raise ConfigurationError for composite answers."""
    client = FakeClient(labels, {})
    classifier = make(client, labels=labels)
    with pytest.raises(ConfigurationError, match="answers hold several"):
        classifier.fit(TAUGHT, truth(TAUGHT))
    assert client.requests == []
    with pytest.raises(ConfigurationError, match="fit it on this classifier"):
        classifier.head = make().fit(TAUGHT, truth(TAUGHT)).head


def test_fit_needs_distributions() -> None:
    """`fit` raises ConfigurationError with the first row's reason where no row has a distribution."""
    classifier = make(FakeClient(LABELS, {}, default="neither"))
    with pytest.raises(ConfigurationError, match=r"got none on 40 rows: .*neither"):
        classifier.fit(TAUGHT, truth(TAUGHT))
    assert classifier.head is None
    with pytest.raises(ConfigurationError, match="got none on 0 rows"):
        classifier.fit([], [])


@pytest.mark.parametrize("labels", [("dog", "cat"), ("cat", "dog", "cow")])
def test_head_of_other_labels_is_refused(labels: tuple[str, ...]) -> None:
    """A head over other labels, or another order, raises ConfigurationError."""
    head = make().fit(TAUGHT, truth(TAUGHT)).head
    other = make(FakeClient(labels, biased), labels=labels)
    with pytest.raises(ConfigurationError, match="fit it on this classifier"):
        other.head = head
    assert other.head is None


# --- what an engine tells of a text -------------------------------------------------------------


def features_of(classifier: Classifier, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the features that predictions hold of texts."""
    found = [one.features for one in classifier.with_features().classify_many(texts)]
    return [one for one in found if one is not None]


def test_features_survive_a_journal() -> None:
    """Features are kept in half precision on request, and are equal after a JSON record."""
    classifier = make(Telling(place))
    assert classifier.classify(OTHERS[0]).features is None
    (found,) = classifier.with_features().classify_many(OTHERS[:1])
    assert found.features is not None
    assert (found.features.dtype, found.features.shape) == (np.float16, (95,))
    assert abs(float(found.features.astype(np.float64).mean())) < 0.01
    again = saved_and_read(found)
    assert again == found
    assert again.features is not None
    np.testing.assert_array_equal(again.features, found.features)
    assert features_of(make(), OTHERS) == []


def test_head_uses_and_drops_features() -> None:
    """A head learns from features, and final predictions and records hold none."""
    journal, engine = MemoryJournal(), Telling(place)
    classifier = make(engine, journal=journal).fit(TAUGHT, truth(TAUGHT))
    assert head_of(classifier).uses_features
    found = classifier.classify_many(OTHERS)
    right = np.mean([a == b for a, b in zip(labels_of(found), truth(OTHERS), strict=True)])
    assert right >= 0.9
    assert all(one.features is None for one in found)
    assert all("features" not in to_record(one) for one in found)
    asked = len(engine.rows)
    classifier.classify_many([*TAUGHT, *OTHERS])
    assert len(engine.rows) == asked
    limited = classifier.with_limits(Limits(concurrency=1))
    assert labels_of(limited.classify_many(OTHERS)) == labels_of(found)


def test_features_that_a_journal_holds_are_found_again() -> None:
    """What a head read of a journal's answers is known by text, without a question, and of other texts nothing."""
    journal, engine = MemoryJournal(), Telling(place)
    classifier = make(engine, journal=journal)
    read = dict(zip(TAUGHT, features_of(classifier, TAUGHT), strict=True))
    classifier.fit(TAUGHT, truth(TAUGHT))
    asked = len(engine.rows)
    known = classifier.known_features([*TAUGHT, *OTHERS], journal)
    assert {text: list(found) for text, found in known.items()} == {
        text: list(found) for text, found in read.items()
    }
    assert len(engine.rows) == asked
    classifier.head = None
    assert classifier.known_features(TAUGHT, journal) == {}


def test_head_needs_an_engine_with_features() -> None:
    """A head that needs features raises ConfigurationError on a model that reports none."""
    head = make(Telling(place)).fit(TAUGHT, truth(TAUGHT)).head
    for other in (make(), make(Telling(place), scoring="decode")):
        with pytest.raises(ConfigurationError, match="tells what it made of a text"):
            other.head = head
        assert other.head is None
    bits = np.array([place(text) for text in TAUGHT])
    plain = fit_head(np.zeros((40, 2)) - np.log(2), bits, labels=LABELS)
    assert make(Telling(place), scoring="decode", head=plain).head is plain


def texts_asked(engine: Engine) -> int:
    """Return the number of rows with a text, without the one row per prompt that has none."""
    return sum(bool(row.text) for row in engine.rows)


def test_journal_answers_without_features() -> None:
    """Answers stored with features serve classifiers without them, but not the other way round."""
    journal, engine = MemoryJournal(), Telling(place)
    classifier = make(engine, journal=journal)
    with_features = classifier.with_features().classify_many(TAUGHT)
    assert texts_asked(engine) == 40
    bits = np.array([place(text) for text in TAUGHT])
    classifier.head = fit_head(np.log([[0.9, 0.1]] * 40), bits, labels=LABELS)
    assert not classifier.head.uses_features
    classifier.classify_many(TAUGHT)
    plain = make(engine, journal=journal).classify_many(TAUGHT)
    assert [asyncio.run(make(engine, journal=journal).aclassify(text)) for text in TAUGHT[:2]] == plain[:2]
    assert texts_asked(engine) == 40
    assert confidences(plain) == confidences(with_features)
    assert all(one.features is None for one in plain)
    assert all(one.attempts == 0 for one in plain)
    make(engine, journal=journal).classify_many(OTHERS[:3])
    assert texts_asked(engine) == 43
    assert len(features_of(make(engine, journal=journal), OTHERS[:3])) == 3
    assert texts_asked(engine) == 46


def test_limits_keep_features() -> None:
    """Copies with other limits keep features on or off."""
    copy = make(Telling(place)).with_features().with_limits(Limits(concurrency=1))
    (found,) = copy.classify_many(OTHERS[:1])
    assert found.features is not None
    assert copy.with_features().with_limits(Limits()).classify(OTHERS[0]).features is not None
    assert make(Telling(place)).with_limits(Limits(concurrency=1)).classify(OTHERS[0]).features is None


# --- embeddings ---------------------------------------------------------------------------------


def of_one_mind(_: str) -> dict[str, float]:
    """Return probability one half for each label."""
    return {"cat": 0.5, "dog": 0.5}


def learned(monkeypatch: pytest.MonkeyPatch, embeddings: str = "model2vec:here") -> Classifier:
    """Return a classifier with a head that was fitted with embeddings."""
    install_model2vec(monkeypatch, {"here": 0, "there": 0, "other": 1})
    return make(FakeClient(LABELS, of_one_mind)).fit(*KNOWN, embeddings=embeddings)


def test_embeddings_classify_unseen_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head with embeddings classifies synonyms that a head of words cannot."""
    texts, answers = UNSEEN
    assert labels_of(learned(monkeypatch).classify_many(texts)) == answers
    plain = make(FakeClient(LABELS, of_one_mind)).fit(*KNOWN)
    assert labels_of(plain.classify_many(texts)) != answers


def test_saved_head_opens_its_embedding_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A loaded head opens its embedding model; a missing or changed model raises ConfigurationError."""
    first = learned(monkeypatch)
    head_of(first).save(tmp_path / "head.json", fingerprint=first.fingerprint())
    loaded = Head.load(tmp_path / "head.json", fingerprint=first.fingerprint())
    other = make(FakeClient(LABELS, of_one_mind))
    other.head = loaded
    assert labels_of(other.classify_many(UNSEEN[0])) == UNSEEN[1]
    install_model2vec(monkeypatch, {"here": 1})
    with pytest.raises(ConfigurationError, match=r"'model2vec:here' that the head was fitted with"):
        other.head = loaded
    install_model2vec(monkeypatch, {})
    with pytest.raises(ConfigurationError, match="'here'"):
        other.head = loaded


def test_missing_embeddings_raise_before_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra or an unknown name raises ConfigurationError before any call."""
    without_model2vec(monkeypatch)
    fake = FakeClient(LABELS, of_one_mind)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[embeddings\]"):
        make(fake).fit(*KNOWN, embeddings="model2vec")
    with pytest.raises(ConfigurationError, match="that litellm knows, got 'glove'"):
        make(fake).fit(*KNOWN, embeddings="glove")
    assert not fake.requests
