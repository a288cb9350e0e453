"""Tests of exact scoring in an engine that reports all tokens: results and number of calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest

from calibrant.core import Field, FieldLabels, LabelSet, Outcome, Prediction
from calibrant.inference import Classifier
from closed_loops import loops_left
from distributions import distribution_of
from token_engine import CHARACTERS, Engine, Row


def truth(row: Row, labels: Sequence[str], before: str = '{"label": "') -> np.ndarray:
    """Return the probabilities of the labels, normalised, by brute force."""
    found = []
    for label in labels:
        path, total = row.tokens(before + json.dumps(label)[1:]), 0.0
        for place in range(len(before), len(path)):
            logits = row.after(path[:place]).astype(np.float64)
            total += logits[path[place]] - np.log(np.exp(logits).sum())
        found.append(total)
    weights = np.exp(np.array(found) - max(found))
    return np.asarray(weights / weights.sum())


def asked(engine: Engine, labels: Sequence[str], texts: Sequence[str], **options: Any) -> list[np.ndarray]:
    """Return the probabilities that a classifier gives."""
    with Classifier(model=engine, labels=labels, field="label", prompt="Sort.", **options) as classifier:
        found = classifier.classify_many(texts)
    probabilities = [distribution_of(one).probabilities for one in found]
    assert [one.label for one in found] == [labels[int(each.argmax())] for each in probabilities]
    return probabilities


LABELS = ("cat", "cow", "dog", 'a "b"', "donkey")


@pytest.mark.parametrize("labels", [LABELS, ("yes", "no"), [f"group {n}" for n in range(40)]])
def test_scores_equal_brute_force(labels: Sequence[str]) -> None:
    """At tolerance 0 the probabilities equal brute force, also for a label with quotes."""
    engine = Engine()
    found = asked(engine, labels, ["one", "two"], tolerance=0.0)
    rows = {row.text: row for row in engine.rows}
    for text, probabilities in zip(["one", "two"], found, strict=True):
        np.testing.assert_allclose(probabilities, truth(rows[text], labels), rtol=1e-4, atol=1e-11)


def test_expectations_are_requested_once() -> None:
    """Rows that begin together share one request without a text."""
    engine = Engine()
    asked(engine, LABELS, [f"row {number}" for number in range(20)])
    (first, *rest) = engine.rows
    assert "row" not in first.text
    assert sorted(row.text for row in rest) == sorted(f"row {number}" for number in range(20))


def test_each_prompt_has_its_own_expectations() -> None:
    """Every pair of prompt and template is requested once without a text."""
    engine = Engine()
    with Classifier(model=engine, labels=LABELS, prompt="one", scoring="exact") as one:
        for prompt, template in [("one", None), ("two", None), ("two", "Say: {input}"), ("one", None)]:
            one.with_prompt(prompt, user_template=template).classify("row")
    assert [row.text for row in engine.rows] == ["", "row", "", "row", "Say: ", "Say: row", "row"]


def test_rows_keep_their_order() -> None:
    """A row that comes after the request without a text waits behind earlier rows."""
    rows: list[asyncio.Task[Prediction]] = []

    class Observed(Engine):
        def row(self, text: str) -> Row:
            if text == "first":
                rows.append(asyncio.create_task(classifier.aclassify("late")))
            return super().row(text)

    engine = Observed()
    classifier = Classifier(model=engine, labels=["cat", "dog"])

    async def all_rows() -> None:
        names = ("first", "second", "third", "fourth")
        rows.extend(asyncio.create_task(classifier.aclassify(name)) for name in names)
        for task in rows:
            await task

    asyncio.run(all_rows())
    assert [row.text for row in engine.rows] == ["", "first", "second", "third", "fourth", "late"]


def test_unvisited_nodes_use_expectations(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tolerance 1, a model that ignores the text is scored exactly in one batch."""
    engine = Engine()
    after = Row.after
    monkeypatch.setattr(Row, "after", lambda _, text: after(Row(engine, ""), text))
    (found,) = asked(engine, LABELS, ["row"], tolerance=1.0)
    np.testing.assert_allclose(found, truth(engine.rows[-1], LABELS), rtol=1e-4, atol=1e-11)
    assert len(engine.rows[-1].asked) == 1


