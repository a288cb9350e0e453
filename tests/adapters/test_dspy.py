"""Tests of the DSPy adapter with scripted models: metric, module, and ``dspy.GEPA``."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from calibrant.adapters import ConfidenceAdapter
from calibrant.calibration import LabelPriorCorrection
from calibrant.cascade import Cascade
from calibrant.core import ConfigurationError, DataError, Example, Limits, ProviderError, Task
from calibrant.inference import Classifier
from calibrant.scoring import BrierScoring, LinearBlendScoring, LogScoring, ThresholdScoring
from calibrant.testing import FakeClient, MemoryJournal
from scripted import QUICK, body

dspy = pytest.importorskip("dspy", reason="the extra dspy is not installed")

from calibrant.adapters.dspy import ConfidenceClassifier, ConfidenceMetric  # noqa: E402  (needs dspy)

LABELS = ["cat", "dog", "owl"]
TRANSACTIONS = Path(__file__).parents[2] / "examples" / "transactions" / "task.toml"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Restore DSPy's settings after the test."""
    with dspy.context():
        yield


def classifier(answers: Any, *, prompt: str = "Which animal?", **options: Any) -> Classifier:
    """Return a classifier around a scripted model."""
    client = options.pop("client", None) or FakeClient(LABELS, answers)
    return Classifier(model=client, labels=LABELS, field="category", prompt=prompt, retry=QUICK, **options)


def program(answers: Any, **options: Any) -> ConfidenceClassifier:
    """Return a module around a scripted model."""
    return ConfidenceClassifier(classifier(answers, **options))


def gold(label: Any, text: str = "x", **fields: Any) -> Any:
    """Return a labelled example."""
    return dspy.Example(text=text, label=label, **fields).with_inputs("text")


def refused(*_: Any) -> Any:
    """Raise the error of a server that is overloaded."""
    raise ProviderError("overloaded", provider="fake", status=500)


def denied(*_: Any) -> Any:
    """Raise the error of a server that refuses the key."""
    raise ProviderError("bad key", provider="fake", status=401)


def cats(count: int) -> list[Any]:
    """Return labelled examples of cats."""
    return [gold("cat", text=str(n)) for n in range(count)]


# -- the module ----------------------------------------------------------------------------------


def test_the_module_returns_the_prediction() -> None:
    """The module returns label, distribution, confidence and outcome of the classifier."""
    asked = classifier({"purrs": {"cat": 0.7, "owl": 0.2, "dog": 0.1}})
    found = ConfidenceClassifier(asked)(text="purrs")
    expected = asked.classify("purrs")
    for name in ("label", "confidence", "distribution"):
        assert getattr(found, name) == getattr(expected, name)
    assert (found.outcome, found.reason, found.completion) == ("ok", "", expected.text)
    assert found.confidence == pytest.approx(0.7)


def test_instructions_are_the_prompt() -> None:
    """Changed instructions of a copy are sent as its prompt, and the original keeps its own."""
    fake = FakeClient(LABELS, {"x": "cat"})
    first = program({}, client=fake)
    second = first.deepcopy()
    second.predict.signature = second.predict.signature.with_instructions("Name the beast.")
    first(text="x")
    second(text="x")
    systems = [request.messages[0]["content"] for request in fake.requests]
    assert systems == ["Which animal?", "Name the beast."]
    assert first.instructions == "Which animal?"
    assert [name for name, _ in first.named_predictors()] == ["predict"]


def test_copies_share_client_journal_and_limits(caplog: pytest.LogCaptureFixture) -> None:
    """Copies share the classifier and its journal, so a repeated row makes no further call."""
    fake = FakeClient(LABELS, {"x": "cat"})
    first = program({}, client=fake, journal=MemoryJournal())
    copies = [first.deepcopy() for _ in range(3)]
    assert caplog.records == []  # DSPy warns of what it cannot copy
    assert all(copy.classifier is first.classifier for copy in copies)
    assert all(copy.predict is not first.predict for copy in copies)
    assert {copy(text="x").label for copy in copies} == {"cat"}
    assert len(fake.requests) == 1


