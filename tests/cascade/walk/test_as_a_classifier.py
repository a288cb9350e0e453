"""Tests of a cascade in place of a classifier."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asked import ask
from calibrant.adapters import ConfidenceAdapter
from calibrant.calibration import PlattCalibrator
from calibrant.cascade import Cascade
from calibrant.cascade._methods import METHODS
from calibrant.core import CalibrantError, Example, Limits, Outcome, Prediction, ProviderError, Query, Stop
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import Classifier
from calibrant.store import PredictionCache
from calibrant.testing import FakeClient, MemoryJournal
from saved_prediction import saved_and_read

Build = Callable[..., Any]

DOWN = ProviderError("is down.", provider="x", retryable=True)


def unsure(text: str) -> tuple[str, float]:
    """Answer as a small model does that is sure of every third text."""
    number = int(text.rsplit(maxsplit=1)[-1])
    return ("cat" if number % 2 else "dog"), 0.9 if number % 3 == 0 else 0.6


def sure(text: str) -> tuple[str, float]:
    """Answer as a large model does."""
    return ("cat" if int(text.rsplit(maxsplit=1)[-1]) % 2 else "dog"), 0.95


class KeyList(MemoryJournal):
    """Journal that keeps the keys that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def get_many(self, keys: Sequence[str]) -> dict[str, Prediction]:
        """Keep the keys, and return their values."""
        self.asked += keys
        return super().get_many(keys)


ROWS = [Example(input=f"row {number}", answer="cat" if number % 2 else "dog") for number in range(30)]


def test_texts_are_answered_in_order(build: Build) -> None:
    """Several texts at a time have the answers of one at a time, in order, and listeners hear each."""
    built = build(unsure, sure)
    texts = [row.input for row in ROWS]
    heard: dict[int, Any] = {}
    found = built.cascade.classify_many(texts, on_prediction=heard.__setitem__)
    assert [row.label for row in found] == [row.answer for row in ROWS]
    assert [heard[index] for index in range(30)] == found
    alone = build(unsure, sure).cascade
    for text, row in zip(texts, found, strict=True):
        one = alone.classify(text)
        assert (one.label, one.confidence, one.steps) == (row.label, row.confidence, row.steps)
    assert asyncio.run(built.cascade.aclassify("row 3")).label == "cat"


def test_equal_rows_share_an_answer(build: Build) -> None:
    """Every model is called once about equal rows."""
    built = build(("cat", 0.6), ("dog", 0.9), client={"latency": 0.002})
    found = built.cascade.classify_many(["same"] * 8)
    assert built.calls == [1, 1]
    assert sum(row.attempts for row in found) == 2
    assert built.cascade.meter.tokens == found[0].usage.prompt_tokens + found[0].usage.completion_tokens


def test_another_threshold_asks_no_model_again(build: Build, told: Any) -> None:
    """With a journal, another threshold makes no call of a model or a verifier."""
    journal = MemoryJournal()
    texts = [row.input for row in ROWS]
    first = build(unsure, sure, method=told(calls=2), journal=journal, threshold=[0.95, 0.95])
    first.cascade.classify_many(texts)
    assert first.calls == [30, 30]
    assert len(first.method.asked) == 60
    second = build(unsure, sure, method=told(calls=2), threshold=[0.8, 0.8])
    second.cascade.use_journal(journal)
    found = second.cascade.classify_many(texts)
    assert (second.calls, second.method.asked) == ([0, 0], [])
    fresh = build(unsure, sure, method=told(calls=2), threshold=[0.8, 0.8]).cascade.classify_many(texts)
    assert [(row.label, row.confidence, row.usage, row.accepted) for row in found] == [
        (row.label, row.confidence, row.usage, row.accepted) for row in fresh
    ]
    assert [(step.native, step.verdict, step.reason) for row in found for step in row.steps] == [
        (step.native, step.verdict, step.reason) for row in fresh for step in row.steps
    ]


