"""Paired comparison of several runs with the first run, on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._files import SCHEMA_VERSION, Recorded
from calibrant.core._labels import normalise_label
from calibrant.core._prediction import BoolArray, IntegerArray, Interval, JsonObject
from calibrant.core._reported import counted
from calibrant.core._structures import CompositeLabels, unordered_answer
from calibrant.metrics._classification import classification_summary
from calibrant.metrics._confidence import brier_score, expected_calibration_error
from calibrant.metrics._gate import PairedGate
from calibrant.metrics._intervals import PairedComparison, holm, paired_comparison, wilson_interval
from calibrant.runs._rows import UNKNOWN, SavedRows

_SHOWN: Final = 60  # characters of a text in a message
_CONTENT: Final = ("input", "answer", "context")  # of a row, whoever answers it


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """Figures of one run, over its own rows.

    Attributes
    ----------
    name : str
        The directory or file.
    rows : int
        All rows.
    errors : int
        Rows that failed with a transport error; no number counts them.
    unlabelled : int
        Other rows whose true label is not known; no number counts them.
    n, correct : int
        Rows that count, and those of them that are right.
    accuracy : Interval
        With its Wilson interval.
    macro_f1 : float or None
        None where the rows do not hold their labels, or an answer holds several.
    rows_with_confidence : int
        Rows of the `n` that have a confidence.
    ece, brier : float or None
        Over these; None where there are none.
    """

    name: str
    rows: int
    errors: int
    unlabelled: int
    n: int
    correct: int
    accuracy: Interval
    macro_f1: float | None
    rows_with_confidence: int
    ece: float | None
    brier: float | None


@dataclass(frozen=True, kw_only=True)
class RunDifference(Recorded):
    """Paired difference between a run and the first run.

    Attributes
    ----------
    name, baseline : str
        The run, and the first one.
    comparison : PairedComparison
        Accuracy of the run minus that of the first, over `comparison.n` rows.
    p_holm : float
        Its p-value after Holm's correction for the number of runs that are compared with the first.
    excluded_errors : int
        Rows left out because they failed with a transport error in either.
    excluded_unlabelled : int
        Other rows left out because their true label is not known.
    excluded_unpaired : int
        Rows that only one of the two has: the other run is not finished. 0 without a gate.
    gate : PairedGate or None
        Evidence that the run is better than the first one, if it was asked for.
    loss_gate : PairedGate or None
        Evidence that it is worse, if it was asked for: a gate whose a is the run, and whose b is the first one.
    """

    _derived = ("is_better",)

    name: str
    baseline: str
    comparison: PairedComparison
    p_holm: float
    excluded_errors: int
    excluded_unlabelled: int
    excluded_unpaired: int = 0
    gate: PairedGate | None = None
    loss_gate: PairedGate | None = None

    @property
    def is_better(self) -> bool:
        """True if the whole interval of the difference is above zero."""
        return self.comparison.interval.lower > 0.0


@dataclass(frozen=True, kw_only=True)
class RunComparison(Recorded):
    """Comparison of several runs on the same rows.

    Attributes
    ----------
    runs : tuple of ComparedRun
        In the order given.
    differences : tuple of RunDifference
        All but the first run, against it.
    """

    runs: tuple[ComparedRun, ...]
    differences: tuple[RunDifference, ...]

    @property
    def all_better(self) -> bool:
        """True if every run is better than the first; requiring all needs no multiplicity correction."""
        return all(difference.is_better for difference in self.differences)

    @property
    def not_accepted(self) -> tuple[RunDifference, ...]:
        """Differences that have no gate, or whose gate does not accept the run."""
        return tuple(one for one in self.differences if one.gate is None or one.gate.decision != "accepted")

    @property
    def shown_worse(self) -> tuple[RunDifference, ...]:
        """Differences whose loss gate shows that the run is worse than the first one."""
        return tuple(
            one for one in self.differences if one.loss_gate and one.loss_gate.decision == "accepted"
        )

    def to_record(self) -> JsonObject:
        """Return the comparison as JSON values."""
        return {"schema_version": SCHEMA_VERSION, "kind": "comparison", **super().to_record()}


def compare_predictions(
    runs: Sequence[SavedRows],
    *,
    level: float = 0.95,
    gate: PairedGate | None = None,
    loss_gate: PairedGate | None = None,
) -> RunComparison:
    """Compare each run with the first run, row by row.

    A row that failed with a transport error in either run of a pair is left out of that pair and counted. A refusal or
    an answer that cannot be read is a wrong answer.

    Parameters
    ----------
    runs : sequence of SavedRows, two or more
        Of the same rows, in any order.
    level : float in (0, 1), default 0.95
        Confidence level of every interval.
    gate : PairedGate, optional
        Gate before the rows of these runs, which are added to it: ``PairedGate()``, or one that has seen other rows.
        With it a run may be unfinished, so that its rows are the first ones of the other.
    loss_gate : PairedGate, optional
        The same for evidence that a run is worse than the first one: accepted means worse.

    Raises
    ------
    ConfigurationError
        Fewer than two runs, or a level out of range.
    DataError
        The runs are not of the same rows, or nothing is left to compare.

    Examples
    --------
    >>> import tempfile
    >>> from calibrant import BatchEvaluator, Classifier, Example
    >>> from calibrant.runs import SavedRows
    >>> from calibrant.testing import FakeClient
    >>> from calibrant.evaluation import compare_predictions
    >>> rows, runs = [Example(input="purrs", answer="cat"), Example(input="barks", answer="dog")], []
    >>> for answer in ("cat", "dog"):
    ...     fake, out = FakeClient(["cat", "dog"], {"purrs": "cat", "barks": answer}), tempfile.mkdtemp()
    ...     classifier = Classifier(model=fake, labels=["cat", "dog"], field="category")
    ...     _ = BatchEvaluator(classifier).evaluate(rows, out=out)
    ...     runs.append(SavedRows.load(out))
    >>> found = compare_predictions(runs)
    >>> [run.accuracy.estimate for run in found.runs], found.all_better  # one row is too few to tell
    ([0.5, 1.0], False)
    """
    if len(runs) < 2:
        raise ConfigurationError(f"Expected at least two runs to compare, got {len(runs)}.")
    first, *others = runs
    found = [_difference(first, other, level, gate=gate, loss_gate=loss_gate) for other in others]
    adjusted = holm([difference.comparison.p_value for difference in found]).tolist()
    differences = [replace(one, p_holm=p) for one, p in zip(found, adjusted, strict=True)]
    return RunComparison(runs=tuple(_score(run, level) for run in runs), differences=tuple(differences))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pairs:
    """Positions in two runs of the rows that both have, shape (n,) by index, and the number of the other rows."""

    first: IntegerArray
    other: IntegerArray
    unpaired: int


def _pairs(first: SavedRows, other: SavedRows, *, finished: bool) -> _Pairs:
    """Return the pairs of rows of two runs.

    Raises
    ------
    DataError
        They are not of the same rows; unless `finished`, those of one may be the first ones of the other.
    """
    _, ours, theirs = np.intersect1d(first.index, other.index, assume_unique=True, return_indices=True)
    mine = _contents(first)
    yours = _contents(other)
    differing = []
    for row, position in zip(ours.tolist(), theirs.tolist(), strict=True):
        parts = zip(_CONTENT, mine[row], yours[position], strict=True)
        found = next((part for part in parts if part[1] != part[2] and None not in part), None)
        if found is not None:
            differing.append((first.index[row], *found))
    common = len(ours) - len(differing)
    counts = (
        f"By their index, {counted(common, 'row is', 'rows are')} in common, {len(first) - common:,} only in "
        f"{first.name} and {len(other) - common:,} only in {other.name}"
    )
    if differing:
        index, name, a, b = differing[0]
        raise DataError(
            f"Expected the same {name} in the row with index {index}, got {a[:_SHOWN]!r} in {first.name} and "
            f"{b[:_SHOWN]!r} in {other.name}. {counts}: compare runs on the same data."
        )
    unpaired = len(first) + len(other) - 2 * len(ours)
    if unpaired and (finished or not _is_beginning(first, other)):
        _refuse_rows(first, other, counts, finished=finished)
    return _Pairs(first=ours, other=theirs, unpaired=unpaired)


def _contents(run: SavedRows) -> list[tuple[str | None, ...]]:
    """Return the `_CONTENT` of each row; None where it is not known."""
    without_context = "" if "context" in run.fields else None
    found: list[tuple[str | None, ...]] = []
    for row in run.rows():
        context = row.values.get("context")
        answer = None if row.answer is None else normalise_label(unordered_answer(row.answer))
        found.append((row.input, answer, str(context) if context else without_context))
    return found


def _is_beginning(first: SavedRows, other: SavedRows) -> bool:
    """Return True if the rows of the shorter run are the first ones of the longer."""
    shorter, longer = sorted((first, other), key=len)
    beginning = np.sort(longer.index)[: len(shorter)]
    return bool(np.array_equal(np.sort(shorter.index), beginning))


def _refuse_rows(first: SavedRows, other: SavedRows, counts: str, *, finished: bool) -> None:
    missing = np.setxor1d(first.index, other.index, assume_unique=True)[0]
    rows = "runs of the same rows" if finished else "the rows of one run to be the first rows of the other"
    raise DataError(
        f"Expected {rows}, got {len(first):,} in {first.name} and {len(other):,} in {other.name}: the first that one "
        f"of them lacks has index {missing}. {counts}: finish or repeat the shorter run."
    )


def _difference(
    first: SavedRows,
    other: SavedRows,
    level: float,
    *,
    gate: PairedGate | None,
    loss_gate: PairedGate | None,
) -> RunDifference:
    """Compare a run with the first one; the p-value is not adjusted for several comparisons."""
    pairs = _pairs(first, other, finished=gate is None and loss_gate is None)
    ours = first.correct[pairs.first]
    theirs = other.correct[pairs.other]
    failed = first.failed[pairs.first] | other.failed[pairs.other]
    unknown = ((ours == UNKNOWN) | (theirs == UNKNOWN)) & ~failed
    kept = ~(failed | unknown)
    if not kept.any():
        raise DataError(
            f"Expected rows with a true label that neither run failed on, got none in {first.name} and {other.name}: "
            f"{failed.sum():,} failed for the server's reasons, {unknown.sum():,} have no true label."
        )
    comparison = paired_comparison(ours[kept], theirs[kept], level)
    return RunDifference(
        name=other.name,
        baseline=first.name,
        comparison=comparison,
        p_holm=comparison.p_value,
        excluded_errors=int(failed.sum()),
        excluded_unlabelled=int(unknown.sum()),
        excluded_unpaired=pairs.unpaired,
        gate=None if gate is None else _with_rows(gate, ours[kept], theirs[kept]),
        loss_gate=None if loss_gate is None else _with_rows(loss_gate, theirs[kept], ours[kept]),
    )


def _with_rows(gate: PairedGate, right_a: NDArray[np.int8], right_b: NDArray[np.int8]) -> PairedGate:
    """Return the gate after rows in their order, as if it were looked at after every row."""
    looked = 0
    for row in np.flatnonzero(right_a != right_b).tolist():
        # Along rows on which both agree a capital only rises, or only falls: their end is enough.
        gate = gate.plus(n=row - looked, only_a=0, only_b=0)
        gate = gate.after(bool(right_a[row]), bool(right_b[row]))
        looked = row + 1
    return gate.plus(n=len(right_a) - looked, only_a=0, only_b=0)


def _score(run: SavedRows, level: float) -> ComparedRun:
    known = run.correct != UNKNOWN
    n = int(known.sum())
    correct = int(run.correct[known].sum())
    sure = known & ~np.isnan(run.confidence)
    ece = brier = None
    if sure.any():
        scored = run.confidence[sure], run.correct[sure]
        ece = expected_calibration_error(*scored)
        brier = brier_score(*scored)
    return ComparedRun(
        name=run.name,
        rows=len(run),
        errors=int(run.failed.sum()),
        unlabelled=int((~known & ~run.failed).sum()),
        n=n,
        correct=correct,
        accuracy=wilson_interval(correct, n, level),
        macro_f1=_macro_f1(run, known),
        rows_with_confidence=int(sure.sum()),
        ece=ece,
        brier=brier,
    )


def _macro_f1(run: SavedRows, known: BoolArray) -> float | None:
    if isinstance(run.legal_labels, CompositeLabels):
        return None  # whole answers are no labels
    truth = []
    predicted = []
    for row in np.flatnonzero(known).tolist():
        answer = run.answers[row]
        if answer is None:
            return None
        truth.append(answer)
        predicted.append(run.labels[row])
    if not any(predicted):
        return None
    return classification_summary(truth, predicted, labels=run.label_set).macro_f1
