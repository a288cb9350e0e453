"""The metrics of an evaluation whose predictions are known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from calibrant.core import Example, LabelSet, Limits, Outcome, Prediction, Query, TextWithContext
from calibrant.evaluation import BatchEvaluator, EvaluationMetrics

FAILED = Prediction(label=None, outcome=Outcome.ERROR, reason="is down")
UNPARSED = Prediction(label=None, outcome=Outcome.UNPARSED, reason="no label")


class Answered:
    """A predictor that gives one prediction after the other."""

    in_process, limits, gates, journal = True, Limits(), (), None

    def __init__(self, labels: LabelSet, predictions: Sequence[Prediction]) -> None:
        self.labels, self.predictions = labels, predictions

    def with_limits(self, _limits: Limits) -> Self:
        """Return the same predictor."""
        return self

    def query(self, text: str | TextWithContext) -> Query:
        """Return the query for a text."""
        return Query(prompt="", text=str(text))

    async def feed(
        self, queries: Iterable[Query], deliver: Callable[..., Any], *, on_prediction: Any, **_: Any
    ) -> str:
        """Deliver the next prediction for every query."""
        for index, (_query, prediction) in enumerate(zip(queries, self.predictions, strict=True)):
            on_prediction(index, prediction)
            deliver(index, prediction)
        return ""


def evaluated(labels: LabelSet, rows: Iterable[tuple[str, Prediction]]) -> EvaluationMetrics:
    """Return the metrics of rows, each a true answer and the prediction."""
    answers, predictions = zip(*rows, strict=True)
    predictor: Any = Answered(labels, predictions)
    examples = [Example(input=f"text {number}", answer=answer) for number, answer in enumerate(answers)]
    return BatchEvaluator(predictor, concurrency=1).evaluate(examples).metrics


def given(label: str | None) -> Prediction:
    """Return a prediction of a label, or one without a legal answer."""
    return UNPARSED if label is None else Prediction(label=label)