def test_needed_nodes_join_the_first_batch() -> None:
    """The first batch of a row holds the nodes that every row needs."""
    engine = Engine()
    asked(engine, ("yes", "no"), ["row"])
    assert len(engine.rows[-1].asked[0]) > 1


def test_many_labels_skip_expectations() -> None:
    """Rows with many labels are scored without a request before them."""
    engine, labels = Engine(), [f"{n:03} of many" for n in range(200)]
    (found,) = asked(engine, labels, ["row"], tolerance=0.0)
    np.testing.assert_allclose(found, truth(engine.rows[-1], labels), rtol=1e-4, atol=1e-11)
    assert len(engine.rows[0].asked) == 0


def test_thousand_labels_visit_few_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand labels are scored in fewer than 100 nodes, within the error bound."""
    after = Row.after
    monkeypatch.setattr(Row, "after", lambda row, text: 5.0 * after(row, text))
    labels = [f"{n:03}" for n in range(1000)]
    for many in (labels[:100], labels):
        engine = Engine()
        with Classifier(model=engine, labels=many, prompt="Sort.") as classifier:
            found = classifier.classify_many(["one", "two", "three"])
        for row, prediction in zip(engine.rows[-3:], found, strict=True):
            distribution, expected = distribution_of(prediction), truth(row, many)
            assert distribution.error_bound is not None
            assert prediction.label == many[int(expected.argmax())]
            off = 0.5 * np.abs(distribution.probabilities - expected).sum()
            assert off <= distribution.error_bound + 1e-6
            assert distribution.error_bound <= Engine.default_tolerance
            assert sum(map(len, row.asked)) < 100  # of 1,111 beginnings


def test_long_prompt_makes_rows_unparsed() -> None:
    """A prompt beyond the context makes each row unparsed."""
    with Classifier(model=Engine(context=-1), labels=LABELS, prompt="Sort.", scoring="exact") as classifier:
        found = classifier.classify_many(["row", "another"])
    assert [(one.outcome, one.reason) for one in found] == [
        (Outcome.UNPARSED, "characters: The text is too long.")
    ] * 2


def test_fields_are_scored_in_place() -> None:
    """The second field is scored after the label chosen for the first."""
    engine = Engine()
    sizes = LabelSet(["big", "small"])
    labels = FieldLabels(
        [Field(name="animal", labels=LabelSet(["cat", "dog"])), Field(name="size", labels=sizes)]
    )
    with Classifier(model=engine, labels=labels, prompt="Sort.", tolerance=0.0) as classifier:
        found = classifier.classify("row")
    animal, size = found.parts
    before = f'{{"animal": "{animal.label}", "size": "'
    np.testing.assert_allclose(
        distribution_of(size).probabilities,
        truth(engine.rows[-1], sizes.labels, before),
        rtol=1e-4,
        atol=1e-11,
    )


def test_many_nodes_take_several_batches() -> None:
    """At most 64 nodes are requested at once."""
    engine = Engine()
    asked(engine, [f"{n:03} of many" for n in range(100)], ["row"], tolerance=0.0)
    assert max(len(batch) for row in engine.rows for batch in row.asked) <= 64


def test_nan_logprobs_fail_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN log-probabilities make the row an error that names the model."""
    nothing = np.full(len(CHARACTERS), np.nan, dtype=np.float32)
    monkeypatch.setattr(Row, "after", lambda *_: nothing)
    for labels in (LABELS, [f"{n:03} of many" for n in range(200)]):  # too many to ask before a text
        with Classifier(model=Engine(), labels=labels, field="label", prompt="Sort.") as classifier:
            found = classifier.classify("row")
        assert found.outcome is Outcome.ERROR
        assert "test/characters" in found.reason
        assert "not numbers" in found.reason


def test_closed_loops_are_released() -> None:
    """Event loops in which rows waited for the expectations of their prompt do not pile up in memory."""
    prompts = count()
    with Classifier(model=Engine(), labels=LABELS, field="label", prompt="Sort.") as classifier:

        async def work() -> None:
            await classifier.with_prompt(f"Sort {next(prompts)}.").aclassify_many(["one", "two", "three"])

        assert loops_left(work) <= 2
