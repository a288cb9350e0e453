"""Heads: final label distributions, learned from a model's scores on labelled rows."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.heads._baseline import TextBaseline
    from calibrant.heads._compared import BaselineComparison, BaselineScore, compare_with_baselines
    from calibrant.heads._embedding import EmbeddingModel, HeadEmbedding
    from calibrant.heads._fit import cross_fitted, fit_head
    from calibrant.heads._head import Head, RungFigures
    from calibrant.heads._words import Words
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._baseline": "TextBaseline",
            "._compared": "BaselineComparison BaselineScore compare_with_baselines",
            "._embedding": "EmbeddingModel HeadEmbedding",
            "._fit": "cross_fitted fit_head",
            "._head": "Head RungFigures",
            "._words": "Words",
        },
    )

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
