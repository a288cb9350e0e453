"""Tests of the label-prior correction of one distribution, and of its prediction."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from calibrant.calibration import LabelPriorCorrection
from calibrant.calibration._prior import correct_prediction
from calibrant.core import (
    ConfigurationError,
    LabelDistribution,
    LogprobSpace,
    NotFittedError,
    Outcome,
    Prediction,
)


def distribution(**changes: Any) -> LabelDistribution:
    """Return a distribution that favours the first of two labels."""
    fields: dict[str, Any] = {
        "labels": ("cat", "dog"),
        "logprobs": np.log([0.6, 0.4]),
        "measured": np.array([True, False]),
        "joint_logprob": -0.25,
        "label_mass": 0.7,
        "unresolved_mass": 0.1,
        "space": LogprobSpace.MASKED,
        "emitted": "cat",
    }
    return LabelDistribution(**(fields | changes))


CORRECTION = LabelPriorCorrection().fit(np.log([[0.75, 0.25]]))


def correct(given: LabelDistribution, correction: LabelPriorCorrection = CORRECTION) -> LabelDistribution:
    """Return the distribution of the corrected prediction."""
    found = correct_prediction(Prediction(label="cat", confidence=0.7, distribution=given), correction)
    assert found.distribution is not None
    return found.distribution


@pytest.mark.parametrize("emitted", ["cat", "dog", "", None])
def test_labels_masses_and_space_of_a_distribution_stay(emitted: str | None) -> None:
    """A corrected distribution keeps labels, masses and space; joint and error bound become None."""
    given = dataclasses.replace(distribution(emitted=emitted), error_bound=0.1)
    found = correct(given)
    assert found.probabilities == pytest.approx([1 / 3, 2 / 3])
    assert (found.emitted, found.joint_logprob, found.error_bound) == ("dog", None, None)
    kept = {name: getattr(given, name) for name in ("logprobs", "emitted", "joint_logprob", "error_bound")}
    assert dataclasses.replace(found, **kept) == given


def test_the_confidence_of_a_corrected_distribution_is_its_probability() -> None:
    """The confidence of a corrected distribution is the label's probability."""
    found = correct(distribution(emitted="cat"))
    assert found.confidence("cat") == pytest.approx(1 / 3)
    assert found.confidence("dog") == pytest.approx(2 / 3)


def test_a_correction_that_is_off_changes_nothing() -> None:
    """A correction of strength 0 returns the same prediction."""
    given = distribution(emitted="cat")
    off = LabelPriorCorrection(strength=0.0).fit(np.log([[0.75, 0.25]]))
    prediction = Prediction(label="cat", confidence=0.7, distribution=given)
    assert correct_prediction(prediction, off) is prediction


def test_a_corrected_prediction_has_the_corrected_label_and_confidence() -> None:
    """A corrected prediction has the corrected label and confidence, and keeps its text."""
    given = Prediction(label="cat", confidence=0.9, distribution=distribution(emitted="cat"), text="cat")
    found = correct_prediction(given, CORRECTION)
    assert (found.label, found.text) == ("dog", "cat")
    assert found.confidence == pytest.approx(2 / 3)
    nothing = Prediction(label=None, outcome=Outcome.UNPARSED, reason="not JSON")
    assert correct_prediction(nothing, CORRECTION) is nothing


def test_another_number_of_labels_is_an_error_that_names_both() -> None:
    """Another number of labels raises ConfigurationError, and an unfitted correction NotFittedError."""
    other = LabelPriorCorrection().fit(np.zeros((1, 3)))
    with pytest.raises(ConfigurationError, match=r"over 3 labels.*got 2 \('cat', 'dog'\)"):
        correct(distribution(), other)
    with pytest.raises(NotFittedError, match="fit"):
        correct(distribution(), LabelPriorCorrection())
