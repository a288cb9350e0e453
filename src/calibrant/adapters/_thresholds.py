"""Thresholds of scores and feedback, found on a sample of the training rows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

import numpy as np

from calibrant.adapters._types import ConfidenceDataInst
from calibrant.calibration._thresholds import ThresholdSuggestion, suggest_thresholds
from calibrant.core._composite import CompositeLabels
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Prediction
from calibrant.core._predictor import Query

_LOG = logging.getLogger("calibrant")

Thresholds: TypeAlias = Literal["auto"]

THRESHOLD_ROWS: Final = 80


class ThresholdFinder:
    """Asks a fixed sample of labelled rows once, under the first prompt that is evaluated.

    Scores of all prompts must compare, so what was found under the first one holds for all.

    Parameters
    ----------
    rows : iterable of ConfidenceDataInst
        Labelled rows, answers spelled as in the label set; `THRESHOLD_ROWS` of them are used.
    labels : LabelSet
        Where answers hold several labels, thresholds are about the confidence in each part, as scores and feedback
        are.
    seed : int, default 0
        Seed of the sample.

    Raises
    ------
    ConfigurationError
        There are no rows.
    """

    def __init__(self, rows: Iterable[ConfidenceDataInst], *, labels: LabelSet, seed: int = 0) -> None:
        self._labels = labels
        found = list(rows)
        if not found:
            raise ConfigurationError(
                "Expected labelled rows to find thresholds on, got none: pass threshold_rows, such as "
                "the training rows."
            )
        if len(found) > THRESHOLD_ROWS:
            chosen = np.random.default_rng(seed).choice(len(found), THRESHOLD_ROWS, replace=False)
            found = [found[i] for i in sorted(chosen)]
        self.rows = tuple(found)
        self.suggestion: ThresholdSuggestion | None = None
        self._done = False

    def queries(self, asked: Sequence[Query]) -> list[Query]:
        """Return the queries to be asked first: the sample under the first prompt, once."""
        if self._done or not asked:
            return []
        first = asked[0]
        return [
            Query(
                prompt=first.prompt,
                text=row["input"],
                user_template=first.user_template,
                demonstrations=first.demonstrations,
            )
            for row in self.rows
        ]

    def fit(self, predictions: Sequence[Prediction]) -> ThresholdSuggestion | None:
        """Return thresholds from the answers to `queries`; None where they do not suffice."""
        self._done = True
        known = [
            pair
            for row, prediction in zip(self.rows, predictions, strict=True)
            if prediction.label is not None
            for pair in self._pairs(prediction, row["answer"])
        ]
        try:
            self.suggestion = suggest_thresholds([c for c, _ in known], [right for _, right in known])
        except ConfigurationError as error:
            _LOG.warning(
                "thresholds='auto': the thresholds given stay, for the sample does not suffice. %s", error
            )
            return None
        _LOG.info("thresholds='auto': high %g, low %g", self.suggestion.high, self.suggestion.low)
        for warning in self.suggestion.warnings:
            _LOG.warning("thresholds='auto': %s", warning)
        return self.suggestion

    def _pairs(self, prediction: Prediction, answer: str) -> Iterator[tuple[float, bool]]:
        """Yield confidence and correctness of the answer, or of each part that is graded."""
        if isinstance(self._labels, CompositeLabels):
            aspects = self._labels.aspects(prediction, answer)
            yield from ((one.confidence, one.is_correct) for one in aspects if one.confidence is not None)
        elif prediction.confidence is not None:
            yield prediction.confidence, prediction.label == answer


def open_thresholds(
    wished: Thresholds | None, rows: Iterable[ConfidenceDataInst], *, labels: LabelSet
) -> ThresholdFinder | None:
    """Return the finder of thresholds, or None if the given ones hold.

    Raises
    ------
    ConfigurationError
        Another wish than ``auto``, or there are no rows.
    """
    if wished is None:
        return None
    if wished != "auto":
        raise ConfigurationError(
            f"Expected thresholds 'auto' or None, got {wished!r}: for numbers of your own pass "
            "high_confidence_threshold and low_confidence_threshold."
        )
    return ThresholdFinder(rows, labels=labels)
