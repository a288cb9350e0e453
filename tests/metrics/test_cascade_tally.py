"""Tests of the tally of a cascade's models: it equals a count by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core import DataError, LabelSet, Outcome, Prediction, Step, Usage, Verdict
from calibrant.metrics import CascadeMetrics, wilson_interval
from calibrant.reports import write_report
from evaluated import evaluated

Row = dict[str, Any]
USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "cost": None}
ANSWERS: dict[bool | None, Any] = {
    True: {"label": "cat"},
    False: {"label": "dog"},
    None: {"label": None, "outcome": Outcome.ERROR, "reason": "is down"},
}


def step(model: str, verdict: str, *, cost: float | None = None, attempts: int = 1) -> Step:
    """Return a step that took 10 + 2 tokens."""
    usage = Usage(prompt_tokens=10, completion_tokens=2, cost=cost)
    return Step(model=model, verdict=Verdict(verdict), usage=usage, attempts=attempts)


def count(rows: list[Row]) -> CascadeMetrics:
    """Return the numbers of rows with steps, accepted and correct."""
    predictions = [
        Prediction(steps=tuple(row["steps"]), accepted=row["accepted"], **ANSWERS[row["correct"]])
        for row in rows
    ]
    found = evaluated(LabelSet(["cat", "dog"]), [("cat", prediction) for prediction in predictions]).cascade
    assert found is not None
    return found


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
        own = [(row, one) for row in rows for one in row["steps"] if one.model == model.model]
        verdicts = [one.verdict for _, one in own]
        paid = [one.usage for _, one in own if one.attempts]
        priced = [usage.cost for usage in paid if usage.cost is not None]
        right = [
            row["correct"] for row, one in own if one.verdict == "accepted" and row["correct"] is not None
        ]
        assert (model.asked, model.accepted) == (len(own), verdicts.count("accepted"))
        assert (model.no_evidence, model.failed) == (verdicts.count("no_evidence"), verdicts.count("failed"))
        assert model.correct == sum(right)
        assert model.accuracy == (wilson_interval(sum(right), len(right)) if right else None)
        assert model.calls == sum(one.attempts for _, one in own)
        assert (model.prompt_tokens, model.completion_tokens) == (10 * len(paid), 2 * len(paid))
        assert model.cost == (pytest.approx(sum(priced)) if priced else None)


def test_models_stand_in_the_order_in_which_they_were_first_asked() -> None:
    """The tally lists the models in the order in which they were first asked."""
    rows: list[Row] = [
        {"steps": [step("z", "accepted")], "accepted": True, "correct": True},
        {"steps": [step("z", "escalated"), step("a", "accepted")], "accepted": True, "correct": True},
    ]
    found = count(rows)
    assert [model.model for model in found.models] == ["z", "a"]


def test_without_steps_there_are_no_numbers() -> None:
    """Rows of a single model have no such numbers."""
    assert evaluated(LabelSet(["cat", "dog"]), [("cat", Prediction(label="cat"))]).cascade is None


def test_nothing_is_paid_for_an_answer_that_was_known() -> None:
    """A step without calls adds no call, cost or tokens."""
    found = count(
        [{"steps": [step("a", "accepted", cost=2.0, attempts=0)], "accepted": True, "correct": True}]
    )
    assert (found.calls, found.cost, found.models[0].prompt_tokens) == (0, None, 0)


@pytest.mark.parametrize(
    "broken", [{"verdict": "maybe"}, {"usage": {**USAGE, "cost": "much"}}, {"usage": None}, {"attempts": "x"}]
)
def test_a_broken_step_is_an_error(broken: Any, tmp_path: Path) -> None:
    """A report on a row with a broken step raises DataError with the line."""
    steps = [{"model": "b", "verdict": "accepted", "usage": USAGE, "attempts": 1} | broken]
    rows = [{"input": "purrs", "answer": "cat", "label": "cat", "accepted": True, "steps": steps}]
    path = tmp_path / "predictions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=r"predictions.jsonl:1: expected the steps"):
        write_report(tmp_path)
