"""Running counts, metrics and progress of an evaluation, in nine bytes of memory per row."""

from __future__ import annotations

import json
import logging
import math
import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import SCHEMA_VERSION, Recorded, as_record
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._prediction import (
    FloatArray,
    Interval,
    JsonObject,
    Outcome,
    Prediction,
    Record,
    Usage,
)
from calibrant.core._reported import escaped_line, one_line
from calibrant.core._rows import Example
from calibrant.evaluation._data import NO_TEXT
from calibrant.metrics._classification import AnsweredLabels, ClassificationSummary, LabelMetrics
from calibrant.metrics._confidence import auroc_interval, brier_score, expected_calibration_error
from calibrant.metrics._intervals import interval_record, wilson_interval
from calibrant.runs._directory import PREDICTIONS, RunDirectory, write_json
from calibrant.runs._rows import UNKNOWN, has_low_label_mass, row_lines, row_record, saved_parts
from calibrant.runs._shards import Shards

if TYPE_CHECKING:
    import pandas as pd

    from calibrant.inference._limits import Gate
    from calibrant.metrics._cascade import CascadeMetrics, CascadeTally
    from calibrant.metrics._structure import CompositeMetrics, CompositeTally, StructureMetrics


_NO_USAGE: Final = Usage()
_KINDS: Final = 20
_EXAMPLES: Final = 3
_EXAMPLE_LENGTH: Final = 120
_LOG = logging.getLogger("calibrant")
_OTHER: Final = "other"
_KIND_LENGTH: Final = 80
# Saved rows hold a failure as words alone.
_ADDRESS_OR_NUMBER: Final = re.compile(r"\S+://\S+|\d+(?:\.\d+)?")
_STATUS: Final = re.compile(r"\b[45]\d\d\b")
_NEARLY_ALL: Final = 0.9
# Columns of `EvaluationResult.to_pandas` with the type of their numbers and truth values.
_COLUMN_TYPES: Final = {
    "input": None,
    "answer": None,
    "label": None,
    "confidence": "float64",
    "correct": "boolean",
    "outcome": None,
    "reason": None,
    "accepted": "boolean",
    "label_mass": "float64",
    "unresolved_mass": "float64",
    "space": None,
    "model": None,
    "attempts": "int64",
    "latency_seconds": "float64",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "cost": "float64",
}


