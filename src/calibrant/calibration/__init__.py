"""Calibration: probabilities that match the share of right answers, fitted on predictions."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.calibration._asked import AskedCertificate, certify
    from calibrant.calibration._calibrators import (
        CalibrationEvaluation,
        CalibratorSelection,
        ConfidenceCalibrator,
        IdentityCalibrator,
        IsotonicCalibrator,
        PerLabelCalibrator,
        PlattCalibrator,
        TemperatureCalibrator,
        load_calibrator,
        select_calibrator,
    )
    from calibrant.calibration._conformal import ConformalSets
    from calibrant.calibration._estimates import (
        DifferenceEstimate,
        Estimate,
        PileEstimate,
        estimate,
        estimate_difference,
    )
    from calibrant.calibration._prior import LabelPriorCorrection
    from calibrant.calibration._scaling import TemperatureScaling, VectorScaling
    from calibrant.calibration._thresholds import (
        CertifiedClassThresholds,
        CertifiedThreshold,
        Looks,
        ThresholdSuggestion,
        best_promise,
        certify_class_thresholds,
        certify_threshold,
        suggest_thresholds,
    )
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
    "DifferenceEstimate",
    "Estimate",
    "IdentityCalibrator",
    "IsotonicCalibrator",
    "LabelPriorCorrection",
    "Looks",
    "PerLabelCalibrator",
    "PileEstimate",
    "PlattCalibrator",
    "TemperatureCalibrator",
    "TemperatureScaling",
    "ThresholdSuggestion",
    "VectorScaling",
    "best_promise",
    "certify",
    "certify_class_thresholds",
    "certify_threshold",
    "estimate",
    "estimate_difference",
    "load_calibrator",
    "select_calibrator",
    "suggest_thresholds",
]
