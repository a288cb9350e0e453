"""Metrics of accuracy, calibration and ranking, with their confidence intervals and paired tests."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.metrics._cascade import CascadeMetrics, CascadeModelMetrics
    from calibrant.metrics._classification import (
        AnsweredLabels,
        ClassificationSummary,
        LabelMetrics,
        classification_summary,
    )
    from calibrant.metrics._confidence import (
        aurc,
        auroc,
        auroc_interval,
        brier_score,
        excess_aurc,
        expected_calibration_error,
        log_loss,
        multiclass_brier_score,
        multiclass_log_loss,
        selective_accuracy,
    )
    from calibrant.metrics._gate import PairedGate
    from calibrant.metrics._intervals import (
        PairedComparison,
        bootstrap_interval,
        holm,
        mean_interval,
        paired_comparison,
        paired_mean_interval,
        wilson_interval,
    )
    from calibrant.metrics._structure import (
        CompositeMetrics,
        CreditMetrics,
        DecisionMetrics,
        HierarchicalMetrics,
        OrdinalMetrics,
        PartMetrics,
        StructureFigure,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "AnsweredLabels",
    "CascadeMetrics",
    "CascadeModelMetrics",
    "ClassificationSummary",
    "CompositeMetrics",
    "CreditMetrics",
    "DecisionMetrics",
    "HierarchicalMetrics",
    "LabelMetrics",
    "OrdinalMetrics",
    "PairedComparison",
    "PairedGate",
    "PartMetrics",
    "StructureFigure",
    "aurc",
    "auroc",
    "auroc_interval",
    "bootstrap_interval",
    "brier_score",
    "classification_summary",
    "excess_aurc",
    "expected_calibration_error",
    "holm",
    "log_loss",
    "mean_interval",
    "multiclass_brier_score",
    "multiclass_log_loss",
    "paired_comparison",
    "paired_mean_interval",
    "selective_accuracy",
    "wilson_interval",
]
