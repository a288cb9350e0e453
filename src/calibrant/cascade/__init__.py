"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._answers import normalised_answer, token_f1
from calibrant.cascade._cascade import Cascade
from calibrant.cascade._entailment import AutoMixEntailment
from calibrant.cascade._escalation import Calibrator, EscalationRule
from calibrant.cascade._filters import TokenFilter
from calibrant.cascade._frontier import RoutingFrontier, routing_frontier
from calibrant.cascade._ibc import ibc, ibc_lift
from calibrant.cascade._label_probability import LabelProbability
from calibrant.cascade._learned import LearnedScorer
from calibrant.cascade._limits import RowLimits
from calibrant.cascade._meta import MetaVerifier, SelfConsistencyMetaVerifier, ThresholdMetaVerifier
from calibrant.cascade._models import CascadeModel
from calibrant.cascade._named import METHOD_NAMES, method_named
from calibrant.cascade._order import EscalationOrder
from calibrant.cascade._policy import RoutingDecisions, RoutingPolicy, SignalBins
from calibrant.cascade._pomdp import PomdpForm, POMDPMetaVerifier, Rewards
from calibrant.cascade._pomdp_file import (
    PomdpSpecification,
    format_pomdp,
    parse_pomdp,
    read_pomdp,
    write_pomdp,
)
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
    "MetaVerifier",
    "NoEvidence",
    "POMDPMetaVerifier",
    "PomdpForm",
    "PomdpSpecification",
    "Rewards",
    "RoutingDecisions",
    "RoutingFrontier",
    "RoutingPolicy",
    "RowLimits",
    "SelfConsistencyMetaVerifier",
    "SelfVerify",
    "SignalBins",
    "ThresholdMetaVerifier",
    "TokenFilter",
    "Verification",
    "Verifier",
    "VerifierPrompt",
    "format_pomdp",
    "ibc",
    "ibc_lift",
    "method_named",
    "normalised_answer",
    "parse_pomdp",
    "read_pomdp",
    "routing_frontier",
    "token_f1",
    "write_pomdp",
]
