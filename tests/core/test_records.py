"""Tests of records of predictions: round trips and damage."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core import LabelDistribution, LogprobSpace, Outcome, Prediction, StateError, Usage
from saved_prediction import from_record, to_record

unit = st.floats(0, 1)
logprob = st.floats(-1e6, 0)


@st.composite
def distributions(draw: st.DrawFn) -> LabelDistribution:
    """Draw any distribution, also one that no model produces."""
    labels = draw(st.lists(st.text(min_size=1), min_size=2, max_size=5, unique=True))
    size = len(labels)
    return LabelDistribution(
        labels=tuple(labels),
        logprobs=np.array(draw(st.lists(logprob, min_size=size, max_size=size))),
        measured=np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size))),
        joint_logprob=draw(st.none() | logprob),
        label_mass=draw(unit),
        unresolved_mass=draw(unit),
        space=draw(st.sampled_from(LogprobSpace)),
        emitted=draw(st.sampled_from([None, "", *labels])),
        error_bound=draw(st.none() | st.floats(0.0, 1.0)),
        closing_logprob=draw(st.none() | logprob),
        shared=draw(st.sampled_from([(), ((tuple(labels), 0.4), (tuple(labels[:2]), 0.1))])),
    )


predictions = st.builds(
    Prediction,
    label=st.none() | st.text(),
    confidence=st.none() | unit,
    distribution=st.none() | distributions(),
    outcome=st.sampled_from(Outcome),
    reason=st.text(),
    text=st.text(),
    usage=st.builds(
        Usage,
        prompt_tokens=st.integers(0, 10**9),
        completion_tokens=st.integers(0, 10**9),
        cost=st.none() | st.floats(0, 1e3),
    ),
    model=st.none() | st.text(),
    attempts=st.integers(0, 10),
    latency_seconds=st.floats(0, 1e6),
)


@given(predictions)
def test_predictions_survive_json(prediction: Prediction) -> None:
    """A prediction read from JSON equals the written one, with every bit of its floats."""
    line = json.dumps(to_record(prediction), ensure_ascii=False, allow_nan=False)
    assert from_record(json.loads(line)) == prediction


def distribution(*labels: str, shares: tuple[float, float], mass: float, **changes: Any) -> LabelDistribution:
    """Return a distribution over two labels, of which the first was emitted."""
    settings: dict[str, Any] = {"joint_logprob": math.log(mass), "label_mass": mass, "emitted": labels[0]}
    return LabelDistribution(
        labels=labels,
        logprobs=np.log(shares),
        measured=np.array([True, True]),
        unresolved_mass=0.0,
        space=LogprobSpace.MASKED,
        **settings | changes,
    )


def record() -> dict[str, Any]:
    """Return the record of a plain prediction."""
    plain = distribution("cat", "dog", shares=(0.75, 0.25), mass=1.0, joint_logprob=math.log(0.75))
    return to_record(Prediction(label="cat", confidence=0.75, distribution=plain))


def test_records_have_fixed_keys() -> None:
    """The keys of a record are fixed."""
    keys = "attempts confidence distribution label latency_seconds model outcome reason text usage"
    assert " ".join(sorted(record())) == keys
    assert record()["distribution"] == {
        "labels": ["cat", "dog"],
        "logprobs": [math.log(0.75), math.log(0.25)],
        "measured": [True, True],
        "joint_logprob": math.log(0.75),
        "label_mass": 1.0,
        "unresolved_mass": 0.0,
        "space": "masked",
        "emitted": "cat",
        "error_bound": None,
        "closing_logprob": None,
    }


def test_stored_texts_and_counts_are_cleaned() -> None:
    """Texts and counts in records are cleaned."""
    poisoned = record() | {
        "model": "m\ud800\x1b[2J",
        "reason": "r\x07" * 5000,
        "usage": {"prompt_tokens": 10**400, "completion_tokens": 3, "cost": None},
    }
    found = from_record(poisoned)
    assert found.model == "m\ufffd"
    assert found.reason == "r" * 2000 + "..."
    assert found.usage == Usage(prompt_tokens=2**53, completion_tokens=3)


@pytest.mark.parametrize("key", sorted(record()))
def test_records_need_every_key(key: str) -> None:
    """A record without one of its keys raises StateError."""
    broken = record()
    del broken[key]
    with pytest.raises(StateError, match=rf"Expected a prediction record, .*KeyError\('{key}'\)"):
        from_record(broken)


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "great"},
        {"usage": {"tokens": 5}},
        {"usage": None},
        {"distribution": 5},
        {"distribution": {**record()["distribution"], "space": "cooked"}},
        {"distribution": {**record()["distribution"], "logprobs": ["a", "b"]}},
    ],
)
def test_records_with_wrong_values_are_errors(changes: dict[str, Any]) -> None:
    """A record with a wrong value, and a value that is no record, raise StateError."""
    with pytest.raises(StateError, match="Expected a prediction record"):
        from_record({**record(), **changes})
    with pytest.raises(StateError, match="Expected a prediction record"):
        from_record(list(changes))
