"""Cascades of models: confidence methods, escalation policies, AutoMix and planning."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.cascade._cascade import Cascade
    from calibrant.cascade._protocol import CascadeModel
    from calibrant.cascade._settings import CascadeModelSettings, CascadeSettings, HybridWeights
    from calibrant.cascade.automix._frontier import ibc, ibc_lift, routing_frontier
    from calibrant.cascade.automix._meta import (
        POMDPMetaVerifier,
        SelfConsistencyMetaVerifier,
        ThresholdMetaVerifier,
    )
    from calibrant.cascade.automix._several import CascadePolicy, plan_models, union_baseline
    from calibrant.cascade.methods._entailment import AutoMixEntailment
    from calibrant.cascade.methods._reported import AvgLogprob, Hybrid, LabelProbability, Margin, TokenFilter
    from calibrant.cascade.methods._self_verify import SelfVerify
    from calibrant.cascade.methods._verification import Verifier
    from calibrant.cascade.planning._guarantee import certify_cascade
    from calibrant.cascade.planning._planner import plan_cascade
    from calibrant.cascade.planning._recorded import RecordedRun
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._cascade": "Cascade",
            "._protocol": "CascadeModel",
            "._settings": "CascadeModelSettings CascadeSettings HybridWeights",
            ".automix._frontier": "ibc ibc_lift routing_frontier",
            ".automix._meta": "POMDPMetaVerifier SelfConsistencyMetaVerifier ThresholdMetaVerifier",
            ".automix._several": "CascadePolicy plan_models union_baseline",
            ".methods._entailment": "AutoMixEntailment",
            ".methods._reported": "AvgLogprob Hybrid LabelProbability Margin TokenFilter",
            ".methods._self_verify": "SelfVerify",
            ".methods._verification": "Verifier",
            ".planning._guarantee": "certify_cascade",
            ".planning._planner": "plan_cascade",
            ".planning._recorded": "RecordedRun",
        },
    )

__all__ = [
    "AutoMixEntailment",
    "AvgLogprob",
    "Cascade",
    "CascadeModel",
    "CascadeModelSettings",
    "CascadePolicy",
    "CascadeSettings",
    "Hybrid",
    "HybridWeights",
    "LabelProbability",
    "Margin",
    "POMDPMetaVerifier",
    "RecordedRun",
    "SelfConsistencyMetaVerifier",
    "SelfVerify",
    "ThresholdMetaVerifier",
    "TokenFilter",
    "Verifier",
    "certify_cascade",
    "ibc",
    "ibc_lift",
    "plan_cascade",
    "plan_models",
    "routing_frontier",
    "union_baseline",
]