@dataclass(frozen=True, kw_only=True)
class EvaluationMetrics(Recorded):
    """Figures of a classifier on rows, most of them about their true labels.

    *Answered* rows are those that did not fail with a transport error: all but outcome ``error``. A
    refusal, or an answer that is no label, is answered and wrong.

    Attributes
    ----------
    rows : int
        Rows that have a prediction, whatever their outcome.
    rows_expected : int or None
        Rows of the input, where their number was known.
    complete : bool
        True if every row of the input has a prediction.
    stopped : str
        Reason for an early end of the run; empty otherwise.
    outcomes : mapping of str to int
        Rows by outcome: ``ok``, ``error``, ``refusal``, ``unparsed``.
    errors : mapping of str to int
        Rows that failed, by kind of failure.
    answered : int
        Rows whose outcome is not ``error``.
    correct : int
        Rows with the right label.
    accuracy : Interval or None
        `correct` over `rows`: a row that failed counts as not right. With Wilson's 95 % interval.
    accuracy_answered : Interval or None
        `correct` over `answered`. With Wilson's 95 % interval.
    macro_f1 : float or None
        Mean F1 over all labels, in [0, 1], on answered rows.
    per_label : mapping of str to LabelMetrics
        Precision, recall, F1 and support of each label, on answered rows.
    rows_with_confidence : int
        Rows of outcome ``ok`` that have a confidence: those `ece` and `brier` are about.
    ece, brier : float or None
        Expected calibration error (15 bins of equal width) and Brier score of the confidence in the
        predicted label, in [0, 1], 0 is best.
    auroc : Interval or None
        AUROC of confidence for right against wrong rows, in [0, 1]: 0.5 is chance, below it wrong rows are the surer
        ones. None where all these rows are right, or all wrong.
    rows_with_low_label_mass : int
        Rows on which the model would rather have written something else than any label.
    rows_without_text : int
        Unlabelled rows without a text, about which no model was asked; outcome ``unparsed``.
    labels : mapping of str to int
        Rows by predicted label, where the true ones are not known; `per_label` is about the others.
    mean_confidence : float or None
        Mean confidence of such rows, in [0, 1]; None where true labels are known.
    unreadable_answers : tuple of str
        What the model wrote instead of a label, of three rows at most: one line each, shortened.
    models : mapping of str to int
        Rows by the model that really answered, as the provider names it.
    calls : int
        Calls made for these rows, as `Prediction.attempts` counts them.
    rows_from_cache : int
        Rows without a call: their answer was known already, asked for by an equal row, or that of a student.
    prompt_tokens, completion_tokens : int
        Tokens paid for.
    cost : float or None
        US dollars paid; None where no price is known for any row.
    unpriced_rows : int
        Rows with a paid call whose price is not known: `cost` lacks it.
    seconds : float
        Wall time of this session, in seconds.
    session_rows : int
        Rows this session added; an earlier one may have left some.
    vectors : Usage
        Tokens and cost of the vectors of texts that were paid for, which a head reads, but in sessions that were
        killed; they are no part of `prompt_tokens` and `cost`.
    cascade : CascadeMetrics or None
        Contributions of a cascade's models; None for a single model.
    composite : CompositeMetrics or None
        Metrics of the parts of answers that hold several labels; None where an answer is one label. `correct`,
        `accuracy`, `ece` and `brier` are about whole answers then, `per_label` and `macro_f1` about every label that
        an answer can hold.
    structure : OrdinalMetrics, HierarchicalMetrics, CreditMetrics or None
        Distances of answers from true labels, where the labels have a structure; None elsewhere.

    Examples
    --------
    >>> from calibrant import BatchEvaluator, Classifier, Example
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9), "barks": ("dog", 0.8)})
    >>> classifier = Classifier(model=fake, labels=["cat", "dog"], field="category")
    >>> rows = [Example(input="purrs", answer="cat"), Example(input="barks", answer="cat")]
    >>> metrics = BatchEvaluator(classifier).evaluate(rows).metrics
    >>> metrics.rows, metrics.correct, round(metrics.brier, 3)  # (0.1 ** 2 + 0.8 ** 2) / 2
    (2, 1, 0.325)
    """

    rows: int
    rows_expected: int | None
    complete: bool
    stopped: str
    outcomes: Mapping[str, int]
    errors: Mapping[str, int]
    answered: int
    correct: int
    accuracy: Interval | None
    accuracy_answered: Interval | None
    macro_f1: float | None
    per_label: Mapping[str, LabelMetrics]
    rows_with_confidence: int
    ece: float | None
    brier: float | None
    models: Mapping[str, int]
    calls: int
    rows_from_cache: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    unpriced_rows: int
    seconds: float
    session_rows: int
    vectors: Usage = _NO_USAGE
    cascade: CascadeMetrics | None = None
    composite: CompositeMetrics | None = None
    structure: StructureMetrics | None = None
    auroc: Interval | None = None
    rows_with_low_label_mass: int = 0
    rows_without_text: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)
    mean_confidence: float | None = None
    unreadable_answers: tuple[str, ...] = ()

    @property
    def rows_per_second(self) -> float:
        """Rows that this session added, per second."""
        if self.seconds > 0:
            return self.session_rows / self.seconds
        return 0.0

    @property
    def unreadable(self) -> int:
        """Number of rows whose answer could not be read as a label."""
        return self.outcomes.get("unparsed", 0) - self.rows_without_text

    @property
    def has_hardly_any_label(self) -> bool:
        """True if nine in ten of the rows failed, or have an answer that cannot be read."""
        asked = self.rows - self.rows_without_text
        useless = self.rows - self.answered + self.unreadable
        return useless > 0 and useless >= _NEARLY_ALL * asked

    @property
    def answered_labels(self) -> AnsweredLabels | None:
        """Numbers of labels ever answered and of true labels; None without answered rows."""
        if self.composite is not None:
            return self.composite.answered_labels
        if self.per_label:
            return AnsweredLabels.of(self.per_label)
        return None

    def to_record(self) -> JsonObject:
        """Return the metrics as JSON values, as ``metrics.json`` holds them."""
        numbers = super().to_record()
        for name in ("cascade", "composite", "structure"):
            if numbers[name] is None:
                del numbers[name]
        if self.vectors == _NO_USAGE:
            del numbers["vectors"]
        # Figures of rows whose true labels are not known.
        for name in () if self.accuracy is None else ("rows_without_text", "labels", "mean_confidence"):
            del numbers[name]
        for name in ("rows", "per_label", "macro_f1") if self.composite is not None else ():  # said already
            del numbers["composite"][name]
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "evaluation",
            **numbers,
            "accuracy": _interval(self.accuracy, self.correct, self.rows, "all rows"),
            "accuracy_answered": _interval(
                self.accuracy_answered, self.correct, self.answered, "rows whose outcome is not error"
            ),
            "answered_labels": as_record(self.answered_labels),
            "rows_per_second": self.rows_per_second,
        }


