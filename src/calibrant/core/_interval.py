"""An estimate's uncertainty."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval.

    Attributes
    ----------
    lower, upper : float
        The ends, in the unit of the estimate.
    level : float
        Confidence level in (0, 1).
    estimate : float
        The point estimate.
    median : float or None
        Median of the resampling distribution, where one was used.
    """

    lower: float
    upper: float
    level: float
    estimate: float
    median: float | None = None
