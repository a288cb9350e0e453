"""Probabilities that mean what they say: what is learned after the model has answered."""

import importlib
from typing import Any

from calibrant.calibration._calibrators import (
    CalibrationEvaluation,
    ConfidenceCalibrator,
    IdentityCalibrator,
    IsotonicCalibrator,
    PlattCalibrator,
    TemperatureCalibrator,
)
from calibrant.calibration._certify import (
    CertifiedClassThresholds,
    CertifiedThreshold,
    candidate_thresholds,
    certify_class_thresholds,
    certify_threshold,
)
from calibrant.calibration._choice import (
    CalibratorMethod,
    CalibratorSelection,
    PerLabelCalibrator,
    calibrator_from_record,
    load_calibrator,
    select_calibrator,
)
from calibrant.calibration._conformal import ConformalMethod, ConformalSets
from calibrant.calibration._distribution import correct_distribution, correct_prediction
from calibrant.calibration._fingerprint import Fingerprint, asked_text, demonstrated
from calibrant.calibration._held_out import held_out_answer_probability
from calibrant.calibration._losses import log_normalise
from calibrant.calibration._prior import CONTENT_FREE_INPUTS, LabelPriorCorrection, PriorMethod
from calibrant.calibration._rows import FittedRows
from calibrant.calibration._saved import (
    DEMONSTRATIONS,
    UNKNOWN,
    SavedPredictions,
    read_predictions,
)
from calibrant.calibration._scaling import (
    DistributionScaling,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.calibration._state import read_state, write_state
from calibrant.calibration._thresholds import ThresholdFamily, ThresholdSuggestion, suggest_thresholds

__all__ = [
    "CONTENT_FREE_INPUTS",
    "DEMONSTRATIONS",
    "UNKNOWN",
    "CalibrationEvaluation",
    "CalibratorMethod",
    "CalibratorSelection",
    "CertifiedClassThresholds",
    "CertifiedThreshold",
    "ConfidenceCalibrator",
    "ConformalMethod",
    "ConformalSets",
    "DistributionScaling",
    "Fingerprint",
    "FittedRows",
    "IdentityCalibrator",
    "IsotonicCalibrator",
    "LabelPriorCorrection",
    "PerLabelCalibrator",
    "PlattCalibrator",
    "PriorMethod",
    "SavedPredictions",
    "TemperatureCalibrator",
    "TemperatureScaling",
    "ThresholdFamily",
    "ThresholdSuggestion",
    "VectorScaling",
    "asked_text",
    "calibrator_from_record",
    "candidate_thresholds",
    "certify_class_thresholds",
    "certify_threshold",
    "correct_distribution",
    "correct_prediction",
    "demonstrated",
    "held_out_answer_probability",
    "load_calibrator",
    "log_normalise",
    "read_predictions",
    "read_state",
    "select_calibrator",
    "suggest_thresholds",
    "write_state",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 (whatever moved)
    """Import a reader of files, all of which moved to `calibrant.evaluation`, for programs that import it from here."""
    if name in {"load_predictions", "unfinished"}:
        return getattr(importlib.import_module("calibrant.evaluation"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
