"""Metrics of accuracy, calibration and ranking, with their confidence intervals and paired tests."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.metrics._bootstrap import bootstrap_interval
    from calibrant.metrics._calibration_error import brier_score, expected_calibration_error, log_loss
    from calibrant.metrics._cascade import CascadeMetrics, CascadeModelMetrics, CascadeTally
    from calibrant.metrics._classification import (
        AnsweredLabels,
        ClassificationSummary,
        LabelMetrics,
        classification_summary,
    )
    from calibrant.metrics._composite import (
        CompositeMetrics,
        CompositeTally,
        DecisionMetrics,
        GivenPart,
        PartMetrics,
        answer_summary,
    )
    from calibrant.metrics._distributions import multiclass_brier_score, multiclass_log_loss
    from calibrant.metrics._intervals import mean_interval, paired_mean_interval, wilson_interval
    from calibrant.metrics._paired import PairedComparison, holm, paired_comparison
    from calibrant.metrics._remarks import confidence_remarks, zero_width_remark
    from calibrant.metrics._selective import aurc, auroc, auroc_interval, excess_aurc, selective_accuracy
    from calibrant.metrics._structure import (
        HierarchicalMetrics,
        OrdinalMetrics,
        StructureFigure,
        StructureMetrics,
        structure_metrics,
    )
    from calibrant.metrics._validation import check_confidence, check_confidence_correct, check_values
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._bootstrap": "bootstrap_interval",
            "._calibration_error": "brier_score expected_calibration_error log_loss",
            "._cascade": "CascadeMetrics CascadeModelMetrics CascadeTally",
            "._classification": "AnsweredLabels ClassificationSummary LabelMetrics classification_summary",
            "._composite": (
                "CompositeMetrics CompositeTally DecisionMetrics GivenPart PartMetrics answer_summary"
            ),
            "._distributions": "multiclass_brier_score multiclass_log_loss",
            "._intervals": "mean_interval paired_mean_interval wilson_interval",
            "._paired": "PairedComparison holm paired_comparison",
            "._remarks": "confidence_remarks zero_width_remark",
            "._selective": "aurc auroc auroc_interval excess_aurc selective_accuracy",
            "._structure": (
                "HierarchicalMetrics OrdinalMetrics StructureFigure StructureMetrics structure_metrics"
            ),
            "._validation": "check_confidence check_confidence_correct check_values",
        },
    )

__all__ = [
    "AnsweredLabels",
    "CascadeMetrics",
    "CascadeModelMetrics",
    "CascadeTally",
    "ClassificationSummary",
    "CompositeMetrics",
    "CompositeTally",
    "DecisionMetrics",
    "GivenPart",
    "HierarchicalMetrics",
    "LabelMetrics",
    "OrdinalMetrics",
    "PairedComparison",
    "PartMetrics",
    "StructureFigure",
    "StructureMetrics",
    "answer_summary",
    "aurc",
    "auroc",
    "auroc_interval",
    "bootstrap_interval",
    "brier_score",
    "check_confidence",
    "check_confidence_correct",
    "check_values",
    "classification_summary",
    "confidence_remarks",
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
    "structure_metrics",
    "wilson_interval",
    "zero_width_remark",
]
