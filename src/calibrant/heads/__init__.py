"""Heads: fitted models from the label scores of a language model to the final distribution."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.heads._compared import (
        BaselineComparison,
        BaselineScore,
        TextBaseline,
        compare_with_baselines,
    )
    from calibrant.heads._fit import fit_head
    from calibrant.heads._head import Head, HeadFigures
    from calibrant.heads._linear import (
        Columns,
        EmbeddingModel,
        HeadEmbedding,
        HeadRows,
        LinearModel,
        ZeroLevel,
    )
    from calibrant.heads._words import Words
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "BaselineComparison",
    "BaselineScore",
    "Columns",
    "EmbeddingModel",
    "Head",
    "HeadEmbedding",
    "HeadFigures",
    "HeadRows",
    "LinearModel",
    "TextBaseline",
    "Words",
    "ZeroLevel",
    "compare_with_baselines",
    "fit_head",
]
