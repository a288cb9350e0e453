"""Cascades of models: confidence methods, escalation policies, AutoMix and planning."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.cascade._cascade import Cascade
    from calibrant.cascade._protocol import Answered, Assessment, CascadeModel, ConfidenceMethod, NoEvidence
    from calibrant.cascade._settings import CascadeModelSettings, CascadeSettings, HybridWeights
    from calibrant.cascade.automix._frontier import RoutingFrontier, ibc, ibc_lift, routing_frontier
    from calibrant.cascade.automix._meta import (
        MetaVerifier,
        POMDPMetaVerifier,
        SelfConsistencyMetaVerifier,
        ThresholdMetaVerifier,
    )
    from calibrant.cascade.automix._several import CascadeAction, CascadePolicy, plan_models, union_baseline
    from calibrant.cascade.methods._entailment import AutoMixEntailment
    from calibrant.cascade.methods._reported import AvgLogprob, Hybrid, LabelProbability, Margin, TokenFilter
    from calibrant.cascade.methods._self_verify import SelfVerify
    from calibrant.cascade.methods._verification import Verification, Verifier
    from calibrant.cascade.planning._guarantee import certify_cascade
    from calibrant.cascade.planning._plan import CascadePlan
    from calibrant.cascade.planning._planner import plan_cascade
    from calibrant.cascade.planning._recorded import RecordedRun
    from calibrant.cascade.planning._rules import KeepPolicy, KeepRule
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._cascade": "Cascade",
            "._protocol": "Answered Assessment CascadeModel ConfidenceMethod NoEvidence",
            "._settings": "CascadeModelSettings CascadeSettings HybridWeights",
            ".automix._frontier": "RoutingFrontier ibc ibc_lift routing_frontier",
            ".automix._meta": "MetaVerifier POMDPMetaVerifier SelfConsistencyMetaVerifier ThresholdMetaVerifier",
            ".automix._several": "CascadeAction CascadePolicy plan_models union_baseline",
            ".methods._entailment": "AutoMixEntailment",
            ".methods._reported": "AvgLogprob Hybrid LabelProbability Margin TokenFilter",
            ".methods._self_verify": "SelfVerify",
            ".methods._verification": "Verification Verifier",
            ".planning._guarantee": "certify_cascade",
            ".planning._plan": "CascadePlan",
            ".planning._planner": "plan_cascade",
            ".planning._recorded": "RecordedRun",
            ".planning._rules": "KeepPolicy KeepRule",
        },
    )

__all__ = [
    "Answered",
    "Assessment",
    "AutoMixEntailment",
    "AvgLogprob",
    "Cascade",
    "CascadeAction",
    "CascadeModel",
    "CascadeModelSettings",
    "CascadePlan",
    "CascadePolicy",
    "CascadeSettings",
    "ConfidenceMethod",
    "Hybrid",
    "HybridWeights",
    "KeepPolicy",
    "KeepRule",
    "LabelProbability",
    "Margin",
    "MetaVerifier",
    "NoEvidence",
    "POMDPMetaVerifier",
    "RecordedRun",
    "RoutingFrontier",
    "SelfConsistencyMetaVerifier",
    "SelfVerify",
    "ThresholdMetaVerifier",
    "TokenFilter",
    "Verification",
    "Verifier",
    "certify_cascade",
    "ibc",
    "ibc_lift",
    "plan_cascade",
    "plan_models",
    "routing_frontier",
    "union_baseline",
]