@pytest.mark.parametrize("changed", ["nothing", "method", "answer", "context", "prompt"])
def test_assessments_have_keys_of_their_own(build: Build, told: Any, changed: str) -> None:
    """Another method, answer, context or prompt is assessed anew, and another threshold is not."""
    journal = MemoryJournal()

    def ask(changed: str, threshold: float) -> int:
        method = told(calls=1, about="another" if changed == "method" else "")
        build(
            ("dog" if changed == "answer" else "cat", 0.9),
            method=method,
            threshold=threshold,
            classifiers=[{"prompt": "another" if changed == "prompt" else ""}],
            context_of=lambda _: "two" if changed == "context" else "one",
            journal=journal,
        ).cascade.classify("t")
        return len(method.asked)

    assert ask("nothing", 0.5) == 1
    if changed == "answer":  # as if the model had been asked again
        for key in [key for key, row in journal.items() if row.text == '{"category": "cat"}']:
            del journal[key]
    assert ask(changed, 0.6) == (0 if changed == "nothing" else 1)


def test_free_assessments_are_not_stored(build: Build) -> None:
    """The journal holds the rows of cascade and model, and no assessment that took no call."""
    journal = MemoryJournal()
    build(("cat", 0.9), journal=journal).cascade.classify("t")
    assert len(journal) == 2


def test_models_and_their_journals_stay_untouched(build: Build) -> None:
    """A model keeps its own journal, and given classifiers get none."""
    own, shared = MemoryJournal(), MemoryJournal()
    built = build(("cat", 0.6), ("dog", 0.9), classifiers=[{"journal": own}, {}])
    built.cascade.use_journal(shared)
    built.cascade.classify("t")
    assert (len(own), len(shared)) == (1, 2)
    assert built.classifiers[0].journal is own
    assert built.classifiers[1].journal is None
    built.classifiers[0].classify("t")
    assert built.calls == [1, 1]  # the model alone finds what the cascade has asked
    built.cascade.use_journal(None)
    built.cascade.classify("t")
    assert built.calls == [1, 2]


def test_copies_have_their_own_journal_and_purse(build: Build) -> None:
    """A copy with other limits has its own meter and journal, and shares the clients."""
    built = build(("cat", 0.6), ("dog", 0.9))
    copy = built.cascade.with_limits(Limits(concurrency=2))
    journal = MemoryJournal()
    copy.use_journal(journal)
    copy.classify("t")
    assert len(journal) == 3
    assert (copy.meter.requests, built.cascade.meter.requests) == (2, 0)
    built.cascade.classify("t")
    assert built.calls == [2, 2]
    assert copy.with_limits(Limits()).classify("t").attempts == 0


def test_answers_during_outages_are_not_final(build: Build) -> None:
    """A large model that was down is called the next time, and the small one is not."""
    journal = MemoryJournal()
    built = build(("cat", 0.6), [DOWN, ("dog", 0.9)], journal=journal)
    assert built.cascade.classify("t").label == "cat"
    found = built.cascade.classify("t")
    assert (found.label, found.attempts, built.calls) == ("dog", 1, [1, 2])
    assert built.cascade.classify("t").attempts == 0
    assert built.calls == [1, 2]


def test_sure_answers_are_final(build: Build) -> None:
    """After a sure answer a model that was down is not called again."""
    built = build(DOWN, ("dog", 0.9), journal=MemoryJournal())
    assert [built.cascade.classify("t").label for _ in range(2)] == ["dog", "dog"]
    assert built.calls == [1, 1]


def test_unjudged_answers_are_not_final(build: Build, told: Any) -> None:
    """An answer whose verifier gave no evidence is assessed the next time."""
    answers = iter([None, 0.9])
    built = build("cat", method=told(lambda _: next(answers), calls=1), journal=MemoryJournal())
    assert [built.cascade.classify("t").accepted for _ in range(3)] == [False, True, True]
    assert (built.calls, len(built.method.asked)) == ([1], 2)


def test_copies_find_stored_assessments(build: Build, told: Any) -> None:
    """A copy assesses only what gave no evidence before."""
    method = told({"a": 0.5, "b": None}, calls=1)
    built = build("cat", "dog", method=method, journal=MemoryJournal(), verify_last=True)
    built.cascade.classify("t")
    built.cascade.with_limits(Limits()).classify("t")
    assert [answered.classifier.client.name for answered in method.asked] == ["a", "b", "b"]


def test_token_methods_do_not_use_the_journal(build: Build, told: Any) -> None:
    """The journal is read for the row and the model's answer, and not for an assessment of tokens."""
    journal = MemoryJournal()
    build("cat", method=told(needs_tokens=True), journal=journal).cascade.classify("t")
    assert journal.reads == 2


