"""From scored labels to the final distribution: what labelled rows teach about a model's answers."""

from calibrant.heads._baseline import TextBaseline
from calibrant.heads._fit import fit_head
from calibrant.heads._head import Head, RungFigures
from calibrant.heads._words import Words

__all__ = ["Head", "RungFigures", "TextBaseline", "Words", "fit_head"]