def test_a_metric_covers_earlier_copies() -> None:
    """An error in a copy that is older than the metric is raised by `stop`."""
    module = program({})
    copy = module.deepcopy()
    metric = module.metric()
    with pytest.raises(DataError):
        copy(text=3)
    with pytest.raises(DataError):
        metric.stop()


@pytest.mark.parametrize("prompt", ["Which animal?\n", "  Two\n  lines\n"])
def test_surrounding_space_of_a_prompt_is_sent(prompt: str) -> None:
    """A prompt is sent with its surrounding space, and with the classifier's prior correction."""
    correction = LabelPriorCorrection("batch").fit(
        [[math.log(0.7), math.log(0.2), math.log(0.1)], [math.log(0.6), math.log(0.3), math.log(0.1)]]
    )
    answers = {"x": {"cat": 0.5, "dog": 0.3, "owl": 0.2}}
    fake = FakeClient(LABELS, answers)
    asked = classifier({}, client=fake, prompt=prompt, prior_correction=correction)
    module = ConfidenceClassifier(asked)
    assert module(text="x").distribution == asked.classify("x").distribution
    assert {request.messages[0]["content"] for request in fake.requests} == {prompt}
    module.predict.signature = module.predict.signature.with_instructions("Another prompt.")
    plain = classifier(answers).classify("x").distribution
    assert module(text="x").distribution == plain


def test_it_saves_and_loads_as_json(tmp_path: Path) -> None:
    """Instructions that were saved as JSON are loaded into another module."""
    best = program({"x": "cat"})
    best.predict.signature = best.predict.signature.with_instructions("Name the beast.\nBe brief.")
    best.save(tmp_path / "program.json")
    fake = FakeClient(LABELS, {"x": "cat"})
    loaded = program({}, client=fake)
    loaded.load(tmp_path / "program.json")
    assert loaded(text="x").label == "cat"
    assert fake.requests[0].messages[0]["content"] == "Name the beast.\nBe brief."