@dataclass(frozen=True, kw_only=True)
class WrittenLabels:
    """File of labels with its numbers of rows and decisions.

    Attributes
    ----------
    path : Path
        The file.
    rows : int
        Number of rows in it, which are the first ones of the input.
    labelled : int
        Those of them that have a label.
    decisions : mapping of str to int
        Rows by decision; empty if nothing was decided.
    """

    path: Path
    rows: int
    labelled: int = 0
    decisions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Predictions and metrics of an evaluation.

    Attributes
    ----------
    predictions : tuple of Prediction
        One per row, in the order of the input; empty where they went to files.
    metrics : EvaluationMetrics
        The numbers.
    meter : Gate or None
        Counts what this call paid; None where other machines asked.
    confidence : ndarray of float, shape (n,)
        Confidence of each row, in [0, 1], those of an earlier session first; NaN where there is none, or no label.
    correct : ndarray of int, shape (n,)
        1 right, 0 wrong, -1 where the row failed with a transport error or its true label is not known; in the order of
        `confidence`.
    directory : Path or None
        The directory of the files.
    kept_rows : int or None
        Rows that the same call would not ask again: those of `metrics`, and those answered behind a row that is
        missing, which the cache keeps. None where that is not known.
    written : WrittenLabels or None
        The file of labels that `BatchEvaluator.label` wrote.
    examples : tuple of Example
        The rows of `predictions`.
    frame : data frame, table, dataset or None
        A copy of the frame that was given, of the same kind and with the same index, with the columns label,
        confidence, decision, outcome, provider and cost; each has the prefix ``calibrant_`` where the frame has a
        column of that name, and is null where a run that ended early has no answer.

    Examples
    --------
    >>> from calibrant import BatchEvaluator, Classifier, Example
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(["cat", "dog"], {"purrs": "cat"})
    >>> classifier = Classifier(model=fake, labels=["cat", "dog"], field="category")
    >>> result = BatchEvaluator(classifier).evaluate([Example(input="purrs", answer="cat")])
    >>> result.predictions[0].label, result.metrics.accuracy.estimate, result.directory
    ('cat', 1.0, None)
    """

    predictions: tuple[Prediction, ...] = field(repr=False)
    metrics: EvaluationMetrics
    confidence: FloatArray = field(repr=False, compare=False)
    correct: NDArray[np.int8] = field(repr=False, compare=False)
    directory: Path | None = None
    kept_rows: int | None = None
    written: WrittenLabels | None = None
    examples: tuple[Example, ...] = field(default=(), repr=False)
    frame: Any = field(default=None, repr=False, compare=False)
    meter: Gate | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a pickle, without `meter`, which belongs to the open predictor."""
        return {**vars(self), "meter": None}

    def to_pandas(self, *, distribution: bool = False) -> pd.DataFrame:
        """Return a data frame with one row for each that was answered, in the order of the input.

        Its columns are those of ``predictions.jsonl`` that hold one value. Its index is that of the frame that was
        given, if it was one of pandas.

        Parameters
        ----------
        distribution : bool, default False
            True to add a column ``probability_LABEL`` for every label.

        Raises
        ------
        ConfigurationError
            pandas is not installed.
        StateError
            The run's directory was moved or removed.
        """
        from calibrant.core._frames import pandas_frame  # noqa: PLC0415 (evaluations do without)

        records = self.records()
        columns = {name: [record.get(name) for record in records] for name in _COLUMN_TYPES}
        if distribution:
            distributions = [record["probabilities"] or {} for record in records]
            for label in dict.fromkeys(chain.from_iterable(distributions)):
                columns[f"probability_{label}"] = [found.get(label) for found in distributions]
        index = getattr(self.frame, "index", None)
        rows = pandas_frame(columns, index=None if index is None else index[: len(records)])
        return rows.astype({name: kind for name, kind in _COLUMN_TYPES.items() if kind is not None})

    def records(self) -> list[JsonObject]:
        """Return the rows as records of ``predictions.jsonl``.

        Raises
        ------
        StateError
            The run's directory was moved or removed.
        """
        if self.directory is None:
            pairs = zip(self.examples, self.predictions, strict=True)
            return [row_record(index, *pair) for index, pair in enumerate(pairs)]
        records = [json.loads(line) for line in answered_lines(self.directory)]
        if self.metrics.rows and not records:
            raise StateError(
                f"{self.directory}: expected the run's rows, got none: restore them, or run again."
            )
        return records


