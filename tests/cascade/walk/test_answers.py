"""Tests of a cascade's answers and their steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.calibration import PerLabelCalibrator, PlattCalibrator
from calibrant.cascade import Assessment, Cascade, Margin, NoEvidence
from calibrant.core import (
    ConfigurationError,
    Fingerprint,
    NotFittedError,
    Outcome,
    Prediction,
    ProviderError,
    StateError,
    TextWithContext,
    Usage,
    Verdict,
)
from calibrant.inference import Classifier
from calibrant.testing import FakeClient, FakeContinuingClient, MemoryJournal

Build = Callable[..., Any]

DOWN = ProviderError("is down.", provider="x", retryable=True)
FORBIDDEN = ProviderError("no such key.", provider="x", status=401, hint="Mend it.")


def verdicts(prediction: Prediction) -> list[str]:
    """Return the verdict about each model's answer."""
    return [step.verdict.value for step in prediction.steps]


def test_a_sure_answer_is_accepted(build: Build) -> None:
    """A sure answer of the first model ends the row."""
    built = build(("cat", 0.9), ("dog", 1.0))
    found = built.cascade.classify("t")
    assert (found.label, found.confidence, found.accepted, found.outcome) == ("cat", 0.9, True, Outcome.OK)
    assert verdicts(found) == ["accepted"]
    assert built.calls == [1, 0]


def test_an_unsure_answer_escalates(build: Build) -> None:
    """Label, distribution and text are those of the model that was sure, and each model has its step."""
    built = build(("cat", 0.6), ("dog", 0.95), ("cat", 1.0))
    found = built.cascade.classify("t")
    assert (found.label, found.accepted, found.text) == ("dog", True, '{"category": "dog"}')
    assert found.distribution is not None
    assert found.distribution.confidence("dog") == pytest.approx(0.95)
    assert built.calls == [1, 1, 0]
    assert [(step.model, step.verdict, step.label, step.confidence) for step in found.steps] == [
        ("a", Verdict.ESCALATED, "cat", 0.6),
        ("b", Verdict.ACCEPTED, "dog", 0.95),
    ]
    assert found.steps[0].native == pytest.approx(math.log(0.6))


@pytest.mark.parametrize(
    ("confidence", "verdict"),
    [(0.7, "accepted"), (math.nextafter(0.7, 0.0), "escalated"), (1.0, "accepted"), (0.0, "escalated")],
)
def test_a_confidence_at_the_threshold_is_accepted(
    build: Build, told: Any, confidence: float, verdict: str
) -> None:
    """A confidence at the threshold is accepted, and one just below it escalates."""
    found = build("cat", "dog", method=told(lambda _: confidence)).cascade.classify("t")
    assert verdicts(found)[0] == verdict


def test_the_methods_own_threshold_is_the_default(build: Build, told: Any) -> None:
    """The thresholds are the method's default."""
    assert build("cat", "dog", method=told(default_threshold=0.25)).cascade.thresholds == (0.25, 0.25)


def test_a_native_threshold_is_one_in_the_methods_unit(build: Build) -> None:
    """A native threshold is converted from the method's unit, for one model or each."""
    cascade = build("cat", "dog", native_threshold=math.log(0.4)).cascade
    assert cascade.thresholds == (pytest.approx(0.4),) * 2
    several = build("cat", "dog", native_threshold=[math.log(0.4), 0.0]).cascade
    assert several.thresholds == (pytest.approx(0.4), 1.0)


def test_a_native_threshold_whose_confidence_is_none_is_refused(
    build: Build, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method of the user's own may convert it to what is no share."""
    monkeypatch.setattr(told, "to_confidence", lambda _self, native: -native)
    assert build("cat", "dog", method=told(), native_threshold=-0.5).cascade.thresholds == (0.5, 0.5)
    with pytest.raises(ConfigurationError, match=r"threshold in \[0, 1\], got 4.0"):
        build("cat", "dog", method=told(), native_threshold=-4.0)


@pytest.mark.parametrize(("native_threshold", "accepted"), [(-4.0, False), (-5.0, True), (-6.0, True)])
def test_native_thresholds_beyond_confidence_count(
    build: Build, native_threshold: float, accepted: bool
) -> None:
    """Native values whose confidence is 0 are still told apart by a native threshold."""
    built = build(
        ("cat", math.exp(-5.0)), ("dog", 0.99), method="avg_logprob", native_threshold=native_threshold
    )
    found = built.cascade.classify("t")
    assert found.steps[0].native == pytest.approx(-5.0)
    assert (found.label == "cat") is accepted


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.55, 0.7, 0.9, 0.95])
def test_an_answer_at_a_native_threshold_is_accepted(build: Build, probability: float) -> None:
    """The native value is compared, not its rounded confidence."""
    built = build(
        ("cat", probability), "dog", method="label_probability", native_threshold=math.log(probability)
    )
    assert built.cascade.classify("t").label == "cat"


