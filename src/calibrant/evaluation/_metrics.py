"""Metrics and progress of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.core._files import SCHEMA_VERSION
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Interval, Prediction
from calibrant.core._rows import Example
from calibrant.metrics._classification import AnsweredLabels

if TYPE_CHECKING:
    import pandas as pd

    from calibrant.evaluation._label import WrittenLabels
    from calibrant.metrics._cascade import CascadeMetrics
    from calibrant.metrics._classification import LabelMetrics
    from calibrant.metrics._composite import CompositeMetrics
    from calibrant.metrics._structure import StructureMetrics

_NEARLY_ALL: Final = 0.9


@dataclass(frozen=True, kw_only=True)
class EvaluationMetrics:
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
        Calls made for these rows, retries included.
    rows_from_cache : int
        Rows whose answer was known already, or asked for by an equal row, so that no call was made.
    prompt_tokens, completion_tokens : int
        Tokens paid for.
    cost : float or None
        US dollars paid; None where no price is known for any row.
    unpriced_rows : int
        Rows paid for whose price is not known: `cost` lacks them.
    seconds : float
        Wall time of this session, in seconds.
    session_rows : int
        Rows this session added; an earlier one may have left some.
    cascade : CascadeMetrics or None
        Contributions of a cascade's models; None for a single model.
    composite : CompositeMetrics or None
        Metrics of the parts of answers that hold several labels; None where an answer is one label. `correct`,
        `accuracy`, `ece` and `brier` are about whole answers then, `per_label` and `macro_f1` about every label that
        an answer can hold.
    structure : OrdinalMetrics, HierarchicalMetrics or None
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
        return self.session_rows / self.seconds if self.seconds > 0 else 0.0

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
        return AnsweredLabels.of(self.per_label) if self.per_label else None

    def to_record(self) -> dict[str, Any]:
        """Return the metrics as JSON values, as ``metrics.json`` holds them."""
        numbers = asdict(self)
        labels = self.answered_labels
        for name in ("cascade", "composite", "structure"):
            if numbers[name] is None:
                del numbers[name]
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
            "answered_labels": None if labels is None else labels.to_record(),
            "rows_per_second": self.rows_per_second,
        }


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Predictions and metrics of an evaluation.

    Attributes
    ----------
    predictions : tuple of Prediction
        One per row, in the order of the input; empty where they went to files.
    metrics : EvaluationMetrics
        The numbers.
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

    predictions: tuple[Prediction, ...]
    metrics: EvaluationMetrics
    confidence: NDArray[np.float64] = field(repr=False, compare=False)
    correct: NDArray[np.int8] = field(repr=False, compare=False)
    directory: Path | None = None
    kept_rows: int | None = None
    written: WrittenLabels | None = None
    examples: tuple[Example, ...] = field(default=(), repr=False)
    frame: Any = field(default=None, repr=False, compare=False)

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
        from calibrant.evaluation._frames import result_frame  # noqa: PLC0415 (evaluations do without)

        return result_frame(self, distribution=distribution)


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
        return self.session_rows / self.seconds if self.seconds > 0 else 0.0

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


def _interval(found: Interval | None, correct: int, rows: int, denominator: str) -> dict[str, Any] | None:
    if found is None:
        return None
    ends = {name: getattr(found, name) for name in ("estimate", "lower", "upper", "level")}
    return {**ends, "correct": correct, "rows": rows, "denominator": denominator}


def _figure(path: str) -> Callable[[EvaluationMetrics], float | None]:
    """Return a function that looks up a metric by dotted name, and returns None for a missing part."""

    def read(found: EvaluationMetrics) -> float | None:
        value: Any = found
        for name in path.split("."):
            value = getattr(value, name, None)
        return value.estimate if isinstance(value, Interval) else value

    return read


def _credit(found: EvaluationMetrics) -> float | None:
    """Return the mean credit; for single labels, the accuracy."""
    for part in ("composite", "structure"):
        if getattr(found, part) is not None:
            return _figure(f"{part}.credit")(found)
    return _figure("accuracy_answered")(found)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


GATES: Final[Mapping[str, Callable[[EvaluationMetrics], float | None]]] = MappingProxyType(
    {
        "accuracy": _figure("accuracy"),
        "accuracy_answered": _figure("accuracy_answered"),
        "answered": lambda found: _share(found.answered, found.rows),
        "credit": _credit,
        "hierarchical_f1": _figure("structure.f1"),
        "macro_f1": _figure("macro_f1"),
        "micro_f1": _figure("composite.micro_f1"),
        "jaccard": _figure("composite.jaccard"),
        "ok": lambda found: _share(found.outcomes.get("ok", 0), found.rows),
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
