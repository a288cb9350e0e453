"""Calibration: probabilities that match the share of right answers, fitted on predictions."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.calibration._asked import AskedCertificate, certify
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
        certify_class_thresholds,
        certify_threshold,
    )
    from calibrant.calibration._choice import (
        CalibratorSelection,
        PerLabelCalibrator,
        load_calibrator,
        select_calibrator,
    )
    from calibrant.calibration._conformal import ConformalSets
    from calibrant.calibration._prior import LabelPriorCorrection
    from calibrant.calibration._promise import best_promise
    from calibrant.calibration._scaling import TemperatureScaling, VectorScaling
    from calibrant.calibration._thresholds import ThresholdSuggestion, suggest_thresholds
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "AskedCertificate",
    "CalibrationEvaluation",
    "CalibratorSelection",
    "CertifiedClassThresholds",
    "CertifiedThreshold",
    "ConfidenceCalibrator",
    "ConformalSets",
    "IdentityCalibrator",
    "IsotonicCalibrator",
    "LabelPriorCorrection",
    "PerLabelCalibrator",
    "PlattCalibrator",
    "TemperatureCalibrator",
    "TemperatureScaling",
    "ThresholdSuggestion",
    "VectorScaling",
    "best_promise",
    "certify",
    "certify_class_thresholds",
    "certify_threshold",
    "load_calibrator",
    "select_calibrator",
    "suggest_thresholds",
]
