"""How answers that hold several labels fared, part by part and label by label, counted as rows come."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core import CompositeLabels, Interval, LabelSet, MultiLabels, Prediction
from calibrant.metrics._classification import (
    AnsweredLabels,
    ClassificationSummary,
    LabelMetrics,
    classification_summary,
)
from calibrant.metrics._intervals import wilson_interval

__all__ = [
    "CompositeMetrics",
    "CompositeTally",
    "DecisionMetrics",
    "GivenPart",
    "PartMetrics",
    "answer_summary",
]

_BINS: Final = 15
_EDGES: Final[list[float]] = np.linspace(0.0, 1.0, _BINS + 1).tolist()


class GivenPart(NamedTuple):
    """A part of an answer, and how sure the model was of it.

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
    """How one label of a set, or one label of a field, fared.

    Attributes
    ----------
    missed : int
        Rows that truly have it, and were not given it.
    added : int
        Rows that were given it, and truly have it not.
    """

    missed: int
    added: int


@dataclass(frozen=True, kw_only=True)
class PartMetrics:
    """How one part fared: a field, or whether one label is in the set.

    Attributes
    ----------
    correct : int
        Answered rows in which it is right; in a row without a legal answer nothing is.
    accuracy : Interval
        `correct` over the answered rows, with Wilson's 95 % interval.
    rows_with_confidence : int
        Rows whose answer says how sure it is of this part.
    ece, brier : float or None
        Expected calibration error (15 bins of equal width) and Brier score of that confidence, in [0, 1], 0 is best;
        None without such rows.
    credit : float or None
        Mean credit of a field on a scale or in a tree, in [0, 1]: what an answer that is nearly right earns; None where
        labels are plain.
    """

    correct: int
    accuracy: Interval
    rows_with_confidence: int
    ece: float | None
    brier: float | None
    credit: float | None = None


