"""Evaluation of classifiers on labelled rows: runs, metrics, calibration and provider batches."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.evaluation._cache import open_cache
    from calibrant.evaluation._calibrate import calibrate_predictions
    from calibrant.evaluation._compare import compare_predictions
    from calibrant.evaluation._data import Dataset
    from calibrant.evaluation._evaluator import BatchEvaluator
    from calibrant.evaluation._history import EvaluationHistory
    from calibrant.evaluation._learned import learn_head
    from calibrant.evaluation._metrics import EvaluationMetrics, EvaluationProgress, EvaluationResult
    from calibrant.evaluation._provider_batch import (
        BatchLimits,
        Polling,
        batch_status,
        collect_batch,
        retry_batch,
        submit_batch,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._cache": "open_cache",
            "._calibrate": "calibrate_predictions",
            "._compare": "compare_predictions",
            "._data": "Dataset",
            "._evaluator": "BatchEvaluator",
            "._history": "EvaluationHistory",
            "._learned": "learn_head",
            "._metrics": "EvaluationMetrics EvaluationProgress EvaluationResult",
            "._provider_batch": "BatchLimits Polling batch_status collect_batch retry_batch submit_batch",
        },
    )

__all__ = [
    "BatchEvaluator",
    "BatchLimits",
    "Dataset",
    "EvaluationHistory",
    "EvaluationMetrics",
    "EvaluationProgress",
    "EvaluationResult",
    "Polling",
    "batch_status",
    "calibrate_predictions",
    "collect_batch",
    "compare_predictions",
    "learn_head",
    "open_cache",
    "retry_batch",
    "submit_batch",
]
