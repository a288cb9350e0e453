"""Evaluation of classifiers on labelled rows: runs, metrics, calibration and provider batches."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.evaluation._anchors import Anchor, AnchorComparison, ask_anchors
    from calibrant.evaluation._compare import ComparedRun, RunComparison, RunDifference, compare_predictions
    from calibrant.evaluation._data import Dataset, UnlabelledTexts
    from calibrant.evaluation._drift import Drift
    from calibrant.evaluation._evaluator import BatchEvaluator, open_cache
    from calibrant.evaluation._history import EvaluationHistory, HistoryInterval
    from calibrant.evaluation._label import DecidedPrediction, LabelFile
    from calibrant.evaluation._learned import (
        CalibrationResult,
        HeldOutMeasures,
        LearnedHead,
        LeftOutRows,
        calibrate_predictions,
        learn_head,
    )
    from calibrant.evaluation._looks import CertificateRequest
    from calibrant.evaluation._metrics import (
        EvaluationMetrics,
        EvaluationProgress,
        EvaluationResult,
        WrittenLabels,
    )
    from calibrant.evaluation._provider_batch import (
        BatchLimits,
        BatchPart,
        BatchReport,
        Polling,
        batch_status,
        collect_batch,
        retry_batch,
        submit_batch,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Anchor",
    "AnchorComparison",
    "BatchEvaluator",
    "BatchLimits",
    "BatchPart",
    "BatchReport",
    "CalibrationResult",
    "CertificateRequest",
    "ComparedRun",
    "Dataset",
    "DecidedPrediction",
    "Drift",
    "EvaluationHistory",
    "EvaluationMetrics",
    "EvaluationProgress",
    "EvaluationResult",
    "HeldOutMeasures",
    "HistoryInterval",
    "LabelFile",
    "LearnedHead",
    "LeftOutRows",
    "Polling",
    "RunComparison",
    "RunDifference",
    "UnlabelledTexts",
    "WrittenLabels",
    "ask_anchors",
    "batch_status",
    "calibrate_predictions",
    "collect_batch",
    "compare_predictions",
    "learn_head",
    "open_cache",
    "retry_batch",
    "submit_batch",
]
