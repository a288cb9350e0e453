"""The questions one answer settles, each graded alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrant.core._distribution import LabelDistribution


@dataclass(frozen=True, kw_only=True)
class Aspect:
    """One question that an answer settles: the label itself, a level of it, a field, one of many labels.

    Attributes
    ----------
    name : str
        What is asked; unique among the aspects of an answer.
    predicted, expected : str
        The value that was answered, and the true one.
    confidence : float or None
        Confidence in `predicted`, in [0, 1]; None where it is unknown.
    distribution : LabelDistribution or None
        Over the values of this question; None where it is unknown.
    weight : float
        What it counts for in a mean over the aspects of an answer, above 0.
    """

    name: str
    predicted: str
    expected: str
    confidence: float | None = None
    distribution: LabelDistribution | None = None
    weight: float = 1.0

    @property
    def is_correct(self) -> bool:
        """Whether the true value was answered."""
        return self.predicted == self.expected

    @property
    def log_confidence(self) -> float | None:
        """Natural logarithm of `confidence`, <= 0; None where it is unknown."""
        return None if self.confidence is None else math.log(max(min(self.confidence, 1.0), 1e-300))
