"""From scored labels to the final distribution: what labelled rows teach about a model's answers."""

from calibrant.heads._baseline import TextBaseline
from calibrant.heads._compared import BaselineComparison, BaselineScore, compare_with_baselines
from calibrant.heads._fit import fit_head
from calibrant.heads._head import Head, RungFigures

__all__ = [
    "BaselineComparison",
    "BaselineScore",
    "Head",
    "RungFigures",
    "TextBaseline",
    "compare_with_baselines",
    "fit_head",
]