def test_pickling_is_refused(tmp_path: Path) -> None:
    """Pickling a module raises TypeError that names `save`."""
    module = program({"x": "cat"})
    with pytest.raises(TypeError, match=r"save its instructions with save\('program.json'\)"):
        pickle.dumps(module)
    with pytest.raises(RuntimeError, match="made from the same classifier"):
        module.save(tmp_path / "program", save_program=True)
    assert copy.copy(module)(text="x").label == "cat"


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_a_classifier_without_a_prompt_is_refused(prompt: str) -> None:
    """A classifier without a prompt raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected a classifier with a prompt"):
        program({}, prompt=prompt)


def test_a_cascade_needs_one_prompt_for_all_models() -> None:
    """A cascade whose models have their own prompts raises ConfigurationError."""
    models = [classifier({"x": ("cat", 0.6)}, prompt=prompt) for prompt in ("One?", "Two?")]
    cascade = Cascade(models, method="label_probability", threshold=0.9)
    with pytest.raises(ConfigurationError, match="a cascade whose models have prompts of their own"):
        ConfidenceClassifier(cascade)
    module = ConfidenceClassifier(cascade.with_prompt("Both?"))
    assert module.instructions == "Both?"
    assert module(text="x").label == "cat"


def test_it_works_inside_an_event_loop() -> None:
    """Thirty concurrent calls in one event loop get their own answers."""
    module = program(lambda text: LABELS[int(text) % 3])

    async def many() -> list[Any]:
        return await asyncio.gather(*(module.acall(text=str(n)) for n in range(30)))

    assert [found.label for found in asyncio.run(many())] == [LABELS[n % 3] for n in range(30)]


def test_it_works_inside_other_programs() -> None:
    """Calls in DSPy's threads get their own answers, and a program can contain the module."""
    module = program(lambda text: LABELS[int(text) % 3])
    found = dspy.Parallel(num_threads=8, disable_progress_bar=True)([(module, e) for e in cats(30)])
    assert [row.label for row in found] == [LABELS[n % 3] for n in range(30)]

    class Pipeline(dspy.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.animal = module

        def forward(self, text: str) -> Any:
            return self.animal(text=text.strip())

    pipeline = Pipeline()
    assert [name for name, _ in pipeline.named_predictors()] == ["animal.predict"]
    assert pipeline.deepcopy().animal.classifier is module.classifier
    assert pipeline(text=" 1 ").label == "dog"


def test_a_call_leaves_one_trace() -> None:
    """A call leaves one trace, with the label alone."""
    module = program({"x": ("cat", 0.8)})
    with dspy.context(trace=[]):
        module(text="x")
        ((predictor, inputs, output),) = dspy.settings.trace
    assert predictor is module.predict
    assert inputs == {"text": "x"}
    assert output.toDict() == {"label": "cat"}


def test_the_trace_shows_unreadable_answers() -> None:
    """The trace of an answer that is no label has its text."""
    module = program(ANSWERS)
    with dspy.context(trace=[]):
        for text in ("horse", "refusal", "bare"):
            module(text=text)
        shown = [output.toDict() for _, _, output in dspy.settings.trace]
    assert shown == [{"label": '{"category": "horse"}'}, {"label": "<refusal>"}, {"label": "cat"}]


@pytest.mark.parametrize("settings", [{"trace": None}, {"trace": [], "max_trace_size": 0}])
def test_without_a_trace_nothing_is_left(settings: dict[str, Any]) -> None:
    """No trace is left where DSPy's settings switch traces off."""
    with dspy.context(**settings):
        assert program({"x": "cat"})(text="x").label == "cat"
        assert not dspy.settings.trace


def test_a_full_trace_forgets_its_oldest_entry() -> None:
    """A full trace drops its oldest entry."""
    module = program(lambda _: "cat")
    with dspy.context(trace=[], max_trace_size=2):
        for text in "abc":
            module(text=text)
        assert [inputs["text"] for _, inputs, _ in dspy.settings.trace] == ["b", "c"]


def test_a_failed_call_leaves_no_trace() -> None:
    """A call that failed leaves no trace, and its prediction has the outcome "error"."""
    with dspy.context(trace=[]):
        found = program(refused)(text="x")
        assert dspy.settings.trace == []
    assert (found.label, found.confidence, found.distribution, found.outcome) == (None, None, None, "error")
    assert "overloaded" in found.reason


def test_a_fault_that_every_call_meets_is_raised() -> None:
    """An invalid API key raises ProviderError."""
    with pytest.raises(ProviderError, match="bad key"):
        program(denied)(text="x")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "Expected text under 'text', got None"),
        ({"text": 3}, "Expected text under 'text', got 3"),
        ({"txt": "x"}, r"inputs: \['txt'\]"),
        ({"text": "x", "note": "y"}, r"Expected the input 'text' alone, got \['note', 'text'\]"),
    ],
)
def test_inputs_must_be_one_text(inputs: dict[str, Any], message: str) -> None:
    """Inputs other than one text raise DataError in both kinds of call, without a call of the model."""
    fake = FakeClient(LABELS, {})
    module = program({}, client=fake)
    with pytest.raises(DataError, match=message):
        module(**inputs)
    with pytest.raises(DataError, match=message):
        asyncio.run(module.acall(**inputs))
    assert fake.requests == []


