"""Search for a better prompt of a task with GEPA, stored in a run directory and resumable."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.optimization._choice import HeadChoice, ValidatedCandidate
    from calibrant.optimization._plan import Progress
    from calibrant.optimization._proposers import ExemplarProposer
    from calibrant.optimization._result import FinalScore, OptimizationResult, PromptScore
    from calibrant.optimization._run import optimize
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "ExemplarProposer",
    "FinalScore",
    "HeadChoice",
    "OptimizationResult",
    "Progress",
    "PromptScore",
    "ValidatedCandidate",
    "optimize",
]
