"""Tests of what every predictor does: classifiers, cascades, and those of tasks and bundles."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asked import ask
from calibrant.adapters import ConfidenceAdapter
from calibrant.assembly import open_classifier
from calibrant.cascade import Cascade
from calibrant.core import Example, LimitReachedError, Limits, Prediction, Predictor, Query, Stop, Task
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import BasePredictor, Classifier
from calibrant.testing import FakeClient, MemoryJournal
from calibrant.tuned import Tuned, load

LABELS = ["cat", "dog"]
Open = Callable[[FakeClient], BasePredictor]


def classifier(client: FakeClient, **options: Any) -> Classifier:
    """Return a classifier of one model."""
    return Classifier(model=client, labels=LABELS, field="category", prompt="Which?", **options)


def cascade(client: FakeClient) -> Cascade:
    """Return a cascade whose first model is sure enough."""
    other = FakeClient(LABELS, {}, default="dog", name="large")
    return Cascade([classifier(client), classifier(other)], method="label_probability", threshold=0.5)


def task() -> Task:
    """Return a task of one model."""
    return Task(name="animals", labels=LABELS, field="category", prompt="Which?")


def from_task(client: FakeClient) -> BasePredictor:
    """Return what a task describes."""
    return open_classifier(task(), model=client)


@pytest.fixture(params=[classifier, cascade, from_task, "bundle"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return a function that opens one kind of predictor over a client."""
    if request.param != "bundle":
        return request.param  # type: ignore[no-any-return]
    rows = [Example(input=f"row {number}", answer=LABELS[number % 2]) for number in range(40)]
    with classifier(make()) as asked:
        BatchEvaluator(asked).evaluate(rows, out=tmp_path / "run", about={"task": "animals"})
    Tuned.from_run(tmp_path / "run", task=task(), model="small").save(tmp_path / "bundle")
    return lambda client: load(tmp_path / "bundle", model=client)


def make() -> FakeClient:
    """Return a model that reads the parity of a row's number."""
    return FakeClient(LABELS, lambda text: (LABELS[int(text.split()[-1]) % 2], 0.9), name="small")


def texts(n: int) -> list[str]:
    """Return texts."""
    return [f"row {number}" for number in range(n)]


def test_every_predictor_has_a_name(opening: Open) -> None:
    """Every predictor shows its name and labels in its repr."""
    with opening(make()) as found:
        assert isinstance(found, Predictor)
        assert (found.labels.labels, found.field, found.prompt) == (("cat", "dog"), "category", "Which?")
        assert found.name in repr(found)
        assert "'cat', 'dog'" in repr(found)


def test_rows_come_in_order_and_once(opening: Open) -> None:
    """`feed` delivers rows once and in order, and reads fewer than 2,000 queries ahead."""
    taken: list[int] = []
    rows: list[tuple[int, Prediction]] = []

    def queries(found: Predictor) -> Iterator[Query]:
        for number in range(3000):
            taken.append(number)
            assert number - len(rows) < 2000
            yield found.query(f"row {number}")

    with opening(make()) as found:
        reason = asyncio.run(found.feed(queries(found), lambda *row: rows.append(row)))
    assert reason == ""
    assert [index for index, _ in rows] == list(range(3000)) == taken
    assert [row.label for _, row in rows] == [LABELS[number % 2] for number in range(3000)]


def test_a_stop_ends_a_run(opening: Open) -> None:
    """`feed` returns the reason of a stop, after rows that were delivered in order."""
    stop, rows = Stop(), []  # type: ignore[var-annotated]

    def deliver(index: int, _: Prediction) -> None:
        rows.append(index)
        if index == 4:
            stop.request("enough")

    with opening(make()) as found:
        reason = asyncio.run(found.feed(map(found.query, texts(500)), deliver, stop=stop))
    assert reason == "enough"
    assert rows == list(range(len(rows)))
    assert 5 <= len(rows) < 100


def test_a_budget_ends_a_run(opening: Open) -> None:
    """`with_limits` returns a copy with a meter of its own, and LimitReachedError ends its run."""
    with opening(make()) as found:
        found.classify_many(texts(20))
        copy = found.with_limits(Limits(max_requests=5, concurrency=1))
        assert (copy.meter.rows, copy.limits.max_requests) == (0, 5)
        with pytest.raises(LimitReachedError, match="max_requests"):
            copy.classify_many([f"other row {number}" for number in range(50)])
        assert found.limits.max_requests is None
        assert len(found.classify_many(texts(30))) == 30


def test_a_journal_answers_repeated_queries(opening: Open) -> None:
    """Repeated queries are answered from the journal without a call, in a copy too."""
    client, journal = make(), MemoryJournal()
    with opening(client) as found:
        found.use_journal(journal)
        assert found.journal is journal
        first = found.classify_many(texts(8))
        calls = len(client.requests)
        again = found.with_limits(Limits()).classify_many(texts(8))
    assert len(client.requests) == calls
    assert [row.label for row in again] == [row.label for row in first]
    assert {row.attempts for row in again} == {0}


def test_with_prompt_calls_the_same_model(opening: Open) -> None:
    """`with_prompt` asks the same model with another prompt, and the original keeps its own."""
    client = make()
    with opening(client) as found:
        other = found.with_prompt("Another?")
        ask(other, [other.query("row 1")])
        found.classify("row 2")
    assert [request.messages[0]["content"] for request in client.requests] == ["Another?", "Which?"]


def test_the_identity_changes_with_the_prompt(opening: Open) -> None:
    """Another prompt changes description and fingerprint, and equal predictors have equal ones."""
    with opening(make()) as one, opening(make()) as two:
        told = json.dumps(one.describe(), sort_keys=True)
        assert told == json.dumps(two.describe(), sort_keys=True)
        assert one.fingerprint() == two.fingerprint()
        assert one.fingerprint().labels == ("cat", "dog")
        other = one.with_prompt("Another?")
        assert json.dumps(other.describe(), sort_keys=True) != told
        assert other.fingerprint() != one.fingerprint()


def test_evaluation_and_adapter_take_any_predictor(opening: Open) -> None:
    """`BatchEvaluator` and `ConfidenceAdapter` take every predictor."""
    rows = [Example(input=text, answer=LABELS[number % 2]) for number, text in enumerate(texts(6))]
    with opening(make()) as found:
        assert BatchEvaluator(found).evaluate(rows).metrics.accuracy.estimate == 1.0
        adapter = ConfidenceAdapter.from_classifier(found)
        batch = adapter.evaluate([{"input": "row 1", "answer": "dog", "additional_context": {}}], {"p": "Q"})
    assert batch.scores[0] > 0.0
