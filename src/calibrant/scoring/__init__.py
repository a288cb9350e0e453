"""Scores in [0, 1] for single answers, which can take the model's confidence into account."""

from calibrant.scoring._strategies import (
    BrierScoring,
    LinearBlendScoring,
    LogScoring,
    ScoringStrategy,
    SigmoidScoring,
    ThresholdScoring,
)

__all__ = [
    "BrierScoring",
    "LinearBlendScoring",
    "LogScoring",
    "ScoringStrategy",
    "SigmoidScoring",
    "ThresholdScoring",
]
