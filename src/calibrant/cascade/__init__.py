"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._answers import normalised_answer, token_f1
from calibrant.cascade._curves import (
    CostRatioLift,
    ReferenceLine,
    RegionLifts,
    cost_ratio_sweep,
    reference_line,
    region_lifts,
)
from calibrant.cascade._frontier import RoutingFrontier, routing_frontier
from calibrant.cascade._ibc import ibc, ibc_lift
from calibrant.cascade._meta import MetaVerifier, SelfConsistencyMetaVerifier, ThresholdMetaVerifier
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
from calibrant.cascade._several import (
    CascadeDecisions,
    CascadeFrontier,
    CascadePolicy,
    cascade_frontier,
    plan_models,
)
from calibrant.cascade._tree import CascadeAction

__all__ = [
    "Answered",
    "Assessment",
    "CascadeAction",
    "CascadeDecisions",
    "CascadeFrontier",
    "CascadePolicy",
    "ConfidenceMethod",
    "CostRatioLift",
    "MetaVerifier",
    "NoEvidence",
    "POMDPMetaVerifier",
    "PomdpForm",
    "PomdpSpecification",
    "ReferenceLine",
    "RegionLifts",
    "Rewards",
    "RoutingDecisions",
    "RoutingFrontier",
    "RoutingPolicy",
    "SelfConsistencyMetaVerifier",
    "SignalBins",
    "ThresholdMetaVerifier",
    "cascade_frontier",
    "cost_ratio_sweep",
    "format_pomdp",
    "ibc",
    "ibc_lift",
    "normalised_answer",
    "parse_pomdp",
    "plan_models",
    "read_pomdp",
    "reference_line",
    "region_lifts",
    "routing_frontier",
    "token_f1",
    "write_pomdp",
]
