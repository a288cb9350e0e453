"""Tests of the label's probability as confidence, with and without a calibrator."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import numpy as np
import pytest

from calibrant.calibration import IsotonicCalibrator, PerLabelCalibrator, PlattCalibrator
from calibrant.cascade import Answered, Assessment, LabelProbability, NoEvidence
from calibrant.core import ConfigurationError, NotFittedError, Prediction
from calibrant.inference import Classifier
from calibrant.testing import FakeClient, FakeContinuingClient

LABELS = ["cat", "dog"]
CLASSIFIER = Classifier(model=FakeClient(LABELS, {"meow": ("cat", 0.9)}), labels=LABELS, field="category")


def judged(method: LabelProbability, confidence: float | None, label: str = "cat") -> Assessment | NoEvidence:
    """Return the method's result for an answer of some confidence."""
    prediction = Prediction(label=label, confidence=confidence)
    return asyncio.run(method.assess(Answered(question="meow", prediction=prediction, classifier=CLASSIFIER)))


def assess(method: LabelProbability, confidence: float, label: str = "cat") -> Assessment:
    """Return the assessment, or fail the test if there is no evidence."""
    found = judged(method, confidence, label)
    assert isinstance(found, Assessment), found
    return found


def refused(method: LabelProbability, confidence: float | None) -> str:
    """Return why there is no evidence."""
    found = judged(method, confidence)
    assert isinstance(found, NoEvidence), found
    return found.reason


def platt(flip: int = 0) -> PlattCalibrator:
    """Return a Platt calibrator that maps 0.9 to less."""
    rng = np.random.default_rng(flip)
    confidence = rng.uniform(0.5, 1.0, 400)
    return PlattCalibrator().fit(confidence, rng.uniform(size=400) < confidence**3)


def test_the_probability_of_the_label_is_its_confidence() -> None:
    """The confidence is the label's probability, and the native unit its natural logarithm."""
    found = assess(LabelProbability(), 0.9)
    assert found == Assessment(confidence=0.9, native=math.log(0.9))
    nothing = assess(LabelProbability(), 0.0)
    assert (nothing.confidence, nothing.native) == (0.0, math.log(1e-300))


@pytest.mark.parametrize("client", [FakeClient, FakeContinuingClient])
def test_it_needs_no_tokens(client: Any) -> None:
    """`LabelProbability` assesses scored labels and decoded answers without tokens."""
    asked = Classifier(model=client(LABELS, {"meow": ("cat", 0.9)}), labels=LABELS, field="category")
    prediction = asked.classify("meow")
    assert prediction.tokens is None
    found = asyncio.run(
        LabelProbability().assess(Answered(question="meow", prediction=prediction, classifier=asked))
    )
    assert isinstance(found, Assessment)
    assert found.confidence == pytest.approx(0.9, abs=0.01)


def test_an_answer_without_confidence_is_no_evidence() -> None:
    """The reason for a missing confidence says what to do."""
    assert "reports log-probabilities" in refused(LabelProbability(), None)


def test_a_calibrator_is_applied() -> None:
    """The native value is the logarithm of the calibrated confidence."""
    calibrator = platt()
    method = LabelProbability(calibrator=calibrator)
    found = assess(method, 0.9)
    assert found.confidence == pytest.approx(float(calibrator.predict([0.9])[0]))
    assert found.confidence < 0.85
    assert method.to_confidence(found.native) == pytest.approx(found.confidence)


def test_calibrators_get_the_label() -> None:
    """A calibrator per label maps the same confidence differently for each label."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1.0, 1000)
    predicted = ["cat", "dog"] * 500
    right = rng.uniform(size=1000) < np.where(np.arange(1000) % 2, confidence**6, confidence)
    method = LabelProbability(calibrator=PerLabelCalibrator().fit(confidence, right, predicted=predicted))
    cat, dog = (assess(method, 0.9, label) for label in LABELS)
    assert cat.confidence - dog.confidence > 0.2


class Foreign:
    """Calibrator of a user's own class."""

    def __init__(self, *returned: float) -> None:
        self.returned = returned

    def predict(self, confidence: Any, /) -> Any:
        """Return the given value, or else the square."""
        return np.array(self.returned) if self.returned else np.asarray(confidence) ** 2


def test_anything_that_predicts_is_a_calibrator() -> None:
    """Any object with ``predict`` is accepted, and its value is checked."""
    assert assess(LabelProbability(calibrator=Foreign()), 0.9).confidence == pytest.approx(0.81)
    for bad in (1.5, -0.1, math.nan):
        assert "check the calibrator" in refused(LabelProbability(calibrator=Foreign(bad)), 0.9)


def test_unusable_calibrators_are_refused() -> None:
    """An unfitted calibrator, or one without ``predict``, is refused by the constructor."""
    with pytest.raises(NotFittedError, match="fitted PlattCalibrator"):
        LabelProbability(calibrator=PlattCalibrator())
    with pytest.raises(ConfigurationError, match="predict"):
        LabelProbability(calibrator=0.9)  # type: ignore[arg-type]


def test_a_confidence_out_of_range_is_no_evidence() -> None:
    """A confidence outside [0, 1] is no evidence, with or without a calibrator."""
    for calibrator in (None, platt()):
        assert "1.5" in refused(LabelProbability(calibrator=calibrator), 1.5)


def test_it_describes_what_the_calibrator_learned() -> None:
    """The description differs between calibrators with different fits, and is JSON."""
    calibrators: list[Any] = [None, platt(), platt(1), Foreign(), Foreign(*[0.5] * 1001)]
    calibrators.append(IsotonicCalibrator().fit([0.2, 0.4, 0.6, 0.8], [0, 1, 0, 1]))
    described = [json.dumps(LabelProbability(calibrator=one).describe()) for one in calibrators]
    assert len(set(described)) == len(calibrators)
    assert described[1] == json.dumps(LabelProbability(calibrator=platt()).describe())
