"""Plugs calibrant into prompt optimisers: `ConfidenceAdapter` for ``gepa.optimize``."""

from calibrant.adapters._calls import CallBudget, SearchSize
from calibrant.adapters._gepa import ConfidenceAdapter
from calibrant.adapters._objectives import OBJECTIVES, Objective
from calibrant.adapters._prior import PRIOR_ROWS, PriorCorrection
from calibrant.adapters._rows import example_row, query_of
from calibrant.adapters._thresholds import THRESHOLD_ROWS, Thresholds
from calibrant.adapters._types import (
    ConfidenceDataInst,
    ConfidenceRolloutOutput,
    ConfidenceTrajectory,
    EvaluationObserver,
)

__all__ = [
    "OBJECTIVES",
    "PRIOR_ROWS",
    "THRESHOLD_ROWS",
    "CallBudget",
    "ConfidenceAdapter",
    "ConfidenceDataInst",
    "ConfidenceRolloutOutput",
    "ConfidenceTrajectory",
    "EvaluationObserver",
    "Objective",
    "PriorCorrection",
    "SearchSize",
    "Thresholds",
    "example_row",
    "query_of",
]
