"""Probabilities that mean what they say: what is learned after the model has answered."""

from calibrant.calibration._certify import (
    CertifiedClassThresholds,
    CertifiedThreshold,
    certify_class_thresholds,
    certify_threshold,
)
from calibrant.calibration._conformal import ConformalMethod, ConformalSets
from calibrant.calibration._distribution import correct_distribution, correct_prediction
from calibrant.calibration._fingerprint import Fingerprint
from calibrant.calibration._prior import CONTENT_FREE_INPUTS, LabelPriorCorrection, PriorMethod
from calibrant.calibration._selection import PriorSelection, select_prior_correction
from calibrant.calibration._thresholds import ThresholdFamily, ThresholdSuggestion, suggest_thresholds

__all__ = [
    "CONTENT_FREE_INPUTS",
    "CertifiedClassThresholds",
    "CertifiedThreshold",
    "ConformalMethod",
    "ConformalSets",
    "Fingerprint",
    "LabelPriorCorrection",
    "PriorMethod",
    "PriorSelection",
    "ThresholdFamily",
    "ThresholdSuggestion",
    "certify_class_thresholds",
    "certify_threshold",
    "correct_distribution",
    "correct_prediction",
    "select_prior_correction",
    "suggest_thresholds",
]
