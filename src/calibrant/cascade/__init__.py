"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._frontier import RoutingFrontier, routing_frontier
from calibrant.cascade._guarantee import CertifiedCascade, certify_cascade
from calibrant.cascade._ibc import ibc, ibc_lift
from calibrant.cascade._policy import RoutingDecisions, RoutingPolicy, SignalBins
from calibrant.cascade._protocol import Answered, Assessment, ConfidenceMethod, NoEvidence

__all__ = [
    "Answered",
    "Assessment",
    "CertifiedCascade",
    "ConfidenceMethod",
    "NoEvidence",
    "RoutingDecisions",
    "RoutingFrontier",
    "RoutingPolicy",
    "SignalBins",
    "certify_cascade",
    "ibc",
    "ibc_lift",
    "routing_frontier",
]
