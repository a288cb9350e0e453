"""Batches of any size: what is asked, what came back, and nothing paid for twice."""

from calibrant.evaluation._provider_batch import (
    batch_status,
    collect_batch,
    retry_batch,
    submit_batch,
)
from calibrant.evaluation._provider_batch_answers import row_record
from calibrant.evaluation._provider_batch_report import BatchReport, Polling
from calibrant.evaluation._provider_batch_state import BatchLimits, BatchPart

__all__ = [
    "BatchLimits",
    "BatchPart",
    "BatchReport",
    "Polling",
    "batch_status",
    "collect_batch",
    "retry_batch",
    "row_record",
    "submit_batch",
]
