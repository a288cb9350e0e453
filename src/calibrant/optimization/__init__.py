"""The search for a better prompt: runs GEPA on a task, keeps and resumes its run directory."""

from calibrant.optimization._choice import RowScores, ValidatedPrompt
from calibrant.optimization._exemplar import ExemplarProposer
from calibrant.optimization._final import FinalScore
from calibrant.optimization._progress import Progress, ProgressListener
from calibrant.optimization._result import OptimizationResult, PromptScore
from calibrant.optimization._run import optimize

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
