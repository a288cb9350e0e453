"""Tests of labels on a scale and in a tree, with the adapters of GEPA and DSPy."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.adapters import OBJECTIVES, ConfidenceAdapter
from calibrant.core import (
    ConfigurationError,
    HierarchicalLabels,
    LabelSet,
    OrdinalLabels,
    Outcome,
    Prediction,
)
from calibrant.inference import Classifier
from calibrant.scoring import BrierScoring
from calibrant.testing import FakeClient

SCALE = OrdinalLabels(["low", "medium", "high"])
TREE = HierarchicalLabels(["Bills/Gas", "Bills/Power", "Food"])
CANDIDATE = {"system_prompt": "Classify."}


def classifier(labels: LabelSet, answers: dict[str, Any]) -> Classifier:
    """Return a classifier with scripted answers."""
    return Classifier(
        model=FakeClient(labels, answers), labels=labels, field="category", prompt="Sort the text."
    )


def row(text: str, answer: str) -> Any:
    """Return a data row."""
    return {"input": text, "answer": answer}


def test_scores_and_credit_know_the_scale() -> None:
    """On a scale of three, an answer one step off scores 0.5, and one two steps off 0."""
    model = classifier(SCALE, {"x": ("low", 1.0)})
    adapter = ConfidenceAdapter.from_classifier(model, objectives=["accuracy", "credit"])
    rows = [row("x", answer) for answer in SCALE]
    found = adapter.evaluate(rows, CANDIDATE, capture_traces=True)
    assert found.scores == pytest.approx([1.0, 0.5, 0.0])
    assert found.objective_scores == [
        {"accuracy": 1.0, "credit": 1.0},
        {"accuracy": 0.0, "credit": 0.5},
        {"accuracy": 0.0, "credit": 0.0},
    ]
    feedback = [record["Feedback"] for record in records(adapter, found)]
    assert feedback[0] == "Correct."
    assert "1 step too low, of 2 possible" in feedback[1]
    assert "2 steps too low, of 2 possible" in feedback[2]


def records(adapter: ConfidenceAdapter, found: Any) -> list[dict[str, str]]:
    """Return the records for a reflection model."""
    return adapter.make_reflective_dataset(CANDIDATE, found, ["system_prompt"])["system_prompt"]


def test_a_scale_is_given_beside_the_schema() -> None:
    """Labels given as a scale keep their order, also if the schema lists them otherwise."""
    schema = LabelSet(["high", "low", "medium"]).schema("category")
    client = FakeClient(["high", "low", "medium"], {"x": ("medium", 0.98)})
    adapter = ConfidenceAdapter(client, "category", schema, scoring_strategy=BrierScoring(), labels=SCALE)
    assert adapter.labels == SCALE
    found = adapter.evaluate([row("x", "high"), row("x", "medium")], CANDIDATE, capture_traces=True)
    # Of the two questions one is answered rightly with 0.99, the other wrongly with 0.99.
    assert found.scores == pytest.approx([1 - (0.01**2 + 0.99**2) / 2, 1 - 2 * 0.01**2 / 2])
    assert "By level" not in records(adapter, found)[0]["Feedback"]
    plain = ConfidenceAdapter(client, "category", schema)
    assert plain.labels == LabelSet(["high", "low", "medium"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (OrdinalLabels(["low", "high"]), "to be those of the schema, got sets that differ in 'medium'"),
        (OrdinalLabels(["low", "Medium", "high"]), "differ in 'Medium'"),
        (["low", "medium", "high"], "Expected labels as a LabelSet"),
    ],
)
def test_labels_must_be_the_schema_s(labels: Any, message: str) -> None:
    """Labels that are not those of the schema raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match=message):
        ConfidenceAdapter(FakeClient(SCALE, {}), "category", SCALE.schema("category"), labels=labels)


def test_a_tree_gives_partial_credit() -> None:
    """An answer right on the first level scores partly, and the feedback names both levels."""
    adapter = ConfidenceAdapter.from_classifier(classifier(TREE, {"x": ("Bills/Gas", 0.6)}))
    found = adapter.evaluate([row("x", "Bills/Power")], CANDIDATE, capture_traces=True)
    # 'Bills' holds 0.8: a blend from 0.3 to 1 at 0.99.
    assert found.scores == pytest.approx([(0.3 + 0.7 * 0.8 / 0.99) / 2])
    assert records(adapter, found)[0]["Feedback"].endswith(
        "By level: 'Bills' (80%) is right; below it, expected 'Power', got 'Gas'."
    )


def test_credit_alone_is_accuracy() -> None:
    """The objective `credit` alone is accuracy, and in an adapter it uses the adapter's labels."""
    credit = OBJECTIVES["credit"]
    assert credit(Prediction(label="low"), "low") == 1.0
    assert credit(Prediction(label="low"), "medium") == 0.0
    adapter = ConfidenceAdapter.from_classifier(classifier(SCALE, {}), objectives={"own": credit})
    own = adapter.objectives["own"]
    assert own(Prediction(label="low"), "medium") == 0.5
    assert own(Prediction(label=None, outcome=Outcome.REFUSAL), "medium") == 0.0


def test_dspy_s_metric_grades_alike() -> None:
    """The DSPy metric gives the same score and feedback as the adapter."""
    dspy = pytest.importorskip("dspy")
    from calibrant.adapters.dspy import ConfidenceClassifier, ConfidenceMetric  # noqa: PLC0415

    program = ConfidenceClassifier(classifier(TREE, {"x": ("Bills/Gas", 0.6)}))
    metric = program.metric(objectives=["credit"])
    assert metric.labels == TREE
    graded = metric(program.examples([row("x", "Bills/Power")])[0], program(text="x"))
    adapter = ConfidenceAdapter.from_classifier(program.classifier)
    found = adapter.evaluate([row("x", "Bills/Power")], CANDIDATE, capture_traces=True)
    assert graded.score == found.scores[0]
    assert graded.feedback == records(adapter, found)[0]["Feedback"]
    assert graded.objective_scores == {"credit": 0.5}
    alone = ConfidenceMetric(SCALE)
    near = alone(dspy.Example(label="high"), dspy.Prediction(label="medium"))
    assert near.score == 0.5
    # A confidence without a distribution bounds that of every question from below.
    sure = alone(dspy.Example(label="high"), dspy.Prediction(label="medium", confidence=0.5))
    assert sure.score == pytest.approx((0.3 + 0.7 * 0.5 / 0.99) / 2)
