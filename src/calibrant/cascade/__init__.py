"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._answers import normalised_answer, token_f1
from calibrant.cascade._frontier import RoutingFrontier, routing_frontier
from calibrant.cascade._guarantee import CertifiedCascade, certify_cascade
from calibrant.cascade._ibc import ibc, ibc_lift
from calibrant.cascade._meta import MetaVerifier, SelfConsistencyMetaVerifier, ThresholdMetaVerifier
from calibrant.cascade._plan import CascadePlan, FrontierPoint, PlanCertificate, PlannedModel, PlanningRows
from calibrant.cascade._planner import plan_cascade
from calibrant.cascade._policy import RoutingDecisions, RoutingPolicy, SignalBins
from calibrant.cascade._pomdp import PomdpForm, POMDPMetaVerifier, Rewards
from calibrant.cascade._pomdp_file import (
    PomdpSpecification,
    format_pomdp,
    parse_pomdp,
    read_pomdp,
    write_pomdp,
)
from calibrant.cascade._priced import PricedPolicy
from calibrant.cascade._protocol import Answered, Assessment, ConfidenceMethod, NoEvidence
from calibrant.cascade._recorded import RecordedRun, recorded_run
from calibrant.cascade._replay import replay
from calibrant.cascade._rules import CascadePolicy, KeepRule

__all__ = [
    "Answered",
    "Assessment",
    "CascadePlan",
    "CascadePolicy",
    "CertifiedCascade",
    "ConfidenceMethod",
    "FrontierPoint",
    "KeepRule",
    "MetaVerifier",
    "NoEvidence",
    "POMDPMetaVerifier",
    "PlanCertificate",
    "PlannedModel",
    "PlanningRows",
    "PomdpForm",
    "PomdpSpecification",
    "PricedPolicy",
    "RecordedRun",
    "Rewards",
    "RoutingDecisions",
    "RoutingFrontier",
    "RoutingPolicy",
    "SelfConsistencyMetaVerifier",
    "SignalBins",
    "ThresholdMetaVerifier",
    "certify_cascade",
    "format_pomdp",
    "ibc",
    "ibc_lift",
    "normalised_answer",
    "parse_pomdp",
    "plan_cascade",
    "read_pomdp",
    "recorded_run",
    "replay",
    "routing_frontier",
    "token_f1",
    "write_pomdp",
]
