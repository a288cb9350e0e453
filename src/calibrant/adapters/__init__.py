"""Adapters for prompt optimisers: `ConfidenceAdapter` for ``gepa.optimize``."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.adapters._gepa import ConfidenceAdapter
    from calibrant.adapters._learned import Thresholds
    from calibrant.adapters._rows import ConfidenceDataInst, ConfidenceRolloutOutput, ConfidenceTrajectory
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._gepa": "ConfidenceAdapter",
            "._learned": "Thresholds",
            "._rows": "ConfidenceDataInst ConfidenceRolloutOutput ConfidenceTrajectory",
        },
    )

__all__ = [
    "ConfidenceAdapter",
    "ConfidenceDataInst",
    "ConfidenceRolloutOutput",
    "ConfidenceTrajectory",
    "Thresholds",
]
