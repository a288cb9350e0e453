"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from calibrant.cascade._answers import normalised_answer, token_f1
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

__all__ = [
    "Answered",
    "Assessment",
    "ConfidenceMethod",
    "MetaVerifier",
    "NoEvidence",
    "POMDPMetaVerifier",
    "PomdpForm",
    "PomdpSpecification",
    "Rewards",
    "RoutingDecisions",
    "RoutingFrontier",
    "RoutingPolicy",
    "SelfConsistencyMetaVerifier",
    "SignalBins",
    "ThresholdMetaVerifier",
    "format_pomdp",
    "ibc",
    "ibc_lift",
    "normalised_answer",
    "parse_pomdp",
    "read_pomdp",
    "routing_frontier",
    "token_f1",
    "write_pomdp",
]
