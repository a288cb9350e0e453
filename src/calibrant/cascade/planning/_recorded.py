"""Recorded runs of several models over the same rows, paired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant import calibration
from calibrant.calibration._saved import SavedPredictions, read_predictions
from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._run_rows import UNKNOWN

_SHOWN: Final = 60  # characters of a text in a message
_ROUNDING: Final = 1e-6  # exp of a sum may leave [0, 1] by this much

_Floats: TypeAlias = NDArray[np.float64]
_Bools: TypeAlias = NDArray[np.bool_]


@runtime_checkable
class HasRows(Protocol):
    """Whatever holds confidence and correctness of n rows."""

    @property
    def confidence(self) -> ArrayLike: ...

    @property
    def correct(self) -> ArrayLike: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedRun:
    """One model's answers to n rows, as they were recorded.

    Attributes
    ----------
    confidence : array-like of shape (n,)
        In [0, 1]; NaN where the answer has none, so that a cascade always passes it on.
    correct : array-like of shape (n,)
        1 right, 0 wrong; -1 or NaN where it is not known: such rows are left out of every number.
    name : str, optional
        What to call the run.
    ids : sequence of length n, optional
        What pairs its rows with those of other runs; no two are equal. By default their order.
    inputs : sequence of (str or None), length n, optional
        The texts. Rows of equal text are kept together when rows are split, and of equally sure answers a text decides
        which are kept first (`tie_ranks`); where there is none, the row's place in the first run stands in.
    labels : sequence of (str or None), length n, optional
        What was predicted; with it, confidences are calibrated per label where that helps.
    cost : array-like of shape (n,), optional
        What each answer cost, NaN where it is not known.
    failed : array-like of bool, shape (n,), optional
        Rows that failed for the server's reasons; left out like others whose correctness is not known.
    fingerprint : Fingerprint, optional
        The model, prompt, label set and log-probability space it was recorded with.

    Raises
    ------
    ConfigurationError
        Lengths differ, or a value is out of range; the message names the first row, from 0.
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
    _n: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        p, y = _numbers("confidence", self.confidence), _numbers("correct", self.correct)
        n = len(p)
        unknown = (
            np.zeros(n, dtype=np.bool_) if self.failed is None else np.asarray(self.failed, dtype=np.bool_)
        )
        cost = np.full(n, np.nan) if self.cost is None else _numbers("cost", self.cost)
        optional = {"ids": self.ids, "inputs": self.inputs, "labels": self.labels}
        lengths = {"correct": len(y), "failed": len(unknown), "cost": len(cost)}
        lengths |= {name: len(values) for name, values in optional.items() if values is not None}
        wrong = {name: length for name, length in lengths.items() if length != n}
        if wrong:
            raise ConfigurationError(
                f"Expected one entry per row, {n} as in confidence, got {wrong}: hand in the same rows everywhere."
            )
        _check_rows("confidence", p, (p >= -_ROUNDING) & (p <= 1 + _ROUNDING), "a number in [0, 1] or NaN")
        _check_rows("correct", y, np.isin(y, (0.0, 1.0, UNKNOWN)), "1, 0, or -1 where it is not known")
        _check_rows("cost", cost, (cost >= 0.0) & (cost < np.inf), "a number of at least 0 or NaN")
        y = np.where(np.isnan(y) | unknown, UNKNOWN, y)
        changed = {"confidence": np.clip(p, 0.0, 1.0), "correct": y, "failed": unknown, "cost": cost, "_n": n}
        for name, value in changed.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return self._n


RunSource: TypeAlias = (
    RecordedRun
    | SavedPredictions
    | HasRows
    | Mapping[str, Any]
    | Iterable[Mapping[str, Any]]
    | tuple[ArrayLike, ArrayLike]
    | NDArray[Any]
    | str
    | Path
)
"""A run, columns ``confidence`` and ``correct``, lines of predictions.jsonl, a file or a run directory."""


