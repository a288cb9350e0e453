"""Metrics of answers that hold several labels, by part and by label, counted row by row."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Interval, Prediction
from calibrant.metrics._classification import (
    AnsweredLabels,
    ClassificationSummary,
    LabelMetrics,
    classification_summary,
    label_scores,
)
from calibrant.metrics._intervals import wilson_interval

_BINS: Final = 15
_EDGES: Final[list[float]] = np.linspace(0.0, 1.0, _BINS + 1).tolist()


class GivenPart(NamedTuple):
    """Part of an answer, with the model's confidence in it.

    Attributes
    ----------
    name, label : str
        The part, and its value.
    confidence : float or None
        In [0, 1]; None where it is unknown.
    """

    name: str
    label: str
    confidence: float | None


@dataclass(frozen=True, kw_only=True)
class DecisionMetrics(LabelMetrics):
    """Metrics of one label of a set, or of one label of a field.

    Attributes
    ----------
    missed : int
        Rows whose true answer has it and whose predicted answer lacks it (false negatives).
    added : int
        Rows whose predicted answer has it and whose true answer lacks it (false positives).
    """

    missed: int
    added: int


@dataclass(frozen=True, kw_only=True)
class PartMetrics:
    """Metrics of one part: a field, or the membership of one label in the set.

    Attributes
    ----------
    correct : int
        Answered rows in which it is right; a row without a legal answer is wrong in every part.
    accuracy : Interval
        `correct` over the answered rows, with Wilson's 95 % interval.
    rows_with_confidence : int
        Rows whose answer has a confidence in this part.
    ece, brier : float or None
        Expected calibration error (15 bins of equal width) and Brier score of that confidence, in [0, 1], 0 is best;
        None without such rows.
    credit : float or None
        Mean partial credit of a field on a scale or in a tree, in [0, 1]; None where labels are plain.
    """

    correct: int
    accuracy: Interval
    rows_with_confidence: int
    ece: float | None
    brier: float | None
    credit: float | None = None


@dataclass(frozen=True, kw_only=True)
class CompositeMetrics:
    """Metrics of answers that hold several labels, on answered rows.

    Attributes
    ----------
    kind : {"fields", "multi_label"}
        Whether an answer has one label for each field, or any number of labels.
    rows : int
        Answered rows; a row without a legal answer has none of its true labels.
    parts : mapping of str to PartMetrics
        By field, or by label.
    per_label : mapping of str to DecisionMetrics
        Precision, recall, F1 and support by label, or by ``field=label``.
    credit : float
        Mean partial credit of the rows, in [0, 1]: the mean over the fields, or `jaccard`; see
        `calibrant.core.LabelSet.credit`.
    micro_f1 : float
        ``2 tp / (2 tp + fp + fn)`` with all counts added up, in [0, 1].
    macro_f1 : float
        Mean of all F1 in `per_label`, in [0, 1].
    hamming_loss : float or None
        Share of labels that are wrongly in the set or out of it, in [0, 1], 0 is best; all of them are wrong in a row
        without a legal answer. None for fields.
    jaccard : float or None
        Mean over rows of the size of the intersection of true and predicted set over that of their union, in [0, 1];
        1 where both are empty, 0 without a legal answer. None for fields.
    samples_f1 : float or None
        Mean over rows of twice the size of the intersection over the sum of the sizes of both sets, in [0, 1]; edge
        cases as in `jaccard`.

    Examples
    --------
    >>> from calibrant.metrics import CompositeMetrics
    >>> found = CompositeMetrics(
    ...     kind="multi_label", rows=2, parts={}, per_label={}, credit=0.5, micro_f1=0.6, macro_f1=0.5,
    ...     hamming_loss=0.25, jaccard=0.5, samples_f1=0.6,
    ... )
    >>> found.jaccard
    0.5
    """

    kind: Literal["fields", "multi_label"]
    rows: int
    parts: Mapping[str, PartMetrics]
    per_label: Mapping[str, DecisionMetrics]
    credit: float
    micro_f1: float
    macro_f1: float
    hamming_loss: float | None
    jaccard: float | None
    samples_f1: float | None

    @property
    def answered_labels(self) -> AnsweredLabels:
        """Numbers of labels in `per_label` that were predicted at least once."""
        return AnsweredLabels.of(self.per_label, self.parts if self.kind == "fields" else ())


class _ConfidenceSums:
    """Sums for the calibration error and Brier score of one part; memory does not grow with rows."""

    def __init__(self) -> None:
        self.rows = 0
        self.squares = 0.0
        self.gaps = [0.0] * _BINS

    def add(self, confidence: float, *, right: bool) -> None:
        p = min(max(confidence, 0.0), 1.0)
        self.rows += 1
        self.squares += (p - right) ** 2
        self.gaps[min(max(bisect_left(_EDGES, p) - 1, 0), _BINS - 1)] += p - right

    def metrics(self, correct: int, rows: int, credit: float | None) -> PartMetrics:
        return PartMetrics(
            correct=correct,
            accuracy=wilson_interval(correct, rows),
            rows_with_confidence=self.rows,
            ece=sum(map(abs, self.gaps)) / self.rows if self.rows else None,
            brier=self.squares / self.rows if self.rows else None,
            credit=credit,
        )


class CompositeTally:
    """Running totals of answers with several labels; memory does not grow with the rows.

    Parameters
    ----------
    labels : LabelSet
        The legal answers.
    """

    def __init__(self, labels: LabelSet) -> None:
        self._labels = labels
        self._sets = labels.is_set
        self._place = {name: place for place, name in enumerate(labels)}
        size = len(labels)
        self._both, self._added, self._missed = (np.zeros(size, dtype=np.int64) for _ in range(3))
        self._wrong: dict[str, int] = dict.fromkeys(labels.parts, 0)
        self._sums = {name: _ConfidenceSums() for name in labels.parts}
        # Only labels with a structure give partial credit; of plain ones it equals the accuracy.
        fields = {name: labels.labels_of(name) for name in labels.parts if not self._sets}
        self._graded = {
            name: field_labels for name, field_labels in fields.items() if not field_labels.is_plain
        }
        self._credit = dict.fromkeys(self._graded, 0.0)
        self._jaccard = self._f1 = 0.0
        self.rows = 0

    def add(self, answer: str, label: str | None, parts: Sequence[GivenPart] = ()) -> None:
        """Count a row.

        Parameters
        ----------
        answer : str
            The true answer, in its canonical form.
        label : str or None
            The predicted answer; None, or a text that is no legal answer, is wrong in every part.
        parts : sequence of GivenPart, optional
            The predicted parts with their confidences.
        """
        predicted = None if label is None else self._labels.canonical(label)
        truth = self._labels.values(answer)
        values = {} if predicted is None else self._labels.values(predicted)
        self.rows += 1
        for name, value in truth.items():
            self._wrong[name] += values.get(name) != value
        for name, field_labels in self._graded.items() if values else ():
            self._credit[name] += field_labels.credit(Prediction(label=values[name]), truth[name])
        chosen = None if predicted is None else self._labels.decisions(predicted)
        self._count(self._labels.decisions(answer), chosen)
        for part in parts if predicted is not None else ():
            if part.confidence is not None and part.name in truth:
                self._sums[part.name].add(part.confidence, right=truth[part.name] == part.label)

    def _count(self, truth: frozenset[str], predicted: frozenset[str] | None) -> None:
        labels = predicted or frozenset()
        both = truth & labels
        for table, names in ((self._both, both), (self._missed, truth - both), (self._added, labels - both)):
            for name in names:
                table[self._place[name]] += 1
        if predicted is not None and self._sets:
            self._jaccard += len(both) / len(truth | labels) if truth or labels else 1.0
            self._f1 += 2 * len(both) / (len(truth) + len(labels)) if truth or labels else 1.0

    def metrics(self) -> CompositeMetrics | None:
        """Return the metrics of the rows so far; None without rows."""
        if not self.rows:
            return None
        per_label = self._per_label()
        sides = 2 * self._both.sum() + self._added.sum() + self._missed.sum()
        wrong_parts = sum(self._wrong.values())
        credit = {name: total / self.rows for name, total in self._credit.items()}
        shares = {name: credit.get(name, 1 - wrong / self.rows) for name, wrong in self._wrong.items()}
        return CompositeMetrics(
            kind="multi_label" if self._sets else "fields",
            rows=self.rows,
            parts={
                name: sums.metrics(self.rows - self._wrong[name], self.rows, credit.get(name))
                for name, sums in self._sums.items()
            },
            per_label=per_label,
            credit=self._jaccard / self.rows if self._sets else sum(shares.values()) / len(shares),
            micro_f1=float(2 * self._both.sum() / max(sides, 1)),
            macro_f1=float(np.mean([metrics.f1 for metrics in per_label.values()])),
            hamming_loss=wrong_parts / (self.rows * len(self._wrong)) if self._sets else None,
            jaccard=self._jaccard / self.rows if self._sets else None,
            samples_f1=self._f1 / self.rows if self._sets else None,
        )

    def _per_label(self) -> dict[str, DecisionMetrics]:
        scores = label_scores(self._both, self._both + self._added, self._both + self._missed)
        return {
            name: DecisionMetrics(**one, missed=int(self._missed[place]), added=int(self._added[place]))
            for (name, place), one in zip(self._place.items(), scores, strict=True)
        }


def answer_summary(
    labels: LabelSet, answers: Sequence[str], given: Sequence[str | None]
) -> ClassificationSummary | CompositeMetrics | None:
    """Return the metrics of answers for any kind of label set; None without rows.

    Parameters
    ----------
    labels : LabelSet
        The legal answers.
    answers : sequence of str, length n
        True answers, spelled as in the label set.
    given : sequence of (str or None), length n
        Predicted answers; None, or a text that is no legal answer, is wrong.
    """
    if not answers:
        return None
    if not labels.holds_several:
        return classification_summary(answers, given, labels=labels)
    tally = CompositeTally(labels)
    for answer, label in zip(answers, given, strict=True):
        tally.add(answer, label)
    return tally.metrics()
