"""Recorded runs of several models as arrays, paired by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import BoolArray, FloatArray, IndexArray
from calibrant.runs._rows import UNKNOWN, SavedRows

_SHOWN: Final = 60  # characters of a text in a message
_ROUNDING: Final = 1e-6  # exp of a sum may leave [0, 1] by this much


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedRun:
    """Recorded answers of one model to n rows.

    Attributes
    ----------
    confidence : array-like of shape (n,)
        In [0, 1]; NaN where the answer has none, so that a cascade always passes it on.
    correct : array-like of shape (n,)
        1 right, 0 wrong; -1 or NaN where it is not known: such rows are left out of every number.
    name : str, optional
        Name of the run.
    ids : sequence of length n, optional
        Keys that pair its rows with those of other runs; no two are equal. By default their order.
    inputs : sequence of (str or None), length n, optional
        The texts. Rows of equal text are kept together when rows are split, and of equally sure answers a text decides
        which are kept first (`tie_ranks`); where there is none, the row's place in the first run stands in.
    labels : sequence of (str or None), length n, optional
        Predicted labels; with them, confidences are calibrated per label where that helps.
    cost : array-like of shape (n,), optional
        Cost of each answer, NaN where it is not known.
    failed : array-like of bool, shape (n,), optional
        Rows that failed with a transport error; left out like others whose correctness is not known.
    fingerprint : Fingerprint, optional
        The model, prompt, label set and log-probability space it was recorded with.

    Raises
    ------
    ConfigurationError
        Lengths differ, or a value is out of range; the message names the first row, from 0.

    Examples
    --------
    >>> from calibrant.cascade import RecordedRun, plan_cascade
    >>> small = RecordedRun(confidence=[0.9, 0.4] * 200, correct=[1, 0] * 200, name="small")
    >>> large = RecordedRun(confidence=[0.9] * 400, correct=[1] * 400, name="large")
    >>> plan = plan_cascade(small, large, small_cost=1, large_cost=50)
    >>> plan.certified, plan.threshold
    (True, 0.9)
    """

    confidence: ArrayLike
    correct: ArrayLike
    name: str = ""
    ids: Sequence[Hashable] | None = None
    inputs: Sequence[str | None] | None = None
    labels: Sequence[str | None] | None = None
    cost: ArrayLike | None = None
    failed: ArrayLike | None = None
    fingerprint: Fingerprint | None = None

    def __post_init__(self) -> None:
        confidence = _numbers("confidence", self.confidence)
        correct = _numbers("correct", self.correct)
        n = len(confidence)
        failed = np.zeros(n, dtype=np.bool_)
        if self.failed is not None:
            failed = np.asarray(self.failed, np.bool_)
        cost = np.full(n, np.nan) if self.cost is None else _numbers("cost", self.cost)
        columns: dict[str, Sized | None] = {
            "correct": correct,
            "failed": failed,
            "cost": cost,
            "ids": self.ids,
            "inputs": self.inputs,
            "labels": self.labels,
        }
        lengths = {name: len(values) for name, values in columns.items() if values is not None}
        wrong = {name: length for name, length in lengths.items() if length != n}
        if wrong:
            raise ConfigurationError(
                f"Expected one entry per row, {n} as in confidence, got {wrong}: hand in the same rows everywhere."
            )
        in_range = (confidence >= -_ROUNDING) & (confidence <= 1 + _ROUNDING)
        _check_rows("confidence", confidence, in_range, "a number in [0, 1] or NaN")
        is_known = np.isin(correct, (0.0, 1.0, UNKNOWN))
        _check_rows("correct", correct, is_known, "1, 0, or -1 where it is not known")
        is_price = (cost >= 0.0) & (cost < np.inf)
        _check_rows("cost", cost, is_price, "a number of at least 0 or NaN")
        object.__setattr__(self, "confidence", np.clip(confidence, 0.0, 1.0))
        object.__setattr__(self, "correct", np.where(np.isnan(correct) | failed, UNKNOWN, correct))
        object.__setattr__(self, "failed", failed)
        object.__setattr__(self, "cost", cost)

    def __len__(self) -> int:
        return len(np.asarray(self.confidence))


_COLUMNS: Final = tuple(field.name for field in fields(RecordedRun))

RunSource: TypeAlias = object
"""Anything that `recorded_run` understands."""


def recorded_run(source: RunSource, *, name: str = "") -> RecordedRun:
    """Return a recorded run from a file, a directory, rows or columns.

    Parameters
    ----------
    source : RunSource
        A `RecordedRun`; the path of a run directory or of a file of predictions; any object or mapping with
        ``confidence`` and ``correct`` (and, if it has them, the other columns of a `RecordedRun`); a pair of these two
        columns; or mappings like the lines of ``predictions.jsonl``.
    name : str, optional
        Name where the source has none.

    Raises
    ------
    ConfigurationError
        The source is no recorded run, or a value is out of range.
    DataError
        A file or a row is broken, or missing.

    Examples
    --------
    >>> from calibrant.cascade import recorded_run
    >>> len(recorded_run([{"label": "cat", "answer": "cat", "confidence": 0.9}]))
    1
    """
    if isinstance(source, RecordedRun):
        return source
    if isinstance(source, str | Path):
        source = SavedRows.load(source)
    elif isinstance(source, Iterable) and not isinstance(source, Mapping) and not _has_columns(source):
        rows = list(source)
        if all(isinstance(row, Mapping) for row in rows):
            source = SavedRows.of(rows, name=name or "predictions")
        elif len(rows) == 2 and all(np.ndim(column) == 1 for column in rows):
            source = dict(zip(("confidence", "correct"), rows, strict=True))
    if _has_columns(source):
        columns = {column: getattr(source, column, None) for column in _COLUMNS}
        if isinstance(source, SavedRows):
            columns["ids"] = source.index.tolist()
        source = columns
    if not isinstance(source, Mapping) or not {"confidence", "correct"} <= set(source):
        raise ConfigurationError(
            "Expected a recorded run: a RecordedRun, an object or a pair with confidence and correct, lines of "
            f"predictions.jsonl, or the path of a run, got {type(source).__name__}."
        )
    given: dict[str, Any] = {"name": name}
    given |= {column: source[column] for column in _COLUMNS if source.get(column) is not None}
    return RecordedRun(**given)


def _has_columns(source: object) -> bool:
    return hasattr(source, "confidence") and hasattr(source, "correct")


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedRuns:
    """Recorded runs paired by row, with known correctness for each model.

    Attributes
    ----------
    names : tuple of str, length m
        Of the runs, from the smallest model to the largest.
    confidence, correct, cost : ndarray of shape (m, n)
        NaN where there is no confidence, or no cost is known.
    labels : tuple of (tuple of str, or None), length m
        Predictions of each model, where every row with a confidence has one.
    texts : tuple of (str or int), length n
        The text of each row; its place among the rows given where no run says.
    given, failed, unlabelled : int
        Rows there were; those left out because a model failed on them with a transport error; other rows left out
        because it is not known whether an answer is right.
    fingerprints : tuple of (Fingerprint or None), length m
        Of the runs.
    """

    names: tuple[str, ...]
    confidence: FloatArray
    correct: FloatArray
    cost: FloatArray
    labels: tuple[tuple[str, ...] | None, ...]
    texts: tuple[str | int, ...]
    given: int
    failed: int
    unlabelled: int
    fingerprints: tuple[Fingerprint | None, ...]

    def __len__(self) -> int:
        return int(self.correct.shape[1])


def pair_runs(sources: Sequence[RunSource]) -> PairedRuns:
    """Pair runs by row: by text if texts are unique and the same in all runs, else by id or position.

    Parameters
    ----------
    sources : sequence of RunSource
        A run of each model, from the smallest to the largest; see `recorded_run`.

    Raises
    ------
    DataError
        They are not of the same rows, or no row is left; the message names the first row.
    """
    runs = [recorded_run(source, name=f"model {place}") for place, source in enumerate(sources, 1)]
    first = runs[0]
    names: list[str] = []
    orders: list[IndexArray] = []
    for place, run in enumerate(runs, 1):
        model = f"model {place}" if run.fingerprint is None else run.fingerprint.model
        names.append(run.name or model)
        order = np.arange(len(first))
        if place > 1:
            order = _order(first, run, names[0], names[-1])
        orders.append(order)

    def column(of: str) -> NDArray[Any]:
        columns = []
        for run, order in zip(runs, orders, strict=True):
            values = np.asarray(getattr(run, of))
            columns.append(values[order])
        return np.array(columns)

    correct = column("correct")
    failed = column("failed").any(axis=0)
    known = (correct != UNKNOWN).all(axis=0)
    kept = np.flatnonzero(known)
    if not len(kept):
        raise DataError(
            f"Expected rows of which every model's answer is known to be right or wrong, got none of {len(first):,} in "
            f"{', '.join(names)}: {int(failed.sum()):,} failed with a transport error."
        )
    texts = _texts(runs, orders)
    labels = [_labels(run, order[kept]) for run, order in zip(runs, orders, strict=True)]
    return PairedRuns(
        names=tuple(names),
        confidence=column("confidence")[:, kept],
        correct=correct[:, kept],
        cost=column("cost")[:, kept],
        labels=tuple(labels),
        texts=tuple(texts[row] for row in kept.tolist()),
        given=len(first),
        failed=int(failed.sum()),
        unlabelled=int((~known & ~failed).sum()),
        fingerprints=tuple(run.fingerprint for run in runs),
    )


def _order(first: RecordedRun, other: RecordedRun, here: str, there: str) -> IndexArray:
    """Return the position in `other` of each row of `first`; raise DataError if rows do not match."""
    kind, own, theirs = _keys(first, other)
    for rows, name in ((own, here), (theirs, there)):
        (key, count), *_ = Counter(rows).most_common(1)
        if count > 1:
            raise DataError(f"Expected every {kind} once in {name}, got {str(key)[:_SHOWN]!r} again.")
    position = {key: number for number, key in enumerate(theirs)}
    unpaired = set(own) ^ set(theirs)
    if unpaired:
        key = next(key for key in (*own, *theirs) if key in unpaired)
        holder, lacking = (there, here) if key in position else (here, there)
        raise DataError(
            f"Expected runs of the same rows, got {len(own):,} in {here} and {len(theirs):,} in {there}: the first "
            f"that differs is the {kind} {str(key)[:_SHOWN]!r}, in {holder} but not in {lacking}. Finish or repeat "
            "the shorter run; a row that failed still needs its line."
        )
    order = [position[key] for key in own]
    their_texts = [other.inputs[at] for at in order] if other.inputs else ()
    texts = zip(first.inputs or (), their_texts, strict=False)
    for row, (mine, text) in enumerate(texts):
        if mine != text and None not in (mine, text):
            raise DataError(
                f"Expected the same text in the {kind} {own[row]!r}, got {str(mine)[:_SHOWN]!r} in {here} and "
                f"{str(text)[:_SHOWN]!r} in {there}: record both models on the same data."
            )
    return np.array(order, dtype=np.intp)


def _keys(first: RecordedRun, other: RecordedRun) -> tuple[str, Sequence[Hashable], Sequence[Hashable]]:
    """Return the name of the key that pairs two runs, and the keys of both runs."""
    # Texts come first: some tools number the rows they answered, not those they were given.
    own = list(first.inputs or ())
    theirs = list(other.inputs or ())
    unique = _are_unique(own) and _are_unique(theirs)
    same_texts = unique and set(own) == set(theirs)
    if first.ids is not None and other.ids is not None and not same_texts:
        return "row with index", first.ids, other.ids
    if unique:
        return "text", own, theirs
    return "row", range(len(first)), range(len(other))


def _are_unique(texts: Sequence[str | None]) -> bool:
    """Return True if there are texts, none of them is missing and no two are equal."""
    return bool(texts) and len(set(texts) - {None}) == len(texts)


def _texts(runs: Sequence[RecordedRun], orders: Sequence[IndexArray]) -> list[str | int]:
    """Return the texts of the first run's rows, taken from any run; the row's position if unknown."""
    texts: list[str | int] = [*range(len(runs[0]))]
    pairs = list(zip(runs, orders, strict=True))
    for run, order in reversed(pairs):  # the first run that says a text comes last, and counts
        if run.inputs is None:
            continue
        for place, at in enumerate(order.tolist()):
            text = run.inputs[at]
            if text is not None:
                texts[place] = text
    return texts


def _labels(run: RecordedRun, rows: IndexArray) -> tuple[str, ...] | None:
    """Return the predicted labels of rows; None if a row has a confidence but no label."""
    if run.labels is None:
        return None
    confidence = np.asarray(run.confidence)
    labels = []
    for row in rows.tolist():
        label = run.labels[row]
        if label is None and not np.isnan(confidence[row]):
            return None
        labels.append(label or "")
    return tuple(labels)


def _numbers(name: str, values: ArrayLike) -> FloatArray:
    try:
        array = np.array(values, dtype=np.float64)  # None becomes NaN
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"Expected {name} to hold numbers, NaN where there is none: {error}."
        ) from error
    if array.ndim != 1 or not len(array):
        raise ConfigurationError(f"Expected {name} of shape (n,) with at least one row, got {array.shape}.")
    return array


def _check_rows(name: str, values: FloatArray, legal: BoolArray, expected: str) -> None:
    wrong = ~legal & ~np.isnan(values)
    if wrong.any():
        row = int(wrong.argmax())
        raise ConfigurationError(f"Expected {name} to be {expected}, got {values[row]} in row {row}.")