class Curve:
    """Calibrator of a user's own class."""

    def __init__(self, value: float, fingerprint: Any = None) -> None:
        self.value, self.fingerprint = value, fingerprint

    def predict(self, confidence: Any) -> Any:
        """Return the same value for every confidence."""
        return np.full(len(confidence), self.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 1.5}, r"threshold in \[0, 1\], got 1.5.*native_threshold"),
        ({"threshold": "0.5"}, "threshold to be a number"),
        ({"native_threshold": 0.5}, "logarithm"),
        ({"threshold": 0.5, "native_threshold": -1.0}, "got threshold and native_threshold"),
        ({"threshold": [0.5, 0.5, 0.5]}, r"\(2; 1 take the last"),
        ({"on_error": "ignore"}, "'skip' or 'fail'"),
        ({"cost_quality_tradeoff": 1.1}, "cost_quality_tradeoff"),
        ({"escalation_order": "largest"}, "small_to_large, size, declared, cost, automix"),
        ({"method": "certainty"}, "avg_logprob, margin, hybrid"),
        ({"method": object()}, "ConfidenceMethod"),
        ({"method": Margin}, r"call it, as in Margin\(\)"),
        ({"native_threshold": -1.0, "calibrators": [Curve(0.5), None]}, "threshold with calibrators"),
        ({"context_of": 5}, "context_of to be a function"),
        ({"calibrators": [None]}, "one calibrator"),
        ({"meta_verifier": object()}, "method route"),
        ({"meta_verifier": []}, "per model but the last, 1, got 0"),
    ],
)
def test_wrong_settings_are_refused(build: Build, options: dict[str, Any], message: str) -> None:
    """A wrong setting raises ConfigurationError with the value."""
    with pytest.raises(ConfigurationError, match=message):
        build("cat", "dog", **options)


def test_each_model_may_have_its_own_threshold(build: Build, told: Any) -> None:
    """Each threshold of a list is that of the model in the same place of the calling order."""
    built = build(
        ("cat", 0.8), ("dog", 0.6), models=[{"size": 70}, {"size": 7}], threshold=[0.5, 0.9], method=told()
    )
    assert built.cascade.models == ("b", "a")
    assert built.cascade.classify("t").label == "dog"
    assert built.calls == [0, 1]


def test_one_threshold_less_takes_the_last_answer(build: Build, told: Any) -> None:
    """Without a threshold the last model's answer is returned, and not accepted without evidence."""
    found = build(("cat", 0.8), ("dog", 0.55), threshold=[0.9]).cascade.classify("t")
    assert (found.label, found.accepted) == ("dog", True)
    method = told({"a": 0.8, "b": None})
    silent = build("cat", "dog", threshold=[0.9], method=method).cascade.classify("t")
    assert (silent.label, silent.confidence, silent.accepted) == ("dog", None, False)
    failed = build(("cat", 0.8), DOWN, threshold=[0.9]).cascade.classify("t")
    assert (failed.label, failed.accepted) == ("cat", False)
    method = told({"a": None, "b": 0.95, "c": 1.0})
    skipped = build("cat", "dog", "cat", threshold=[0.9, 0.9], method=method).cascade.classify("t")
    assert (skipped.label, len(skipped.steps)) == ("dog", 2)