def test_demonstrations_are_refused() -> None:
    """A module with demonstrations raises ConfigurationError."""
    module = program({"x": "cat"})
    module.predict.demos = [gold("cat")]
    with pytest.raises(ConfigurationError, match="without demos, got 1"):
        module(text="x")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_field": "my text"}, "text_field to be an identifier"),
        ({"label_field": "confidence"}, "label_field to be an identifier that is none of confidence"),
        ({"text_field": "additional_context"}, "additional_context, got 'additional_context'"),
        ({"text_field": 3}, "got 3"),
        ({"text_field": "label"}, "two different fields, got 'label'"),
    ],
)
def test_field_names_are_checked(fields: dict[str, Any], message: str) -> None:
    """A field name that is no identifier, or is taken, raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=message):
        ConfidenceClassifier(classifier({}), **fields)


def test_only_classifiers_are_accepted() -> None:
    """Anything but a classifier raises ConfigurationError that names `Classifier.from_task`."""
    with pytest.raises(ConfigurationError, match=r"Expected a calibrant Classifier, got 'gpt'.*from_task"):
        ConfidenceClassifier("gpt")  # type: ignore[arg-type]


def test_other_field_names_are_used_everywhere() -> None:
    """Other field names are used in inputs, predictions, examples, signature and metric."""
    module = ConfidenceClassifier(classifier({"x": ("cat", 0.8)}), text_field="line", label_field="category")
    (example,) = module.examples([{"input": "x", "answer": "cat"}])
    found = module(**example.inputs())
    assert (example.category, found.category) == ("cat", "cat")
    assert module.metric()(example, found).score == pytest.approx(
        LinearBlendScoring(0.99).score(is_correct=True, logprob_score=math.log(0.8))
    )
    assert list(module.predict.signature.fields) == ["line", "category"]


def test_examples_keep_their_own_field_names() -> None:
    """`examples` takes ``dspy.Example``s with the module's field names, and names those that are missing."""
    module = ConfidenceClassifier(classifier({"a": "cat"}), text_field="review", label_field="animal")
    own = dspy.Example(review="a", animal="CAT", additional_context="said softly", source="book")
    (found,) = module.examples([own])
    assert found.toDict() == {"review": "a", "animal": "cat", "additional_context": "said softly"}
    assert module(**found.inputs()).animal == "cat"
    assert module.metric()(found, module(**found.inputs())).score > 0.0
    with pytest.raises(
        DataError, match=r"'review' and 'animal'.*\['label', 'text'\].*text_field and label_field"
    ):
        module.examples([dspy.Example(text="a", label="cat")])
    with pytest.raises(DataError, match="answer 'horse' is not one of the 3 labels"):
        module.examples([dspy.Example(review="a", animal="horse")])


def test_examples_are_checked_and_keep_their_context() -> None:
    """`examples` takes rows and mappings, and spells labels as the label set does."""
    module = program({})
    row = Example(input="a", answer=" CAT", additional_context={"note": "n"})
    first, second = module.examples([row, {"input": "b", "answer": "dog"}])
    assert first.toDict() == {"text": "a", "label": "cat", "additional_context": {"note": "n"}}
    assert second.toDict() == {"text": "b", "label": "dog"}
    assert first.inputs().toDict() == {"text": "a"}
    with pytest.raises(DataError, match="answer 'horse' is not one of the 3 labels"):
        module.examples([{"input": "a", "answer": "horse"}])
    with pytest.raises(DataError, match="Expected text under 'input'"):
        module.examples([{"answer": "cat"}])  # type: ignore[typeddict-item]


# -- the metric ----------------------------------------------------------------------------------

ANSWERS: dict[str, Any] = {
    "sure": ("cat", 0.999),
    "unsure": ("cat", 0.6),
    "rather": ("cat", 0.8),
    "between": ("cat", 0.95),
    "nearly": ("cat", 0.985),
    "wrong": ("dog", 0.6),
    "misled": ("dog", 0.999),
    "bare": body('{"category": "cat"}'),
    "horse": body('{"category": "horse"}'),
    "refusal": body("", refusal="I must not"),
    "broken": ProviderError("overloaded", provider="fake", status=500),
}


