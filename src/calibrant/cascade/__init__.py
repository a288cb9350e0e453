"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._cascade import Cascade
from calibrant.cascade._entailment import AutoMixEntailment
from calibrant.cascade._filters import TokenFilter
from calibrant.cascade._label_probability import LabelProbability
from calibrant.cascade._learned import LearnedScorer
from calibrant.cascade._limits import RowLimits
from calibrant.cascade._models import CascadeModel
from calibrant.cascade._named import METHOD_NAMES, method_named
from calibrant.cascade._order import EscalationOrder
from calibrant.cascade._policy import Calibrator, EscalationRule
from calibrant.cascade._protocol import Answered, Assessment, ConfidenceMethod, NoEvidence
from calibrant.cascade._self_verify import SELF_VERIFY_PROMPT, SelfVerify
from calibrant.cascade._token_methods import AvgLogprob, Hybrid, Margin
from calibrant.cascade._verification import Verification, Verifier
from calibrant.cascade._verifier_prompt import VERIFIER_PROMPT, VerifierPrompt

__all__ = [
    "METHOD_NAMES",
    "SELF_VERIFY_PROMPT",
    "VERIFIER_PROMPT",
    "Answered",
    "Assessment",
    "AutoMixEntailment",
    "AvgLogprob",
    "Calibrator",
    "Cascade",
    "CascadeModel",
    "ConfidenceMethod",
    "EscalationOrder",
    "EscalationRule",
    "Hybrid",
    "LabelProbability",
    "LearnedScorer",
    "Margin",
    "NoEvidence",
    "RowLimits",
    "SelfVerify",
    "TokenFilter",
    "Verification",
    "Verifier",
    "VerifierPrompt",
    "method_named",
]
