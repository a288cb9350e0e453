"""A journal of finished predictions: nothing is paid for twice, and no error is remembered."""

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
    """Return the prediction of a fresh classifier on one text, and how many calls it took."""
    name = changes.pop("name", "fake")
    client = FakeClient(
        changes.pop("known", LABELS), {}, default=changes.pop("answer", ("cat", 0.9)), name=name
    )
    arguments = {"labels": LABELS, "field": "category", "prompt": "Which animal?", **changes}
    classifier = Classifier(model=client, journal=memory, retry=RetryPolicy(attempts=1), **arguments)
    return classifier.classify(text), len(client.requests)


def test_what_the_journal_holds_is_not_asked_again() -> None:
    """The stored prediction comes back, and says that it took no call."""
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
def test_whatever_can_change_the_answer_is_part_of_the_key(changes: dict[str, Any]) -> None:
    """Otherwise a journal would answer one question with the answer to another."""
    memory = MemoryJournal()
    ask(memory)
    _, calls = ask(memory, **changes)
    assert (calls, len(memory)) == (1, 2)


def test_labels_are_part_of_the_key_even_where_the_schema_does_not_name_them() -> None:
    """A distribution is stored over the labels there were, in their order."""
    memory = MemoryJournal()
    own = {"type": "json_object"}
    ask(memory, response_format=own)
    again, calls = ask(memory, response_format=own, labels=["dog", "cat"])
    assert calls == 1
    assert distribution_of(again).labels == ("dog", "cat")


def test_how_it_is_run_is_not_part_of_the_key() -> None:
    """Concurrency and patience change nothing about the answer; nor does the order of options."""
    memory = MemoryJournal()
    ask(memory, options={"a": 1, "b": 2})
    _, calls = ask(memory, options={"b": 2, "a": 1}, concurrency=3)
    assert calls == 0


def test_errors_are_never_stored() -> None:
    """The next run tries the row again."""
    memory = MemoryJournal()
    failed, _ = ask(memory, answer=FAULT)
    assert (failed.outcome, len(memory)) == (Outcome.ERROR, 0)
    good, calls = ask(memory)
    assert (good.outcome, calls) == (Outcome.OK, 1)


def test_answers_that_are_the_models_fault_are_stored() -> None:
    """They were paid for too, and would come back the same."""
    memory = MemoryJournal()
    bad, _ = ask(memory, answer="cow")
    again, calls = ask(memory)
    assert bad.outcome is again.outcome is Outcome.UNPARSED
    assert calls == 0


def test_rows_are_stored_as_they_are_answered() -> None:
    """A run that dies later keeps what it had."""
    memory = MemoryJournal()
    client = FakeClient(LABELS, {"meow": "cat"})
    classifier = Classifier(model=client, labels=LABELS, field="category", journal=memory, concurrency=1)
    with pytest.raises(ValueError, match="knows no answer"):
        classifier.classify_many(["meow", "moo"])
    assert [prediction.label for prediction in memory.values()] == ["cat"]


def test_another_prompt_shares_the_journal() -> None:
    """Coming back to an earlier prompt costs nothing."""
    memory = MemoryJournal()
    client = FakeClient(LABELS, {}, default="cat")
    first = Classifier(model=client, labels=LABELS, field="category", prompt="a", journal=memory)
    second = first.with_prompt("b")
    for classifier in (first, second, first, second):
        classifier.classify("meow")
    assert (len(client.requests), len(memory)) == (2, 2)
