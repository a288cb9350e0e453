"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._frontier import RoutingFrontier, routing_frontier
from calibrant.cascade._guarantee import CertifiedCascade, certify_cascade
from calibrant.cascade._ibc import ibc, ibc_lift
from calibrant.cascade._plan import (
    CascadePlan,
    FrontierPoint,
    PlanCertificate,
    PlannedModel,
    PlanningRows,
)
from calibrant.cascade._planner import plan_cascade
from calibrant.cascade._policy import RoutingDecisions, RoutingPolicy, SignalBins
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
    "NoEvidence",
    "PlanCertificate",
    "PlannedModel",
    "PlanningRows",
    "PricedPolicy",
    "RecordedRun",
    "RoutingDecisions",
    "RoutingFrontier",
    "RoutingPolicy",
    "SignalBins",
    "certify_cascade",
    "ibc",
    "ibc_lift",
    "plan_cascade",
    "recorded_run",
    "replay",
    "routing_frontier",
]
