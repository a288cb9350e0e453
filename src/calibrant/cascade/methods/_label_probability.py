"""Label probability as a confidence method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from calibrant.calibration._calibrators import ConfidenceCalibrator
from calibrant.cascade._checks import check_real, is_share
from calibrant.cascade._protocol import (
    Answered,
    Assessment,
    Calibrator,
    NoEvidence,
    ShareMethod,
    calibrator_record,
    for_one_row,
)
from calibrant.core._errors import CalibrantError, ConfigurationError, NotFittedError

_LEAST = 1e-300  # as in `Prediction.log_confidence`


class LabelProbability(ShareMethod):
    """The probability of the label, as the classifier reports it, calibrated or not.

    It needs no tokens: labels that were scored (``exact``), read from tokens (``masked``, ``raw``) or
    sampled all have one. The native unit is the natural logarithm of the confidence, calibration
    included; confidences below 1e-300 count as that.

    The default threshold is 0.7, as for other methods whose confidence reads as the chance of being
    right. It must lie above 0.5: the more probable of two labels never falls below that.

    Parameters
    ----------
    calibrator : Calibrator, optional
        Fitted on other rows, as those of `calibrant.calibration`, which are told the labels as well.

    Raises
    ------
    NotFittedError
        The calibrator was not fitted.
    ConfigurationError
        It has no ``predict``.

    Examples
    --------
    >>> round(LabelProbability().to_confidence(-0.105), 2)
    0.9
    """

    name: ClassVar[str] = "label_probability"

    def __init__(self, *, calibrator: Calibrator | None = None) -> None:
        if calibrator is not None and not callable(getattr(calibrator, "predict", None)):
            raise ConfigurationError(
                f"Expected a calibrator with predict, got {calibrator!r}: take one of calibrant.calibration, such as "
                "the calibrator of what select_calibrator returns."
            )
        if isinstance(calibrator, ConfidenceCalibrator) and not hasattr(calibrator, "rows_"):
            name = type(calibrator).__name__
            raise NotFittedError(f"Expected a fitted {name}, got one before fit: call fit or load it first.")
        self.calibrator = calibrator
        self._calibrate = None if calibrator is None else for_one_row(calibrator.predict)

    async def assess(self, answered: Answered) -> Assessment | NoEvidence:
        """Return the probability of the label; `NoEvidence` if the prediction has none."""
        reported, label = answered.prediction.confidence, answered.prediction.label
        if reported is None or label is None:
            return NoEvidence(
                reason="Expected a prediction with a confidence, got one without: use a model that reports "
                "log-probabilities, or scoring='sampled'."
            )
        try:
            # Calibrators that know labels are told the label as well.
            confidence = (
                float(reported)
                if self._calibrate is None
                else float(self._calibrate(reported, predicted=label))
            )
        except CalibrantError as error:
            return NoEvidence(reason=f"The calibrator failed: {error}")
        if not is_share(confidence):
            return NoEvidence(
                reason=f"Expected a confidence in [0, 1], got {confidence!r} from {reported!r}: check the calibrator."
            )
        return Assessment(confidence=confidence, native=math.log(max(confidence, _LEAST)))

    def to_confidence(self, native: float) -> float:
        """Return the confidence of a natural log-probability.

        Raises
        ------
        ConfigurationError
            The value is not a finite number <= 0.
        """
        return math.exp(check_real("the natural logarithm of a probability", native, high=0.0))

    def describe(self) -> Mapping[str, Any]:
        """Return the method's name, and a digest of its calibrator."""
        return {"method": self.name, "calibrator": calibrator_record(self.calibrator)}
