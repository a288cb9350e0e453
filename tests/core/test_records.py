"""Predictions on disk: nothing is lost, and what is no record is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core import (
    LabelDistribution,
    LogprobSpace,
    Outcome,
    Prediction,
    StateError,
    Usage,
    prediction_from_record,
    prediction_to_record,
)

unit = st.floats(0, 1)
logprob = st.floats(-1e6, 0)


@st.composite
def distributions(draw: st.DrawFn) -> LabelDistribution:
    """Draw any distribution; it need not be one a model could produce."""
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
def test_a_prediction_survives_json(prediction: Prediction) -> None:
    """To the last bit of every float, with and without a distribution."""
    line = json.dumps(prediction_to_record(prediction), ensure_ascii=False, allow_nan=False)
    assert prediction_from_record(json.loads(line)) == prediction


def record() -> dict[str, Any]:
    """Return the record of a plain prediction."""
    distribution = LabelDistribution(
        labels=("cat", "dog"),
        logprobs=np.log([0.75, 0.25]),
        measured=np.array([True, True]),
        joint_logprob=math.log(0.75),
        label_mass=1.0,
        unresolved_mass=0.0,
        space=LogprobSpace.MASKED,
        emitted="cat",
    )
    return prediction_to_record(Prediction(label="cat", confidence=0.75, distribution=distribution))


def test_a_record_says_what_it_means_by_name() -> None:
    """The keys are the file format of run directories: changing one needs a new schema version."""
    assert set(record()) == {
        "label",
        "confidence",
        "outcome",
        "reason",
        "text",
        "distribution",
        "usage",
        "model",
        "attempts",
        "latency_seconds",
    }
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
    }


def test_an_older_record_without_the_emitted_label_and_the_bound_is_read() -> None:
    """Run directories outlive versions."""
    older = record()
    del older["distribution"]["emitted"]
    del older["distribution"]["error_bound"]
    found = prediction_from_record(older).distribution
    assert found is not None
    assert found.emitted is None
    assert found.error_bound is None
    assert found.confidence("cat") == pytest.approx(0.75)


@pytest.mark.parametrize("key", sorted(record()))
def test_a_record_without_a_key_is_refused(key: str) -> None:
    """Every key is needed."""
    broken = record()
    del broken[key]
    with pytest.raises(StateError, match=rf"Expected a prediction record, .*KeyError\('{key}'\)"):
        prediction_from_record(broken)


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "great"},
        {"usage": {"tokens": 5}},
        {"usage": None},
        {"distribution": {}},
        {"distribution": 5},
        {"distribution": {**record()["distribution"], "space": "cooked"}},
        {"distribution": {**record()["distribution"], "logprobs": ["a", "b"]}},
    ],
)
def test_a_record_with_a_wrong_value_is_refused(changes: dict[str, Any]) -> None:
    """Foreign or damaged state is one kind of error."""
    with pytest.raises(StateError, match="Expected a prediction record"):
        prediction_from_record({**record(), **changes})


def test_what_is_no_mapping_is_refused() -> None:
    """A journal line may hold any JSON."""
    with pytest.raises(StateError, match="Expected a prediction record"):
        prediction_from_record([1, 2])  # type: ignore[arg-type]
