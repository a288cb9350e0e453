"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._entailment import AutoMixEntailment
from calibrant.cascade._filters import TokenFilter
from calibrant.cascade._label_probability import LabelProbability
from calibrant.cascade._protocol import Answered, Assessment, ConfidenceMethod, NoEvidence
from calibrant.cascade._self_verify import SELF_VERIFY_PROMPT, SelfVerify
from calibrant.cascade._token_methods import AvgLogprob, Hybrid, Margin
from calibrant.cascade._verification import Verification, Verifier
from calibrant.cascade._verifier_prompt import VERIFIER_PROMPT, VerifierPrompt

__all__ = [
    "SELF_VERIFY_PROMPT",
    "VERIFIER_PROMPT",
    "Answered",
    "Assessment",
    "AutoMixEntailment",
    "AvgLogprob",
    "ConfidenceMethod",
    "Hybrid",
    "LabelProbability",
    "Margin",
    "NoEvidence",
    "SelfVerify",
    "TokenFilter",
    "Verification",
    "Verifier",
    "VerifierPrompt",
]