def test_an_answer_without_evidence_is_a_last_resort(build: Build, told: Any) -> None:
    """An answer without evidence is returned only if there is no other, and is never accepted."""
    worst = build("cat", "dog", method=told({"a": 0.0, "b": None}), threshold=0.5).cascade.classify("t")
    assert (worst.label, worst.confidence, worst.accepted) == ("cat", 0.0, False)
    assert worst.reason == "no model was sure enough: nothing was told"
    assert verdicts(worst) == ["escalated", "no_evidence"]
    none = build("cat", "dog", method=told(lambda _: None), threshold=0.0).cascade.classify("t")
    assert (none.label, none.confidence, none.accepted, none.outcome) == ("dog", None, False, Outcome.OK)
    assert none.steps[0].reason == "nothing was told"
    assert none.steps[0].label == "cat"
    assert none.reason == "nothing says how sure the models are: nothing was told"
    later = build("cat", "dog", method=told({"a": None, "b": 0.1})).cascade.classify("t")
    assert (later.label, later.confidence) == ("dog", 0.1)
    failed = build("cat", DOWN, method=told({"a": None})).cascade.classify("t")
    assert (failed.label, failed.outcome, failed.accepted) == ("cat", Outcome.OK, False)


def test_a_failing_verifier_is_no_evidence(build: Build, told: Any) -> None:
    """A verifier that is down gives no evidence, and its calls are counted."""

    def down(_: Any) -> Any:
        error = ProviderError("is down.", provider="verifier")
        error.attempts = 3
        raise error

    found = build("cat", method=told(down)).cascade.classify("t")
    assert verdicts(found) == ["no_evidence"]
    assert (found.steps[0].reason, found.attempts, found.accepted) == ("verifier: is down.", 4, False)


@pytest.fixture(params=["down", "refusal", "nonsense"])
def fault(request: pytest.FixtureRequest) -> tuple[Any, Outcome]:
    """Return the response of a model without an answer, and its outcome."""
    if request.param == "down":
        return DOWN, Outcome.ERROR
    outcome = {"refusal": Outcome.REFUSAL, "nonsense": Outcome.UNPARSED}[request.param]
    return request.getfixturevalue(request.param), outcome


def test_a_model_that_gives_no_answer_is_skipped(build: Build, fault: tuple[Any, Outcome]) -> None:
    """The next model answers, and the step of the first says how it ended."""
    said, outcome = fault
    found = build(said, ("dog", 0.9)).cascade.classify("t")
    assert (found.label, found.accepted, found.outcome, found.reason) == ("dog", True, Outcome.OK, "")
    step = found.steps[0]
    assert (step.verdict, step.outcome, step.label, step.confidence) == (Verdict.FAILED, outcome, None, None)
    assert step.reason


def test_on_error_fail_ends_rows_without_answer(build: Build, fault: tuple[Any, Outcome]) -> None:
    """With ``on_error="fail"`` a model without an answer ends the row with its outcome."""
    said, outcome = fault
    built = build(("cat", 0.6), said, ("dog", 1.0), on_error="fail")
    found = built.cascade.classify("t")
    assert (found.label, found.confidence, found.accepted, found.outcome) == (None, None, False, outcome)
    assert verdicts(found) == ["escalated", "failed"]
    assert found.steps[0].label == "cat"
    assert found.reason.startswith("b: ")
    assert built.calls == [1, 1, 0]


def test_on_error_fail_ends_rows_without_evidence(build: Build, told: Any) -> None:
    """With ``on_error="fail"`` an answer without evidence is an error of the row."""
    built = build("cat", "dog", on_error="fail", method=told({"a": None}))
    found = built.cascade.classify("t")
    assert (found.label, found.outcome, found.accepted) == (None, Outcome.ERROR, False)
    assert found.reason == "a: nothing was told"
    assert (found.steps[0].label, found.text) == ("cat", '{"category": "cat"}')
    assert built.calls == [1, 0]


def test_without_answers_the_last_outcome_counts(build: Build, refusal: Any, nonsense: Any) -> None:
    """A row without any answer has the last outcome and the reasons of all models."""
    found = build(DOWN, refusal, nonsense).cascade.classify("t")
    assert (found.label, found.outcome, found.accepted) == (None, Outcome.UNPARSED, False)
    assert [step.outcome for step in found.steps] == [Outcome.ERROR, Outcome.REFUSAL, Outcome.UNPARSED]
    assert [part[:2] for part in found.reason.split("; ")] == ["a:", "b:", "c:"]
    assert build(nonsense, refusal).cascade.classify("t").outcome is Outcome.REFUSAL


def test_rows_that_all_models_fail_keep_steps(build: Build) -> None:
    """A row that all models fail is an error, and other rows are answered."""
    down = {"bad": DOWN, "good": ("cat", 0.9)}
    good, bad = build(down, down).cascade.classify_many(["good", "bad"])
    assert good.outcome is Outcome.OK
    assert (bad.outcome, bad.attempts, len(bad.steps)) == (Outcome.ERROR, 2, 2)


