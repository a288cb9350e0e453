"""Tests of the adapter where an answer holds several labels."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.adapters import ConfidenceAdapter
from calibrant.core import (
    ConfigurationError,
    DataError,
    Field,
    FieldLabels,
    LabelSet,
    MultiLabels,
    OrdinalLabels,
)
from calibrant.inference import Classifier
from calibrant.scoring import BrierScoring, LinearBlendScoring
from calibrant.testing import FakeClient

TOPICS = MultiLabels(["Bills", "Food", "Travel", "Sport"])
FIELDS = FieldLabels(
    [
        Field(name="category", labels=LabelSet(["Bills", "Food"])),
        Field(name="urgency", labels=OrdinalLabels(["low", "middle", "high"])),
    ]
)
PROMPT = {"system_prompt": "p"}


def adapter(labels: MultiLabels | FieldLabels, answers: Any, **options: Any) -> ConfidenceAdapter:
    """Return an adapter around a fake model."""
    fake = FakeClient(labels, answers, field="labels")
    return ConfidenceAdapter.from_classifier(Classifier(model=fake, labels=labels, field="labels"), **options)


def row(text: str, answer: str) -> Any:
    """Return a row in the form that gepa uses."""
    return {"input": text, "answer": answer}


def test_the_score_covers_labels_that_matter() -> None:
    """The Brier score of a set counts the labels that are true or answered, and no others."""
    asked = adapter(TOPICS, lambda _: '["Bills", "Travel"]', scoring_strategy=BrierScoring())
    found = asked.evaluate([row("a", '["Bills", "Food"]'), row("b", "[]")], PROMPT, capture_traces=True)
    assert found.scores == pytest.approx([1 / 3, 0.0], abs=1e-3)
    assert [objectives["accuracy"] for objectives in found.objective_scores or []] == [0.0, 0.0]


def test_every_field_counts_once() -> None:
    """Every field counts once: a middle urgency in place of a high one costs a quarter."""
    given = FIELDS.answer_of({"category": "Food", "urgency": "middle"})
    truth = FIELDS.answer_of({"category": "Food", "urgency": "high"})
    asked = adapter(FIELDS, lambda _: given, scoring_strategy=LinearBlendScoring(0.5), objectives=["credit"])
    found = asked.evaluate([row("a", truth)], PROMPT)
    assert found.scores == pytest.approx([0.75], abs=1e-3)
    assert found.objective_scores == [{"credit": pytest.approx(0.75)}]


def test_reflection_names_wrong_parts() -> None:
    """The reflective record holds the answer and a line for each missed or added label."""
    asked = adapter(TOPICS, lambda _: ('["Bills", "Travel"]', 0.6))
    found = asked.evaluate([row("a", '["Food", "bills"]')], PROMPT, capture_traces=True)
    (record,) = asked.make_reflective_dataset(PROMPT, found, ["system_prompt"])["system_prompt"]
    assert record["Generated Outputs"] == '["Bills", "Travel"]'
    assert "Expected 'Bills', 'Food', got 'Bills', 'Travel'." in record["Feedback"]
    assert "Missed 'Food' (" in record["Feedback"]
    assert "Added 'Travel' (" in record["Feedback"]


def test_rows_are_checked_against_the_labels() -> None:
    """A row whose answer is not a whole legal answer raises DataError."""
    asked = adapter(TOPICS, lambda _: "[]")
    for answer, message in (
        ("Food", "input 'a': answer 'Food' is no list of labels"),
        ('["Fod"]', "holds 'Fod', which is not one of the 4 labels"),
        (["Food"], "Write a whole answer as its JSON text"),
    ):
        with pytest.raises(DataError, match=message):
            asked.evaluate([{"input": "a", "answer": answer}], PROMPT)  # type: ignore[typeddict-item]


def test_thresholds_are_found_for_parts() -> None:
    """Thresholds are found from the confidences of the parts of each answer."""
    high = FIELDS.answer_of({"category": "Food", "urgency": "high"})
    low = FIELDS.answer_of({"category": "Bills", "urgency": "high"})

    def answers(text: str) -> Any:
        return (high, 0.95) if int(text) % 4 else (low, 0.7)

    rows = [row(str(number), high) for number in range(80)]
    asked = adapter(FIELDS, answers, thresholds="auto", threshold_rows=rows)
    asked.evaluate(rows[:1], PROMPT)
    assert asked.suggested_thresholds is not None
    assert asked.suggested_thresholds.n == 80 * 3  # one category, and two questions about the urgency


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_correction": "batch"}, "leave prior_correction out"),
        ({"objectives": ["brier"]}, "got 'brier', which needs a distribution over whole answers"),
        ({"objectives": ["accuracy", "answer_probability"]}, "got 'answer_probability'"),
    ],
)
def test_settings_of_one_distribution_are_refused(options: dict[str, Any], message: str) -> None:
    """Options that need a distribution over single labels raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match=message):
        adapter(TOPICS, lambda _: "[]", **options)


def test_the_constructor_names_from_classifier() -> None:
    """The constructor raises ConfigurationError that names `from_classifier`."""
    with pytest.raises(ConfigurationError, match="from_classifier"):
        ConfidenceAdapter(lambda _: "[]", "labels", {"type": "string", "enum": ["a", "b"]}, labels=TOPICS)


def test_dspy_refuses_answers_of_several_labels() -> None:
    """The DSPy module and metric raise ConfigurationError for answers of several labels."""
    from calibrant.adapters.dspy import ConfidenceClassifier, ConfidenceMetric  # noqa: PLC0415 (dspy is heavy)

    model = FakeClient(TOPICS, lambda _: "[]", field="labels")
    asked = Classifier(model=model, labels=TOPICS, field="labels", prompt="Which topics?")
    with pytest.raises(ConfigurationError, match="several"):
        ConfidenceClassifier(asked)
    with pytest.raises(ConfigurationError, match="several"):
        ConfidenceMetric(TOPICS)