@dataclass(frozen=True, kw_only=True)
class CompositeMetrics:
    """How answers that hold several labels fared, on answered rows.

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
        Mean over rows of what is right in them, in [0, 1]: the mean over the fields, or `jaccard`; see
        `calibrant.core.LabelSet.credit`.
    micro_f1 : float
        ``2 tp / (2 tp + fp + fn)`` with all counts added up, in [0, 1].
    macro_f1 : float
        Mean of all F1 in `per_label`, in [0, 1].
    hamming_loss : float or None
        Share of labels that are wrongly in the set or out of it, in [0, 1], 0 is best; all of them are wrong in a row
        without a legal answer. None for fields.
    jaccard : float or None
        Mean over rows of the labels that true and given set share over those in either, in [0, 1]; 1 where both are
        empty, 0 without a legal answer. None for fields.
    samples_f1 : float or None
        Mean over rows of twice the labels that both sets share over the sum of their sizes, in [0, 1]; as `jaccard`
        otherwise.
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
        """How many of the labels in `per_label` were answered."""
        return AnsweredLabels.of(self.per_label, self.parts if self.kind == "fields" else ())


class _Sureness:
    """Adds up what calibration error and Brier score are made of."""

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
    """Counts answered rows; memory does not grow with them.

    Parameters
    ----------
    labels : CompositeLabels
        The legal answers.
    """

    def __init__(self, labels: CompositeLabels) -> None:
        self._labels = labels
        self._sets = isinstance(labels, MultiLabels)
        self._place = {name: place for place, name in enumerate(labels)}
        size = len(labels)
        self._both, self._added, self._missed = (np.zeros(size, dtype=np.int64) for _ in range(3))
        self._wrong: dict[str, int] = dict.fromkeys(labels.parts, 0)
        self._sure = {name: _Sureness() for name in labels.parts}
        # What is nearly right counts in these fields alone.
        graded = {name: labels.labels_of(name) for name in labels.parts if not self._sets}
        self._graded = {name: own for name, own in graded.items() if type(own) is not LabelSet}
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
            The given one; None, or what is no legal answer, is wrong in every part.
        parts : sequence of GivenPart, optional
            How sure the model was of which part.
        """
        given = None if label is None else self._labels.canonical(label)
        truth = self._labels.values(answer)
        values = {} if given is None else self._labels.values(given)
        self.rows += 1
        for name, value in truth.items():
            self._wrong[name] += values.get(name) != value
        for name, own in self._graded.items() if values else ():
            self._credit[name] += own.credit(Prediction(label=values[name]), truth[name])
        self._count(self._labels.decisions(answer), None if given is None else self._labels.decisions(given))
        for part in parts if given is not None else ():
            if part.confidence is not None and part.name in truth:
                self._sure[part.name].add(part.confidence, right=truth[part.name] == part.label)

    def _count(self, truth: frozenset[str], given: frozenset[str] | None) -> None:
        found = given or frozenset()
        both = truth & found
        for table, names in ((self._both, both), (self._missed, truth - both), (self._added, found - both)):
            for name in names:
                table[self._place[name]] += 1
        if given is not None and self._sets:
            self._jaccard += len(both) / len(truth | found) if truth or found else 1.0
            self._f1 += 2 * len(both) / (len(truth) + len(found)) if truth or found else 1.0

    def metrics(self) -> CompositeMetrics | None:
        """Return the numbers of the rows so far; None without rows."""
        if not self.rows:
            return None
        per_label = self._per_label()
        sides = 2 * self._both.sum() + self._added.sum() + self._missed.sum()
        wrong = sum(self._wrong.values())
        credit = {name: found / self.rows for name, found in self._credit.items()}
        shares = {name: credit.get(name, 1 - missed / self.rows) for name, missed in self._wrong.items()}
        return CompositeMetrics(
            kind="multi_label" if self._sets else "fields",
            rows=self.rows,
            parts={
                name: sure.metrics(self.rows - self._wrong[name], self.rows, credit.get(name))
                for name, sure in self._sure.items()
            },
            per_label=per_label,
            credit=self._jaccard / self.rows if self._sets else sum(shares.values()) / len(shares),
            micro_f1=float(2 * self._both.sum() / max(sides, 1)),
            macro_f1=float(np.mean([found.f1 for found in per_label.values()])),
            hamming_loss=wrong / (self.rows * len(self._wrong)) if self._sets else None,
            jaccard=self._jaccard / self.rows if self._sets else None,
            samples_f1=self._f1 / self.rows if self._sets else None,
        )

    def _per_label(self) -> dict[str, DecisionMetrics]:
        given, support = self._both + self._added, self._both + self._missed
        precision, recall = _ratio(self._both, given), _ratio(self._both, support)
        f1 = _ratio(2 * self._both, given + support)
        return {
            name: DecisionMetrics(
                precision=float(precision[place]),
                recall=float(recall[place]),
                f1=float(f1[place]),
                support=int(support[place]),
                predicted=int(given[place]),
                missed=int(self._missed[place]),
                added=int(self._added[place]),
            )
            for name, place in self._place.items()
        }


def answer_summary(
    labels: LabelSet, answers: Sequence[str], given: Sequence[str | None]
) -> ClassificationSummary | CompositeMetrics | None:
    """Summarise answers of any kind of label set; None without rows.

    Parameters
    ----------
    labels : LabelSet
        The legal answers.
    answers : sequence of str, length n
        True answers, spelled as in the label set.
    given : sequence of (str or None), length n
        Predicted ones; None, or what is no legal answer, is wrong.
    """
    if not answers:
        return None
    if not isinstance(labels, CompositeLabels):
        return classification_summary(answers, given, labels=labels)
    tally = CompositeTally(labels)
    for answer, label in zip(answers, given, strict=True):
        tally.add(answer, label)
    return tally.metrics()


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return part / whole, 0 where whole is 0."""
    return part / np.maximum(whole, 1)