def test_systemic_faults_of_all_models_end_the_run(build: Build) -> None:
    """A row goes on after an invalid API key, and ProviderError is raised if all keys are invalid."""
    built = build(FORBIDDEN, ("cat", 0.9))
    assert {found.label for found in built.cascade.classify_many(["s", "t"])} == {"cat"}
    hopeless = build(FORBIDDEN, FORBIDDEN)
    with pytest.raises(ProviderError, match=r"no model could be asked.*no such key") as caught:
        hopeless.cascade.classify_many([str(number) for number in range(100)])
    assert caught.value.systemic
    assert (caught.value.status, caught.value.hint) == (401, FORBIDDEN.hint)
    assert caught.value.attempts == 2
    assert sum(hopeless.calls) < 50
    mixed = build(FORBIDDEN, DOWN).cascade.classify("t")
    assert mixed.outcome is Outcome.ERROR


def test_later_key_failures_are_row_errors(build: Build) -> None:
    """A bad key of models that have answered before is an error of the row."""
    rule = {"good": ("cat", 0.9), "bad": FORBIDDEN}
    cascade = build(rule, rule).cascade
    assert cascade.classify("good").accepted
    found = cascade.classify("bad")
    assert (found.outcome, found.status, verdicts(found)) == (Outcome.ERROR, 401, ["failed", "failed"])


def test_on_error_fail_raises_bad_keys(build: Build) -> None:
    """With ``on_error="fail"`` the bad key of the first model raises ProviderError."""
    with pytest.raises(ProviderError, match="no such key"):
        build(FORBIDDEN, "cat", on_error="fail").cascade.classify("t")


def test_models_that_are_down_end_a_long_run(build: Build) -> None:
    """Twenty rows without any answer raise ProviderError."""
    built = build(DOWN, DOWN)
    with pytest.raises(ProviderError, match="The last 20 rows all failed"):
        built.cascade.classify_many([str(number) for number in range(200)])


def test_usage_counts_every_call(build: Build, told: Any, say: Any, refusal: Any) -> None:
    """Calls of verifiers, and of models without an answer, are part of usage and meter."""
    refused = {**refusal, "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    built = build(
        say("cat", 0.6, tokens=10, cost=0.5),
        refused,
        say("dog", 0.9, tokens=1000, cost=2.0),
        method=told(calls=3),
        verify_last=True,
    )
    found = built.cascade.classify("t")
    assert found.usage == Usage(prompt_tokens=10 + 300 + 7 + 1000 + 300, completion_tokens=2, cost=2.5)
    assert found.attempts == 1 + 3 + 1 + 1 + 3
    assert [step.attempts for step in found.steps] == [4, 1, 4]
    assert [step.usage.prompt_tokens for step in found.steps] == [310, 7, 1300]
    gate = built.cascade.meter
    assert (gate.requests, gate.tokens, gate.cost, gate.rows) == (9, 1619, 2.5, 1)


def test_calls_of_a_free_model_cost_nothing(build: Build, say: Any) -> None:
    """The calls of a model with ``cost=0`` count as 0 dollars."""
    answers = say("cat", 0.6, tokens=10), say("dog", 0.9, tokens=10)
    free = build(*answers, models=[{"cost": 0}, {"cost": 0}]).cascade.classify("t")
    assert free.usage.cost == 0.0
    assert build(*answers).cascade.classify("t").usage.cost is None


def test_the_method_gets_the_models_input(build: Build) -> None:
    """The method gets the text in its template, the answer, the model and the context."""
    built = build(
        "cat",
        classifiers=[{"user_template": "Text: {input}", "prompt": "P"}],
        context_of={"t": "It meows."}.get,
    )
    built.cascade.classify_many(["t", "u"])
    first, second = built.method.asked
    assert (first.question, first.context, second.context) == ("Text: t", "It meows.", None)
    assert first.prediction.label == "cat"
    assert first.classifier.prompt == "P"


def test_methods_that_read_tokens_get_them(build: Build, told: Any) -> None:
    """Members ask for the alternatives that a method needs, and predictions hold no tokens."""
    method = told(needs_tokens=True, top_logprobs=7)
    built = build(("cat", 0.9), method=method)
    found = built.cascade.classify("t")
    assert method.asked[0].prediction.tokens
    assert built.clients[0].requests[0].top_logprobs == 7
    assert found.tokens is None


