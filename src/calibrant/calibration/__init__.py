"""Calibration: probabilities that match the share of right answers, fitted on finished predictions."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
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
    from calibrant.calibration._held_out import held_out_answer_probability
    from calibrant.calibration._losses import log_normalise
    from calibrant.calibration._prior import CONTENT_FREE_INPUTS, LabelPriorCorrection, PriorMethod
    from calibrant.calibration._rows import FittedRows
    from calibrant.calibration._saved import DEMONSTRATIONS, UNKNOWN, SavedPredictions, read_predictions
    from calibrant.calibration._scaling import DistributionScaling, TemperatureScaling, VectorScaling
    from calibrant.calibration._state import read_state, write_state
    from calibrant.calibration._thresholds import ThresholdFamily, ThresholdSuggestion, suggest_thresholds
    from calibrant.core.fingerprint import Fingerprint, asked_text, demonstrated
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._calibrators": (
                "CalibrationEvaluation ConfidenceCalibrator IdentityCalibrator IsotonicCalibrator "
                "PlattCalibrator TemperatureCalibrator"
            ),
            "._certify": (
                "CertifiedClassThresholds CertifiedThreshold candidate_thresholds "
                "certify_class_thresholds certify_threshold"
            ),
            "._choice": (
                "CalibratorMethod CalibratorSelection PerLabelCalibrator calibrator_from_record "
                "load_calibrator select_calibrator"
            ),
            "._conformal": "ConformalMethod ConformalSets",
            "._distribution": "correct_distribution correct_prediction",
            "._held_out": "held_out_answer_probability",
            "._losses": "log_normalise",
            "._prior": "CONTENT_FREE_INPUTS LabelPriorCorrection PriorMethod",
            "._rows": "FittedRows",
            "._saved": "DEMONSTRATIONS SavedPredictions UNKNOWN read_predictions",
            "._scaling": "DistributionScaling TemperatureScaling VectorScaling",
            "._state": "read_state write_state",
            "._thresholds": "ThresholdFamily ThresholdSuggestion suggest_thresholds",
            "calibrant.core.fingerprint": "Fingerprint asked_text demonstrated",
        },
        handed_out=dict.fromkeys(("load_predictions", "unfinished"), "calibrant.evaluation"),
    )

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