@pytest.mark.parametrize(
    "strategy", [None, BrierScoring(), LogScoring(), ThresholdScoring(0.7), LinearBlendScoring(0.3)]
)
@pytest.mark.parametrize("text", ANSWERS)
def test_score_and_feedback_are_the_adapter_s(text: str, strategy: Any) -> None:
    """The metric gives the score, feedback and objectives of the adapter for every kind of row."""
    options = {
        "scoring_strategy": strategy,
        "failure_score": 0.125,
        "high_confidence_threshold": 0.98,
        "low_confidence_threshold": 0.7,
        "objectives": ["accuracy", "brier", "answer_probability"],
    }
    asked = classifier(ANSWERS)
    row: Any = {"input": text, "answer": "CAT", "additional_context": {"note": "whiskers"}}
    batch = ConfidenceAdapter.from_classifier(asked, **options).evaluate(
        [row], {"p": "Which animal?"}, capture_traces=True
    )
    module = ConfidenceClassifier(asked)
    found = module.metric(**options)(gold("CAT", additional_context={"note": "whiskers"}), module(text=text))
    assert batch.trajectories is not None
    assert batch.objective_scores is not None
    assert found.score == batch.scores[0]
    assert found.feedback == batch.trajectories[0]["feedback"]
    assert found.objective_scores == batch.objective_scores[0]


def test_evaluate_takes_the_metric_as_a_number() -> None:
    """``dspy.Evaluate`` returns the mean of the metric's scores in percent."""
    module = program({"a": ("cat", 0.999), "b": ("dog", 0.9), "c": ("cat", 0.6)})
    rows = [gold("cat", text=text) for text in "abc"]
    metric = module.metric()
    scores = [float(metric(row, module(text=row.text))) for row in rows]
    found = dspy.Evaluate(devset=rows, metric=metric, num_threads=2)(module)
    assert found.score == pytest.approx(100 * sum(scores) / 3, abs=0.01)
    assert scores[0] == 1.0
    assert scores[1] == 0.0
    assert 0.0 < scores[2] < 1.0


def test_missing_confidence_scores_by_correctness(caplog: pytest.LogCaptureFixture) -> None:
    """Predictions without confidence are scored by correctness, and unknown labels as failures."""
    metric = ConfidenceMetric(LABELS, failure_score=0.25)
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        right = metric(gold("cat"), dspy.Prediction(label=" Cat "))
        wrong = metric(gold("cat"), dspy.Prediction(label="dog"))
    assert (right.score, right.feedback) == (1.0, "Correct.")
    assert wrong.score == 0.0
    (record,) = caplog.records
    assert "Such rows are scored by correctness alone" in record.message
    other = metric(gold("cat"), dspy.Prediction(label="horse"))
    assert other.score == 0.25
    assert "horse" in other.feedback
    assert "not one of the labels" in other.feedback
    assert metric(gold("cat"), dspy.Prediction(label=None)).score == 0.25
    assert metric(gold("cat"), dspy.Prediction(label=3)).score == 0.25


