"""Batches of labelled rows: files, resume, metrics."""

from calibrant.evaluation._cache import default_cache, open_cache
from calibrant.evaluation._data import Dataset
from calibrant.evaluation._evaluator import BatchEvaluator, EvaluationResult
from calibrant.evaluation._metrics import GATES, EvaluationMetrics
from calibrant.evaluation._progress import EvaluationProgress, EvaluationProgressListener
from calibrant.evaluation._records import row_record

__all__ = [
    "GATES",
    "BatchEvaluator",
    "Dataset",
    "EvaluationMetrics",
    "EvaluationProgress",
    "EvaluationProgressListener",
    "EvaluationResult",
    "default_cache",
    "open_cache",
    "row_record",
]
