"""The cheapest model that is sure enough: confidence methods, cascades, AutoMix, and their planning."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.cascade._calibrator import Calibrator
    from calibrant.cascade._cascade import Cascade
    from calibrant.cascade._escalation import EscalationRule
    from calibrant.cascade._limits import RowLimits
    from calibrant.cascade._models import CascadeModel
    from calibrant.cascade._named import METHOD_NAMES, method_named
    from calibrant.cascade._order import EscalationOrder
    from calibrant.cascade._protocol import Answered, Assessment, ConfidenceMethod, NoEvidence
    from calibrant.cascade._settings import (
        LOOPER_KEYS,
        ROUTED,
        VERIFYING_METHODS,
        CascadeModelSettings,
        CascadeSettings,
        HybridWeights,
    )
    from calibrant.cascade._ties import tie_ranks
    from calibrant.cascade.automix._answers import normalised_answer, token_f1
    from calibrant.cascade.automix._curves import (
        CostRatioLift,
        ReferenceLine,
        RegionLifts,
        cost_ratio_sweep,
        reference_line,
        region_lifts,
    )
    from calibrant.cascade.automix._frontier import RoutingFrontier, routing_frontier
    from calibrant.cascade.automix._ibc import ibc, ibc_lift
    from calibrant.cascade.automix._meta import (
        MetaVerifier,
        SelfConsistencyMetaVerifier,
        ThresholdMetaVerifier,
    )
    from calibrant.cascade.automix._policy import RoutingDecisions, RoutingPolicy, SignalBins
    from calibrant.cascade.automix._pomdp import PomdpForm, POMDPMetaVerifier, Rewards
    from calibrant.cascade.automix._pomdp_file import PomdpSpecification, parse_pomdp, read_pomdp
    from calibrant.cascade.automix._several import (
        CascadeDecisions,
        CascadeFrontier,
        CascadePolicy,
        cascade_frontier,
        plan_models,
    )
    from calibrant.cascade.automix._tree import CascadeAction
    from calibrant.cascade.automix._union import UnionBaseline, union_baseline
    from calibrant.cascade.methods._entailment import AutoMixEntailment
    from calibrant.cascade.methods._filters import TokenFilter
    from calibrant.cascade.methods._label_probability import LabelProbability
    from calibrant.cascade.methods._learned import LearnedScorer
    from calibrant.cascade.methods._self_verify import SELF_VERIFY_PROMPT, SelfVerify
    from calibrant.cascade.methods._token_methods import AvgLogprob, Hybrid, Margin
    from calibrant.cascade.methods._verification import Verification, Verifier
    from calibrant.cascade.methods._verifier_prompt import VERIFIER_PROMPT, VerifierPrompt
    from calibrant.cascade.planning._guarantee import CertifiedCascade, certify_cascade
    from calibrant.cascade.planning._plan import (
        CascadePlan,
        FrontierPoint,
        PlanCertificate,
        PlannedModel,
        PlanningRows,
    )
    from calibrant.cascade.planning._planner import plan_cascade
    from calibrant.cascade.planning._priced import PricedPolicy
    from calibrant.cascade.planning._recorded import RecordedRun, recorded_run
    from calibrant.cascade.planning._replay import replay
    from calibrant.cascade.planning._rules import KeepPolicy, KeepRule
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._calibrator": "Calibrator",
            "._cascade": "Cascade",
            "._escalation": "EscalationRule",
            "._limits": "RowLimits",
            "._models": "CascadeModel",
            "._named": "METHOD_NAMES method_named",
            "._order": "EscalationOrder",
            "._protocol": "Answered Assessment ConfidenceMethod NoEvidence",
            "._settings": (
                "CascadeModelSettings CascadeSettings HybridWeights LOOPER_KEYS ROUTED VERIFYING_METHODS"
            ),
            "._ties": "tie_ranks",
            ".automix._answers": "normalised_answer token_f1",
            ".automix._curves": (
                "CostRatioLift ReferenceLine RegionLifts cost_ratio_sweep reference_line region_lifts"
            ),
            ".automix._frontier": "RoutingFrontier routing_frontier",
            ".automix._ibc": "ibc ibc_lift",
            ".automix._meta": "MetaVerifier SelfConsistencyMetaVerifier ThresholdMetaVerifier",
            ".automix._policy": "RoutingDecisions RoutingPolicy SignalBins",
            ".automix._pomdp": "POMDPMetaVerifier PomdpForm Rewards",
            ".automix._pomdp_file": "PomdpSpecification parse_pomdp read_pomdp",
            ".automix._several": (
                "CascadeDecisions CascadeFrontier CascadePolicy cascade_frontier plan_models"
            ),
            ".automix._tree": "CascadeAction",
            ".automix._union": "UnionBaseline union_baseline",
            ".methods._entailment": "AutoMixEntailment",
            ".methods._filters": "TokenFilter",
            ".methods._label_probability": "LabelProbability",
            ".methods._learned": "LearnedScorer",
            ".methods._self_verify": "SELF_VERIFY_PROMPT SelfVerify",
            ".methods._token_methods": "AvgLogprob Hybrid Margin",
            ".methods._verification": "Verification Verifier",
            ".methods._verifier_prompt": "VERIFIER_PROMPT VerifierPrompt",
            ".planning._guarantee": "CertifiedCascade certify_cascade",
            ".planning._plan": "CascadePlan FrontierPoint PlanCertificate PlannedModel PlanningRows",
            ".planning._planner": "plan_cascade",
            ".planning._priced": "PricedPolicy",
            ".planning._recorded": "RecordedRun recorded_run",
            ".planning._replay": "replay",
            ".planning._rules": "KeepPolicy KeepRule",
        },
    )

__all__ = [
    "LOOPER_KEYS",
    "METHOD_NAMES",
    "ROUTED",
    "SELF_VERIFY_PROMPT",
    "VERIFIER_PROMPT",
    "VERIFYING_METHODS",
    "Answered",
    "Assessment",
    "AutoMixEntailment",
    "AvgLogprob",
    "Calibrator",
    "Cascade",
    "CascadeAction",
    "CascadeDecisions",
    "CascadeFrontier",
    "CascadeModel",
    "CascadeModelSettings",
    "CascadePlan",
    "CascadePolicy",
    "CascadeSettings",
    "CertifiedCascade",
    "ConfidenceMethod",
    "CostRatioLift",
    "EscalationOrder",
    "EscalationRule",
    "FrontierPoint",
    "Hybrid",
    "HybridWeights",
    "KeepPolicy",
    "KeepRule",
    "LabelProbability",
    "LearnedScorer",
    "Margin",
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
    "ReferenceLine",
    "RegionLifts",
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
    "UnionBaseline",
    "Verification",
    "Verifier",
    "VerifierPrompt",
    "cascade_frontier",
    "certify_cascade",
    "cost_ratio_sweep",
    "ibc",
    "ibc_lift",
    "method_named",
    "normalised_answer",
    "parse_pomdp",
    "plan_cascade",
    "plan_models",
    "read_pomdp",
    "recorded_run",
    "reference_line",
    "region_lifts",
    "replay",
    "routing_frontier",
    "tie_ranks",
    "token_f1",
    "union_baseline",
]
