"""Tests of the journal of finished predictions."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.core import Outcome, Prediction, ProviderError
from calibrant.inference import Classifier, RetryPolicy
from calibrant.testing import FakeClient, MemoryJournal
from distributions import distribution_of

LABELS = ["cat", "dog"]
FAULT = ProviderError("broken", provider="fake", status=500)


def ask(memory: MemoryJournal, text: str = "meow", **changes: Any) -> tuple[Prediction, int]:
    """Return a fresh classifier's prediction of one text, and the number of its calls."""
    name = changes.pop("name", "fake")
    client = FakeClient(
        changes.pop("known", LABELS), {}, default=changes.pop("answer", ("cat", 0.9)), name=name
    )
    arguments = {"labels": LABELS, "field": "category", "prompt": "Which animal?", **changes}
    classifier = Classifier(model=client, journal=memory, retry=RetryPolicy(attempts=1), **arguments)
    return classifier.classify(text), len(client.requests)


def test_journal_answers_without_calls() -> None:
    """A stored prediction is returned with 0 attempts."""
    memory = MemoryJournal()
    first, calls = ask(memory)
    assert (first.attempts, calls) == (1, 1)
    again, calls = ask(memory, answer="dog")
    assert (again.label, again.confidence, again.attempts, calls) == ("cat", first.confidence, 0, 0)
    assert again.distribution == first.distribution


@pytest.mark.parametrize(
    "changes",
    [
        {"text": "woof"},
        {"prompt": "Which beast?"},
        {"user_template": "Text: {input}"},
        {"name": "other-model"},
        {"options": {"temperature": 1}},
        {"labels": ["dog", "cat"]},
        {"labels": ["cat", "dog", "cow"], "known": ["cat", "dog", "cow"]},
        {"top_logprobs": 6},
        {"space": "raw"},
        {"response_format": {"type": "json_object"}},
        {"answer_field": "final"},
        {"field": "label"},
    ],
    ids="+".join,
)
def test_key_covers_every_setting(changes: dict[str, Any]) -> None:
    """Every setting that can change the answer is part of the journal's key."""
    memory = MemoryJournal()
    ask(memory)
    _, calls = ask(memory, **changes)
    assert (calls, len(memory)) == (1, 2)


def test_key_covers_labels_without_enum() -> None:
    """The labels and their order are part of the key, even if the schema does not hold them."""
    memory = MemoryJournal()
    own = {"type": "json_object"}
    ask(memory, response_format=own)
    again, calls = ask(memory, response_format=own, labels=["dog", "cat"])
    assert (calls, distribution_of(again).labels) == (1, ("dog", "cat"))


def test_key_ignores_how_calls_are_made() -> None:
    """Concurrency, API key, timeout and the order of options do not change the journal's key."""
    memory = MemoryJournal()
    ask(memory, options={"a": 1, "b": 2})
    _, calls = ask(memory, options={"b": 2, "a": 1, "api_key": "k", "timeout": 9}, concurrency=3)
    assert calls == 0


def test_errors_are_never_stored() -> None:
    """A failed row is not stored, and is called again by the next run."""
    memory = MemoryJournal()
    failed, _ = ask(memory, answer=FAULT)
    assert (failed.outcome, len(memory)) == (Outcome.ERROR, 0)
    good, calls = ask(memory)
    assert (good.outcome, calls) == (Outcome.OK, 1)


def test_unparsed_answers_are_stored() -> None:
    """Unparsed answers are stored."""
    memory = MemoryJournal()
    bad, _ = ask(memory, answer="cow")
    again, calls = ask(memory)
    assert bad.outcome is again.outcome is Outcome.UNPARSED
    assert calls == 0


def test_rows_are_stored_as_they_are_answered() -> None:
    """Rows are stored as they are answered, so a run that fails later keeps them."""
    memory = MemoryJournal()
    client = FakeClient(LABELS, {"meow": "cat"})
    classifier = Classifier(model=client, labels=LABELS, field="category", journal=memory, concurrency=1)
    with pytest.raises(ValueError, match="knows no answer"):
        classifier.classify_many(["meow", "moo"])
    assert [prediction.label for prediction in memory.values()] == ["cat"]


def test_another_prompt_shares_the_journal() -> None:
    """A copy with another prompt uses the same journal, under keys of its own."""
    memory = MemoryJournal()
    client = FakeClient(LABELS, {}, default="cat")
    first = Classifier(model=client, labels=LABELS, field="category", prompt="a", journal=memory)
    second = first.with_prompt("b")
    for classifier in (first, second, first, second):
        classifier.classify("meow")
    assert (len(client.requests), len(memory)) == (2, 2)
