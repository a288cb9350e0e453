"""Tests of the tally of a cascade's models: it equals a count by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.metrics import wilson_interval
from calibrant.metrics._cascade import CascadeMetrics, CascadeTally

Row = dict[str, Any]


def step(model: str, verdict: str, *, cost: float | None = None, attempts: int = 1) -> dict[str, Any]:
    """Return the record of a step that took 10 + 2 tokens."""
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "cost": cost}
    return {"model": model, "verdict": verdict, "usage": usage, "attempts": attempts}


def count(rows: list[Row]) -> CascadeMetrics | None:
    """Return the numbers of rows with steps, accepted and correct."""
    tally = CascadeTally()
    for row in rows:
        tally.add(row["steps"], accepted=row["accepted"], correct=row["correct"])
    return tally.metrics()


@st.composite
def cascade_row(draw: st.DrawFn) -> Row:
    """Draw a row of up to three models, of which the last may be accepted."""
    asked = draw(st.integers(1, 3))
    accepted = draw(st.booleans())
    steps = []
    for place in range(asked):
        sure = accepted and place == asked - 1
        verdict = "accepted" if sure else draw(st.sampled_from(["escalated", "no_evidence", "failed"]))
        cost, attempts = draw(st.sampled_from([None, 0.0, 0.25, 1.5])), draw(st.integers(0, 3))
        steps.append(step("abc"[place], verdict, cost=cost, attempts=attempts))
    return {"steps": steps, "accepted": accepted, "correct": draw(st.sampled_from([True, False, None]))}


@given(st.lists(cascade_row(), min_size=1, max_size=12))
def test_numbers_are_those_of_a_count_by_hand(rows: list[Row]) -> None:
    """The tally equals a count by hand, for each model and in all."""
    found = count(rows)
    assert found is not None
    assert found.rows == len(rows)
    assert found.escalated == sum(len(row["steps"]) > 1 for row in rows)
    assert found.escalations == sum(len(row["steps"]) - 1 for row in rows)
    for accepted, correct, interval in (
        (True, found.correct, found.accuracy),
        (False, found.unaccepted_correct, found.unaccepted_accuracy),
    ):
        known = [row["correct"] for row in rows if row["accepted"] is accepted and row["correct"] is not None]
        assert correct == sum(known)
        assert interval == (wilson_interval(sum(known), len(known)) if known else None)
    assert found.accepted == sum(model.accepted for model in found.models)
    assert found.calls == sum(model.calls for model in found.models)
    for model in found.models:
        own = [(row, one) for row in rows for one in row["steps"] if one["model"] == model.model]
        verdicts = [one["verdict"] for _, one in own]
        paid = [one["usage"] for _, one in own if one["attempts"]]
        priced = [usage["cost"] for usage in paid if usage["cost"] is not None]
        right = [
            row["correct"] for row, one in own if one["verdict"] == "accepted" and row["correct"] is not None
        ]
        assert (model.asked, model.accepted) == (len(own), verdicts.count("accepted"))
        assert (model.no_evidence, model.failed) == (verdicts.count("no_evidence"), verdicts.count("failed"))
        assert model.correct == sum(right)
        assert model.accuracy == (wilson_interval(sum(right), len(right)) if right else None)
        assert model.calls == sum(one["attempts"] for _, one in own)
        assert (model.prompt_tokens, model.completion_tokens) == (10 * len(paid), 2 * len(paid))
        assert model.cost == (pytest.approx(sum(priced)) if priced else None)


def test_models_stand_in_the_order_in_which_they_were_first_asked() -> None:
    """The tally lists the models in the order in which they were first asked."""
    rows: list[Row] = [
        {"steps": [step("z", "accepted")], "accepted": True, "correct": True},
        {"steps": [step("z", "escalated"), step("a", "accepted")], "accepted": True, "correct": True},
    ]
    found = count(rows)
    assert found is not None
    assert [model.model for model in found.models] == ["z", "a"]


def test_without_rows_there_are_no_numbers() -> None:
    """Without rows the tally is None."""
    assert count([]) is None


def test_nothing_is_paid_for_an_answer_that_was_known() -> None:
    """A step without calls adds no call, cost or tokens."""
    found = count(
        [{"steps": [step("a", "accepted", cost=2.0, attempts=0)], "accepted": True, "correct": True}]
    )
    assert found is not None
    assert (found.calls, found.cost, found.models[0].prompt_tokens) == (0, None, 0)


@pytest.mark.parametrize(
    "broken",
    [
        {**step("a", "accepted"), "verdict": "maybe"},
        {**step("a", "accepted"), "usage": {"prompt_tokens": 0, "completion_tokens": 0, "cost": "much"}},
        {"model": "a"},
    ],
)
def test_a_broken_step_counts_for_nothing(broken: Any) -> None:
    """A broken step raises an error, and its row's other steps do not count."""
    tally = CascadeTally()
    with pytest.raises((KeyError, TypeError, ValueError)):
        tally.add([step("b", "escalated"), broken], accepted=False, correct=False)
    assert tally.metrics() is None
    tally.add([step("a", "accepted")], accepted=True, correct=True)
    found = tally.metrics()
    assert found is not None
    assert [model.model for model in found.models] == ["a"]