def answered_lines(directory: Path) -> Iterator[bytes]:
    """Yield the lines of a run's answered rows, up to the first row without an answer."""
    path = directory / PREDICTIONS
    if path.exists():
        yield from (line for line in row_lines(path) if line.endswith(b"\n"))
        return
    # Blocks of several workers, of which one in between may be missing.
    for number, line in enumerate(Shards(directory / "shards", 1).lines()):
        if json.loads(line)["index"] != number:
            return
        yield line


@dataclass(frozen=True, kw_only=True)
class EvaluationProgress:
    """Progress of a run at one moment.

    Attributes
    ----------
    rows : int
        Rows that have a prediction, in whatever order they were answered, those of earlier sessions included.
    rows_expected : int or None
        Rows of the input, where their number is known.
    session_rows : int
        Rows this session answered, those that failed earlier included.
    remaining : int or None
        Rows this session has still to answer, where their number is known.
    seconds : float
        Seconds since this session began.
    accuracy_answered : Interval or None
        Share of right rows among those that did not fail, with Wilson's 95 % interval.
    errors : mapping of str to int
        Rows that failed, by kind.
    cost : float or None
        US dollars paid for these rows; None where no price is known.
    calls : int
        Calls of this session that have ended, those of rows under way included; 0 where they are not counted.
    calls_of_rows : int
        Those of them that belong to rows this session answered.
    rows_called : int
        Rows this session answered by calls, not from a cache.
    rate_limits : mapping of str to float
        Seconds until calls may begin again, by the model whose rate limit is waited for; empty where none is.

    Examples
    --------
    >>> from calibrant import BatchEvaluator, Classifier, Example
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(["cat", "dog"], {"purrs": "cat"})
    >>> classifier = Classifier(model=fake, labels=["cat", "dog"], field="category")
    >>> rows, moments = [Example(input="purrs", answer="cat")] * 3, []
    >>> found = BatchEvaluator(classifier).evaluate(rows, on_progress=moments.append)
    >>> moments[-1].rows, moments[-1].rows_expected, moments[-1].remaining
    (3, 3, 0)
    """

    rows: int
    rows_expected: int | None = None
    session_rows: int = 0
    remaining: int | None = None
    seconds: float = 0.0
    accuracy_answered: Interval | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    cost: float | None = None
    calls: int = 0
    calls_of_rows: int = 0
    rows_called: int = 0
    rate_limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows_per_second(self) -> float:
        """Rows of this session per second."""
        if self.seconds > 0:
            return self.session_rows / self.seconds
        return 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Estimated seconds until the last row; None if unknown.

        The rate is that of the calls, as far as they are counted: the first rows of many side by side end late,
        and together. The other rows are taken to need as many calls each as those that are answered.
        """
        if self.remaining is None or not self.rows_per_second:
            return None
        if not (self.calls and self.rows_called):
            return self.remaining / self.rows_per_second
        calls = max(self.calls, self.calls_of_rows)  # a cascade's verifier has limits of its own
        to_come = self.remaining * self.calls_of_rows / self.rows_called
        under_way = calls - self.calls_of_rows
        return max(0.0, to_come - under_way) * self.seconds / calls


EvaluationProgressListener: TypeAlias = Callable[[EvaluationProgress], None]
"""Called four times a second, and at the end; may be called from another thread."""


def _interval(interval: Interval | None, correct: int, rows: int, denominator: str) -> JsonObject | None:
    if interval is None:
        return None
    return {**interval_record(interval), "correct": correct, "rows": rows, "denominator": denominator}


def _figure(path: str) -> Callable[[EvaluationMetrics], float | None]:
    """Return a function that looks up a metric by dotted name, and returns None for a missing part."""

    def read(metrics: EvaluationMetrics) -> float | None:
        value: Any = metrics
        for name in path.split("."):
            value = getattr(value, name, None)
        return value.estimate if isinstance(value, Interval) else value

    return read


def _credit(metrics: EvaluationMetrics) -> float | None:
    """Return the mean credit; for single labels, the accuracy."""
    for part in ("composite", "structure"):
        if getattr(metrics, part) is not None:
            return _figure(f"{part}.credit")(metrics)
    return _figure("accuracy_answered")(metrics)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


GATES: Final[Mapping[str, Callable[[EvaluationMetrics], float | None]]] = MappingProxyType(
    {
        "accuracy": _figure("accuracy"),
        "accuracy_answered": _figure("accuracy_answered"),
        "answered": lambda metrics: _share(metrics.answered, metrics.rows),
        "credit": _credit,
        "hierarchical_f1": _figure("structure.f1"),
        "macro_f1": _figure("macro_f1"),
        "micro_f1": _figure("composite.micro_f1"),
        "jaccard": _figure("composite.jaccard"),
        "ok": lambda metrics: _share(metrics.outcomes.get("ok", 0), metrics.rows),
        "quadratic_kappa": _figure("structure.quadratic_kappa"),
        "within_one_step": _figure("structure.within_one"),
    }
)
"""Metrics of which more is better and 1 is best, by name: what a run can be held to.

