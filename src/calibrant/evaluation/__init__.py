"""Batches of any size: what is asked, what came back, how good it is, and nothing paid for twice."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.calibration import SavedPredictions
    from calibrant.evaluation._baselines import add_baselines
    from calibrant.evaluation._cache import default_cache, open_cache
    from calibrant.evaluation._calibrate import (
        CalibrationResult,
        HeldOutMeasures,
        LeftOutRows,
        calibrate_predictions,
    )
    from calibrant.evaluation._compare import ComparedRun, RunComparison, RunDifference, compare_predictions
    from calibrant.evaluation._data import Dataset, checked, inspect
    from calibrant.evaluation._drift import Drift
    from calibrant.evaluation._evaluator import BatchEvaluator, EvaluationResult
    from calibrant.evaluation._history import SCORE_TYPES, EvaluationHistory, HistoryInterval, default_history
    from calibrant.evaluation._history_answers import AnswerRecorder
    from calibrant.evaluation._history_run import HistoryEntry, RunScope
    from calibrant.evaluation._learn_head import LearnedHead, learn_head
    from calibrant.evaluation._metrics import GATES, EvaluationMetrics, check_gates
    from calibrant.evaluation._parquet import require_parquet, write_parquet
    from calibrant.evaluation._progress import EvaluationProgress, EvaluationProgressListener
    from calibrant.evaluation._provider_batch import batch_status, collect_batch, retry_batch, submit_batch
    from calibrant.evaluation._provider_batch_report import BatchReport, Polling
    from calibrant.evaluation._provider_batch_state import BatchLimits, BatchPart
    from calibrant.evaluation._saved import load_predictions
    from calibrant.evaluation._tally import Tally
    from calibrant.runs import RunDirectory, row_line, row_record, unfinished
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "calibrant.calibration": "SavedPredictions",
            "._baselines": "add_baselines",
            "._cache": "default_cache open_cache",
            "._calibrate": "CalibrationResult HeldOutMeasures LeftOutRows calibrate_predictions",
            "._compare": "ComparedRun RunComparison RunDifference compare_predictions",
            "._data": "Dataset checked inspect",
            "._drift": "Drift",
            "._evaluator": "BatchEvaluator EvaluationResult",
            "._history": "EvaluationHistory HistoryInterval SCORE_TYPES default_history",
            "._history_answers": "AnswerRecorder",
            "._history_run": "HistoryEntry RunScope",
            "._learn_head": "LearnedHead learn_head",
            "._metrics": "EvaluationMetrics GATES check_gates",
            "._parquet": "require_parquet write_parquet",
            "._progress": "EvaluationProgress EvaluationProgressListener",
            "._provider_batch": "batch_status collect_batch retry_batch submit_batch",
            "._provider_batch_report": "BatchReport Polling",
            "._provider_batch_state": "BatchLimits BatchPart",
            "._saved": "load_predictions",
            "._tally": "Tally",
            "calibrant.runs": "RunDirectory row_line row_record unfinished",
        },
    )

__all__ = [
    "GATES",
    "SCORE_TYPES",
    "AnswerRecorder",
    "BatchEvaluator",
    "BatchLimits",
    "BatchPart",
    "BatchReport",
    "CalibrationResult",
    "ComparedRun",
    "Dataset",
    "Drift",
    "EvaluationHistory",
    "EvaluationMetrics",
    "EvaluationProgress",
    "EvaluationProgressListener",
    "EvaluationResult",
    "HeldOutMeasures",
    "HistoryEntry",
    "HistoryInterval",
    "LearnedHead",
    "LeftOutRows",
    "Polling",
    "RunComparison",
    "RunDifference",
    "RunDirectory",
    "RunScope",
    "SavedPredictions",
    "Tally",
    "add_baselines",
    "batch_status",
    "calibrate_predictions",
    "check_gates",
    "checked",
    "collect_batch",
    "compare_predictions",
    "default_cache",
    "default_history",
    "inspect",
    "learn_head",
    "load_predictions",
    "open_cache",
    "require_parquet",
    "retry_batch",
    "row_line",
    "row_record",
    "submit_batch",
    "unfinished",
    "write_parquet",
]
