"""The search for a better prompt: runs GEPA on a task, keeps and resumes its run directory."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.optimization._choice import RowScores, ValidatedPrompt
    from calibrant.optimization._exemplar import ExemplarProposer
    from calibrant.optimization._final import FinalScore
    from calibrant.optimization._progress import Progress, ProgressListener
    from calibrant.optimization._result import OptimizationResult, PromptScore
    from calibrant.optimization._run import optimize
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._choice": "RowScores ValidatedPrompt",
            "._exemplar": "ExemplarProposer",
            "._final": "FinalScore",
            "._progress": "Progress ProgressListener",
            "._result": "OptimizationResult PromptScore",
            "._run": "optimize",
        },
    )

__all__ = [
    "ExemplarProposer",
    "FinalScore",
    "OptimizationResult",
    "Progress",
    "ProgressListener",
    "PromptScore",
    "RowScores",
    "ValidatedPrompt",
    "optimize",
]