Values are None without rows, or where a metric does not exist for a task's labels.
"""

_ONLY_OF: Final[Mapping[str, Callable[[LabelSet], bool]]] = MappingProxyType(
    {
        "hierarchical_f1": lambda labels: labels.structure == "hierarchical",
        "micro_f1": lambda labels: labels.holds_several,
        "jaccard": lambda labels: labels.is_set,
        "quadratic_kappa": lambda labels: labels.structure == "ordinal",
        "within_one_step": lambda labels: labels.structure == "ordinal",
    }
)


def _fits(name: str, labels: LabelSet) -> bool:
    """Return True if labels of this kind have the metric."""
    return name not in _ONLY_OF or _ONLY_OF[name](labels)


def check_gates(names: Iterable[str], labels: LabelSet) -> None:
    """Raise ConfigurationError for gates on metrics that these labels do not have.

    Parameters
    ----------
    names : iterable of str
        Names of metrics.
    labels : LabelSet
        The legal answers.

    Raises
    ------
    ConfigurationError
        A metric is about labels of another structure.
    """
    unfit = [name for name in names if not _fits(name, labels)]
    if unfit:
        fit = ", ".join(name for name in GATES if _fits(name, labels))
        raise ConfigurationError(f"Expected a metric of this task's labels, one of {fit}, got {unfit[0]!r}.")


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
            from calibrant.metrics._structure import CompositeTally  # noqa: PLC0415 (loaded when it is used)

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
        if self.labelled and self.answered:
            return wilson_interval(self.correct, self.answered)
        return None

    def add(self, row: Record) -> None:
        """Count a row, given its record as in ``predictions.jsonl``.

        Raises
        ------
        KeyError, TypeError, ValueError
            The record is invalid.
        """
        outcome = row["outcome"]
        answer = row["answer"]
        label = row["label"]
        confidence = row["confidence"]
        failed = Outcome(outcome) is Outcome.ERROR
        right = label == answer
        is_sure = outcome == Outcome.OK.value and confidence is not None
        self.confidence.append(confidence if is_sure else math.nan)
        self.right.append(UNKNOWN if failed or answer is None else right)
        self.rows += 1
        self.labelled += answer is not None
        self.outcomes[outcome] += 1
        self._count_payment(row)
        steps = row.get("steps")
        if steps:  # of a cascade
            from calibrant.metrics._cascade import CascadeTally  # noqa: PLC0415 (loaded when it is used)

            self._cascade = self._cascade or CascadeTally()
            self._cascade.add(
                steps, accepted=row["accepted"], correct=None if failed or answer is None else right
            )
        if failed:
            kind = error_kind(row["reason"])
            if kind not in self.errors and len(self.errors) >= _KINDS:
                kind = _OTHER
            self.errors[kind] += 1
            return
        if len(self.unreadable) < _EXAMPLES and (text := row.get("text")):
            self.unreadable[escaped_line(text, limit=_EXAMPLE_LENGTH)] = None
        if answer is None:
            self.without_text += row["reason"] == NO_TEXT
            if label is not None:
                self.given.update(self._labels.decisions(label))
        else:
            self.correct += right
            self._count_answer(row)
        if row["reason"] != NO_TEXT:
            self.models[row["model"] or "unknown"] += 1
        self.low_label_mass += has_low_label_mass(row)

    def _count_answer(self, row: Record) -> None:
        """Count the predicted label of an answered row beside the true one."""
        answer = row["answer"]
        label = row["label"]
        if self._composite is None:
            place = -1
            if label is not None:
                place = self._place.get(normalise_label(label), -1)
            self._counts[self._place[normalise_label(answer)], place] += 1
        else:
            self._composite.add(answer, label, saved_parts(row))

    def _count_payment(self, row: Record) -> None:
        if row["attempts"] == 0:
            self.from_cache += row["outcome"] != Outcome.ERROR.value
            return
        self.calls += row["attempts"]
        # A cascade's models have prices of their own, and the row has the sum of those that are known. Where the cache
        # had the first models' answers, only the others are paid now.
        steps: list[Record] = [
            {**step["usage"], "attempts": step["attempts"], "outcome": step["verdict"]}
            for step in row.get("steps") or ()
        ]
        cached = [step for step in steps if step["attempts"] == 0]
        self.prompt_tokens += row["prompt_tokens"] - sum(step["prompt_tokens"] for step in cached)
        self.completion_tokens += row["completion_tokens"] - sum(step["completion_tokens"] for step in cached)
        if row["cost"] is not None:
            self.cost += row["cost"] - sum(step["cost"] or 0.0 for step in cached)
            self.priced += 1
        self.unpriced += any(map(_is_unpriced, steps or [row]))

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

    def _scored(self) -> tuple[FloatArray, NDArray[np.int8]]:
        """Return the confidence and the correctness of the rows that have both."""
        # Copies: an array that lends its memory cannot grow.
        confidence = np.array(self.confidence)
        right = np.array(self.right)
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
        tally = self.tally
        ahead = _AheadCounts.of(self.ahead.values())
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
        about: Record,
        predictions: Sequence[Prediction] = (),
        *,
        meter: Gate | None = None,
    ) -> EvaluationResult:
        """Return the result; write the metrics and the entries of `about` into a directory, if given."""
        metrics = self.tally.metrics(
            expected=self.expected,
            stopped=self.stopped,
            seconds=time.perf_counter() - self.started if self.answered else 0.0,
            session_rows=self.answered,
        )
        if meter is not None:
            metrics = replace(metrics, vectors=meter.vectors)
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
            meter=meter,
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
        counts = cls()
        for example, prediction in answered:
            counts.rows += 1
            cost = prediction.usage.cost
            if cost is not None and prediction.attempts:
                counts.cost += cost
                counts.priced += 1
            if prediction.outcome is Outcome.ERROR:
                counts.errors[error_kind(prediction.reason)] += 1
            elif example.answer:
                counts.labelled += 1
                counts.correct += prediction.label == example.answer
        return counts

    def accuracy(self, tally: Tally) -> Interval | None:
        """Return the share of right rows among those answered here and in a tally; None if no true label is known."""
        if not (tally.labelled or self.labelled):
            return None
        answered = tally.answered + self.labelled
        if answered:
            return wilson_interval(tally.correct + self.correct, answered)
        return None


def _is_unpriced(part: Record) -> bool:
    """Return True for a row or a step of one whose calls have no known price."""
    is_answered = part["outcome"] not in {Outcome.ERROR.value, "failed"}
    tokens = part["prompt_tokens"] + part["completion_tokens"]
    return bool(part["cost"] is None and (is_answered or tokens > 0) and part["attempts"] > 0)


def saved_vectors(metrics: Path) -> Usage:
    """Return the usage of the vectors of an earlier session, from its ``metrics.json``; none without the file."""
    try:
        record = json.loads(metrics.read_bytes()).get("vectors")
        return Usage(**record) if record else _NO_USAGE
    except (OSError, ValueError, AttributeError, TypeError):  # the rows are counted all the same
        return _NO_USAGE


def error_kind(reason: str) -> str:
    """Return a failure's reason without the model's name and most numbers, to count similar failures.

    The status and addresses keep theirs.
    """
    _, colon, rest = reason.partition(": ")
    text = rest if colon and rest else reason
    status = _STATUS.search(text)
    kept = status[0] if status else ""
    text = _ADDRESS_OR_NUMBER.sub(
        lambda found: found[0] if found[0] == kept or "://" in found[0] else "#", text
    )
    flat = one_line(text)
    return (flat if len(flat) <= _KIND_LENGTH else f"{flat[:_KIND_LENGTH]}...") or "unknown"
