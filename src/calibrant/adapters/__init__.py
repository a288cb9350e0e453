"""Plugs calibrant into prompt optimisers: `ConfidenceAdapter` for ``gepa.optimize``."""

from calibrant.adapters._gepa import (
    ConfidenceAdapter,
    ConfidenceDataInst,
    ConfidenceRolloutOutput,
    ConfidenceTrajectory,
    EvaluationObserver,
)
from calibrant.adapters._objectives import OBJECTIVES, Objective

__all__ = [
    "OBJECTIVES",
    "ConfidenceAdapter",
    "ConfidenceDataInst",
    "ConfidenceRolloutOutput",
    "ConfidenceTrajectory",
    "EvaluationObserver",
    "Objective",
]
