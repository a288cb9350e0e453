"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._filters import TokenFilter
from calibrant.cascade._label_probability import LabelProbability
from calibrant.cascade._protocol import Answered, Assessment, ConfidenceMethod, NoEvidence
from calibrant.cascade._self_verify import SELF_VERIFY_PROMPT, SelfVerify
from calibrant.cascade._token_methods import AvgLogprob, Hybrid, Margin

__all__ = [
    "SELF_VERIFY_PROMPT",
    "Answered",
    "Assessment",
    "AvgLogprob",
    "ConfidenceMethod",
    "Hybrid",
    "LabelProbability",
    "Margin",
    "NoEvidence",
    "SelfVerify",
    "TokenFilter",
]
