"""From scored labels to the final distribution: what labelled rows teach about a model's answers."""

from calibrant.heads._baseline import TextBaseline
from calibrant.heads._compared import BaselineComparison, BaselineScore, compare_with_baselines
from calibrant.heads._embedding import EmbeddingModel, HeadEmbedding
from calibrant.heads._fit import cross_fitted, fit_head
from calibrant.heads._head import Head, RungFigures
from calibrant.heads._words import Words

__all__ = [
    "BaselineComparison",
    "BaselineScore",
    "EmbeddingModel",
    "Head",
    "HeadEmbedding",
    "RungFigures",
    "TextBaseline",
    "Words",
    "compare_with_baselines",
    "cross_fitted",
    "fit_head",
]