def recorded_run(source: RunSource, *, name: str = "") -> RecordedRun:
    """Return a run as it was recorded, whatever holds it.

    Parameters
    ----------
    source : RunSource
        A `RecordedRun`, saved predictions, any object or mapping with ``confidence`` and ``correct`` (and, if it
        has them, the other columns of a `RecordedRun`), a pair of these two columns, rows (confidence, correct) such
        as an array of shape (n, 2), objects with these attributes, mappings like the lines of
        ``predictions.jsonl``, the path of such a file, or that of a run directory.
    name : str, optional
        What to call it where it does not say itself.

    Raises
    ------
    ConfigurationError
        It is nothing of the kind, or a value is out of range.
    DataError
        A file or a row is broken, or missing.
    """
    if isinstance(source, RecordedRun):
        return source
    if isinstance(source, str | Path):
        # Found through the name it had here before: the file is read in `evaluation`, beside this layer.
        return _of_saved(calibration.load_predictions(source))  # type: ignore[attr-defined]
    if isinstance(source, SavedPredictions):
        return _of_saved(source)
    if isinstance(source, HasRows):
        return _of_columns(lambda one: getattr(source, one, None), name)
    if isinstance(source, Mapping) and {"confidence", "correct"} <= set(source):
        return _of_columns(source.get, name)
    if isinstance(source, Iterable) and not isinstance(source, Mapping):
        found = _of_rows(list(source), name)
        if found is not None:
            return found
    raise ConfigurationError(
        "Expected a recorded run: a RecordedRun, an object or a pair with confidence and correct, lines of "
        f"predictions.jsonl, or the path of a run, got {type(source).__name__}."
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedRuns:
    """The rows on which it is known of every model whether it is right.

    Attributes
    ----------
    names : tuple of str, length m
        Of the runs, from the smallest model to the largest.
    confidence, correct, cost : ndarray of shape (m, n)
        NaN where there is no confidence, or no cost is known.
    labels : tuple of (tuple of str or None), length m
        What each predicted, where every row says.
    texts : tuple of (str or int), length n
        The text of each row; its place among the rows given where no run says.
    given, failed, unlabelled : int
        Rows there were; those left out because a model failed on them for the server's reasons; other rows left
        out because it is not known whether an answer is right.
    fingerprints : tuple of (Fingerprint or None), length m
        Of the runs.
    """

    names: tuple[str, ...]
    confidence: _Floats
    correct: _Floats
    cost: _Floats
    labels: tuple[tuple[str, ...] | None, ...]
    texts: tuple[str | int, ...]
    given: int
    failed: int
    unlabelled: int
    fingerprints: tuple[Fingerprint | None, ...]

    def __len__(self) -> int:
        return int(self.correct.shape[1])

    def rows(self, own: NDArray[np.intp]) -> PairedRuns:
        """Return some of the rows."""
        return PairedRuns(
            names=self.names,
            confidence=self.confidence[:, own],
            correct=self.correct[:, own],
            cost=self.cost[:, own],
            labels=tuple(
                None if found is None else tuple(found[row] for row in own.tolist()) for found in self.labels
            ),
            texts=tuple(self.texts[row] for row in own.tolist()),
            given=self.given,
            failed=self.failed,
            unlabelled=self.unlabelled,
            fingerprints=self.fingerprints,
        )


def pair_runs(runs: Sequence[RecordedRun]) -> PairedRuns:
    """Pair runs over the same rows: by id, else by text, else by place.

    Raises
    ------
    DataError
        They are not of the same rows, or no row is left; the message names the first row.
    """
    first = runs[0]
    orders = [np.arange(len(first))] + [
        _order(first, other, place) for place, other in enumerate(runs[1:], 1)
    ]
    correct = np.array([cast("_Floats", run.correct)[order] for run, order in zip(runs, orders, strict=True)])
    failed = np.any(
        [cast("_Bools", run.failed)[order] for run, order in zip(runs, orders, strict=True)], axis=0
    )
    known = (correct != UNKNOWN).all(axis=0)
    kept = np.flatnonzero(known)
    names = tuple(_name(run, place) for place, run in enumerate(runs))
    if not len(kept):
        raise DataError(
            f"Expected rows of which every model's answer is known to be right or wrong, got none of {len(first):,} in "
            f"{', '.join(names)}: {int(failed.sum()):,} failed for the server's reasons."
        )
    texts = _texts(runs, orders)
    return PairedRuns(
        names=names,
        confidence=np.array([cast("_Floats", r.confidence)[o] for r, o in zip(runs, orders, strict=True)])[
            :, kept
        ],
        correct=correct[:, kept],
        cost=np.array([cast("_Floats", r.cost)[o] for r, o in zip(runs, orders, strict=True)])[:, kept],
        labels=tuple(_labels(run, order[kept]) for run, order in zip(runs, orders, strict=True)),
        texts=tuple(texts[row] for row in kept.tolist()),
        given=len(first),
        failed=int(failed.sum()),
        unlabelled=int((~known & ~failed).sum()),
        fingerprints=tuple(run.fingerprint for run in runs),
    )


def recorded_costs(runs: PairedRuns, given: Sequence[float | None]) -> list[float]:
    """Return the cost of an answer of each model: as given, or the mean of what was recorded.

    Raises
    ------
    ConfigurationError
        There is not one for each model, or one is neither given nor recorded.
    """
    if len(given) != len(runs.names):
        raise ConfigurationError(f"Expected a cost for each of {len(runs.names)} models, got {len(given)}.")
    found = []
    for name, one, recorded in zip(runs.names, given, runs.cost, strict=True):
        if one is None and np.isnan(recorded).all():
            raise ConfigurationError(
                f"Expected the cost of an answer of {name}: its rows do not say, so give one for each such model "
                "(small_cost, between_costs and large_cost of a plan, costs of a replay)."
            )
        found.append(float(np.nanmean(recorded)) if one is None else one)
    return found


def _order(first: RecordedRun, other: RecordedRun, place: int) -> NDArray[np.intp]:
    """Return where each row of `first` is in `other`."""
    here, there = _name(first, 0), _name(other, place)
    own, theirs, kind = _keys(first, other)
    position = {key: number for number, key in enumerate(theirs)}
    for rows, name in ((own, here), (theirs, there)):
        if len(set(rows)) < len(rows):
            twice = Counter(rows).most_common(1)[0][0]
            raise DataError(f"Expected every {kind} once in {name}, got {str(twice)[:_SHOWN]!r} again.")
    missing = [key for key in own if key not in position]
    extra = set(theirs).difference(own)
    if missing or extra:
        key, holder, lacking = (
            (missing[0], here, there) if missing else (next(k for k in theirs if k in extra), there, here)
        )
        raise DataError(
            f"Expected runs of the same rows, got {len(own):,} in {here} and {len(theirs):,} in {there}: the first "
            f"that differs is the {kind} {str(key)[:_SHOWN]!r}, in {holder} but not in {lacking}. Finish or repeat "
            "the shorter run; a row that failed still needs its line."
        )
    order = np.array([position[key] for key in own], dtype=np.intp)
    if first.inputs is not None and other.inputs is not None:
        for row, (mine, at) in enumerate(zip(first.inputs, order.tolist(), strict=True)):
            text = other.inputs[at]
            if mine != text and None not in (mine, text):
                raise DataError(
                    f"Expected the same text in the {kind} {own[row]!r}, got {str(mine)[:_SHOWN]!r} in {here} and "
                    f"{str(text)[:_SHOWN]!r} in {there}: record both models on the same data."
                )
    return order


def _keys(first: RecordedRun, other: RecordedRun) -> tuple[Sequence[Hashable], Sequence[Hashable], str]:
    """Return what pairs the rows of two runs, and what to call it."""
    by_text = _unique(first.inputs) and _unique(other.inputs)
    if first.ids is not None and other.ids is not None:
        if not by_text or set(first.ids) == set(other.ids):
            return first.ids, other.ids, "row with index"
        # Some tools number the rows they answered, not those they were given.
        if set(cast("Sequence[str]", first.inputs)) != set(cast("Sequence[str]", other.inputs)):
            return first.ids, other.ids, "row with index"
    if by_text:
        return cast("Sequence[str]", first.inputs), cast("Sequence[str]", other.inputs), "text"
    return range(len(first)), range(len(other)), "row"


def _unique(texts: Sequence[str | None] | None) -> bool:
    return texts is not None and None not in texts and len(set(texts)) == len(texts)


def _texts(runs: Sequence[RecordedRun], orders: Sequence[NDArray[np.intp]]) -> list[str | int]:
    """Return the text of each row of the first run, from whichever run says; its place where none does."""
    found: list[str | int] = list(range(len(runs[0])))
    for run, order in zip(runs, orders, strict=True):
        if run.inputs is not None:
            told = [run.inputs[at] for at in order.tolist()]
            found = [
                text if isinstance(one, int) and text is not None else one
                for one, text in zip(found, told, strict=True)
            ]
    return found


def _labels(run: RecordedRun, order: NDArray[np.intp]) -> tuple[str, ...] | None:
    """Return the predicted labels; none where a row with a confidence has none."""
    if run.labels is None:
        return None
    sure = ~np.isnan(cast("_Floats", run.confidence)[order])
    found = [run.labels[row] for row in order.tolist()]
    if any(label is None for label, needed in zip(found, sure.tolist(), strict=True) if needed):
        return None
    return tuple(label or "" for label in found)


def _of_rows(rows: Sequence[Any], name: str) -> RecordedRun | None:
    """Return the run that lines, a pair of columns, or rows (confidence, correct) hold; else None."""
    if all(isinstance(row, Mapping) for row in rows):
        return _of_saved(read_predictions(rows, name=name or "predictions"))
    if len(rows) == 2 and all(np.ndim(one) == 1 for one in rows):
        columns = rows
    elif all(isinstance(row, tuple | list | np.ndarray) and len(row) == 2 for row in rows):
        columns = list(zip(*rows, strict=True))
    elif all(isinstance(row, HasRows) for row in rows):
        columns = list(zip(*[(row.confidence, row.correct) for row in rows], strict=True))
    else:
        return None
    return RecordedRun(confidence=columns[0], correct=columns[1], name=name)


def _of_columns(column: Callable[[str], Any], name: str) -> RecordedRun:
    known = ("name", "ids", "inputs", "labels", "cost", "failed", "fingerprint")
    own = {one: value for one in known if (value := column(one)) is not None}
    return RecordedRun(
        confidence=column("confidence"),
        correct=column("correct"),
        **cast("dict[str, Any]", {"name": name, **own}),
    )


def _of_saved(saved: SavedPredictions) -> RecordedRun:
    texts = None if any(text is None for text in saved.inputs) else saved.inputs
    return RecordedRun(
        name=saved.name,
        confidence=saved.confidence,
        correct=saved.correct,
        ids=tuple(saved.index.tolist()),
        inputs=texts,
        labels=saved.labels,
        cost=saved.cost,
        failed=saved.failed,
        fingerprint=saved.fingerprint,
    )


def _name(run: RecordedRun, place: int) -> str:
    return run.name or (run.fingerprint.model if run.fingerprint is not None else f"model {place + 1}")


def _numbers(name: str, values: ArrayLike) -> _Floats:
    try:
        array = np.array(values, dtype=np.float64)  # None becomes NaN
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"Expected {name} to hold numbers, NaN where there is none: {error}."
        ) from error
    if array.ndim != 1 or not len(array):
        raise ConfigurationError(f"Expected {name} of shape (n,) with at least one row, got {array.shape}.")
    return array


def _check_rows(name: str, values: _Floats, legal: _Bools, expected: str) -> None:
    wrong = ~legal & ~np.isnan(values)
    if wrong.any():
        row = int(wrong.argmax())
        raise ConfigurationError(f"Expected {name} to be {expected}, got {values[row]} in row {row}.")