def test_final_unsure_answers_stay_in_the_journal(build: Build) -> None:
    """An unsure answer that nothing would change is stored with its steps."""
    journal = MemoryJournal()
    built = build(("cat", 0.6), ("dog", 0.5), journal=journal)
    first, second = built.cascade.classify("t"), built.cascade.classify("t")
    known = tuple(replace(step, attempts=0) for step in first.steps)
    assert (second.steps, second.accepted, second.attempts) == (known, False, 0)
    assert any(row.steps for row in journal.values())


def test_a_deadline_leaves_nothing_final(build: Build) -> None:
    """A row that its deadline ended is not stored."""
    journal = MemoryJournal()
    build(("cat", 0.6), "dog", deadline_seconds=0, journal=journal).cascade.classify("t")
    assert not any(row.steps for row in journal.values())


def test_a_batch_evaluates_a_cascade(build: Build, tmp_path: Path) -> None:
    """An evaluation writes a cascade's rows, and a second run makes no call."""
    built = build(unsure, sure)
    result = BatchEvaluator(built.cascade, concurrency=4).evaluate(ROWS, out=tmp_path / "run")
    assert result.metrics.accuracy.estimate == 1.0
    assert built.calls == [30, 20]
    assert not (tmp_path / "run" / "journal").exists()
    lines = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()]
    assert [line["label"] for line in lines] == [row.answer for row in ROWS]
    BatchEvaluator(built.cascade, concurrency=4).evaluate(ROWS, out=tmp_path / "run")
    assert built.calls == [30, 20]


def test_the_store_keeps_predictions_of_cascades(build: Build, tmp_path: Path) -> None:
    """A cache returns predictions with their steps to another process."""
    texts = [row.input for row in ROWS]
    with PredictionCache(tmp_path / "cache.db") as cache:
        found = build(unsure, sure, journal=cache).cascade.classify_many(texts)
    with PredictionCache(tmp_path / "cache.db") as cache:
        built = build(unsure, sure, journal=cache)
        again = built.cascade.classify_many(texts)
    assert built.calls == [0, 0]
    assert [(row.label, row.steps, row.accepted) for row in again] == [
        (row.label, tuple(replace(step, attempts=0) for step in row.steps), row.accepted) for row in found
    ]
    assert saved_and_read(found[1]).steps == found[1].steps


def test_an_optimiser_takes_a_cascade(build: Build) -> None:
    """A candidate prompt of an optimiser replaces the prompt of every model."""

    def by_prompt(_text: str, prompt: str) -> tuple[str, float]:
        return ("dog" if prompt == "all" else "cat"), 0.6

    built = build(by_prompt, by_prompt, classifiers=[{"prompt": "one"}, {"prompt": "two"}])
    adapter = ConfidenceAdapter.from_classifier(built.cascade)
    batch: Any = [{"input": "t", "answer": "dog", "additional_context": {}}]
    own = adapter.evaluate(batch, {"system_prompt": built.cascade.prompt}, capture_traces=True)
    assert own.scores == [0.0]
    assert [client.requests[0].messages[0]["content"] for client in built.clients] == ["one", "two"]
    every = adapter.evaluate(batch, {"system_prompt": "all"}, capture_traces=True)
    assert every.scores[0] > 0.0
    assert [client.requests[1].messages[0]["content"] for client in built.clients] == ["all", "all"]
    reflected = adapter.make_reflective_dataset({"system_prompt": "all"}, every, ["system_prompt"])
    assert reflected["system_prompt"]
    assert adapter.completions_without_logprobs == 0


def test_a_shared_prompt_is_the_cascades_prompt(build: Build) -> None:
    """The cascade's prompt is the one that all models share, or empty."""
    shared = {"prompt": "P", "user_template": "<{input}>"}
    alike = build("cat", "dog", classifiers=[shared, shared]).cascade
    assert (alike.prompt, alike.user_template) == ("P", "<{input}>")
    unlike = build("cat", "dog", classifiers=[shared, {"prompt": "Q"}]).cascade
    assert (unlike.prompt, unlike.user_template) == ("", None)


@pytest.mark.parametrize("second", ["<{input}>", "[{input}]"])
def test_models_keep_their_own_templates(build: Build, second: str) -> None:
    """Each model gets the text in its own template under the prompt that both share."""
    own = [{"prompt": "P", "user_template": template} for template in ("<{input}>", second)]
    built = build(("cat", 0.6), "dog", classifiers=own)
    built.cascade.classify("t")
    sent = [[message["content"] for message in client.requests[0].messages] for client in built.clients]
    assert sent == [["P", "<t>"], ["P", second.format(input="t")]]