def test_rows_without_logprobs_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    """Rows without log-probabilities log one warning, and failed rows log none."""
    module = program(ANSWERS)
    metric = module.metric()
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        metric(gold("cat"), module(text="broken"))
        metric(gold("cat"), module(text="horse"))
        assert caplog.records == []
        for _ in range(3):
            assert metric(gold("cat"), module(text="bare")).score == 1.0
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (dspy.Example(text="x", answer="cat"), r"true label under 'label'.*fields \['answer', 'text'\]"),
        (gold("horse"), r"true label among the 3 labels \(cat, dog, owl\), got 'horse'"),
        (gold(3), "got 3"),
        (gold("cat", additional_context=7), "additional_context to be a mapping or a text, got 7"),
    ],
)
def test_unfit_examples_are_named(example: Any, message: str) -> None:
    """An unfit example raises DataError, and `stop` raises the error once more."""
    metric = ConfidenceMetric(LABELS)
    with pytest.raises(DataError, match=message):
        metric(example, dspy.Prediction(label="cat"))
    with pytest.raises(DataError, match=message):
        metric.stop()
    assert metric.stop() is False


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"category": "cat"}, r"label under 'label' in the program's prediction.*\['category'\]"),
        ({"label": "cat", "confidence": "high"}, "number in .0, 1. or None, got 'high'"),
        ({"label": "cat", "confidence": True}, "got True"),
        ({"label": "cat", "confidence": -0.01}, "got -0.01"),
        ({"label": "cat", "confidence": math.nan}, "got nan"),
        (
            {"label": "cat", "confidence": 1.01},
            "Expected the prediction's confidence to be a number in .* got 1.01",
        ),
        (
            {"label": "cat", "distribution": {"cat": 1.0}},
            "LabelDistribution over the 3 labels or None, got {'cat'",
        ),
        ({"label": "cat", "outcome": "fine"}, "one of ok, error, refusal, unparsed, got 'fine'"),
    ],
)
def test_unfit_predictions_are_named(fields: dict[str, Any], message: str) -> None:
    """A prediction with wrong fields raises ConfigurationError."""
    metric = ConfidenceMetric(LABELS)
    with pytest.raises(ConfigurationError, match=message):
        metric(gold("cat"), dspy.Prediction(**fields))


def test_a_distribution_over_other_labels_is_refused() -> None:
    """A distribution over other labels raises ConfigurationError."""
    found = program({"x": ("cat", 0.8)})(text="x")
    with pytest.raises(ConfigurationError, match="over the 2 labels or None, got one over 3 others"):
        ConfidenceMetric(["cat", "dog"])(gold("cat"), found)


def test_options_out_of_range_are_refused() -> None:
    """Options out of range raise ConfigurationError."""
    for options in ({"high_confidence_threshold": 0.0}, {"objectives": ["speed"]}):
        with pytest.raises(ConfigurationError):
            ConfidenceMetric(LABELS, **options)  # type: ignore[arg-type]


# -- ending a search -----------------------------------------------------------------------------


def test_unparsed_rows_end_no_search() -> None:
    """After sixty unparsed rows `stop` raises nothing."""
    module = program(ANSWERS)
    metric = module.metric()
    for _ in range(60):
        module(text="horse")
    assert metric.stop() is False


@pytest.mark.parametrize(("share", "stops"), [(0.1, False), (0.3, True)])
def test_too_many_failed_rows_end_a_search(share: float, stops: bool) -> None:
    """More than 20 % failed rows of the last 50 raise ProviderError in `stop`."""
    module = program(lambda text: refused() if int(text) % 10 < 10 * share else "cat")
    metric = module.metric()
    copy = module.deepcopy()
    outcomes = [copy(text=str(n)).outcome for n in range(50)]
    assert outcomes.count("error") == 50 * share
    if stops:
        with pytest.raises(ProviderError, match="15 of the last 50 rows failed"):
            metric.stop()
    assert metric.stop() is False


def test_journal_answers_hide_no_outage() -> None:
    """Rows from the journal do not count in the share of failed rows."""
    down = threading.Event()

    def answers(text: str) -> str:
        return str(refused()) if down.is_set() and text != "known" else "cat"

    module = program(answers, journal=MemoryJournal())
    module(text="known")
    metric = module.metric()
    down.set()
    for number in range(50):
        module(text=f"new {number}")
        for _ in range(4):
            module(text="known")
    with pytest.raises(ProviderError, match="50 of the last 50"):
        metric.stop()


def test_a_bug_in_an_objective_ends_a_search() -> None:
    """An exception in an objective is raised again by `stop`."""
    metric = ConfidenceMetric(LABELS, objectives={"broken": lambda *_: 1 / 0})
    with pytest.raises(ZeroDivisionError):
        metric(gold("cat"), dspy.Prediction(label="cat"))
    with pytest.raises(ZeroDivisionError):
        metric.stop()


