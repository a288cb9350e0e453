"""Tests of the public names: names, parameters and defaults that must not change."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from importlib import metadata

import pytest
from typer.testing import CliRunner

import calibrant
from calibrant.cli import app
from calibrant.core import CalibrantError

PINNED = {
    package: names.split()
    for package, names in {
        "calibrant": (
            "BatchEvaluator CalibrantError Cascade Classifier ConfidenceAdapter Example Field "
            "FieldLabels HierarchicalLabels LabelDistribution LabelSet LinearBlendScoring MultiLabels "
            "OrdinalLabels Prediction SigmoidScoring Task ThresholdScoring load optimize"
        ),
        "calibrant.adapters": "ConfidenceAdapter",
        "calibrant.calibration": (
            "IsotonicCalibrator LabelPriorCorrection PlattCalibrator TemperatureCalibrator "
            "certify_threshold suggest_thresholds"
        ),
        "calibrant.cascade": (
            "AutoMixEntailment AvgLogprob Cascade CascadeModel Hybrid Margin POMDPMetaVerifier "
            "SelfConsistencyMetaVerifier SelfVerify ThresholdMetaVerifier ibc ibc_lift plan_cascade "
            "routing_frontier"
        ),
        "calibrant.evaluation": "BatchEvaluator EvaluationHistory",
        "calibrant.heads": "Head TextBaseline fit_head",
        "calibrant.logprobs": "extract_distribution",
        "calibrant.metrics": (
            "aurc auroc bootstrap_interval brier_score classification_summary "
            "expected_calibration_error paired_comparison selective_accuracy wilson_interval"
        ),
        "calibrant.optimization": "ExemplarProposer optimize",
        "calibrant.routing": (
            "BanditRouter CascadeRouter CoherenceMonitor EMARouter Observation QualityGate "
            "ThompsonRouter TriageRouter"
        ),
        "calibrant.scoring": (
            "BrierScoring LinearBlendScoring LogScoring ScoringStrategy SigmoidScoring ThresholdScoring"
        ),
        "calibrant.sklearn": "CalibrantClassifier",
    }.items()
}
PACKAGES = [
    "calibrant",
    *sorted(f"calibrant.{module.name}" for module in pkgutil.iter_modules(calibrant.__path__)),
]

# Parameters in order; those behind "*" are keyword-only.
SIGNATURES = {
    "calibrant.cascade.Cascade": "classifiers * method threshold native_threshold escalation_order on_error",
    "calibrant.cascade.Hybrid": "* logprob_weight margin_weight",
    "calibrant.cascade.ThresholdMetaVerifier.fit": "self verifier_score small_score large_score * "
    "small_cost large_cost verifier_cost",
    "calibrant.cascade.ThresholdMetaVerifier.route": "self verifier_score",
    "calibrant.cascade.ibc": "* performance cost small_performance small_cost",
    "calibrant.cascade.ibc_lift": "* performance cost small_performance small_cost large_performance large_cost",
    "calibrant.cascade.plan_cascade": "small large * small_cost large_cost epsilon delta target_accuracy budget",
    "calibrant.cascade.routing_frontier": "signal small_score large_score * small_cost large_cost verifier_cost",
    "calibrant.evaluation.BatchEvaluator": "classifier * concurrency cache",
    "calibrant.evaluation.BatchEvaluator.evaluate": "self examples",
    "calibrant.evaluation.EvaluationHistory": "url",
    "calibrant.evaluation.EvaluationHistory.record": "self * account_id evaluator_id profile_name score_raw passed "
    "family capture",
    "calibrant.evaluation.EvaluationHistory.interval": "self * account_id evaluator_id profile_name strategy alpha rng",
    "calibrant.optimization.optimize": "task * model reflection_model proposer max_metric_calls seed out",
    "calibrant.optimization.ExemplarProposer": "* train token_budget seed",
    "calibrant.logprobs.extract_distribution": "response labels field_path space",
    "calibrant.Classifier": "* model labels field prompt",
    "calibrant.scoring.LinearBlendScoring": "low_confidence_threshold min_score_on_correct",
    "calibrant.scoring.ThresholdScoring": "threshold",
    "calibrant.scoring.SigmoidScoring": "midpoint steepness",
}
DEFAULTS = {
    "calibrant.cascade.Cascade": {
        "threshold": None,
        "native_threshold": None,
        "escalation_order": "small_to_large",
        "on_error": "skip",
    },
    "calibrant.cascade.Hybrid": {"logprob_weight": 0.5, "margin_weight": 0.5},
    "calibrant.cascade.plan_cascade": {
        "epsilon": 0.02,
        "delta": 0.1,
        "target_accuracy": None,
        "budget": None,
    },
    "calibrant.cascade.routing_frontier": {"verifier_cost": None},
    "calibrant.evaluation.BatchEvaluator": {"concurrency": None, "cache": None},
    "calibrant.evaluation.EvaluationHistory.record": {"passed": None, "family": None, "capture": "always"},
    "calibrant.evaluation.EvaluationHistory.interval": {
        "strategy": "full-history",
        "alpha": 0.95,
        "rng": None,
    },
    "calibrant.optimization.optimize": {"model": None, "reflection_model": None, "proposer": None, "seed": 0},
    "calibrant.optimization.ExemplarProposer": {"token_budget": 600, "seed": 0},
    "calibrant.logprobs.extract_distribution": {"space": "masked"},
    "calibrant.scoring.LinearBlendScoring": {"low_confidence_threshold": 0.5, "min_score_on_correct": 0.3},
    "calibrant.scoring.ThresholdScoring": {"threshold": 0.7},
    "calibrant.scoring.SigmoidScoring": {"midpoint": 0.5, "steepness": 10.0},
}
# Public names that cannot have a docstring of their own, and why.
WITHOUT_EXAMPLE = {
    "calibrant.adapters.OBJECTIVES": "a mapping, whose docstring is that of dict",
    "calibrant.adapters.Thresholds": "the type of a parameter: a literal, described where it is given",
    "calibrant.cascade.TokenFilter": "the type of a parameter: a literal, described where it is given",
    "calibrant.cli.app": "an object of typer, whose docstring is typer's; `main` runs it",
    "calibrant.core.QuestionKind": "the type of an attribute: a literal, described where it is given",
    "calibrant.testing.Answer": "the type of a parameter: a union, described where it is given",
}
# Types that public functions and classes take or return: the examples of these show them.
SHOWN_ELSEWHERE = {
    f"{package}.{name}"
    for package, names in {
        "calibrant.adapters": "CallBudget CallCounter EvaluationObserver OBJECTIVES SearchSize",
        "calibrant.calibration": (
            "CalibrationEvaluation CalibratorSelection CertifiedClassThresholds CertifiedThreshold "
            "ConfidenceCalibrator ThresholdSuggestion"
        ),
        "calibrant.cascade": (
            "Answered Assessment Calibrator CascadeAction CascadeFrontier CascadePlan "
            "CertifiedCascade EscalationRule FrontierPoint KeepPolicy KeepRule PairedRuns "
            "PlanCertificate PlannedModel PlanningRows PricedPolicy Prices Route RoutingFrontier "
            "RoutingPolicy SignalBins UnionBaseline Verification"
        ),
        "calibrant.core": (
            "Aspect CalibrationSettings Columns CompositeLabels Continuation CsvFormat "
            "DemonstrationSettings Fingerprint HeadSettings ModelSettings NextTokens Part "
            "ScoringSettings Section SectionTable Step"
        ),
        "calibrant.evaluation": (
            "BatchPart BatchReport CalibrationResult ComparedRun DecidedPrediction Drift "
            "HeldOutMeasures HistoryInterval LabelFile LearnedHead LeftOutRows RunComparison "
            "RunDifference UnlabelledTexts WrittenLabels"
        ),
        "calibrant.heads": (
            "Affine BaselineComparison BaselineScore EmbeddingModel HeadEmbedding HeadRows "
            "LinearModel RungFigures"
        ),
        "calibrant.inference": (
            "BasePredictor CachedEmbedder Demonstration Embedder Examination Finding FindingVerdict "
            "HelperStats KnownAbilities ProviderStats Thresholds"
        ),
        "calibrant.logprobs": "SetEvidence",
        "calibrant.metrics": (
            "AnsweredLabels CascadeMetrics CascadeModelMetrics ClassificationSummary CompositeMetrics "
            "DecisionMetrics HierarchicalMetrics LabelMetrics OrdinalMetrics PairedComparison "
            "PartMetrics StructureFigure"
        ),
        "calibrant.optimization": "FinalScore HeadChoice PromptScore ValidatedCandidate",
        "calibrant.routing": "AnswerQuality Ladder ProviderStanding",
        "calibrant.runs": "JsonlStore NumberedDirectory PredictionJournal",
        "calibrant.store": "RouterState Scope ScopeSummary",
        "calibrant.tuned": "OpenedPredictor",
    }.items()
    for name in names.split()
}
ATTRIBUTES = {
    "LabelDistribution": {
        "labels",
        "logprobs",
        "measured",
        "joint_logprob",
        "label_mass",
        "unresolved_mass",
        "space",
    },
    "Prediction": {"label", "confidence", "distribution", "outcome"},
}


def find(path: str) -> object:
    """Return the object under a dotted path."""
    module, _, name = path.rpartition(".")
    if module.rpartition(".")[2][0].isupper():  # a method
        return getattr(find(module), name)
    found: object = getattr(importlib.import_module(module), name)
    return found


def test_versions_agree() -> None:
    """The versions of pyproject.toml, the package and the command are equal."""
    assert calibrant.__version__ == metadata.version("calibrant")
    assert CliRunner().invoke(app, ["--version"]).output == f"calibrant {calibrant.__version__}\n"


@pytest.mark.parametrize("package", PINNED)
def test_pinned_names_are_public(package: str) -> None:
    """Every pinned name is importable and listed in ``__all__``."""
    module = importlib.import_module(package)
    for name in PINNED[package]:
        assert getattr(module, name) is not None
        assert name in module.__all__


def test_the_root_exports_pinned_names_alone() -> None:
    """The root package exports the pinned names and nothing else."""
    assert calibrant.__all__ == PINNED["calibrant"]
    assert dir(calibrant) == PINNED["calibrant"]


def test_unknown_root_names_are_errors() -> None:
    """An unknown name raises AttributeError, so that ``hasattr`` and tools work."""
    assert not hasattr(calibrant, "Clasifier")
    with pytest.raises(ImportError):
        exec("from calibrant import Clasifier", {})  # noqa: S102 (what a user types)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_list_their_names(package: str) -> None:
    """``__all__`` of each package is sorted, without duplicates, and all its names exist."""
    module = importlib.import_module(package)
    names = module.__all__
    kinds = {name: 0 if name.isupper() else 1 if name[0].isupper() else 2 for name in names}
    assert list(names) == sorted(set(names), key=lambda name: (kinds[name], name))
    for name in names:
        assert getattr(module, name) is not None, name


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_have_examples(package: str) -> None:
    """Every public name has an example in its own docstring, or in that of what takes or returns it."""
    module = importlib.import_module(package)
    exempt = {*WITHOUT_EXAMPLE, *SHOWN_ELSEWHERE}
    names = [name for name in module.__all__ if f"{package}.{name}" not in exempt]
    assert [name for name in names if ">>>" not in (getattr(module, name).__doc__ or "")] == []


@pytest.mark.parametrize("path", SIGNATURES)
def test_pinned_parameters_keep_name_and_kind(path: str) -> None:
    """Pinned parameters keep name, kind and, if positional, their order."""
    parameters = inspect.signature(find(path)).parameters  # type: ignore[arg-type]
    positional, _, keyword = SIGNATURES[path].partition("*")
    found = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert found[: len(positional.split())] == positional.split()
    for name in keyword.split():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY, name


@pytest.mark.parametrize("path", DEFAULTS)
def test_pinned_defaults_stay(path: str) -> None:
    """Pinned defaults keep their values."""
    parameters = inspect.signature(find(path)).parameters  # type: ignore[arg-type]
    assert {name: parameters[name].default for name in DEFAULTS[path]} == DEFAULTS[path]


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_pinned_attributes_stay(name: str) -> None:
    """Pinned attributes of results exist."""
    assert set(getattr(calibrant, name).__dataclass_fields__) >= ATTRIBUTES[name]


def test_classification_has_asynchronous_twins() -> None:
    """Each asynchronous method has the parameters of its synchronous one."""
    classifier = calibrant.Classifier
    for name in ("classify", "classify_many"):
        plain, twin = getattr(classifier, name), getattr(classifier, f"a{name}")
        assert inspect.signature(plain).parameters.keys() == inspect.signature(twin).parameters.keys()
        assert inspect.iscoroutinefunction(twin)
        assert not inspect.iscoroutinefunction(plain)


def test_error_classes_are_public() -> None:
    """Every error that calibrant raises on purpose has a public name."""
    core = importlib.import_module("calibrant.core")
    seen = [CalibrantError]
    for error in seen:
        seen += error.__subclasses__()
    from_core = {error.__name__ for error in seen if error.__module__.startswith("calibrant.core")}
    assert from_core <= set(core.__all__)
