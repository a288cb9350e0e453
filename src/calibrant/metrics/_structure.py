"""Metrics of labels on a scale or in a tree, from the confusion matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Interval, Prediction
from calibrant.core._structures import HierarchicalLabels, OrdinalLabels
from calibrant.metrics._intervals import mean_interval, wilson_interval


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
        answered, labelled = f"{self.rows:,} answered rows", f"{self.labelled:,} rows with a label"
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
        answered = f"{self.rows:,} answered rows"
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
        yield _figure("credit", self.credit, f"{self.rows:,} answered rows", self.rows)


StructureMetrics = OrdinalMetrics | HierarchicalMetrics | CreditMetrics


def structure_metrics(
    labels: LabelSet, confusion: NDArray[np.int64], other: NDArray[np.int64]
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
def _metrics_of(
    labels: LabelSet, confusion: NDArray[np.int64], other: NDArray[np.int64]
) -> StructureMetrics | None:
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
    return CreditMetrics(rows=int(counts.sum()), credit=mean_interval(np.array([*credit, 0.0]), counts))


@_metrics_of.register(OrdinalLabels)
def _ordinal(
    labels: OrdinalLabels,  # noqa: ARG001
    confusion: NDArray[np.int64],
    other: NDArray[np.int64],
) -> OrdinalMetrics:
    size, labelled = len(other), int(confusion.sum())
    rows, places = labelled + int(other.sum()), np.arange(size)
    distance = np.abs(places[:, None] - places)
    steps = np.bincount(distance.ravel(), weights=confusion.ravel(), minlength=size).astype(np.int64)
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


def _kappa(confusion: NDArray[np.int64], distance: NDArray[np.int64]) -> float | None:
    squares = distance.astype(np.float64) ** 2
    chance = np.outer(confusion.sum(axis=1), confusion.sum(axis=0)) / confusion.sum()
    by_chance = float((squares * chance).sum())
    return None if by_chance == 0.0 else 1.0 - float((squares * confusion).sum()) / by_chance


@_metrics_of.register(HierarchicalLabels)
def _hierarchical(
    labels: HierarchicalLabels, confusion: NDArray[np.int64], other: NDArray[np.int64]
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
    precision, recall = both / max(float(counts @ lengths[predicted]), 1.0), both / true_levels
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