def test_another_prompt_replaces_every_models(build: Build) -> None:
    """A new prompt replaces that of every model, templates stay, and the original is unchanged."""
    own = [{"prompt": "one", "user_template": "<{input}>"}, {"prompt": "two", "user_template": "[{input}]"}]
    built = build(("cat", 0.6), "dog", classifiers=own)
    other = built.cascade.with_prompt("new")
    assert isinstance(other, Cascade)
    other.classify("t")
    built.cascade.with_prompt("newer", user_template="({input})").classify("t")
    built.cascade.classify("t")
    sent = [
        [tuple(message["content"] for message in request.messages) for request in client.requests]
        for client in built.clients
    ]
    assert sent == [
        [("new", "<t>"), ("newer", "(t)"), ("one", "<t>")],
        [("new", "[t]"), ("newer", "(t)"), ("two", "[t]")],
    ]
    judged = [
        (answered.classifier.prompt, answered.classifier.user_template)
        for answered in built.method.asked[:4:2]
    ]
    assert judged == [("new", "<{input}>"), ("newer", "({input})")]
    told_of = [model["prompt"] for model in other.describe()["method"]["models"]]
    assert (other.describe()["prompt"], told_of) == ("new", ["new", "new"])
    assert other.fingerprint() != built.cascade.fingerprint()


def test_templates_must_hold_the_text(build: Build) -> None:
    """A template without the text is an unparsed row, and no model is called."""
    built = build("cat")
    query = Query(prompt="", text="t", user_template="nothing")
    assert ask(built.cascade, [query])[0].outcome is Outcome.UNPARSED
    assert built.calls == [0]


SETTINGS: list[Mapping[str, Any]] = [
    {},
    {"threshold": 0.8},
    {"threshold": [0.8, 0.7]},
    {"threshold": [0.7]},
    {"on_error": "fail"},
    {"max_escalations": 1},
    {"max_tokens": 1},
    {"max_cost": 1.0},
    {"deadline_seconds": 1.0},
    {"verify_last": False},
    {"context_of": str.upper},
    {"context_of": "one"},
    {"context_of": "other"},
    {"models": [{"name": "x"}, {}]},
    {"models": [{"cost": 0}, {}]},
    {"models": [{"size": 7}, {"size": 1}]},
    {"classifiers": [{"prompt": "P"}, {}]},
    {"classifiers": [{}, {"prompt": "P"}]},
    {"classifiers": [{"prompt": "P"}, {"prompt": "P"}]},
    {"classifiers": [{"user_template": "<{input}>"}, {}]},
    {"classifiers": [{"options": {"temperature": 0.5}}, {}]},
    {"classifiers": [{"top_logprobs": 3}, {}]},
]


def test_every_setting_changes_the_description(build: Build, told: Any) -> None:
    """Every setting changes description, fingerprint and journal keys, and equal settings agree."""

    class Below:
        def __init__(self, half: float) -> None:
            self.half = half

        def route(self, verifier_score: Any) -> Any:
            return np.asarray(verifier_score) < self.half

    rng = np.random.default_rng(1)
    confidence = rng.random(200)
    fits = [PlattCalibrator().fit(confidence, rng.random(200) < power) for power in (0.3, 0.6)]
    settings = [
        *SETTINGS,
        {"method": told(about="another")},
        {"meta_verifier": Below(0.5)},
        {"meta_verifier": Below(0.6)},
        {"calibrators": [fits[0], None]},
        {"calibrators": [None, fits[0]]},
        {"calibrators": [fits[1], None]},
    ]
    told_of, keys, digests = set(), set(), set()
    for options in settings:
        one, same = (build("cat", "dog", **options).cascade for _ in range(2))
        text = json.dumps(one.describe(), sort_keys=True)
        assert text == json.dumps(same.describe(), sort_keys=True)
        assert one.fingerprint() == same.fingerprint()
        told_of.add(text)
        digests.add(one.fingerprint().digest())
        journal = KeyList()
        one.use_journal(journal)
        one.classify("t")
        keys.add(journal.asked[0])
    assert len(told_of) == len(keys) == len(digests) == len(settings)