def test_the_first_error_is_raised() -> None:
    """`stop` raises the first error of several."""
    metric = ConfidenceMetric(LABELS)
    for label in ("horse", "cow"):
        with pytest.raises(DataError):
            metric(gold(label), dspy.Prediction(label="cat"))
    with pytest.raises(DataError, match="horse"):
        metric.stop()


def test_a_new_metric_forgets_earlier_failures() -> None:
    """The `stop` of a new metric raises nothing for earlier errors."""
    module = program({})
    module.metric()
    with pytest.raises(DataError):
        module(text=3)
    assert module.metric().stop() is False


# -- dspy.GEPA -----------------------------------------------------------------------------------


class Reflecting:
    """Reflection model that adds to the prompt the rule that the feedback asks for.

    Its engine's protocol is DSPy's: it reads the examples with feedback, as a real model would.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    def complete(self, request: Any) -> Any:
        """Return the response to one request."""
        lm15 = dspy.lm15
        (message,) = request.messages
        self.asked.append(message.text)
        # DSPy 3.4.0 shows the prompt between fences, later versions as a field, and wants the answer so.
        fields = "[[ ## current_instruction ## ]]\n" in message.text
        begin, end = ("[[ ## current_instruction ## ]]\n", "\n\n[[ ##") if fields else ("```\n", "\n```")
        current = message.text.partition(begin)[2].partition(end)[0]
        missed = re.findall(r"Expected '([^']+)', got '([^']+)'", message.text)
        rules = [f"{truth} is not {got}." for truth, got in missed if f"{truth} is not" not in current]
        proposed = "\n".join([current, *dict.fromkeys(rules)])
        text = json.dumps({"new_instruction": proposed}) if fields else f"```\n{proposed}\n```"
        return lm15.Response(
            id=None,
            model="fake",
            message=lm15.Message.assistant([lm15.TextPart(text)]),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=0, output_tokens=0, total_tokens=0),
        )


def reflecting() -> tuple[Any, Reflecting]:
    """Return a DSPy LM around `Reflecting`, and the engine that keeps its requests."""
    engine = Reflecting()
    return dspy.LM("fake/reflecting", engine=engine, cache=False), engine


def search(module: ConfidenceClassifier, metric: Any, rows: Any, **options: Any) -> Any:
    """Run ``dspy.GEPA`` on `rows`."""
    lm = options.pop("reflection_lm", None) or reflecting()[0]
    settings = {"max_metric_calls": 60, "num_threads": 4, **options}
    gepa = dspy.GEPA(
        metric=metric, reflection_lm=lm, gepa_kwargs={"stop_callbacks": metric.stop}, seed=0, **settings
    )
    return gepa.compile(module, trainset=rows, valset=rows)


@pytest.fixture
def confused() -> Callable[[str, str], tuple[str, float]]:
    """Answer transactions, and mistake two labels until the prompt tells them apart."""
    truths = {row.input: row.answer for row in Task.from_file(TRANSACTIONS).rows("train")}
    mistaken = {
        "Transport/Fuel": "Bills/Gas & Oil",
        "Shopping/Video Games": "Shopping/Electronics",
        "Food & Drinks/Restaurants": "Food & Drinks/Groceries",
    }

    def answer(text: str, prompt: str) -> tuple[str, float]:
        truth = truths[text]
        if truth in mistaken and f"{truth} is not" not in prompt:
            return mistaken[truth], 0.7
        return truth, 0.995

    return answer


@pytest.mark.slow
def test_gepa_finds_the_rules(confused: Callable[[str, str], tuple[str, float]]) -> None:
    """``dspy.GEPA`` adds the feedback's rules to the prompt, and the score rises to 100."""
    task = Task.from_file(TRANSACTIONS)
    fake = FakeClient(task.labels, confused)
    asked = Classifier(model=fake, labels=task.labels, field=task.field, prompt=task.prompt)
    module = ConfidenceClassifier(asked)
    metric = module.metric()
    rows = module.examples(task.rows("train")[:60])
    lm, engine = reflecting()
    best = search(module, metric, rows, reflection_lm=lm, max_metric_calls=900)
    evaluate = dspy.Evaluate(devset=rows, metric=metric, num_threads=4)
    before, after = evaluate(module).score, evaluate(best).score
    assert best.instructions.startswith(task.prompt)
    for label in ("Transport/Fuel", "Shopping/Video Games", "Food & Drinks/Restaurants"):
        assert f"{label} is not" in best.instructions
    assert module.instructions == task.prompt
    assert before < 75.0
    assert after == 100.0
    assert any("Clearer guidance in the prompt" in text for text in engine.asked)
    # What the rows' authors say about them is told where the answer was wrong.
    assert any("note: " in text for text in engine.asked)


