"""Score and feedback of one prediction: the same for every optimiser."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import fsum
from typing import Any

from calibrant.core._composite import CompositeLabels
from calibrant.core._labels import Aspect, LabelSet
from calibrant.core._prediction import Outcome, Prediction
from calibrant.feedback._composite import build_composite_feedback
from calibrant.feedback._label import build_feedback
from calibrant.scoring._protocol import ScoringStrategy


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
        Scores each aspect, by correctness alone where the confidence is unknown. One written for gepa's adapter,
        whose ``score`` takes correctness and log-probability only, gets these.
    failure_score : float
        In [0, 1].
    """
    if prediction.outcome is not Outcome.OK:
        return failure_score
    aspects = labels.aspects(prediction, answer)
    return fsum(aspect.weight * _scored(strategy, aspect) for aspect in aspects) / fsum(
        aspect.weight for aspect in aspects
    )


def _scored(strategy: ScoringStrategy, aspect: Aspect) -> float:
    known = {"distribution": aspect.distribution, "answer": aspect.expected}
    taken = _keywords(getattr(strategy.score, "__func__", strategy.score))
    keywords: dict[str, Any] = {
        name: value for name, value in known.items() if taken is None or name in taken
    }
    return strategy.score(aspect.is_correct, aspect.log_confidence, **keywords)


@lru_cache(maxsize=64)
def _keywords(function: Callable[..., object]) -> frozenset[str] | None:
    """Return the names of a function's parameters; None where it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return frozenset(parameters)


def feedback_on(
    prediction: Prediction,
    answer: str,
    *,
    labels: LabelSet,
    context: Mapping[str, object] | str | None,
    high: float,
    low: float,
) -> str:
    """Return the feedback on `prediction` for reflection; see `build_feedback` and `build_composite_feedback`."""
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