@pytest.mark.parametrize("settings", [{}, {"scoring": "sampled"}])
def test_token_methods_refuse_models_without_tokens(told: Any, settings: dict[str, Any]) -> None:
    """Models that write no tokens raise ConfigurationError with a method that reads them."""
    client = FakeContinuingClient(["cat", "dog"], {}, default="cat", name="exact")
    classifier = Classifier(model=client, labels=["cat", "dog"], field="category", **settings)
    with pytest.raises(ConfigurationError, match=r"'exact'.*scoring='decode'.*label_probability"):
        Cascade([classifier], method=told(needs_tokens=True))
    decoding = Classifier(model=client, labels=["cat", "dog"], field="category", scoring="decode")
    assert Cascade([decoding], method=told(needs_tokens=True)).classify("t").accepted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "at least one model"),
        ([object()], "Expected a Classifier.*got object"),
        (7, "list of at least one model"),
    ],
)
def test_a_cascade_needs_models(told: Any, given: Any, message: str) -> None:
    """Anything but a list of classifiers raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=message):
        Cascade(given, method=told())


def test_a_cascade_is_no_model_of_a_cascade(build: Build, told: Any) -> None:
    """A cascade as a model raises ConfigurationError that suggests its models."""
    built = build("cat", "dog")
    with pytest.raises(ConfigurationError, match="name its models instead"):
        Cascade([built.cascade], method=told())


def test_models_over_other_labels_are_refused(told: Any) -> None:
    """Models with the same labels in another order raise ConfigurationError."""
    models = [
        Classifier(model=FakeClient(labels, {}, default="cat"), labels=labels)
        for labels in (["cat", "dog"], ["dog", "cat"])
    ]
    with pytest.raises(
        ConfigurationError, match=r"labels of 'fake #1', in their order \(cat, dog\), got dog, cat"
    ):
        Cascade(models, method=told())


class Route:
    """Meta-verifier that escalates below a limit, and keeps the scores it gets."""

    def __init__(self, limit: float = 0.5) -> None:
        self.limit = limit
        self.asked: list[list[float]] = []

    def route(self, verifier_score: Any) -> Any:
        """Return whether to ask the next model."""
        self.asked.append(list(verifier_score))
        return np.asarray(verifier_score) < self.limit


def test_meta_verifiers_replace_thresholds(build: Build, told: Any) -> None:
    """A meta-verifier decides, and the last model's answer is taken, with that model's own confidence."""
    rule, method = Route(), told(lambda answered: 0.4 if answered.question == "hard" else 0.5, calls=8)
    built = build("cat", "dog", method=method, meta_verifier=rule)
    rule.asked.clear()
    easy, hard = built.cascade.classify_many(["easy", "hard"])
    assert (easy.label, easy.confidence, easy.accepted) == ("cat", 0.5, True)
    assert (hard.label, hard.confidence, hard.accepted) == ("dog", 1.0, True)
    assert [step.reason for step in hard.steps] == ["", "not verified; the confidence is the model's own"]
    assert rule.asked == [[0.5], [0.4]]
    assert (hard.attempts, len(method.asked)) == (1 + 8 + 1, 2)
    assert built.cascade.thresholds is None
    checked = build("cat", "dog", method=method, meta_verifier=Route(), verify_last=True).cascade.classify(
        "hard"
    )
    assert (checked.label, checked.confidence, checked.accepted) == ("dog", 0.4, True)


def test_calls_about_the_last_answer_are_not_made(build: Build, told: Any) -> None:
    """Where a verifier takes calls, the last model is verified only under a threshold of its own, or on request."""

    def verified(*, calls: int, **options: Any) -> tuple[int, float | None, bool | None]:
        method = told({"a": 0.1, "b": 0.9}, calls=calls)
        found = build("cat", ("dog", 0.8), method=method, **options).cascade.classify("t")
        assert found.label == "dog"
        return len(method.asked), found.confidence, found.accepted

    own = (1, pytest.approx(0.8), True)
    assert verified(calls=8) == own
    assert verified(calls=8, threshold=0.95) == own
    assert verified(calls=8, threshold=[0.95]) == own
    assert verified(calls=0) == (2, 0.9, True)
    assert verified(calls=8, threshold=[0.95, 0.95]) == (2, 0.9, False)
    assert verified(calls=8, threshold=0.95, verify_last=True) == (2, 0.9, False)
    assert verified(calls=0, verify_last=False) == own


def test_a_verifier_that_is_down_makes_no_answer_sure(build: Build, told: Any) -> None:
    """Where nothing says how sure the first model is, the last model's unverified answer is not accepted."""
    method = told(lambda _: NoEvidence(reason="the verifier is down"), calls=1)
    found = build("cat", "dog", method=method).cascade.classify("t")
    assert (found.label, found.confidence, found.accepted) == ("dog", None, False)
    assert found.reason.startswith("nothing says how sure the models are: the verifier is down")


