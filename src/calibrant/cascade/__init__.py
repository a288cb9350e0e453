"""Cascades of models: confidence methods, escalation policies, AutoMix and planning."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.cascade._cascade import Cascade
    from calibrant.cascade._escalation import EscalationRule
    from calibrant.cascade._methods import (
        CascadeModelSettings,
        CascadeSettings,
        HybridWeights,
        register_method,
    )
    from calibrant.cascade._protocol import (
        Answered,
        Assessment,
        BaseMethod,
        Calibrator,
        CascadeModel,
        ConfidenceMethod,
        NoEvidence,
    )
    from calibrant.cascade._rules import KeepPolicy, KeepRule, Route
    from calibrant.cascade.automix._frontier import (
        RoutingFrontier,
        RoutingPolicy,
        SignalBins,
        ibc,
        ibc_lift,
        routing_frontier,
    )
    from calibrant.cascade.automix._meta import (
        MetaVerifier,
        POMDPMetaVerifier,
        SelfConsistencyMetaVerifier,
        ThresholdMetaVerifier,
    )
    from calibrant.cascade.automix._several import (
        CascadeAction,
        CascadeFrontier,
        CascadePolicy,
        UnionBaseline,
        plan_models,
        union_baseline,
    )
    from calibrant.cascade.methods._reported import AvgLogprob, Hybrid, LabelProbability, Margin, TokenFilter
    from calibrant.cascade.methods._self_verify import SelfVerify
    from calibrant.cascade.methods._verification import AutoMixEntailment, Verification, Verifier
    from calibrant.cascade.planning._guarantee import CertifiedCascade, certify_cascade
    from calibrant.cascade.planning._plan import (
        CascadePlan,
        FrontierPoint,
        PlanCertificate,
        PlannedModel,
        PlanningRows,
        PricedPolicy,
        Prices,
    )
    from calibrant.cascade.planning._planner import plan_cascade, replay
    from calibrant.cascade.planning._recorded import PairedRuns, RecordedRun, recorded_run
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Answered",
    "Assessment",
    "AutoMixEntailment",
    "AvgLogprob",
    "BaseMethod",
    "Calibrator",
    "Cascade",
    "CascadeAction",
    "CascadeFrontier",
    "CascadeModel",
    "CascadeModelSettings",
    "CascadePlan",
    "CascadePolicy",
    "CascadeSettings",
    "CertifiedCascade",
    "ConfidenceMethod",
    "EscalationRule",
    "FrontierPoint",
    "Hybrid",
    "HybridWeights",
    "KeepPolicy",
    "KeepRule",
    "LabelProbability",
    "Margin",
    "MetaVerifier",
    "NoEvidence",
    "POMDPMetaVerifier",
    "PairedRuns",
    "PlanCertificate",
    "PlannedModel",
    "PlanningRows",
    "PricedPolicy",
    "Prices",
    "RecordedRun",
    "Route",
    "RoutingFrontier",
    "RoutingPolicy",
    "SelfConsistencyMetaVerifier",
    "SelfVerify",
    "SignalBins",
    "ThresholdMetaVerifier",
    "TokenFilter",
    "UnionBaseline",
    "Verification",
    "Verifier",
    "certify_cascade",
    "ibc",
    "ibc_lift",
    "plan_cascade",
    "plan_models",
    "recorded_run",
    "register_method",
    "replay",
    "routing_frontier",
    "union_baseline",
]
