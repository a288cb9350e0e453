"""Decisions on predictions: accepted, or to be reviewed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Rule: TypeAlias = Literal["certified", "suggested", "given", "cascade"]
DecidedBy: TypeAlias = Literal["confidence", "calibrated", "cascade"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Decision on a prediction: accept, review, or None if no rule applies.

    Attributes
    ----------
    accepted : bool or None
        False sends it to review; None where the bundle has no threshold and the models gave no verdict.
    confidence : float or None
        The prediction's own, in [0, 1].
    calibrated : float or None
        Calibrated confidence, the expected share of right answers; None without a calibrator.
    threshold : float or None
        Lowest accepted value of the number in `decided_by`; None if no answer is accepted, or nothing was
        compared.
    rule : {"certified", "suggested", "given", "cascade"} or None
        Origin of the threshold; ``cascade`` stands for the thresholds between its models.
    decided_by : {"confidence", "calibrated", "cascade"} or None
        Number compared with the threshold, or ``cascade`` if the cascade's thresholds decided. None without a
        threshold, a label or a confidence.
    """

    accepted: bool | None
    confidence: float | None
    calibrated: float | None
    threshold: float | None
    rule: Rule | None
    decided_by: DecidedBy | None

    @property
    def name(self) -> Literal["accepted", "review"] | None:
        """Return ``accepted``, ``review``, or None if no rule applies."""
        return None if self.accepted is None else "accepted" if self.accepted else "review"

    @property
    def final_confidence(self) -> float | None:
        """Return the calibrated confidence, or without a calibrator the prediction's own."""
        return self.confidence if self.calibrated is None else self.calibrated


def rule_of(
    thresholds: Mapping[str, Any], *, accept_suggested: bool = False
) -> tuple[Rule | None, float | None]:
    """Return the rule that accepts predictions, and the lowest confidence that it accepts.

    Parameters
    ----------
    thresholds : mapping
        As `calibrant.assembly.Bundle.thresholds`.
    accept_suggested : bool, default False
        True to accept by the suggested threshold, which promises nothing, where nothing is certified.
    """
    certified, suggested = thresholds["certified"], thresholds["suggested"]
    if certified is not None:
        return "certified", certified["threshold"]
    if accept_suggested and suggested is not None:
        return "suggested", suggested["high"]
    return ("certified", None) if thresholds["certification"] is not None else (None, None)