def test_one_model_alone_is_verified(build: Build, told: Any) -> None:
    """A cascade of one model asks the verifier about it."""
    method = told(lambda _: 0.4, calls=8)
    found = build("cat", method=method).cascade.classify("t")
    assert (len(method.asked), found.confidence, found.accepted) == (1, 0.4, False)


def test_a_rule_keeps_the_last_model_s_confidence(build: Build) -> None:
    """Under any rule for the first model, the last model's answer comes with its label's probability."""
    built = build(("cat", 0.7), ("dog", 0.9), method="label_probability", meta_verifier=Route(0.8))
    found = built.cascade.classify("t")
    assert (found.label, found.confidence, found.accepted) == ("dog", pytest.approx(0.9), True)


def test_unverified_answers_without_confidence_are_not_accepted(build: Build, told: Any) -> None:
    """An answer that nobody verifies, of a model without log-probabilities, is returned and not accepted."""
    silent = {"choices": [{"message": {"content": '{"category": "dog"}'}, "finish_reason": "stop"}]}
    built = build(
        "cat", silent, method=told({"a": 0.1, "b": 0.9}, calls=1), classifiers=[{}, {"space": "none"}]
    )
    found = built.cascade.classify("t")
    assert (found.label, found.confidence, found.accepted) == ("dog", None, False)
    assert found.reason == "nothing says how sure the models are: its answer is taken as it is"


def test_meta_verifiers_apply_in_order(build: Build, told: Any) -> None:
    """Each model but the last has its own meta-verifier."""
    rules = Route(), Route()
    built = build("cat", "cat", "dog", method=told({"a": 0.1, "b": 0.2}), meta_verifier=rules)
    for rule in rules:
        rule.asked.clear()
    assert built.cascade.classify("t").label == "dog"
    assert [rule.asked for rule in rules] == [[[0.1]], [[0.2]]]


def test_calibrated_confidence_decides(build: Build) -> None:
    """Each model's calibrator changes the confidence that is compared, and not the native value."""
    sure, unsure = (
        PlattCalibrator().fit([0.2, 0.4, 0.6, 0.8] * 50, [right] * 150 + [1 - right] * 50) for right in (1, 0)
    )
    built = build(
        ("cat", 0.6),
        ("dog", 0.6),
        models=[{"size": 7}, {"size": 1}],
        calibrators=[sure, unsure],
        threshold=0.5,
    )
    found = built.cascade.classify("t")
    assert built.cascade.models == ("b", "a")
    assert verdicts(found) == ["escalated", "accepted"]
    assert [step.confidence for step in found.steps] == [
        pytest.approx(unsure.predict([0.6])[0]),
        pytest.approx(sure.predict([0.6])[0]),
    ]
    assert found.confidence == found.steps[1].confidence
    assert found.steps[1].native == pytest.approx(math.log(0.6))


def test_calibrators_get_the_label(build: Build) -> None:
    """A calibrator per label gets the label of each answer."""
    confidence = [0.1, 0.9] * 100
    predicted = ["cat"] * 100 + ["dog"] * 100
    correct = [0, 1] * 50 + [1, 0] * 50
    calibrator = PerLabelCalibrator().fit(confidence, correct, predicted=predicted)
    built = build({"c": ("cat", 0.9), "d": ("dog", 0.9)}, calibrators=[calibrator], threshold=0.5)
    cat, dog = built.cascade.classify_many(["c", "d"])
    assert cat.confidence == pytest.approx(calibrator.predict([0.9], predicted=["cat"])[0])
    assert dog.confidence == pytest.approx(calibrator.predict([0.9], predicted=["dog"])[0])
    assert cat.confidence != dog.confidence