def test_failed_rows_are_never_reflected_on() -> None:
    """The reflection model gets no row that failed."""

    def answers(text: str, prompt: str) -> Any:
        return refused() if "down" in text else ("cat", 0.999) if "dog is not cat" in prompt else ("owl", 0.6)

    module = program(answers)
    lm, engine = reflecting()
    rows = [gold("cat", text=f"{'down' if n % 6 == 0 else 'up'} {n}") for n in range(12)]
    search(module, module.metric(), rows, reflection_lm=lm, reflection_minibatch_size=6, max_metric_calls=40)
    assert engine.asked
    assert all("up " in text and "down" not in text and "No verdict" not in text for text in engine.asked)


def test_illegal_answers_are_reflected_on() -> None:
    """The reflection model gets answers that could not be read as a label."""
    module = program(lambda _: body("As you wish: a fine cat"))
    lm, engine = reflecting()
    search(module, module.metric(), cats(4), reflection_lm=lm)
    assert "a fine cat" in engine.asked[0]
    assert "No label: the model gave no answer that can be read as a label" in engine.asked[0]


def test_a_bad_key_ends_the_search() -> None:
    """An invalid API key raises ProviderError out of the search."""
    module = program(denied)
    lm, engine = reflecting()
    with pytest.raises(ProviderError, match="bad key"):
        search(module, module.metric(), cats(4), reflection_lm=lm)
    assert engine.asked == []


def test_a_budget_ends_the_search(caplog: pytest.LogCaptureFixture) -> None:
    """A classifier's limit ends the search, which returns its best program and logs a warning."""
    fake = FakeClient(LABELS, lambda _: ("cat", 0.6))
    module = program({}, client=fake, limits=Limits(max_requests=20))
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        best = search(module, module.metric(), cats(12), max_metric_calls=1000)
    assert best.instructions == "Which animal?"
    assert len(fake.requests) <= 20 + 4
    assert "The search ends early" in caplog.text


def test_confidence_decides_between_right_prompts() -> None:
    """The search takes a prompt that makes the same right answers more confident."""
    module = program(lambda _, prompt: ("cat", 0.999 if "surely" in prompt else 0.6))
    best = search(
        module,
        module.metric(),
        cats(4),
        instruction_proposer=lambda candidate, **_: {"predict": candidate["predict"] + " Answer surely."},
    )
    assert "surely" in best.instructions


# -- the import ----------------------------------------------------------------------------------


def test_the_adapters_load_without_dspy() -> None:
    """Without dspy, importing the adapter raises ConfigurationError with the install command."""
    code = (
        "import sys; sys.modules['dspy'] = None\n"
        "import calibrant.adapters\n"
        "from calibrant.core import ConfigurationError\n"
        "try:\n    import calibrant.adapters.dspy\n"
        "except ConfigurationError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    assert re.search(r"run pip install .*\[dspy\]\S*\.", done.stdout)
