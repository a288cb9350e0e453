"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._guarantee import CertifiedCascade, certify_cascade
from calibrant.cascade._protocol import Answered, Assessment, ConfidenceMethod, NoEvidence

__all__ = [
    "Answered",
    "Assessment",
    "CertifiedCascade",
    "ConfidenceMethod",
    "NoEvidence",
    "certify_cascade",
]
