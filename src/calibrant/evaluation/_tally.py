"""Running counts of evaluation rows, in nine bytes of memory per row, and the account of a run."""

from __future__ import annotations

import logging
import math
import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._prediction import Interval, Outcome, Prediction
from calibrant.core._reported import escaped_line
from calibrant.core._rows import Example
from calibrant.evaluation._data import NO_TEXT
from calibrant.evaluation._metrics import (
    EvaluationMetrics,
    EvaluationProgress,
    EvaluationProgressListener,
    EvaluationResult,
)
from calibrant.metrics._calibration_error import brier_score, expected_calibration_error
from calibrant.metrics._classification import ClassificationSummary
from calibrant.metrics._intervals import wilson_interval
from calibrant.metrics._selective import auroc_interval
from calibrant.runs._directory import RunDirectory, write_json
from calibrant.runs._rows import UNKNOWN, has_low_label_mass

if TYPE_CHECKING:
    from calibrant.metrics._cascade import CascadeTally
    from calibrant.metrics._composite import CompositeMetrics, CompositeTally
    from calibrant.metrics._structure import StructureMetrics

_KINDS: Final = 20
_EXAMPLES: Final = 3
_EXAMPLE_LENGTH: Final = 120
_LOG = logging.getLogger("calibrant")
_OTHER: Final = "other"
_KIND_LENGTH: Final = 80
# Saved rows hold a failure as words alone.
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_STATUS: Final = re.compile(r"\b[45]\d\d\b")


