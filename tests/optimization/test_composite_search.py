"""Tests of searches for tasks whose answers hold several labels."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import (
    Example,
    Field,
    FieldLabels,
    LabelSet,
    MultiLabels,
    Prediction,
    ProviderError,
    Task,
)
from calibrant.optimization import ExemplarProposer, optimize
from calibrant.testing import FakeClient
from small_tasks import task_of

TOPICS = MultiLabels(["Bills", "Food", "Travel"])
FIELDS = FieldLabels(
    [
        Field(name="category", labels=LabelSet(["Bills", "Food"]), path="results[].category"),
        Field(name="urgency", labels=LabelSet(["low", "high"]), path="results[].how.urgent"),
    ]
)
HIGH = FIELDS.answer_of({"category": "Bills", "urgency": "high"})
WORDS = {"Bills": "invoice payment", "Food": "lunch kitchen", "Travel": "ticket station"}


def examples(prefix: str, count: int) -> tuple[Example, ...]:
    """Return rows about each pair of topics, and about none."""
    sets = [("Bills",), ("Bills", "Food"), ("Food", "Travel"), ()]
    return tuple(
        Example(
            input=f"{prefix} {number} " + " ".join(WORDS[label] for label in sets[number % 4]),
            answer=TOPICS.answer_with(sets[number % 4]),
        )
        for number in range(count)
    )


@pytest.mark.parametrize(
    ("field", "answer", "document"),
    [
        ("labels", '["Bills", "Food"]', {"labels": ["Bills", "Food"]}),
        ("labels", "[]", {"labels": []}),
        ("found.topics", '["Food"]', {"found": {"topics": ["Food"]}}),
        ("results[].topic", '["Bills", "Food"]', {"results": [{"topic": "Bills"}, {"topic": "Food"}]}),
        ("[]", '["Food"]', ["Food"]),
    ],
)
def test_demonstrations_show_sets(field: str, answer: str, document: Any) -> None:
    """A prompt shows sets in its demonstrations, which are read back: the next proposals have no others."""
    assert shown(TOPICS, [answer, '["Travel"]'], field)[answer] == document


def test_demonstrations_show_fields_at_their_paths() -> None:
    """A demonstration of several fields has the JSON of their paths, and is read back."""
    low = FIELDS.answer_of({"category": "Food", "urgency": "low"})
    found = shown(FIELDS, [HIGH, low], "label")[HIGH]
    assert found == {"results": [{"category": "Bills", "how": {"urgent": "high"}}]}


def shown(labels: LabelSet, answers: list[str], field: str) -> dict[str, Any]:
    """Return the JSON of each answer in proposed prompts, which stays the same from proposal to proposal."""
    proposer = ExemplarProposer(train=[{"input": f"of {answer}", "answer": answer} for answer in answers])
    proposer.prepare(labels=labels, field=field)
    candidate, found = {"system_prompt": "Which?"}, dict[str, str]()
    for _ in range(3):
        candidate |= proposer(candidate, {}, [])
        prompt = candidate["system_prompt"]
        assert prompt.count("Examples:") == 1
        found |= re.findall(r"^Text: of (.*)\nAnswer: (.*)$", prompt, re.MULTILINE)
    return {answer: json.loads(text) for answer, text in found.items()}


def notes_of(proposer: ExemplarProposer, rows: Any, answer: str) -> set[str]:
    """Return the notes of a chain of proposals, where every row gets the same answer."""
    candidate, notes = {"system_prompt": "Which?"}, set[str]()
    for _ in range(60):
        proposer.observe(candidate, rows, [Prediction(label=answer, confidence=0.9) for _ in rows])
        candidate = {**candidate, **proposer(candidate, {}, ["system_prompt"])}
        notes |= {line for line in candidate["system_prompt"].split("\n") if line.startswith('- "')}
    return notes


def test_notes_are_about_labels_that_are_missed_or_added() -> None:
    """A note about a label that is missed has words of the texts with that label."""
    proposer = ExemplarProposer(train=examples("train", 40), seed=1)
    proposer.prepare(labels=TOPICS, field="labels")
    rows = [{"input": row.input, "answer": row.answer} for row in examples("train", 40)]
    notes = notes_of(proposer, rows, '["Bills"]')
    assert any(note.startswith('- "Food": ') and "lunch" in note for note in notes)
    assert not any("not" in note.split(":")[0] for note in notes)


def test_the_proposer_learns_from_unseen_answers() -> None:
    """The proposer's note is only about the label that the model added wrongly."""
    train = examples("train", 40)
    proposer = ExemplarProposer(train=train, seed=1)
    proposer.prepare(labels=TOPICS, field="labels")
    rows = [{"input": row.input, "answer": row.answer} for row in train if row.answer == '["Food", "Travel"]']
    notes = notes_of(proposer, rows, TOPICS.answer_with(TOPICS))
    assert {note.split(":")[0] for note in notes} == {'- "Bills"'}


def test_a_search_runs_from_task_to_result(tmp_path: Path) -> None:
    """A search scores whole answers with credit, and a second run gives the same prompt."""
    task = task_of(examples, 40, 8, 12, labels=TOPICS, prompt="Which?", field="labels")

    def answers(text: str, prompt: str) -> Any:
        known = [label for label, words in WORDS.items() if words.split()[0] in text]
        return TOPICS.answer_with(known if "Examples:" in prompt else known[:1]), 0.9

    fake = FakeClient(TOPICS, answers, field="labels")
    result = optimize(task, model=fake, max_metric_calls=120, out=tmp_path / "run")
    assert result.improved
    assert result.best_prompt.accuracy is not None
    assert result.best_prompt.accuracy.estimate == 1.0
    assert result.seed_prompt.accuracy is not None
    assert result.seed_prompt.accuracy.estimate == pytest.approx(0.5)
    assert result.seed_prompt.credit is not None
    assert result.seed_prompt.credit.estimate == pytest.approx(0.75)
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["label_set"] == {"multi_label": True, "labels": list(TOPICS.labels)}
    again = optimize(task, model=fake, max_metric_calls=120, out=tmp_path / "run")
    assert again.best_prompt == result.best_prompt


def test_failed_validation_rows_are_not_asked_again_for_figures() -> None:
    """One row in nine fails: the search ends, within its calls, and its figures are about the others."""
    broken = "BROKEN "
    validation = tuple(
        replace(row, input=broken + row.input) if number % 9 == 0 else row
        for number, row in enumerate(examples("validation", 100))
    )
    task = Task(
        name="topics",
        labels=TOPICS,
        field="labels",
        prompt="Which?",
        train=examples("train", 40),
        validation=validation,
        test=examples("test", 12),
    )
    asked: list[tuple[str, str]] = []

    def answers(text: str, prompt: str) -> Any:
        if broken in text:
            asked.append((text, prompt))
            raise ProviderError("content filter", provider="fake", retryable=False)
        known = [label for label, words in WORDS.items() if words.split()[0] in text]
        return TOPICS.answer_with(known if "Examples:" in prompt else known[:1]), 0.9

    result = optimize(task, model=FakeClient(TOPICS, answers, field="labels"), max_metric_calls=900)
    assert len(asked) == len(set(asked)) == 12 * len(result.validated)
    assert [one.accuracy for one in result.validated] == [pytest.approx(44 / 88), 1.0]
