"""Heads: fitted models from the label scores of a language model to the final distribution."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.heads._compared import TextBaseline, compare_with_baselines
    from calibrant.heads._fit import fit_head
    from calibrant.heads._head import Head, RungFigures
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._compared": "TextBaseline compare_with_baselines",
            "._fit": "fit_head",
            "._head": "Head RungFigures",
        },
    )

__all__ = [
    "Head",
    "RungFigures",
    "TextBaseline",
    "compare_with_baselines",
    "fit_head",
]
