"""Tests of tuned classifiers in memory: what a search, a fit and an estimator hand over."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from calibrant import BatchEvaluator, Classifier, Example, Task, optimize
from calibrant.optimization import OptimizationResult
from calibrant.sklearn import CalibrantClassifier
from calibrant.testing import FakeClient, fake_model
from calibrant.tuned import Tuned
from decision_server import DecisionServer

LABELS = ["cat", "dog"]


def answer(text: str, prompt: str) -> tuple[str, float]:
    """Answer rightly, and more surely under a prompt that shows an example."""
    sure = 0.95 if '"label": "dog"' in prompt else 0.7
    return ("dog" if "dog" in text else "cat"), sure


def rows(split: str, n: int) -> tuple[Example, ...]:
    """Return labelled rows, half of them of each label."""
    return tuple(Example(input=f"{split} {n} {name}", answer=name) for n in range(n) for name in LABELS)


def task() -> Task:
    """Return a task with enough test rows for a calibration."""
    return Task(
        name="pets",
        labels=LABELS,
        prompt="Which animal?",
        train=rows("train", 8),
        validation=rows("validation", 8),
        test=rows("test", 15),
    )


def search(out: Path | None = None) -> OptimizationResult:
    """Return the result of a search."""
    fake = FakeClient(LABELS, answer, field="label", name="fake/pets")
    with fake_model("fake/pets", fake) as name:
        return optimize(task(), model=name, max_metric_calls=120, out=out)


def test_a_search_in_memory_is_calibrated() -> None:
    """Without a directory, a search has a calibrator, thresholds, figures and a history."""
    tuned = search().tuned
    assert tuned is not None
    assert tuned.calibrator is not None
    assert tuned.thresholds["suggested"] is not None or tuned.thresholds["no_suggestion"]
    assert tuned.thresholds["certification"] is not None
    assert tuned.history.rows == 30
    assert any(figure.name.startswith("test accuracy") for figure in tuned.figures)


def test_a_search_is_the_value_of_its_directory(tmp_path: Path) -> None:
    """A search in memory, with a directory, and read from that directory make the same bundle, with its task or not."""
    kept = search(tmp_path / "run").tuned
    assert kept is not None
    alone = search().tuned
    assert alone is not None
    read = Tuned.from_run(tmp_path / "run", task=task(), model="fake/pets")
    found = {"a": kept, "b": alone, "c": read, "d": Tuned.from_run(tmp_path / "run")}
    digests = {one.save(tmp_path / name).digest for name, one in found.items()}
    assert len(digests) == 1


def test_a_search_keeps_the_address_of_a_classifier(tmp_path: Path) -> None:
    """The bundle of a search that was handed a classifier asks the same server, and holds no key."""
    server = DecisionServer(0.7, 0.3)
    options = {"api_base": server.root, "api_key": "sk-hidden-key"}
    try:
        with Classifier(model="systemone/own", labels=LABELS, options=options) as asked:
            result = optimize(
                task(), model=asked, max_metric_calls=60, embeddings=False, out=tmp_path / "run"
            )
        assert result.tuned is not None
        for name, found in (("kept", result.tuned), ("read", Tuned.from_run(tmp_path / "run"))):
            found.save(tmp_path / name)
            n_asked = len(server.asked)
            with Tuned.load(tmp_path / name).open() as opened:
                assert opened.classify("a new text").label == "cat"
            assert len(server.asked) == n_asked + 1
    finally:
        server.stop()
    held = [path.read_text() for path in tmp_path.rglob("*.json")]
    assert held
    assert not any("sk-hidden-key" in text for text in held)


def test_a_search_opens_and_decides_in_memory() -> None:
    """The value of a search classifies under its best prompt with its head, and decides on predictions."""
    fake = FakeClient(LABELS, answer, field="label", name="fake/pets")
    with fake_model("fake/pets", fake) as name:
        result = optimize(task(), model=name, max_metric_calls=120)
        assert result.tuned is not None
        with result.tuned.open() as opened:
            prediction = opened.classify("a dog")
        assert opened.prompt == result.best_prompt.prompt
    assert prediction.label == "dog"
    decision = result.tuned.decide(prediction)
    assert decision.calibrated is not None
    assert decision.rule == "certified"


def test_a_fitted_classifier_is_a_value(tmp_path: Path) -> None:
    """`Classifier.tuned` holds the head, and a saved copy opens to the same predictions."""
    fake = FakeClient(LABELS, answer, field="label", name="fake/pets")
    with fake_model("fake/pets", fake) as name:
        classifier = Classifier(model=name, labels=LABELS, field="label", prompt="Which animal?")
        texts = [row.input for row in rows("fit", 10)]
        tuned = classifier.fit(texts, [row.answer for row in rows("fit", 10)]).tuned
        assert tuned.head is classifier.head
        expected = classifier.classify("a dog")
        with tuned.save(tmp_path / "bundle").open() as opened:
            assert opened.classify("a dog").confidence == pytest.approx(expected.confidence)


def test_printed_values_show_no_credentials() -> None:
    """What a notebook prints of a classifier's value, and of its method, leaves out its options."""
    fake = FakeClient(LABELS, answer, field="label")
    options = {"api_key": "plainword-secret-123"}
    classifier = Classifier(model=fake, labels=LABELS, options=options)
    assert "plainword" not in repr(classifier.tuned) + repr(classifier.method) + repr(
        classifier.request(classifier.query("a dog"))
    )


def test_results_are_printed_in_short_and_pickled() -> None:
    """What a notebook prints does not grow with the rows, and what was paid for survives a pickle."""
    fake = FakeClient(LABELS, answer, field="label")
    classifier = Classifier(model=fake, labels=LABELS, field="label")
    found = optimize(task(), model=classifier, max_metric_calls=100)
    few, many = (BatchEvaluator(classifier).evaluate(rows("test", count)) for count in (2, 20))
    assert len(repr(many)) < len(repr(few)) + 50
    assert len(repr(many.predictions[0])) < 200
    assert "train" not in repr(task())
    for result in (many, found, found.tuned, task()):
        again = pickle.loads(pickle.dumps(result))  # noqa: S301 (our own)
        assert len(repr(again)) == len(repr(result))
    assert pickle.loads(pickle.dumps(many)).predictions == many.predictions  # noqa: S301 (our own)


def test_an_estimator_holds_the_value_without_credentials(tmp_path: Path) -> None:
    """`tuned_` is what `save` writes, and names options that it leaves out."""
    texts = [row.input for row in rows("fit", 10)]
    fake = FakeClient(LABELS, answer, field="label", name="fake/pets")
    with fake_model("fake/pets", fake) as name:
        found = CalibrantClassifier(name, options={"api_key": "secret"})
        found.fit(texts, [row.answer for row in rows("fit", 10)])
        found.save(tmp_path / "bundle")
        loaded = CalibrantClassifier.load(tmp_path / "bundle", options={"api_key": "secret"})
        assert (loaded.predict_proba(texts) == found.predict_proba(texts)).all()
    assert found.tuned_.task.model.options == {}
    assert found.tuned_.tasks[0].left_out == {"fake/pets": ("api_key",)}
    assert (found.head_, found.calibrator_) == (found.tuned_.head, found.tuned_.calibrator)
