"""Tests of a candidate's component `label_descriptions`."""

from __future__ import annotations

from typing import Any

import gepa
import pytest

from calibrant.adapters import ConfidenceAdapter
from calibrant.inference import Classifier
from calibrant.testing import FakeClient
from deciding_animals import DecidingAnimals

LABELS = ("cat", "dog")
ROWS: list[Any] = [{"input": f"row {number}", "answer": "cat"} for number in range(4)]
SEED = {"system_prompt": "Which?", "label_descriptions": "cat:\ndog:"}
GOOD = "cat: It purrs.\ndog: It barks."


def purring(_: str, described: str) -> tuple[str, float]:
    """Take everything for a dog, unless told of purring."""
    return ("cat", 0.9) if "purrs" in described else ("dog", 0.6)


@pytest.fixture
def model() -> DecidingAnimals:
    """Return a decision model."""
    return DecidingAnimals(purring)


def adapter_of(model: DecidingAnimals, **options: Any) -> ConfidenceAdapter:
    """Return an adapter around a decision model."""
    return ConfidenceAdapter.from_classifier(Classifier(model=model, labels=LABELS, **options))


def described(model: DecidingAnimals) -> list[tuple[str | None, ...]]:
    """Return what the options of all questions were said to mean."""
    return [question.descriptions for question in model.questions]


def test_a_decision_model_gets_them_beside_the_options(model: DecidingAnimals) -> None:
    """They are descriptions of the options, and nothing of them is in the instructions."""
    adapter_of(model).evaluate(ROWS[:1], {**SEED, "label_descriptions": GOOD})
    assert described(model) == [("It purrs.", "It barks.")]
    assert model.questions[0].instructions == "Which?"


@pytest.mark.parametrize("text", ["", "cat:\ndog:", " \n"])
def test_empty_lines_describe_nothing(model: DecidingAnimals, text: str) -> None:
    """Not even as the classifier does under another prompt."""
    adapter = adapter_of(model, label_descriptions={"cat": "It moos."})
    adapter.evaluate(ROWS[:1], {**SEED, "label_descriptions": text})
    adapter.evaluate(ROWS[:1], {"system_prompt": "Which?"})
    assert described(model) == [(), ("It moos.", None)]


def test_a_chat_model_reads_them_before_its_demonstrations() -> None:
    """The list stands below the instruction, in any order of the components."""
    client = FakeClient(LABELS, {}, default="cat")
    with Classifier(model=client, labels=LABELS, field="category") as classifier:
        adapter = ConfidenceAdapter.from_classifier(classifier)
        shown = '\n\nExamples:\n\nText: woof\nAnswer: {"category": "dog"}'
        adapter.evaluate(ROWS[:1], {"label_descriptions": GOOD, "system_prompt": "Which?" + shown})
    assert client.requests[0].messages[0]["content"] == (
        "Which?\n\nLabels:\n- cat: It purrs.\n- dog: It barks.\n"
        f'Answer with JSON of this form: {{"category": "..."}}{shown}'
    )


def test_they_replace_a_list_in_the_prompt(model: DecidingAnimals) -> None:
    """The component alone says what labels mean."""
    listed = "Which?\n\nLabels:\n- cat: It moos.\n- dog"
    adapter_of(model).evaluate(ROWS[:1], {"system_prompt": listed, "label_descriptions": GOOD})
    assert described(model) == [("It purrs.", "It barks.")]
    assert model.questions[0].instructions == "Which?"


def test_other_texts_are_not_asked_about(model: DecidingAnimals) -> None:
    """Their rows are unparsed, no metric calls, and the next reflection is told why, once."""
    adapter = adapter_of(model)
    found = adapter.evaluate(ROWS, {**SEED, "label_descriptions": "cat: It purrs."}, capture_traces=True)
    assert (found.scores, model.texts, adapter.metric_calls) == ([0.0] * 4, [], 0)
    assert all("got none for 'dog'" in output["reason"] for output in found.outputs)
    seed = adapter.evaluate(ROWS, SEED, capture_traces=True)
    told = [
        adapter.make_reflective_dataset(SEED, seed, ["label_descriptions"])["label_descriptions"]
        for _ in range(2)
    ]
    feedback = [records[0]["Feedback"] for records in told]
    assert "refused. Expected label descriptions with one line for each label" in feedback[0]
    assert feedback[1] == "Write one line for each of these labels, as `label: description`: cat, dog."
    assert [len(records) for records in told] == [5, 5]
    assert len(adapter.make_reflective_dataset(SEED, seed, ["system_prompt"])["system_prompt"]) == 4


def test_gepa_takes_a_list_that_helps(model: DecidingAnimals) -> None:
    """With gepa's own search, a list of other labels is passed over, and one that helps is kept."""
    written = iter(["cat: It purrs.\ncow: It moos.", GOOD])
    adapter = adapter_of(model)

    def reflect(prompt: Any) -> str:
        if "one line for each of these labels" not in str(prompt):
            return "```\nWhich one?\n```"
        return f"```\n{next(written, GOOD)}\n```"

    found = gepa.optimize(
        seed_candidate=SEED,
        trainset=ROWS,
        valset=ROWS,
        adapter=adapter,
        reflection_lm=reflect,
        max_metric_calls=60,
    )
    assert found.best_candidate["label_descriptions"] == GOOD
    assert set(described(model)) == {(), ("It purrs.", "It barks.")}
    assert adapter.metric_calls == len(model.texts)
