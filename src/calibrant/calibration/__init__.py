"""Calibration: probabilities that match the share of right answers, fitted on predictions."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.calibration._calibrators import (
        ConfidenceCalibrator,
        IdentityCalibrator,
        IsotonicCalibrator,
        PlattCalibrator,
        TemperatureCalibrator,
    )
    from calibrant.calibration._certify import CertifiedThreshold, certify_class_thresholds, certify_threshold
    from calibrant.calibration._choice import PerLabelCalibrator, load_calibrator, select_calibrator
    from calibrant.calibration._conformal import ConformalSets
    from calibrant.calibration._prior import LabelPriorCorrection
    from calibrant.calibration._promise import best_promise
    from calibrant.calibration._scaling import TemperatureScaling, VectorScaling
    from calibrant.calibration._thresholds import ThresholdSuggestion, suggest_thresholds
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._calibrators": (
                "ConfidenceCalibrator IdentityCalibrator IsotonicCalibrator PlattCalibrator "
                "TemperatureCalibrator"
            ),
            "._certify": "CertifiedThreshold certify_class_thresholds certify_threshold",
            "._choice": "PerLabelCalibrator load_calibrator select_calibrator",
            "._conformal": "ConformalSets",
            "._prior": "LabelPriorCorrection",
            "._promise": "best_promise",
            "._scaling": "TemperatureScaling VectorScaling",
            "._thresholds": "ThresholdSuggestion suggest_thresholds",
        },
    )

__all__ = [
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
    "certify_class_thresholds",
    "certify_threshold",
    "load_calibrator",
    "select_calibrator",
    "suggest_thresholds",
]
