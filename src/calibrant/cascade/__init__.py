"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._entailment import AutoMixEntailment
from calibrant.cascade._protocol import Answered, Assessment, ConfidenceMethod, NoEvidence
from calibrant.cascade._verification import Verification, Verifier
from calibrant.cascade._verifier_prompt import VERIFIER_PROMPT, VerifierPrompt

__all__ = [
    "VERIFIER_PROMPT",
    "Answered",
    "Assessment",
    "AutoMixEntailment",
    "ConfidenceMethod",
    "NoEvidence",
    "Verification",
    "Verifier",
    "VerifierPrompt",
]
