"""Scores in [0, 1] that reward a well-founded answer more than a lucky guess."""

from calibrant.scoring._probability import LinearBlendScoring, SigmoidScoring, ThresholdScoring
from calibrant.scoring._proper import BrierScoring, LogScoring
from calibrant.scoring._protocol import ScoringStrategy

__all__ = [
    "BrierScoring",
    "LinearBlendScoring",
    "LogScoring",
    "ScoringStrategy",
    "SigmoidScoring",
    "ThresholdScoring",
]
