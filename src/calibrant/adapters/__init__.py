"""Adapters for prompt optimisers: `ConfidenceAdapter` for ``gepa.optimize``."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.adapters._acceptance import PairedAcceptance
    from calibrant.adapters._gepa import AdapterOptions, ConfidenceAdapter
    from calibrant.adapters._rows import (
        OBJECTIVES,
        ConfidenceDataInst,
        ConfidenceGrader,
        ConfidenceRolloutOutput,
        ConfidenceTrajectory,
        EvaluationObserver,
    )
    from calibrant.adapters._state import CallBudget, CallCounter, SearchSize, Thresholds
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "OBJECTIVES",
    "AdapterOptions",
    "CallBudget",
    "CallCounter",
    "ConfidenceAdapter",
    "ConfidenceDataInst",
    "ConfidenceGrader",
    "ConfidenceRolloutOutput",
    "ConfidenceTrajectory",
    "EvaluationObserver",
    "PairedAcceptance",
    "SearchSize",
    "Thresholds",
]
