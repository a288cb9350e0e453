"""Code of a user, type-checked under ``mypy --strict``; never executed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from calibrant.adapters import ConfidenceAdapter
from calibrant.assembly import open_classifier, read_looper, read_zeph
from calibrant.calibration import (
    CertifiedThreshold,
    PlattCalibrator,
    ThresholdSuggestion,
    certify_threshold,
    select_calibrator,
    suggest_thresholds,
)
from calibrant.cascade import Cascade, CascadeModel, CascadeSettings
from calibrant.core import (
    Client,
    CompletionRequest,
    ConfigurationError,
    Example,
    Interval,
    Journal,
    LabelDistribution,
    LabelSet,
    Limits,
    LogprobSpace,
    Outcome,
    Prediction,
    ProviderError,
    Step,
    Task,
)
from calibrant.evaluation import (
    BatchEvaluator,
    Dataset,
    EvaluationHistory,
    EvaluationMetrics,
    EvaluationResult,
    HistoryInterval,
)
from calibrant.inference import Classifier, open_client
from calibrant.inference._base import BasePredictor
from calibrant.logprobs import extract_distribution
from calibrant.metrics import bootstrap_interval, paired_comparison, wilson_interval
from calibrant.optimization import ExemplarProposer, OptimizationResult, optimize
from calibrant.reports import write_report
from calibrant.routing import RoutingSettings
from calibrant.scoring import BrierScoring, LinearBlendScoring, ScoringStrategy
from calibrant.store import PredictionCache
from calibrant.testing import FakeClient, MemoryJournal, fake_response

# Tasks.
labels = LabelSet(["cat", "dog"])
assert_type(labels.canonical("CAT"), str | None)
assert_type(labels[0], str)
assert_type(labels[:1], tuple[str, ...])
example = Example(input="meow", answer="cat", additional_context={"why": "it meows"})
task = Task(name="animals", labels=labels, prompt="Which animal?", train=(example,))
assert_type(Task.from_file("task.toml"), Task)
assert_type(Task.from_file(Path("task.toml")).rows("test"), tuple[Example, ...])


# Confidence that means what it says, and answers to accept.
confidences, right = [0.9, 0.8, 1.0], [1, 0, 1]
platt = PlattCalibrator().fit(confidences, right)
assert_type(platt, PlattCalibrator)
assert_type(platt.predict(confidences), NDArray[np.float64])
assert_type(select_calibrator(confidences, right, rng=0).name, str)
assert_type(suggest_thresholds(confidences, right), ThresholdSuggestion)
assert_type(certify_threshold(confidences, right, target_accuracy=0.9), CertifiedThreshold)
certify_threshold(confidences, right, 0.9)  # type: ignore[call-arg]
history = EvaluationHistory("history.db")
assert_type(history.record(account_id="a", evaluator_id="e", profile_name="p", score_raw=1.0), bool)
assert_type(history.interval(account_id="a", evaluator_id="e", profile_name="p"), HistoryInterval)


# A client of one's own, by shape alone.
class MyClient:
    """A client that repeats the text."""

    name = "mine"
    space = LogprobSpace.MASKED

    async def complete(self, request: CompletionRequest) -> object:
        """Return the text of the request as an answer."""
        return fake_response(request.messages[-1]["content"])

    def close(self) -> None:
        """Close nothing."""


client: Client = MyClient()
fake: Client = FakeClient(["cat", "dog"], {"meow": ("cat", 0.9)}, default="dog")
assert_type(open_client("openai/x"), Client)


journal: Journal = MemoryJournal()
with PredictionCache("cache.db", max_bytes=10**9, busy_timeout=1.0) as cache:
    shared: Journal = cache
    assert_type(cache.get_many(["key"]), dict[str, Prediction])


def my_model(messages: list[dict[str, str]]) -> object:
    """Return an answer as a function does."""
    return fake_response(messages[-1]["content"])


# Classifying: a name, a client or a callable.
for model in ("openai/x", client, my_model):
    Classifier(model=model, labels=["cat", "dog"])
Classifier(model=fake, labels=labels, scoring="sampled", samples=5, temperature=0.7)
classifier = Classifier(model=fake, labels=labels, field="category", prompt="Which?", journal=journal)
prediction = classifier.classify("meow")
assert_type(prediction, Prediction)
assert_type(prediction.label, str | None)
assert_type(prediction.confidence, float | None)
assert_type(prediction.outcome, Outcome)
assert_type(prediction.distribution, LabelDistribution | None)
assert_type(classifier.classify_many(["meow"]), list[Prediction])
assert_type(classifier.with_prompt("Other."), Classifier)
assert_type(Classifier.from_task(task, model=my_model), Classifier)
assert_type(open_classifier(task), BasePredictor)
assert_type(read_looper("looper.yaml"), CascadeSettings)
assert_type(read_zeph("zeph.toml"), RoutingSettings)
classifier.classify_many(["meow"], on_prediction=lambda index, found: print(index + 1, found.label))  # noqa: T201


async def in_a_loop() -> None:
    """Classify inside an event loop."""
    assert_type(await classifier.aclassify("meow"), Prediction)
    assert_type(await classifier.aclassify_many(["meow"]), list[Prediction])


if prediction.distribution is not None:
    assert_type(prediction.distribution.probability("cat"), float)
    assert_type(prediction.distribution.logprobs, NDArray[np.float64])
    assert_type(prediction.distribution.alternatives(), list[tuple[str, float]])

# Evaluating: a list, a file or a stream.
evaluator = BatchEvaluator(classifier, concurrency=8, cache="sqlite:///cache.db", limits=Limits(max_cost=1.0))
evaluation = evaluator.evaluate([Example(input="meow", answer="cat")])
assert_type(evaluation, EvaluationResult)
assert_type(evaluation.predictions, tuple[Prediction, ...])
assert_type(evaluation.metrics, EvaluationMetrics)
assert_type(evaluation.metrics.accuracy, Interval | None)
evaluator.evaluate(Dataset(source=task.sources["test"], labels=labels), out="run", on_progress=print)
BatchEvaluator(classifier, cache=journal).evaluate(iter(task.test))

# Scoring and metrics.
strategies: list[ScoringStrategy] = [LinearBlendScoring(0.99), BrierScoring()]
for strategy in strategies:
    assert_type(strategy.score(is_correct=True, logprob_score=-0.1), float)
    assert_type(strategy.describe(), str)
assert_type(wilson_interval(8, 10), Interval)
assert_type(extract_distribution(fake_response("cat"), ["cat", "dog"], "category"), LabelDistribution)
correct = np.array([1, 0, 1])
assert_type(paired_comparison(correct, [True, True, False]).interval, Interval)
bootstrap_interval([0.1, 0.2], rng=np.random.default_rng(0))

# Searching.
adapter = ConfidenceAdapter(model=my_model, field_path="category")
proposer = ExemplarProposer(train=task.train, token_budget=400, seed=1)
reflect: Callable[[str], str] = str.upper
try:
    result = optimize(task, model=fake, reflection_model=reflect, max_metric_calls=100, out=Path("run"))
    assert_type(result, OptimizationResult)
    assert_type(result.best_prompt.accuracy, Interval | None)
    optimize("task.toml", proposer="exemplar")
    optimize(task, proposer=proposer)
    assert_type(write_report(Path("run")), Path)
except ConfigurationError as error:
    value_error: ValueError = error
except ProviderError as error:
    assert_type(error.status, int | None)

# Several models as one.
cascade = Cascade(
    [classifier, CascadeModel(classifier=classifier, cost=50, size="8b")],
    method="margin",
    threshold=[0.8, 0.5],
    escalation_order="cost",
    limits=Limits(max_cost=1.0),
)
assert_type(cascade.classify("t"), Prediction)
assert_type(cascade.classify("t").steps, tuple[Step, ...])
assert_type(cascade.with_prompt("Which?"), Cascade)
assert_type(cascade.with_limits(Limits()), Cascade)
assert_type(classifier.with_prompt("Which?"), Classifier)
BatchEvaluator(cascade)
ConfidenceAdapter.from_classifier(cascade)

# What must not pass.
ConfidenceAdapter.from_classifier(classifier, failure_score=0.5, thresholds="auto")
ConfidenceAdapter.from_classifier(classifier, failure_scores=0.5)  # type: ignore[call-arg]
Cascade([classifier])  # type: ignore[call-arg]
Cascade([classifier], "margin")  # type: ignore[call-arg]
Cascade([classifier], method="margin", escalation_order="largest")  # type: ignore[arg-type]
Classifier(model=5, labels=["cat", "dog"])  # type: ignore[arg-type]
Classifier("openai/x", ["cat", "dog"])  # type: ignore[call-arg]
Classifier(model=fake, labels=labels, scoring="guess")  # type: ignore[arg-type]
Task(name="n", labels=labels, prompt="p", colour="red")  # type: ignore[call-arg]
task.rows("dev")  # type: ignore[arg-type]
task.name = "other"  # type: ignore[misc]
BatchEvaluator(classifier, 8)  # type: ignore[call-arg]
optimize(task, fake)  # type: ignore[call-arg, arg-type]