def test_calibrators_out_of_range_are_no_evidence(build: Build) -> None:
    """A calibrated value that is no confidence is no evidence."""
    found = build("cat", calibrators=[Curve(math.nan)], threshold=0.0).cascade.classify("t")
    assert verdicts(found) == ["no_evidence"]
    assert "of the calibrator, got nan" in found.steps[0].reason


def test_a_calibrator_of_another_classifier_is_refused(build: Build) -> None:
    """A calibrator with the fingerprint of another classifier raises StateError."""
    plain = build("cat", "dog")
    prints = [classifier.fingerprint() for classifier in plain.classifiers]
    assert build("cat", "dog", calibrators=[Curve(0.9, prints[0]), Curve(0.9, prints[1].to_record())])
    with pytest.raises(StateError, match=r"predictions of a.*another model"):
        build("cat", "dog", calibrators=[Curve(0.9, prints[1]), None])
    other = Fingerprint(prompt="another", model="a", space=prints[0].space, labels=prints[0].labels)
    with pytest.raises(StateError, match="another prompt"):
        build("cat", "dog", calibrators=[Curve(0.9, other), None])


said = st.one_of(st.none(), st.just(-1.0), st.integers(0, 10).map(lambda tenths: tenths / 10))


@hypothesis.settings(max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@given(answers=st.lists(said, min_size=1, max_size=4), threshold=st.integers(0, 10).map(lambda t: t / 10))
def test_first_sure_or_most_confident_answer_wins(
    build: Build, told: Any, answers: list[float | None], threshold: float
) -> None:
    """The returned answer is the first sure one, or else the most confident, as a separate rule says."""
    rules = [DOWN if one == -1.0 else ("cat" if number % 2 else "dog") for number, one in enumerate(answers)]
    confidences = dict(zip("abcd", answers, strict=False))
    found = build(*rules, method=told(confidences), threshold=threshold).cascade.classify("t")
    asked = _expected_asked(answers, threshold)
    assert [step.model for step in found.steps] == list("abcd"[:asked])
    known = [(one, number) for number, one in enumerate(answers[:asked]) if one is not None and one >= 0]
    silent = [number for number, one in enumerate(answers[:asked]) if one is None]
    if known:
        confidence, winner = max(known)
        assert (found.confidence, found.accepted) == (confidence, confidence >= threshold)
    elif silent:
        winner = silent[-1]
        assert (found.confidence, found.accepted) == (None, False)
    else:
        assert (found.label, found.outcome, found.accepted) == (None, Outcome.ERROR, False)
        return
    assert found.label == rules[winner]


def _expected_asked(answers: Sequence[float | None], threshold: float) -> int:
    for number, one in enumerate(answers):
        if one is not None and one >= 0 and one >= threshold:
            return number + 1
    return len(answers)


def test_steps_hold_the_verifiers_reason(build: Build, told: Any) -> None:
    """The verifier's reason is in the step and not in the prediction."""
    because = Assessment(confidence=0.9, native=0.9, reason="it meows")
    found = build("cat", method=told(lambda _: because)).cascade.classify("t")
    assert (found.steps[0].reason, found.reason) == ("it meows", "")


def test_missing_evidence_reports_its_usage(build: Build, told: Any) -> None:
    """Calls that gave no evidence are part of usage and attempts."""
    vain = NoEvidence(reason="HTML came", usage=Usage(prompt_tokens=40), attempts=2)
    found = build("cat", method=told(lambda _: vain)).cascade.classify("t")
    assert (found.usage.prompt_tokens, found.attempts, found.steps[0].reason) == (40, 3, "HTML came")


def _fail(*_: Any) -> Any:
    raise ZeroDivisionError("no share of 0")


@pytest.mark.parametrize(
    ("assess", "reason"),
    [
        (_fail, "told failed: ZeroDivisionError: no share of 0"),
        (lambda _: None, "expected an Assessment or NoEvidence of told, got None"),
        (lambda _: Assessment(confidence=math.nan, native=0.0), "in [0, 1] of told, got nan"),
        (lambda _: Assessment(confidence="0.9", native=0.9), "in [0, 1] of told, got '0.9'"),  # type: ignore[arg-type]
        (lambda _: Assessment(confidence=7.0, native=0.0), "in [0, 1] of told, got 7.0"),
    ],
)
def test_results_outside_the_protocol_are_no_evidence(
    build: Build, told: Any, assess: Callable[[Any], Any], reason: str
) -> None:
    """A method that raises, or returns something else, gives no evidence for that row alone."""

    class Wrong(told):  # type: ignore[misc]
        async def assess(self, answered: Any) -> Any:
            return assess(answered) if answered.question == "bad" else Assessment(confidence=0.9, native=0.9)

    bad, good = build("cat", "dog", method=Wrong()).cascade.classify_many(["bad", "good"])
    assert verdicts(bad) == ["no_evidence", "no_evidence"]
    assert reason in bad.steps[0].reason
    assert (bad.confidence, bad.accepted, good.label, good.accepted) == (None, False, "cat", True)


def test_unfitted_methods_end_the_run(build: Build) -> None:
    """A method that was not fitted raises NotFittedError."""

    class Unfitted(Margin):
        async def assess(self, _: Any) -> Any:
            raise NotFittedError("Expected a fitted method, got one before fit: call fit first.")

    with pytest.raises(NotFittedError, match="call fit first"):
        build("cat", "dog", method=Unfitted()).cascade.classify_many(["t"])


def test_a_text_brings_its_own_context(build: Build, told: Any) -> None:
    """A text's own context comes before the one for all, and models read neither."""
    method = told()
    built = build(("cat", 0.9), method=method, context_of="Cats purr.", journal=MemoryJournal())
    texts = ["t", TextWithContext("t", "It barks."), TextWithContext("t")]
    built.cascade.classify_many(texts)
    assert {(one.question, one.context) for one in method.asked} == {("t", "Cats purr."), ("t", "It barks.")}
    assert {message["content"] for one in built.clients[0].requests for message in one.messages} == {"", "t"}
    assert built.cascade.classify(texts[1]).attempts == 0
    assert built.calls == [1]


@pytest.mark.parametrize(
    ("context_of", "reason"),
    [
        (_fail, "context_of failed: ZeroDivisionError"),
        (lambda _: 5, "expected a text or None of context_of, got 5"),
    ],
)
def test_a_failing_context_is_no_evidence(
    build: Build, context_of: Callable[[str], Any], reason: str
) -> None:
    """An answer whose context cannot be found is not assessed."""
    built = build("cat", context_of=context_of)
    found = built.cascade.classify("t")
    assert verdicts(found) == ["no_evidence"]
    assert reason in found.steps[0].reason
    assert built.method.asked == []


def test_a_fault_of_a_method_is_logged_once(
    build: Build, told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The first fault of a method is logged with its traceback."""
    build("cat", method=told(_fail)).cascade.classify_many(["s", "t", "u"])
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "told failed" in record.message


@hypothesis.settings(max_examples=40, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_account_is_the_sum_of_all_calls(build: Build, told: Any, say: Any, data: st.DataObject) -> None:
    """Usage, attempts and the meter agree with the requests that the clients received."""
    count = data.draw(st.integers(1, 3))
    verifier = data.draw(st.integers(0, 3))
    tokens = [data.draw(st.integers(0, 50)) for _ in range(count)]
    costs = [data.draw(st.sampled_from([0.0, 0.25, 1.0])) for _ in range(count)]
    rows = [data.draw(st.lists(st.integers(0, 10), min_size=count, max_size=count)) for _ in range(4)]

    def rule(model: int) -> Callable[[str], Any]:
        def answer(text: str) -> Any:
            sure = rows[int(text)][model] / 10
            return DOWN if sure == 0 else say("cat", sure, tokens=tokens[model], cost=costs[model])

        return answer

    built = build(*[rule(model) for model in range(count)], method=told(calls=verifier), verify_last=True)
    found = built.cascade.classify_many([str(number) for number in range(4)])
    answered = [
        sum(rows[int(request.messages[1]["content"])][model] > 0 for request in client.requests)
        for model, client in enumerate(built.clients)
    ]
    verified = len(built.method.asked)
    assert verified == sum(answered)
    gate = built.cascade.meter
    assert sum(row.attempts for row in found) == sum(built.calls) + verifier * verified == gate.requests
    expected = (
        sum(number * one for number, one in zip(answered, tokens, strict=True)) + 100 * verifier * verified
    )
    assert sum(row.usage.prompt_tokens for row in found) == expected == gate.tokens
    cost = sum(number * one for number, one in zip(answered, costs, strict=True))
    assert sum(row.usage.cost or 0.0 for row in found) == cost == gate.cost
    for row in found:
        assert sum((step.usage for step in row.steps), Usage()) == row.usage
        assert sum(step.attempts for step in row.steps) == row.attempts
