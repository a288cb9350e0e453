"""Accuracy, confusion matrix, per-label precision and recall, and collapse onto few labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibrant.core._errors import ConfigurationError
from calibrant.core._files import Recorded
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._prediction import IntegerArray, read_only
from calibrant.core._reported import counted

_COLLAPSED: Final = 0.5  # share of the occurring labels that a classifier must answer


@dataclass(frozen=True, kw_only=True)
class LabelMetrics:
    """Precision, recall, F1 and counts of one label.

    Attributes
    ----------
    precision : float
        Share of right rows among those predicted as this label, in [0, 1]; 0 if never predicted.
    recall : float
        Share of right rows among those that truly have this label, in [0, 1]; 0 if none has.
    f1 : float
        ``2 tp / (2 tp + fp + fn)``, in [0, 1]; 0 if the label occurs nowhere.
    support : int
        Rows that truly have this label.
    predicted : int
        Rows predicted as this label.

    Examples
    --------
    >>> from calibrant.metrics import classification_summary
    >>> classification_summary(["cat", "dog"], ["cat", "cat"]).per_label["cat"].precision
    0.5
    """

    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


@dataclass(frozen=True, kw_only=True)
class AnsweredLabels(Recorded):
    """Numbers of labels that were predicted at least once, which show a collapse onto few labels.

    Where an answer holds several labels, every label that it can hold counts; with fields, every ``field=label``.

    Attributes
    ----------
    answered : int
        Labels that were answered at least once.
    total : int
        Labels in the label set.
    present : int
        Labels that are the true label of at least one row.
    found : int
        Labels among the present ones that were answered at least once.
    share : float
        `found` over `present`, in [0, 1]; with fields, the smallest share of any field. 1 where no label is present.

    Examples
    --------
    >>> AnsweredLabels(answered=2, total=3, present=2, found=2, share=1.0).total
    3
    """

    _derived = ("collapsed",)

    answered: int
    total: int
    present: int
    found: int
    share: float

    @classmethod
    def of(cls, per_label: Mapping[str, LabelMetrics], fields: Iterable[str] = ()) -> AnsweredLabels:
        """Count the labels that were predicted, from the metrics of all labels.

        Parameters
        ----------
        per_label : mapping of str to LabelMetrics
            Every label of the label set, answered or not.
        fields : iterable of str, optional
            Names of the fields, where labels are called ``field=label``.
        """
        by_field = [
            [metrics for name, metrics in per_label.items() if name.startswith(f"{field}=")]
            for field in fields
        ]
        present = [metrics for metrics in per_label.values() if metrics.support]
        return cls(
            answered=sum(metrics.predicted > 0 for metrics in per_label.values()),
            total=len(per_label),
            present=len(present),
            found=sum(metrics.predicted > 0 for metrics in present),
            share=min(map(_answered_share, by_field or [present])),
        )

    @property
    def collapsed(self) -> bool:
        """True if under half of the occurring labels were predicted; with fields, if so in any field."""
        return self.share < _COLLAPSED

    @property
    def warning(self) -> str:
        """Warning for the user if the classifier has collapsed, else an empty text."""
        if not self.collapsed:
            return ""
        labels = counted(self.present, "label that occurs", "labels that occur")
        where = f"of the {labels} in these rows only {self.found:,} were"
        # One field has collapsed, but the labels of the others hide it in the total.
        if self.found >= _COLLAPSED * self.present:
            where = f"in one of the fields only {self.share:.0%} of the labels that occur in these rows were"
        return f"Collapsed: {where} ever answered."

    def __str__(self) -> str:
        """Return the count as text, ``2 of 8``."""
        return f"{self.answered:,} of {self.total:,}"


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassificationSummary:
    """Metrics of a classifier on rows with known labels.

    Attributes
    ----------
    labels : tuple of str, length L
        The labels, in the order of every array here.
    accuracy : float
        Share of right rows, in [0, 1]; a row without a legal prediction is wrong.
    macro_f1 : float
        Mean of the F1 of all L labels, in [0, 1].
    per_label : mapping of str to LabelMetrics
        By label, in the order of `labels`.
    confusion : ndarray of int, shape (L, L)
        Rows are true labels, columns predicted ones.
    other : ndarray of int, shape (L,)
        By true label: rows predicted as None or as something outside `labels`; with `confusion`
        it sums to n.
    n : int
        Rows.

    Examples
    --------
    >>> from calibrant.metrics import classification_summary
    >>> classification_summary(["cat", "dog"], ["cat", "cat"]).confusion.tolist()
    [[1, 0], [1, 0]]
    """

    labels: tuple[str, ...]
    accuracy: float
    macro_f1: float
    per_label: Mapping[str, LabelMetrics]
    confusion: IntegerArray
    other: IntegerArray
    n: int

    def __post_init__(self) -> None:
        for name in ("confusion", "other"):
            object.__setattr__(self, name, read_only(getattr(self, name)))

    @classmethod
    def from_counts(
        cls, labels: Sequence[str], confusion: IntegerArray, other: IntegerArray
    ) -> ClassificationSummary:
        """Return the summary of a confusion matrix.

        Parameters
        ----------
        labels, confusion, other
            As the attributes of these names.

        Raises
        ------
        ConfigurationError
            No rows.
        """
        n = int(confusion.sum() + other.sum())
        if n == 0:
            raise ConfigurationError(
                "Expected at least one row, got none: nothing can be said about no data."
            )
        names = tuple(labels)
        predicted = confusion.sum(axis=0)
        true = confusion.sum(axis=1) + other
        scores = label_scores(np.diag(confusion), predicted, true)
        per_label = {name: LabelMetrics(**one) for name, one in zip(names, scores, strict=True)}
        return cls(
            labels=names,
            accuracy=float(np.trace(confusion) / n),
            macro_f1=float(np.mean([metrics.f1 for metrics in per_label.values()])),
            per_label=per_label,
            confusion=confusion,
            other=other,
            n=n,
        )

    @property
    def answered_labels(self) -> AnsweredLabels:
        """Numbers of labels that were predicted at least once."""
        return AnsweredLabels.of(self.per_label)


def classification_summary(
    y_true: Sequence[str], y_pred: Sequence[str | None], *, labels: LabelSet | Sequence[str] | None = None
) -> ClassificationSummary:
    """Return the metrics of predicted labels against true labels.

    Labels compare without regard to case and surrounding space, as everywhere.

    Parameters
    ----------
    y_true : sequence of str, length n
        True labels.
    y_pred : sequence of (str or None), length n
        Predicted labels; None, or text that is no label, is a wrong answer.
    labels : LabelSet or sequence of str, optional
        The label set; macro F1 averages over all of it. Default: the labels that occur in
        `y_true` or `y_pred`, sorted.

    Raises
    ------
    ConfigurationError
        No rows, different lengths, a true label outside the label set, or duplicate labels.

    Examples
    --------
    >>> summary = classification_summary(["a", "a", "b"], ["a", None, "b"], labels=["a", "b"])
    >>> round(summary.macro_f1, 4), summary.other.tolist()
    (0.8333, [1, 0])
    """
    if len(y_true) != len(y_pred):
        raise ConfigurationError(
            f"Expected as many predictions as true labels, got {len(y_pred)} for {len(y_true)}."
        )
    names = _occurring(y_true, y_pred) if labels is None else LabelSet.of(labels).labels
    column = {normalise_label(name): i for i, name in enumerate(names)}
    outside = len(names)
    table = np.zeros((outside, outside + 1), dtype=np.int64)  # the last column: outside the label set
    for row, (truth, predicted) in enumerate(zip(y_true, y_pred, strict=True)):
        i = None
        if isinstance(truth, str):
            i = column.get(normalise_label(truth))
        if i is None:
            raise ConfigurationError(
                f"Expected every true label to be in the label set, got {truth!r} in row {row}."
            )
        j = outside
        if isinstance(predicted, str):
            j = column.get(normalise_label(predicted), outside)
        table[i, j] += 1
    return ClassificationSummary.from_counts(names, table[:, :-1], table[:, -1])


def _occurring(y_true: Sequence[str], y_pred: Sequence[str | None]) -> tuple[str, ...]:
    spelling: dict[str, str] = {}
    for label in (*y_true, *y_pred):
        if isinstance(label, str) and label.strip():
            spelling.setdefault(normalise_label(label), label)
    return tuple(sorted(spelling.values()))


def label_scores(
    hits: IntegerArray, predicted: IntegerArray, support: IntegerArray
) -> Iterator[dict[str, Any]]:
    """Yield the fields of `LabelMetrics` for each label; a score with a denominator of 0 is 0."""
    precision = hits / np.maximum(predicted, 1)
    recall = hits / np.maximum(support, 1)
    f1 = 2 * hits / np.maximum(predicted + support, 1)
    columns = {"precision": precision, "recall": recall, "f1": f1, "support": support, "predicted": predicted}
    for row in zip(*(column.tolist() for column in columns.values()), strict=True):
        yield dict(zip(columns, row, strict=True))


def _answered_share(labels: Iterable[LabelMetrics]) -> float:
    answered = [metrics.predicted > 0 for metrics in labels if metrics.support]
    return sum(answered) / len(answered) if answered else 1.0