class Tally:
    """Running counts of the rows of an evaluation.

    Parameters
    ----------
    labels : LabelSet
        The label set; answers are spelled as in it.

    Attributes
    ----------
    labelled : int
        Rows whose true label is known: the others count by their predicted label alone.
    """

    def __init__(self, labels: LabelSet) -> None:
        self._labels = labels
        self._place = {normalise_label(label): place for place, label in enumerate(labels.labels)}
        self._composite: CompositeTally | None = None
        if labels.holds_several:
            from calibrant.metrics._composite import CompositeTally  # noqa: PLC0415 (loaded when it is used)

            self._composite = CompositeTally(labels)
        # Answers of single labels, by true label; the last column counts answers that are no label.
        size = 0 if self._composite else len(labels.labels)
        self._counts = np.zeros((size, size + 1), dtype=np.int64)
        self.confidence = array("d")
        self.right = array("b")
        self._cascade: CascadeTally | None = None
        self.rows = 0
        self.labelled = 0
        self.correct = 0
        self.without_text = 0
        self.given: Counter[str] = Counter()  # labels of rows whose true one is not known
        self.outcomes: Counter[str] = Counter({outcome.value: 0 for outcome in Outcome})
        self.errors: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.unreadable: dict[str, None] = {}  # what was written instead of a label; ordered, each text once
        self.low_label_mass = 0
        self.calls = 0
        self.from_cache = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cost = 0.0
        self.priced = 0
        self.unpriced = 0

    @property
    def answered(self) -> int:
        """Rows whose outcome is not ``error``."""
        return self.rows - self.outcomes[Outcome.ERROR.value]

    @property
    def accuracy_answered(self) -> Interval | None:
        """Share of right rows among the answered ones; None if no true label is known."""
        return wilson_interval(self.correct, self.answered) if self.labelled and self.answered else None

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a row, given its record as in ``predictions.jsonl``.

        Raises
        ------
        KeyError, TypeError, ValueError
            The record is invalid.
        """
        outcome, answer, label, confidence = (
            row[name] for name in ("outcome", "answer", "label", "confidence")
        )
        failed, right = Outcome(outcome) is Outcome.ERROR, label == answer
        is_sure = outcome == Outcome.OK.value and confidence is not None
        self.confidence.append(confidence if is_sure else math.nan)
        self.right.append(UNKNOWN if failed or answer is None else right)
        self.rows += 1
        self.labelled += answer is not None
        self.outcomes[outcome] += 1
        self._count_payment(row)
        if steps := row.get("steps"):  # of a cascade
            from calibrant.metrics._cascade import CascadeTally  # noqa: PLC0415 (loaded when it is used)

            self._cascade = self._cascade or CascadeTally()
            self._cascade.add(
                steps, accepted=row["accepted"], correct=None if failed or answer is None else right
            )
        if failed:
            kind = error_kind(row["reason"])
            self.errors[kind if kind in self.errors or len(self.errors) < _KINDS else _OTHER] += 1
            return
        if len(self.unreadable) < _EXAMPLES and (text := row.get("text")):
            self.unreadable[escaped_line(text, limit=_EXAMPLE_LENGTH)] = None
        if answer is None:
            self.without_text += row["reason"] == NO_TEXT
            self._count_label(label)
        else:
            self.correct += right
            self._count_answer(row)
        if row["reason"] != NO_TEXT:
            self.models[row["model"] or "unknown"] += 1
        self.low_label_mass += has_low_label_mass(row)

    def _count_label(self, label: str | None) -> None:
        """Count the predicted label, or each of several, of a row whose true label is not known."""
        if label is not None:
            labels = self._labels
            self.given.update(labels.decisions(label))

    def _count_answer(self, row: Mapping[str, Any]) -> None:
        """Count the predicted label of an answered row beside the true one."""
        answer, label = row["answer"], row["label"]
        if self._composite is None:
            place = -1 if label is None else self._place.get(normalise_label(label), -1)
            self._counts[self._place[normalise_label(answer)], place] += 1
        else:
            from calibrant.metrics._composite import GivenPart  # noqa: PLC0415 (loaded when it is used)

            parts = [
                GivenPart(part["name"], part["label"], part["confidence"]) for part in row.get("parts", ())
            ]
            self._composite.add(answer, label, parts)

    def _count_payment(self, row: Mapping[str, Any]) -> None:
        tokens = row["prompt_tokens"] + row["completion_tokens"]
        if row["attempts"] == 0:
            self.from_cache += row["outcome"] != Outcome.ERROR.value
            return
        self.calls += row["attempts"]
        self.prompt_tokens += row["prompt_tokens"]
        self.completion_tokens += row["completion_tokens"]
        if row["cost"] is not None:
            self.cost += row["cost"]
            self.priced += 1
        elif tokens > 0:
            self.unpriced += 1

    def _structure(self) -> StructureMetrics | None:
        """Return the distances of answers from true labels; None where labels are flat or true ones not known."""
        if not self.labelled or self._composite is not None or self._labels.is_plain:
            return None
        from calibrant.metrics._structure import structure_metrics  # noqa: PLC0415 (loaded when it is used)

        return structure_metrics(self._labels, self._counts[:, :-1], self._counts[:, -1])

    def _summary(self, composite: CompositeMetrics | None) -> ClassificationSummary | CompositeMetrics | None:
        """Return the figures of labels: those of single answers if there are any, else those of `composite`."""
        if not self._counts.any():
            return composite
        counts = self._counts[:, :-1], self._counts[:, -1]
        return ClassificationSummary.from_counts(self._labels.labels, *counts)

    def _scored(self) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """Return the confidence and the correctness of the rows that have both."""
        # Copies: an array that lends its memory cannot grow.
        confidence, right = np.array(self.confidence), np.array(self.right)
        is_scored = ~np.isnan(confidence) & (right != UNKNOWN)
        return confidence[is_scored], right[is_scored]

    def _mean_confidence(self) -> float | None:
        """Return the mean confidence where true labels are not known; None elsewhere."""
        confidence = np.array(self.confidence)
        if not self.given or np.isnan(confidence).all():
            return None
        return float(np.nanmean(confidence))

    def metrics(
        self, *, expected: int | None, stopped: str, seconds: float, session_rows: int
    ) -> EvaluationMetrics:
        """Return the metrics of the rows so far; see `EvaluationMetrics` for the parameters."""
        composite = None if self._composite is None or not self.labelled else self._composite.metrics()
        summary = self._summary(composite)
        confidence, right = self._scored()
        return EvaluationMetrics(
            rows=self.rows,
            rows_expected=expected,
            complete=not stopped if expected is None else self.rows >= expected,
            stopped=stopped,
            outcomes=dict(self.outcomes),
            errors=dict(self.errors.most_common()),
            answered=self.answered,
            correct=self.correct,
            accuracy=wilson_interval(self.correct, self.rows) if self.labelled else None,
            accuracy_answered=self.accuracy_answered,
            macro_f1=None if summary is None else summary.macro_f1,
            per_label={} if summary is None else summary.per_label,
            rows_with_confidence=int((~np.isnan(self.confidence)).sum()),
            ece=expected_calibration_error(confidence, right) if len(right) else None,
            brier=brier_score(confidence, right) if len(right) else None,
            auroc=auroc_interval(confidence, right) if 0 < right.sum() < len(right) else None,
            rows_with_low_label_mass=self.low_label_mass,
            models=dict(self.models.most_common()),
            calls=self.calls,
            rows_from_cache=self.from_cache,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cost=self.cost if self.priced else None,
            unpriced_rows=self.unpriced,
            seconds=seconds,
            session_rows=session_rows,
            cascade=None if self._cascade is None else self._cascade.metrics(),
            composite=composite,
            structure=self._structure(),
            rows_without_text=self.without_text,
            labels=dict(self.given.most_common()),
            unreadable_answers=tuple(self.unreadable),
            mean_confidence=self._mean_confidence(),
        )


class RunAccount:
    """Counts, progress and result of one run.

    Parameters
    ----------
    labels : LabelSet
        Labels of the classifier.
    expected : int or None
        Rows of the input, if their number is known.
    on_progress : callable or None
        Called with an `EvaluationProgress`.

    Attributes
    ----------
    expected : int or None
        As above.
    tally : Tally
        Counts of all rows that have their final prediction.
    remaining : int or None
        Rows without one when this session began.
    answered : int
        Rows that this session answered, up to the first one without an answer.
    ahead : dict of int to (Example, Prediction)
        Rows that were answered behind that one, by number: they are kept in the run's cache alone.
    stopped : str
        Reason for an early end; empty otherwise.
    started : float
        Begin of the session, by `time.perf_counter`.
    """

    def __init__(
        self, labels: LabelSet, *, expected: int | None, on_progress: EvaluationProgressListener | None
    ) -> None:
        self.expected = expected
        self._on_progress = on_progress
        self.tally = Tally(labels)
        self.remaining = expected
        self.answered = 0
        self.ahead: dict[int, tuple[Example, Prediction]] = {}
        self.stopped = ""
        self.started = time.perf_counter()

    def report(self, **calls: Any) -> None:  # noqa: ANN401  (fields of different types)
        """Report progress to the listener; `calls` holds the fields on calls and rate limits."""
        if self._on_progress is None:
            return
        tally, ahead = self.tally, _AheadCounts.of(self.ahead.values())
        answered = self.answered + ahead.rows
        self._on_progress(
            EvaluationProgress(
                rows=tally.rows + ahead.rows,
                rows_expected=self.expected,
                session_rows=answered,
                remaining=None if self.remaining is None else self.remaining - answered,
                seconds=time.perf_counter() - self.started,
                accuracy_answered=ahead.accuracy(tally),
                errors=dict(tally.errors + ahead.errors),
                cost=tally.cost + ahead.cost if tally.priced + ahead.priced else None,
                **calls,
            )
        )

    @contextmanager
    def kept(self, finish: Callable[[], object]) -> Iterator[None]:
        """Write the metrics of the answered rows if an exception ends the block."""
        try:
            yield
        except BaseException as error:
            self.stopped = str(error) or "interrupted"
            try:
                finish()
            except Exception as other:  # noqa: BLE001 (the error under way matters more)
                if other is not error:
                    _LOG.warning("%s", other)
            raise

    def result(
        self,
        directory: RunDirectory | None,
        about: Mapping[str, Any],
        predictions: Sequence[Prediction] = (),
    ) -> EvaluationResult:
        """Return the result; write the metrics and the entries of `about` into a directory, if given."""
        metrics = self.tally.metrics(
            expected=self.expected,
            stopped=self.stopped,
            seconds=time.perf_counter() - self.started if self.answered else 0.0,
            session_rows=self.answered,
        )
        if directory is not None and (self.answered or not directory.metrics.exists()):
            write_json(directory.metrics, {**metrics.to_record(), **about})
        path = None if directory is None else directory.path
        ahead = _AheadCounts.of(self.ahead.values())
        kept = metrics.answered + ahead.rows - ahead.errors.total()
        return EvaluationResult(
            predictions=tuple(predictions),
            metrics=metrics,
            directory=path,
            kept_rows=kept,
            confidence=np.array(self.tally.confidence),
            correct=np.array(self.tally.right),
        )


@dataclass(kw_only=True)
class _AheadCounts:
    """Counts of rows that were answered behind one that was not, and are in no tally yet."""

    rows: int = 0
    labelled: int = 0
    correct: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    cost: float = 0.0
    priced: int = 0

    @classmethod
    def of(cls, answered: Iterable[tuple[Example, Prediction]]) -> _AheadCounts:
        """Return the counts of rows with their predictions."""
        found = cls()
        for example, prediction in answered:
            found.rows += 1
            cost = prediction.usage.cost
            if cost is not None and prediction.attempts:
                found.cost += cost
                found.priced += 1
            if prediction.outcome is Outcome.ERROR:
                found.errors[error_kind(prediction.reason)] += 1
            elif example.answer:
                found.labelled += 1
                found.correct += prediction.label == example.answer
        return found

    def accuracy(self, tally: Tally) -> Interval | None:
        """Return the share of right rows among those answered here and in a tally; None if no true label is known."""
        if not (tally.labelled or self.labelled):
            return None
        answered = tally.answered + self.labelled
        return wilson_interval(tally.correct + self.correct, answered) if answered else None


def error_kind(reason: str) -> str:
    """Return a failure's reason without the model's name and most numbers, to count similar failures."""
    _, colon, rest = reason.partition(": ")
    text = rest if colon and rest else reason
    status = _STATUS.search(text)
    text = _NUMBER.sub(lambda found: found[0] if status and found[0] == status[0] else "#", text)
    flat = " ".join(text.split())
    return flat[:_KIND_LENGTH] or "unknown"
