"""Metrics of labels with a structure: on a scale, in a tree, or several in one answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Final, Literal, NamedTuple

import numpy as np

from calibrant.core._labels import LabelSet
from calibrant.core._prediction import IntegerArray, Interval, Part, Prediction
from calibrant.core._reported import counted
from calibrant.core._structures import HierarchicalLabels, OrdinalLabels
from calibrant.metrics._classification import (
    AnsweredLabels,
    ClassificationSummary,
    LabelMetrics,
    classification_summary,
    label_scores,
)
from calibrant.metrics._intervals import mean_interval, wilson_interval

_BINS: Final = 15
_EDGES: Final[list[float]] = np.linspace(0.0, 1.0, _BINS + 1).tolist()


class StructureFigure(NamedTuple):
    """One metric as a line of a table.

    Attributes
    ----------
    name, about : str
        The name of the metric, and a description of its rows and unit.
    value : float or None
        None where it is not defined.
    interval : Interval or None
        Its 95 % interval, where one is computed.
    rows : int
        Rows it is computed from.
    """

    name: str
    about: str
    value: float | None
    interval: Interval | None = None
    rows: int = 0


@dataclass(frozen=True, kw_only=True)
class OrdinalMetrics:
    """Distance between predicted and true rank on a scale of L labels, on answered rows.

    Attributes
    ----------
    kind : str
        ``ordinal``.
    rows, labelled : int
        Answered rows, and those among them whose answer is a label. `mean_absolute_error` and `quadratic_kappa` use
        only the latter, as no other answer has a place on the scale.
    credit : Interval
        Mean of ``1 - steps / (L - 1)``, in [0, 1]; 0 for an answer that is no label.
    within_one : Interval
        Share of answers at most one step off, with Wilson's 95 % interval.
    mean_absolute_error : Interval or None
        Mean number of steps between the answer and the true label, 0 is best; None without a label.
    quadratic_kappa : float or None
        Cohen's kappa with quadratic weights (Cohen 1968, Psychological Bulletin 70:213-220), at most 1: 0 is as good
        as chance. None where chance alone would agree, as with a single label.

    Examples
    --------
    >>> from calibrant.metrics import wilson_interval
    >>> share = wilson_interval(8, 10)
    >>> found = OrdinalMetrics(
    ...     rows=10, labelled=0, credit=share, within_one=share, mean_absolute_error=None, quadratic_kappa=None
    ... )
    >>> found.kind, found.within_one.estimate
    ('ordinal', 0.8)
    """

    kind: Literal["ordinal"] = "ordinal"
    rows: int
    labelled: int
    credit: Interval
    within_one: Interval
    mean_absolute_error: Interval | None
    quadratic_kappa: float | None

    def figures(self) -> Iterator[StructureFigure]:
        """Yield the metrics in the order of a table."""
        answered = counted(self.rows, "answered row")
        labelled = counted(self.labelled, "row with a label", "rows with a label")
        yield _figure("credit", self.credit, f"{answered}; 1 - steps / possible steps", self.rows)
        yield _figure("within one step", self.within_one, answered, self.rows)
        about = f"{labelled}, in steps; 0 is best"
        yield _figure("mean absolute error", self.mean_absolute_error, about, self.labelled)
        yield StructureFigure(
            name="quadratic weighted kappa", about=labelled, value=self.quadratic_kappa, rows=self.labelled
        )


@dataclass(frozen=True, kw_only=True)
class HierarchicalMetrics:
    """Correctness of predicted paths in a label tree, level by level, on answered rows.

    Attributes
    ----------
    kind : str
        ``hierarchical``.
    rows : int
        Answered rows; an answer that is no label is wrong at every level.
    credit : Interval
        Mean share of levels that are right, in [0, 1]; see `calibrant.core.HierarchicalLabels`.
    levels : tuple of Interval
        Share of answers that are right down to each level, from the first to the deepest, with Wilson's 95 %
        interval. The last is the accuracy.
    precision, recall, f1 : float
        Hierarchical precision, recall and F1 in [0, 1], micro-averaged: every label counts together with the labels
        above it, the root left out (Kiritchenko, Matwin and Famili 2005). 0 without any predicted label.

    Examples
    --------
    >>> from calibrant.metrics import wilson_interval
    >>> share = wilson_interval(8, 10)
    >>> found = HierarchicalMetrics(rows=10, credit=share, levels=(share,), precision=0.8, recall=0.8, f1=0.8)
    >>> found.kind, found.levels[-1].estimate
    ('hierarchical', 0.8)
    """

    kind: Literal["hierarchical"] = "hierarchical"
    rows: int
    credit: Interval
    levels: tuple[Interval, ...]
    precision: float
    recall: float
    f1: float

    def figures(self) -> Iterator[StructureFigure]:
        """Yield the metrics in the order of a table."""
        answered = counted(self.rows, "answered row")
        yield _figure("credit", self.credit, f"{answered}; share of levels", self.rows)
        for number, level in enumerate(self.levels, 1):
            yield _figure(f"right down to level {number}", level, answered, self.rows)
        about = f"{answered}; precision {self.precision:.3f}, recall {self.recall:.3f}"
        yield StructureFigure(name="hierarchical F1", about=about, value=self.f1, rows=self.rows)


@dataclass(frozen=True, kw_only=True)
class CreditMetrics:
    """Mean credit of labels of a kind that has no metrics of its own, on answered rows.

    Attributes
    ----------
    kind : str
        ``credit``.
    rows : int
        Answered rows.
    credit : Interval
        Mean of `LabelSet.credit`, in [0, 1]; 0 for an answer that is no label.

    Examples
    --------
    >>> from calibrant.metrics import wilson_interval
    >>> CreditMetrics(rows=10, credit=wilson_interval(8, 10)).credit.estimate
    0.8
    """

    kind: Literal["credit"] = "credit"
    rows: int
    credit: Interval

    def figures(self) -> Iterator[StructureFigure]:
        """Yield the only metric."""
        yield _figure("credit", self.credit, counted(self.rows, "answered row"), self.rows)


StructureMetrics = OrdinalMetrics | HierarchicalMetrics | CreditMetrics


def structure_metrics(
    labels: LabelSet, confusion: IntegerArray, other: IntegerArray
) -> StructureMetrics | None:
    """Return the metrics of structured labels; None for labels without structure or without rows.

    Parameters
    ----------
    labels : LabelSet of length L
        The labels.
    confusion : ndarray of int, shape (L, L)
        Answered rows by true label (rows) and predicted one (columns).
    other : ndarray of int, shape (L,)
        By true label: answered rows whose answer is no label.
    """
    if int(confusion.sum() + other.sum()) == 0:
        return None
    return _metrics_of(labels, confusion, other)


@singledispatch
def _metrics_of(labels: LabelSet, confusion: IntegerArray, other: IntegerArray) -> StructureMetrics | None:
    """Return the metrics of one kind of labels; a kind with more than its credit is registered here.

    They are no method of the label set: `core` knows no intervals.
    """
    if labels.is_plain or labels.is_open or labels.holds_several:
        return None
    truth, predicted = np.nonzero(confusion)
    counts = np.append(confusion[truth, predicted], other.sum())
    credit = [
        labels.credit(Prediction(label=labels[int(answer)]), labels[int(true)])
        for true, answer in zip(truth, predicted, strict=True)
    ]
    values = np.array([*credit, 0.0])
    return CreditMetrics(rows=int(counts.sum()), credit=mean_interval(values, counts))


@_metrics_of.register(OrdinalLabels)
def _ordinal(
    labels: OrdinalLabels,  # noqa: ARG001
    confusion: IntegerArray,
    other: IntegerArray,
) -> OrdinalMetrics:
    size = len(other)
    labelled = int(confusion.sum())
    rows = labelled + int(other.sum())
    places = np.arange(size)
    distance = np.abs(places[:, None] - places)
    rows_apart = np.bincount(distance.ravel(), weights=confusion.ravel(), minlength=size)
    steps = rows_apart.astype(np.int64)
    share = places / (size - 1)
    error = mean_interval(share, steps) if labelled else None
    return OrdinalMetrics(
        rows=rows,
        labelled=labelled,
        credit=mean_interval(np.append(1.0 - share, 0.0), np.append(steps, other.sum())),
        within_one=wilson_interval(int(steps[:2].sum()), rows),
        mean_absolute_error=None if error is None else _scaled(error, size - 1),
        quadratic_kappa=_kappa(confusion, distance) if labelled else None,
    )


def _kappa(confusion: IntegerArray, distance: IntegerArray) -> float | None:
    squares = distance.astype(np.float64) ** 2
    chance = np.outer(confusion.sum(axis=1), confusion.sum(axis=0)) / confusion.sum()
    by_chance = float((squares * chance).sum())
    if by_chance == 0.0:
        return None
    return 1.0 - float((squares * confusion).sum()) / by_chance


@_metrics_of.register(HierarchicalLabels)
def _hierarchical(
    labels: HierarchicalLabels, confusion: IntegerArray, other: IntegerArray
) -> HierarchicalMetrics:
    truth, predicted = np.nonzero(confusion)
    counts = confusion[truth, predicted]
    rows = int(counts.sum() + other.sum())
    levels = map(labels.groups, range(1, labels.depth + 1))
    same = np.array([group[truth] == group[predicted] for group in levels])
    lengths = np.array([len(labels.path(label)) for label in labels])
    # Two different labels share the levels above both; a right label counts with its whole path.
    shared = np.where(truth == predicted, lengths[truth], same.sum(axis=0))
    both = float(counts @ shared)
    true_levels = float(counts @ lengths[truth] + other @ lengths)
    precision = both / max(float(counts @ lengths[predicted]), 1.0)
    recall = both / true_levels
    credit = np.append(same.mean(axis=0), 0.0)
    return HierarchicalMetrics(
        rows=rows,
        credit=mean_interval(credit, np.append(counts, other.sum())),
        levels=tuple(wilson_interval(int(counts @ level), rows) for level in same),
        precision=precision,
        recall=recall,
        f1=2 * precision * recall / (precision + recall) if both else 0.0,
    )


def _figure(name: str, interval: Interval | None, about: str, rows: int) -> StructureFigure:
    return StructureFigure(name, about, None if interval is None else interval.estimate, interval, rows)


def _scaled(interval: Interval, factor: int) -> Interval:
    ends = {name: getattr(interval, name) * factor for name in ("lower", "upper", "estimate")}
    return replace(interval, **ends)


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
        self._both = np.zeros(size, dtype=np.int64)
        self._added = np.zeros(size, dtype=np.int64)
        self._missed = np.zeros(size, dtype=np.int64)
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

    def add(self, answer: str, label: str | None, parts: Sequence[Part] = ()) -> None:
        """Count a row.

        Parameters
        ----------
        answer : str
            The true answer, in its canonical form.
        label : str or None
            The predicted answer; None, or a text that is no legal answer, is wrong in every part.
        parts : sequence of Part, optional
            The predicted parts with their confidences.
        """
        predicted = None
        if label is not None:
            predicted = self._labels.canonical(label)
        truth = self._labels.values(answer)
        values = {}
        if predicted is not None:
            values = self._labels.values(predicted)
        self.rows += 1
        for name, value in truth.items():
            self._wrong[name] += values.get(name) != value
        for name, field_labels in self._graded.items() if values else ():
            self._credit[name] += field_labels.credit(Prediction(label=values[name]), truth[name])
        chosen = None
        if predicted is not None:
            chosen = self._labels.decisions(predicted)
        self._count(self._labels.decisions(answer), chosen)
        for part in parts if predicted is not None else ():
            if part.confidence is not None and part.name in truth:
                self._sums[part.name].add(part.confidence, right=truth[part.name] == part.label)

    def _count(self, truth: frozenset[str], predicted: frozenset[str] | None) -> None:
        labels = predicted or frozenset()
        both = truth & labels
        tallies = ((self._both, both), (self._missed, truth - both), (self._added, labels - both))
        for counts, names in tallies:
            for name in names:
                counts[self._place[name]] += 1
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
        right = {name: 1 - wrong / self.rows for name, wrong in self._wrong.items()}
        shares = {name: credit.get(name, share) for name, share in right.items()}
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
