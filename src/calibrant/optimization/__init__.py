"""Search for a better prompt of a task with GEPA, stored in a run directory and resumable."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.optimization._choice import ValidatedCandidate
    from calibrant.optimization._exemplar import ExemplarProposer
    from calibrant.optimization._progress import Progress
    from calibrant.optimization._result import OptimizationResult, PromptScore
    from calibrant.optimization._run import optimize
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._choice": "ValidatedCandidate",
            "._exemplar": "ExemplarProposer",
            "._progress": "Progress",
            "._result": "OptimizationResult PromptScore",
            "._run": "optimize",
        },
    )

__all__ = [
    "ExemplarProposer",
    "OptimizationResult",
    "Progress",
    "PromptScore",
    "ValidatedCandidate",
    "optimize",
]
