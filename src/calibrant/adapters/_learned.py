"""Learned settings of an adapter: label priors per prompt, and confidence thresholds."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.adapters._parameters import refuse_several
from calibrant.adapters._types import ConfidenceDataInst
from calibrant.calibration._prior import LabelPriorCorrection, correct_prediction
from calibrant.calibration._thresholds import ThresholdSuggestion, suggest_thresholds
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Prediction
from calibrant.core._predictor import Query

_LOG = logging.getLogger("calibrant")

PriorCorrection: TypeAlias = Literal["batch"]
Thresholds: TypeAlias = Literal["auto"]

PRIOR_ROWS: Final = 64
"""Rows that make up the label prior of a prompt, at least, where so many were asked."""

THRESHOLD_ROWS: Final = 80
"""Labelled rows that thresholds are found on, at most."""

_SEED: Final = 0  # of the sample of labelled rows

_Key = tuple[str, str | None, str | None]
_Floats = NDArray[np.float64]


class PriorCorrector:
    """Corrector of predictions for label bias, with a label prior per prompt.

    The prior of a prompt is the mean of its distributions over the rows asked under it; nothing is asked for its
    sake. Until these are `PRIOR_ROWS`, the prior of the last prompt that was asked about more rows makes up for those
    that are missing: a proposal is tried on a few rows right after its parent.

    Parameters
    ----------
    method : {"batch"}
        Setting of the adapter.
    labels : LabelSet
        The labels.

    Raises
    ------
    ConfigurationError
        The method is unknown, or answers hold several labels.
    """

    def __init__(self, method: PriorCorrection, labels: LabelSet) -> None:
        refuse_several(labels, "leave prior_correction out, which needs one distribution over one label set.")
        if method != "batch":
            raise ConfigurationError(
                f"Expected prior_correction 'batch' or None, got {method!r}: for 'contextual' fit a "
                "LabelPriorCorrection on CONTENT_FREE_INPUTS."
            )
        self._rows: dict[_Key, dict[str, _Floats]] = {}
        self._stand_in: _Key | None = None
        self._fitted: dict[_Key, LabelPriorCorrection] = {}

    def fit(self, asked: Sequence[Query], predictions: Sequence[Prediction]) -> None:
        """Fit one correction per prompt, on distinct texts."""
        found: dict[_Key, dict[str, _Floats]] = {}
        for query, prediction in zip(asked, predictions, strict=True):
            rows = found.setdefault(_key(query), {})
            if prediction.distribution is not None:
                rows[query.text] = np.asarray(prediction.distribution.logprobs, dtype=np.float64)
        for key, rows in found.items():
            self._add(key, rows)

    def _add(self, key: _Key, rows: dict[str, _Floats]) -> None:
        own = self._rows.setdefault(key, {})
        # A prompt that has enough rows keeps its prior: what was scored first and last is comparable.
        if len(own) < PRIOR_ROWS and rows:
            own.update(rows)
            self._fitted[key] = self._fit(own)
        if self._stand_in is None or len(own) >= min(PRIOR_ROWS, len(self._rows[self._stand_in])):
            self._stand_in = key

    def _fit(self, own: dict[str, _Floats]) -> LabelPriorCorrection:
        other = {} if self._stand_in is None else self._rows[self._stand_in]
        missing = min(PRIOR_ROWS, len(other)) - len(own)
        rows, weights = list(own.values()), [1.0] * len(own)
        if missing > 0:
            rows += other.values()
            weights += [missing / len(other)] * len(other)
        return LabelPriorCorrection("batch").fit(np.array(rows), weights=weights)

    def correction(self, query: Query) -> LabelPriorCorrection | None:
        """Return the fitted correction for a query's prompt; None if none is fitted."""
        return self._fitted.get(_key(query))

    def correct(self, query: Query, prediction: Prediction) -> Prediction:
        """Return `prediction` corrected for the label prior of its prompt, if a prior is fitted."""
        correction = self.correction(query)
        return prediction if correction is None else correct_prediction(prediction, correction)


def _key(query: Query) -> _Key:
    # Demonstrations by what chooses them: those of a row would make every prompt one of its own.
    return query.prompt, query.user_template, query.demonstrations


class ThresholdFinder:
    """Finder of confidence thresholds, on a fixed sample under the first evaluated prompt.

    Scores of all prompts must compare, so the thresholds under the first one hold for all.

    Parameters
    ----------
    method : {"auto"}
        Setting of the adapter.
    rows : sequence of ConfidenceDataInst
        Labelled rows, answers spelled as in the label set; `THRESHOLD_ROWS` of them are used.
    labels : LabelSet
        Where answers hold several labels, thresholds are about the confidence in each part, as scores and feedback
        are.

    Raises
    ------
    ConfigurationError
        The method is unknown, or there are no rows.
    """

    def __init__(self, method: Thresholds, rows: Sequence[ConfidenceDataInst], labels: LabelSet) -> None:
        if method != "auto":
            raise ConfigurationError(
                f"Expected thresholds 'auto' or None, got {method!r}: for numbers of your own pass "
                "high_confidence_threshold and low_confidence_threshold."
            )
        if not rows:
            raise ConfigurationError(
                "Expected labelled rows to find thresholds on, got none: pass threshold_rows, such as "
                "the training rows."
            )
        if len(rows) > THRESHOLD_ROWS:
            chosen = np.random.default_rng(_SEED).choice(len(rows), THRESHOLD_ROWS, replace=False)
            rows = [rows[i] for i in sorted(chosen)]
        self._labels = labels
        self.rows = tuple(rows)
        self.suggestion: ThresholdSuggestion | None = None
        self._done = False

    def queries(self, asked: Sequence[Query]) -> list[Query]:
        """Return the queries of the sample under the first prompt; an empty list once `fit` was called."""
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
        """Return thresholds from the answers to `queries`; None on too few rows."""
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
        """Yield confidence and correctness of the answer, or of each graded part."""
        if self._labels.holds_several:
            aspects = self._labels.aspects(prediction, answer)
            yield from ((one.confidence, one.is_correct) for one in aspects if one.confidence is not None)
        elif prediction.confidence is not None:
            yield prediction.confidence, prediction.label == answer
