"""Label-prior correction of candidates: every prompt has a bias of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration._prior import LabelPriorCorrection, correct_prediction
from calibrant.core._composite import CompositeLabels
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Prediction
from calibrant.core._predictor import Query

PriorCorrection: TypeAlias = Literal["batch"]

PRIOR_ROWS: Final = 64
"""Rows that make up the label prior of a prompt, at least, where so many were asked."""

_Key = tuple[str, str | None, str | None]
_Floats = NDArray[np.float64]


class PriorCorrector:
    """Corrects predictions for the label prior of the prompt they were made under.

    The prior of a prompt is the mean of its distributions over the rows asked under it; nothing is asked for its
    sake. Until these are `PRIOR_ROWS`, the prior of the last prompt that was asked about more rows makes up for those
    that are missing: a proposal is tried on a few rows right after its parent.
    """

    def __init__(self) -> None:
        self._rows: dict[_Key, dict[str, _Floats]] = {}
        self._stand_in: _Key | None = None
        self._fitted: dict[_Key, LabelPriorCorrection] = {}

    def fit(self, asked: Sequence[Query], predictions: Sequence[Prediction]) -> None:
        """Fit the corrections of the prompts that were asked, equal texts once."""
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
        """Return the correction of a query's prompt; None where its rows got no distribution."""
        return self._fitted.get(_key(query))

    def correct(self, query: Query, prediction: Prediction) -> Prediction:
        """Return `prediction` without the prior of its prompt."""
        correction = self.correction(query)
        return prediction if correction is None else correct_prediction(prediction, correction)


def open_prior(method: PriorCorrection | None, *, labels: LabelSet) -> PriorCorrector | None:
    """Return the corrector of predictions, or None without a correction.

    Raises
    ------
    ConfigurationError
        The method is unknown, or answers hold several labels.
    """
    if method is None:
        return None
    if isinstance(labels, CompositeLabels):
        raise ConfigurationError(
            "Expected no prior_correction where an answer holds several labels: it needs one distribution over one "
            "label set; leave it out."
        )
    if method != "batch":
        raise ConfigurationError(
            f"Expected prior_correction 'batch' or None, got {method!r}: for 'contextual' fit a LabelPriorCorrection "
            "on CONTENT_FREE_INPUTS."
        )
    return PriorCorrector()


def _key(query: Query) -> _Key:
    # Demonstrations by what chooses them: those of a row would make every prompt one of its own.
    return query.prompt, query.user_template, query.demonstrations
