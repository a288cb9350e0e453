"""Score and feedback of one prediction: the same for every optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum

from calibrant.core import CompositeLabels, LabelSet, Outcome, Prediction
from calibrant.feedback import build_composite_feedback, build_feedback
from calibrant.scoring import ScoringStrategy

__all__ = ["feedback_on", "score_of"]


def score_of(
    prediction: Prediction, answer: str, *, labels: LabelSet, strategy: ScoringStrategy, failure_score: float
) -> float:
    """Return the mean score of the aspects of `prediction` by their weight; `failure_score` without a legal label.

    Parameters
    ----------
    prediction : Prediction
        The answer.
    answer : str
        The true label, spelled as in the label set.
    labels : LabelSet
        Says which aspects an answer has; plain labels have one.
    strategy : ScoringStrategy
        Scores each aspect, by correctness alone where the confidence is unknown.
    failure_score : float
        In [0, 1].
    """
    if prediction.outcome is not Outcome.OK:
        return failure_score
    aspects = labels.aspects(prediction, answer)
    return fsum(
        aspect.weight
        * strategy.score(
            aspect.is_correct,
            aspect.log_confidence,
            distribution=aspect.distribution,
            answer=aspect.expected,
        )
        for aspect in aspects
    ) / fsum(aspect.weight for aspect in aspects)


def feedback_on(
    prediction: Prediction,
    answer: str,
    *,
    labels: LabelSet,
    context: Mapping[str, object] | str | None,
    high: float,
    low: float,
) -> str:
    """Return what a reflecting model reads about `prediction`; see `build_feedback` and `build_composite_feedback`."""
    if isinstance(labels, CompositeLabels):
        return build_composite_feedback(
            prediction, answer, labels=labels, additional_context=context, high=high, low=low
        )
    return build_feedback(
        is_correct=prediction.label == answer,
        expected=answer,
        got=prediction.label or prediction.text,
        confidence=prediction.confidence,
        distribution=prediction.distribution,
        outcome=prediction.outcome,
        labels=labels,
        reason=prediction.reason,
        additional_context=context,
        high=high,
        low=low,
    )
