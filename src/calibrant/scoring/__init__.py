"""Scores in [0, 1] that reward a well-founded answer more than a lucky guess."""

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
