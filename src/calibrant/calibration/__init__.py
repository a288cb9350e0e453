"""Probabilities that mean what they say: what is learned after the model has answered."""

from calibrant.calibration._distribution import correct_distribution, correct_prediction
from calibrant.calibration._fingerprint import Fingerprint
from calibrant.calibration._prior import CONTENT_FREE_INPUTS, LabelPriorCorrection, PriorMethod
from calibrant.calibration._selection import PriorSelection, select_prior_correction

__all__ = [
    "CONTENT_FREE_INPUTS",
    "Fingerprint",
    "LabelPriorCorrection",
    "PriorMethod",
    "PriorSelection",
    "correct_distribution",
    "correct_prediction",
    "select_prior_correction",
]
