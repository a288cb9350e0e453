"""Steps of a fit: its budget, the search for a prompt, and learning from labelled rows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from calibrant.calibration._calibrators import ConfidenceCalibrator
from calibrant.calibration._choice import select_calibrator
from calibrant.calibration._thresholds import suggest_thresholds
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._predictor import OnPrediction, Predictor
from calibrant.core._rows import Example
from calibrant.core._task import Task
from calibrant.evaluation._figures import measurements_of
from calibrant.heads._head import Head
from calibrant.heads._tuned import Measurements, thresholds_of
from calibrant.inference._base import run_sync
from calibrant.inference._classifier import Classifier
from calibrant.inference._heads import head_of, held_out_predictions
from calibrant.inference._text_vectors import Embeddings, head_embedding
from calibrant.runs._journal import PredictionJournal
from calibrant.runs._rows import UNKNOWN, SavedRows

# Rows that the model is asked about by default. On three tasks of 2 to 6 labels the embedded model's head gained 0.15,
# 0.06 and 0.01 accuracy from 100 to 300 rows, and 0.02 from 300 to 480 on the hardest.
_ROWS: Final = 500
_SEARCH_CALLS: Final = 1200  # 600 for the search of a prompt, the rest for heads and tests
_TESTED: Final = 5  # one row in so many tests the prompts of a search


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Largest numbers of calls and rows of a fit.

    Attributes
    ----------
    calls : int or None
        Most calls; None sets no limit but that of the rows.
    calls_per_row : int
        Calls that a row takes.
    rows : int
        Most rows to ask about, those of the search included.
    search : int
        Most rows that the search may ask, apart from the test rows.
    """

    calls: int | None
    calls_per_row: int
    rows: int
    search: int

    @classmethod
    def of(cls, classifier: Classifier, calls: int | None, *, n_rows: int, search: bool) -> Budget:
        each = int(classifier.describe()["method"].get("samples", 1))
        affordable = (_SEARCH_CALLS if search else _ROWS) if calls is None else calls // each
        if not affordable:
            raise ConfigurationError(
                f"Expected max_calls of at least {each}, which one text takes, got {calls}: raise it."
            )
        rows = min(n_rows, affordable * 5 // 12 if search else affordable)
        # A test row is asked about under two prompts, every other row under the better one at the end.
        return cls(calls=calls, calls_per_row=each, rows=rows, search=affordable - rows - rows // _TESTED)

    def left(self, calls: int) -> int | None:
        return None if self.calls is None else max(1, self.calls - calls)


def better_prompt(
    classifier: Classifier,
    task: Task,
    rows: Sequence[Example],
    budget: Budget,
    *,
    seed: int,
) -> tuple[str, PredictionJournal]:
    """Search for a better prompt; return it and all answers of the search."""
    from calibrant.optimization._run import optimize  # noqa: PLC0415 (loads gepa)

    rows = rows[: budget.rows]
    ends = len(rows) // _TESTED, len(rows) * 3 // _TESTED  # any part of the rows is stratified
    task = replace(
        task,
        test=tuple(rows[: ends[0]]),
        validation=tuple(rows[ends[0] : ends[1]]),
        train=tuple(rows[ends[1] :]),
    )
    result = optimize(task, model=classifier, max_metric_calls=budget.search, seed=seed, embeddings=False)
    assert result.answers is not None  # noqa: S101 (every search has them)
    return result.best_prompt.prompt, result.answers


def answer_texts(predictor: Predictor, texts: Sequence[str], take: OnPrediction) -> str:
    return run_sync(predictor.feed(map(predictor.query, texts), take))


def report_failures(failed: Sequence[Prediction], n_rows: int) -> None:
    """Warn of rows without an answer; raise if the model never gives a distribution."""
    if not failed:
        return
    reasons = Counter(one.reason or "it came without log-probabilities" for one in failed)
    ((reason, _),) = reasons.most_common(1)
    if len(failed) == n_rows and all(one.outcome is Outcome.OK for one in failed):
        raise ConfigurationError(
            f"Expected distributions over the labels, got none on {n_rows} rows: {reason}. Pass scoring='sampled', or "
            "choose a model that reports log-probabilities."
        )
    warnings.warn(
        f"{len(failed)} of {n_rows} rows have no answer and equal probabilities, most often because: {reason}",
        stacklevel=3,
    )


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Head and calibrator learned from labelled rows; nothing by default.

    Attributes
    ----------
    head : Head or None
        The head that the rows support.
    calibrator : ConfidenceCalibrator or None
        Calibrator of the confidence in the head's labels, fitted on held-out predictions.
    held_out : SavedRows or None
        Predictions on the rows, each by a head that was fitted on other rows.
    """

    head: Head | None = None
    calibrator: ConfidenceCalibrator | None = None
    held_out: SavedRows | None = None

    def thresholds(self) -> dict[str, Any]:
        """Return suggested thresholds as in a calibration, or the reason for none."""
        if self.held_out is None:
            return thresholds_of({"no_thresholds": "no labelled rows"})
        found = self.held_out
        known = ~np.isnan(found.confidence) & (found.correct != UNKNOWN)
        try:
            suggestion = suggest_thresholds(found.confidence[known], found.correct[known])
        except ConfigurationError as error:  # too few right answers
            return thresholds_of({"no_thresholds": str(error)})
        return thresholds_of({"thresholds": asdict(suggestion)})

    def measurements(self, labels: LabelSet) -> Measurements:
        """Return figures and distribution of the held-out predictions; none without labelled rows."""
        if self.held_out is None:
            return Measurements()
        return measurements_of(self.held_out, labels, thresholds=self.thresholds())

    @classmethod
    def of(cls, classifier: Classifier, rows: Sequence[Example], *, embeddings: Embeddings | None) -> Learned:
        """Ask the model about labelled rows, within the classifier's limits, and learn from the answers.

        Raises
        ------
        ConfigurationError
            The model gives no distributions.
        ProviderError
            A fault that every call would meet.
        """
        found: list[Prediction] = []
        texts = [row.input for row in rows]
        asking = classifier.with_features(texts)
        embedding = head_embedding(
            embeddings,
            texts,
            labels=classifier.labels,
            reports_features=asking.method.keep_features,
            meter=asking.meter,
        )
        answer_texts(asking, texts, lambda _, prediction: found.append(prediction))
        rows, texts = rows[: len(found)], texts[: len(found)]
        head = head_of(
            found,
            [row.answer for row in rows],
            texts,
            labels=classifier.labels,
            embedding=embedding,
            named_tokens=asking.method.named_tokens,
            meter=asking.meter,
        )
        saved = SavedRows.of(
            {"input": row.input, "answer": row.answer, "label": one.label, "confidence": one.confidence}
            for row, one in zip(rows, held_out_predictions(head, found), strict=True)
            if one is not None and one.confidence is not None
        )
        predicted = [str(label) for label in saved.labels]
        selection = select_calibrator(saved.confidence, saved.correct, predicted=predicted, ids=saved.inputs)
        head = replace(head, held_out_losses=None, held_out_logprobs=None)
        return cls(head=head, calibrator=selection.calibrator, held_out=saved)
