"""Tests of the label-prior correction of one distribution, and of its prediction."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from calibrant.calibration import LabelPriorCorrection
from calibrant.core import ConfigurationError, NotFittedError, Outcome, Prediction
from calibrant.inference import Classifier
from calibrant.testing import FakeContinuingClient
from distributions import distribution_of

LABELS = ("cat", "dog")
CORRECTION = LabelPriorCorrection().fit(np.log([[0.75, 0.25]]))


def classified(
    answer: str = "cat",
    correction: LabelPriorCorrection | None = CORRECTION,
    *,
    exactly: bool = False,
    listed: int = 5,
) -> Prediction:
    """Return a prediction of a model that favours the first of two labels, corrected."""
    said = answer if answer == "no label" else {"cat": 0.6, "dog": 0.4}
    fake = FakeContinuingClient(LABELS, lambda _: said, illegal_mass=0.0 if exactly else 0.3)
    classifier = Classifier(
        model=fake if exactly else fake.as_callable(top_logprobs=listed),
        labels=LABELS,
        field="category",
        space="raw" if not exactly else None,
        scoring="exact" if exactly else "decode",
        prior_correction=correction,
    )
    return classifier.classify("x")


@pytest.mark.parametrize("exactly", [False, True])
def test_labels_masses_and_space_of_a_distribution_stay(*, exactly: bool) -> None:
    """A corrected distribution keeps labels, masses and space; joint and error bound become None."""
    given, found = (
        distribution_of(classified(correction=correction, exactly=exactly, listed=1))
        for correction in (None, CORRECTION)
    )
    weights = given.probabilities / [0.75, 0.25]
    assert found.probabilities == pytest.approx(weights / weights.sum())
    assert (found.emitted, found.joint_logprob, found.error_bound) == ("dog", None, None)
    kept = {
        name: getattr(given, name)
        for name in ("logprobs", "emitted", "joint_logprob", "error_bound", "closing_logprob")
    }
    assert given.joint_logprob is not None
    assert given.measured.tolist() == [True, exactly]
    assert (given.error_bound is not None) is exactly
    assert dataclasses.replace(found, **kept) == given


def test_a_correction_that_is_off_changes_nothing() -> None:
    """A correction of strength 0 changes no prediction."""
    off = LabelPriorCorrection(strength=0.0).fit(np.log([[0.75, 0.25]]))
    found, given = (
        dataclasses.replace(classified(correction=correction), latency_seconds=0.0)
        for correction in (off, None)
    )
    assert found == given


def test_a_corrected_prediction_has_the_corrected_label_and_confidence() -> None:
    """A corrected prediction has the corrected label and confidence, and keeps its text; others stay."""
    found = classified()
    assert (found.label, found.text) == ("dog", '{"category": "cat"}')
    assert found.confidence == pytest.approx(2 / 3)
    assert distribution_of(found).confidence("cat") == pytest.approx(1 / 3)
    nothing = classified("no label")
    assert (nothing.label, nothing.outcome) == (None, Outcome.UNPARSED)


def test_another_number_of_labels_is_an_error_that_names_both() -> None:
    """Another number of labels raises ConfigurationError, and an unfitted correction NotFittedError."""
    with pytest.raises(ConfigurationError, match=r"over 3 labels.*got 2 \('cat', 'dog'\)"):
        classified(correction=LabelPriorCorrection().fit(np.zeros((1, 3))))
    with pytest.raises(NotFittedError, match="fit"):
        classified(correction=LabelPriorCorrection())
