"""Plugs calibrant into prompt optimisers: `ConfidenceAdapter` for ``gepa.optimize``."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
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
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._calls": "CallBudget SearchSize",
            "._gepa": "ConfidenceAdapter",
            "._objectives": "OBJECTIVES Objective",
            "._prior": "PRIOR_ROWS PriorCorrection",
            "._rows": "example_row query_of",
            "._thresholds": "THRESHOLD_ROWS Thresholds",
            "._types": "ConfidenceDataInst ConfidenceRolloutOutput ConfidenceTrajectory EvaluationObserver",
        },
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
