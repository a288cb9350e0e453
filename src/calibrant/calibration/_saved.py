"""Saved predictions, from a run or a file, checked and converted to arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import DataError
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import LogprobSpace, Outcome
from calibrant.core._rows import Row
from calibrant.core._run_rows import UNKNOWN, RunRow

__all__ = ["DEMONSTRATIONS", "UNKNOWN", "SavedPredictions", "read_predictions"]

DEMONSTRATIONS: Final = "demonstrations.jsonl"
"""File of a run's directory with the labelled texts that its prompts were shown from."""
_CHOSEN: Final = ("final", "best")  # of the prompts of a search: with its head, if it has one


@dataclass(frozen=True, kw_only=True)
class SavedPredictions:
    """Rows with their predictions as arrays, in the order of the file.

    Attributes
    ----------
    name : str
        Directory or file of the predictions.
    index : ndarray of int, shape (n,)
        Position of each row in the input it was read from; no two are equal.
    inputs, answers, labels : tuple of (str or None), length n
        The text, its true label and the predicted one, where known.
    outcomes : tuple of Outcome, length n
        Outcome of each row.
    confidence : ndarray of float, shape (n,)
        In [0, 1]; NaN if missing.
    correct : ndarray of int, shape (n,)
        1 right, 0 wrong, -1 unknown: the row failed with a transport error (outcome ``error``), or its true
        label is not known.
    cost : ndarray of float, shape (n,)
        Cost of each answer in US dollars; NaN if no price is known.
    latency_seconds : ndarray of float, shape (n,)
        Duration of each answer; NaN if it is not known.
    label_set : tuple of str or None
        All labels, if a row lists them.
    fingerprint : Fingerprint or None
        Circumstances of the predictions, if the directory records them.
    rows_with_low_label_mass : int
        Rows on which the model would rather have written something else than any label, as far as rows say.

    Examples
    --------
    >>> import tempfile
    >>> from calibrant import BatchEvaluator, Classifier, Example
    >>> from calibrant.evaluation import load_predictions
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9), "barks": ("cat", 0.6)})
    >>> rows = [Example(input="purrs", answer="cat"), Example(input="barks", answer="dog")]
    >>> out = tempfile.mkdtemp()
    >>> _ = BatchEvaluator(Classifier(model=fake, labels=["cat", "dog"], field="category")).evaluate(rows, out=out)
    >>> saved = load_predictions(out)
    >>> saved.labels, saved.correct.tolist(), saved.confidence.round(2).tolist()
    (('cat', 'cat'), [1, 0], [0.9, 0.6])
    """

    name: str
    index: NDArray[np.int64]
    inputs: tuple[str | None, ...]
    answers: tuple[str | None, ...]
    labels: tuple[str | None, ...]
    outcomes: tuple[Outcome, ...]
    confidence: NDArray[np.float64]
    correct: NDArray[np.int8]
    cost: NDArray[np.float64]
    latency_seconds: NDArray[np.float64]
    label_set: tuple[str, ...] | None = None
    fingerprint: Fingerprint | None = None
    rows_with_low_label_mass: int = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.index)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Mask of rows without an answer because of a transport error, shape (n,)."""
        return np.array([outcome is Outcome.ERROR for outcome in self.outcomes], dtype=np.bool_)


def read_predictions(
    records: Iterable[Mapping[str, Any] | Row],
    *,
    name: str = "predictions",
    fingerprint: Callable[[LogprobSpace, Sequence[str] | None], Fingerprint | None] | None = None,
) -> SavedPredictions:
    """Return saved rows, such as lines of ``predictions.jsonl``, as checked arrays.

    Parameters
    ----------
    records : iterable of (mapping or Row)
        With the names that `calibrant.evaluation.load_predictions` knows. A `Row` knows its place in a file.
    name : str, default "predictions"
        Name of the predictions, also in messages.
    fingerprint : callable, optional
        Called with the space of the rows, and their labels where a row lists them; returns the circumstances that the
        predictions depend on, or None where they are unknown, as they are by default.

    Raises
    ------
    DataError
        A row is invalid, or no row is left; the message names its file and line, or its place from 1.
    """
    source = Path(name)
    kept: dict[str, dict[int, RunRow]] = {prompt: {} for prompt in _CHOSEN}
    for line, record in enumerate(records, start=1):
        row = record if isinstance(record, Row) else Row(values=record, path=source, line=line)
        prompt = row.values.get("prompt", "best") if "row" in row.values else "best"
        if prompt in kept:
            _add(row, kept[prompt])
    rows = next((kept[prompt] for prompt in _CHOSEN if kept[prompt]), None)
    if rows is None:
        raise DataError("expected rows of the best prompt, got none: choose another file.", path=source)
    label_set, space = _labels_and_space(rows.values())
    found = None
    if fingerprint is not None and space is not None:
        found = fingerprint(LogprobSpace(space), label_set)

    def column(of: str, kind: type[np.generic]) -> NDArray[Any]:
        return np.array([getattr(row, of) for row in rows.values()], dtype=kind)

    def texts(of: str) -> tuple[str | None, ...]:
        return tuple(getattr(row, of) for row in rows.values())

    return SavedPredictions(
        name=name,
        index=np.array(list(rows), dtype=np.int64),
        inputs=texts("input"),
        answers=texts("answer"),
        labels=texts("label"),
        outcomes=tuple(row.outcome for row in rows.values()),
        confidence=column("confidence", np.float64),
        correct=column("correct", np.int8),
        cost=column("cost", np.float64),
        latency_seconds=column("latency_seconds", np.float64),
        label_set=label_set,
        rows_with_low_label_mass=int(column("has_low_label_mass", np.bool_).sum()),
        fingerprint=found,
    )


def _add(row: Row, rows: dict[int, RunRow]) -> None:
    """Check a row and add it to `rows` under its index."""
    try:
        found = RunRow.checked(row.values)
    except ValueError as error:
        raise _broken(row, str(error)) from error
    index = len(rows) if found.index is None else found.index
    if index in rows:
        raise _broken(row, f"expected every index once, got {index} again")
    rows[index] = found


def _labels_and_space(rows: Iterable[RunRow]) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the label set and the log-probability space of rows of `evaluate` or `optimize`."""
    space = None
    for row in rows:
        values = row.values.get("distribution") or row.values
        found = values.get("labels") or values.get("probabilities")
        if isinstance(found, list | dict) and isinstance(values.get("space"), str):
            return tuple(found), values["space"]
        if space is None and values.get("parts"):  # whose label set the directory knows
            space = _space_of(values)
    return None, space


def _space_of(values: Mapping[str, Any]) -> str | None:
    """Return the log-probability space of a row with parts, from the row or from its parts."""
    if isinstance(values.get("space"), str):
        return str(values["space"])
    found = (part.get("distribution") for part in values["parts"] if isinstance(part, Mapping))
    return next((str(one["space"]) for one in found if one), None)


def _broken(row: Row, message: str) -> DataError:
    return DataError(f"{message}: correct the row, or leave it out.", path=row.path, line=row.line)