def test_the_description_has_the_order(build: Build) -> None:
    """The description has the order that was used, which is the declared one without sizes."""
    described = [
        build("cat", "dog", **options).cascade.describe()
        for options in ({}, {"escalation_order": "size"}, {"escalation_order": "declared"})
    ]
    assert described[0] == described[1] == described[2]
    assert described[0]["method"]["escalation_order"] == "declared"
    sized = build("cat", "dog", models=[{"size": 7}, {"size": 1}]).cascade.describe()
    assert sized["method"]["escalation_order"] == "small_to_large"
    assert [model["name"] for model in sized["method"]["models"]] == ["b", "a"]


def test_space_is_common_to_models_or_none(build: Build) -> None:
    """The space is that of all models, or none if they differ."""
    alike = build("cat", "dog").cascade
    assert alike.fingerprint().space == "masked"
    unlike = build("cat", "dog", classifiers=[{"space": "raw"}, {}]).cascade
    assert unlike.fingerprint().space == "none"


def test_a_cascade_is_named_after_its_models(build: Build) -> None:
    """The name lists the models in calling order."""
    assert build("cat", "dog", models=[{"size": 7}, {"size": 1}]).cascade.name == "cascade(b -> a)"


def test_closing_closes_what_the_cascade_owns(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a cascade closes what it was given to own, or opened by name."""

    def models() -> tuple[list[FakeClient], list[Classifier]]:
        clients = [FakeClient(["cat", "dog"], {}, default="cat", name=name) for name in "ab"]
        owners = [Classifier(model=client, labels=["cat", "dog"]) for client in clients]
        for owner in owners:
            owner._owns_client = True
        return clients, owners

    clients, owners = models()
    method = told(needs_tokens=True)
    Cascade(owners, method=method).close()
    assert (method.closed, [client.closed for client in clients]) == (0, [False, False])

    cascade = Cascade(owners, method=method, owns_models=True)
    cascade.with_limits(Limits()).close()
    assert (method.closed, [client.closed for client in clients]) == (0, [False, False])
    cascade.close()
    assert (method.closed, [client.closed for client in clients]) == (1, [True, True])

    monkeypatch.setitem(METHODS, "margin", lambda: method)
    clients, owners = models()
    Cascade(owners, method="margin").close()
    assert (method.closed, [client.closed for client in clients]) == (2, [False, False])


def test_a_stopped_batch_goes_on_where_it_was(build: Build, tmp_path: Path) -> None:
    """A stopped batch ends with the predictions of one run, and repeats no call."""
    serial = BatchEvaluator(build(unsure, sure).cascade, concurrency=1).evaluate(ROWS).predictions
    built = build(unsure, sure, client={"latency": 0.001})
    stop = Stop()

    def enough(progress: Any) -> None:
        if progress.rows:
            stop.request("enough")

    first = build(
        lambda text: (stop.request("enough"), unsure(text))[1] if text.endswith("12") else unsure(text), sure
    )
    BatchEvaluator(first.cascade, concurrency=4).evaluate(
        ROWS, out=tmp_path / "run", stop=stop, on_progress=enough
    )
    asked = first.calls[0]
    assert 12 < asked < 30
    BatchEvaluator(built.cascade, concurrency=4).evaluate(ROWS, out=tmp_path / "run")
    assert asked + built.calls[0] == 30
    lines = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()]
    assert [(line["label"], line["confidence"]) for line in lines] == [
        (row.label, row.confidence) for row in serial
    ]


def test_a_row_that_was_cut_off_keeps_the_call_of_its_first_model(build: Build, tmp_path: Path) -> None:
    """The totals of a run that goes on have every call, that of a row whose second model ended the run, too."""

    def ends(_text: str) -> tuple[str, float]:
        raise CalibrantError("cut off")

    cut_off = build(unsure, ends)
    with pytest.raises(CalibrantError, match="cut off"):
        BatchEvaluator(cut_off.cascade, concurrency=1).evaluate(ROWS, out=tmp_path / "run")
    built = build(unsure, sure)
    found = BatchEvaluator(built.cascade).evaluate(ROWS, out=tmp_path / "run").metrics
    assert cut_off.calls[0] + built.calls[0] == 30
    assert found.cascade is not None
    assert [model.calls for model in found.cascade.models] == [30, 20]
    assert found.calls == 50
