"""Predictions that were saved, whoever saved them: read back, checked, as arrays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration._fingerprint import Fingerprint, asked_text, demonstrated
from calibrant.core import (
    MAX_RUN_ROW_BYTES,
    UNKNOWN,
    DataError,
    DemonstrationSettings,
    LogprobSpace,
    Outcome,
    Row,
    RunRow,
    StateError,
    labels_from_record,
    read_json_object,
    read_rows,
)

__all__ = [
    "DEMONSTRATIONS",
    "UNKNOWN",
    "SavedPredictions",
    "load_predictions",
    "read_predictions",
    "unfinished",
]

DEMONSTRATIONS: Final = "demonstrations.jsonl"
"""File of a run's directory with the labelled texts that its prompts were shown from."""
_FILE: Final = "predictions.jsonl"
_CHOSEN: Final = ("final", "best")  # of the prompts of a search: with its head, if it has one


@dataclass(frozen=True, kw_only=True)
class SavedPredictions:
    """Rows with their predictions, in the order of the file.

    Attributes
    ----------
    name : str
        What to call them: the directory or file they come from.
    index : ndarray of int, shape (n,)
        Position of each row in the input it was read from; no two are equal.
    inputs, answers, labels : tuple of (str or None), length n
        The text, its true label and the predicted one, where known.
    outcomes : tuple of Outcome, length n
        How each row ended.
    confidence : ndarray of float, shape (n,)
        In [0, 1]; NaN where there is none.
    correct : ndarray of int, shape (n,)
        1 right, 0 wrong, -1 unknown: the row failed for the server's reasons (outcome ``error``), or its true
        label is not known.
    cost : ndarray of float, shape (n,)
        What each answer cost in US dollars; NaN where no price is known.
    latency_seconds : ndarray of float, shape (n,)
        What each answer took; NaN where it is not known.
    label_set : tuple of str or None
        All labels, where a row says.
    fingerprint : Fingerprint or None
        What the predictions depend on, where the directory says.
    rows_with_low_label_mass : int
        Rows on which the model would rather have written something else than any label, as far as rows say.
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
        """Rows that failed for the server's reasons, shape (n,)."""
        return np.array([outcome is Outcome.ERROR for outcome in self.outcomes], dtype=np.bool_)


def load_predictions(path: str | Path) -> SavedPredictions:
    """Read saved predictions.

    Parameters
    ----------
    path : path
        A directory of `calibrant evaluate`, `calibrant batch` or `calibrant optimize` (whose best prompt
        counts), or a file of predictions: JSON Lines, CSV or Parquet. A row needs ``correct``, or ``label``
        and ``answer``; it may have ``confidence``, ``cost``, ``latency_seconds``, ``input``, ``index`` (by
        default its place) and ``outcome`` (by default ``ok``).

    Raises
    ------
    DataError
        Nothing is there, or a row is broken; the message names file and line.
    StateError
        The directory's ``run.json`` or ``result.json`` is damaged.
    """
    place = Path(path)
    file = place / _FILE if place.is_dir() else place
    if place.is_dir() and not file.exists():
        raise DataError(
            f"expected {_FILE} in it, as `calibrant evaluate` and `calibrant optimize` leave it: choose another "
            "directory, or run the evaluation first.",
            path=place,
        )
    if not file.exists():
        raise DataError("no such file or directory: check the path.", path=file)
    # A file of our own holds more than the text it was asked about.
    return _read(read_rows(file, max_row_bytes=MAX_RUN_ROW_BYTES), file).saved(str(path), file.parent)


def read_predictions(records: Iterable[Mapping[str, Any]], *, name: str = "predictions") -> SavedPredictions:
    """Return rows that are in memory, such as lines of ``predictions.jsonl`` already read.

    Parameters
    ----------
    records : iterable of mapping
        With the names that `load_predictions` knows.
    name : str, default "predictions"
        What to call them, in messages as well.

    Raises
    ------
    DataError
        A row is broken, or there is none; the message names its place, from 1.
    """
    source = Path(name)
    rows = (Row(values=record, path=source, line=line) for line, record in enumerate(records, start=1))
    return _read(rows, source).saved(name, None)


def _read(found: Iterable[Row], source: Path) -> _Rows:
    """Check rows, and keep those of the prompt that counts."""
    kept = {name: _Rows() for name in _CHOSEN}
    for row in found:
        name = row.values.get("prompt", "best") if "row" in row.values else "best"
        if name in kept:
            kept[name].add(row)
    rows = next((kept[name] for name in _CHOSEN if kept[name].index), None)
    if rows is None:
        raise DataError("expected rows of the best prompt, got none: choose another file.", path=source)
    return rows


def unfinished(path: str | Path) -> str | None:
    """Return why the directory of a run does not hold all of its rows, or None.

    Parameters
    ----------
    path : path
        As for `load_predictions`; nothing is known of what is no directory of `calibrant evaluate` or
        `calibrant optimize`. A search writes its result when it ends.
    """
    place = Path(path)
    if not (place / "run.json").exists() or (place / "result.json").exists():
        return None
    if not (place / "metrics.json").exists():
        return "has neither metrics.json nor result.json, so the run is not finished"
    metrics = read_json_object(place / "metrics.json", remedy="delete it and run the evaluation again")
    if metrics.get("complete", True):
        return None
    return f"holds a run that ended early ({metrics.get('stopped') or 'rows are missing'})"


class _Rows:
    """The rows read so far."""

    def __init__(self) -> None:
        self.index: dict[int, None] = {}
        self.inputs: list[str | None] = []
        self.answers: list[str | None] = []
        self.labels: list[str | None] = []
        self.outcomes: list[Outcome] = []
        self.confidence: list[float] = []
        self.correct: list[int] = []
        self.cost: list[float] = []
        self.latency: list[float] = []
        self.label_set: tuple[str, ...] | None = None
        self.space: str | None = None
        self.low_label_mass = 0

    def add(self, row: Row) -> None:
        """Check a row and add it."""
        try:
            found = RunRow.checked(row.values)
        except ValueError as error:
            raise _broken(row, str(error)) from error
        index = len(self.index) if found.index is None else found.index
        if index in self.index:
            raise _broken(row, f"expected every index once, got {index} again")
        self.index[index] = None
        self.outcomes.append(found.outcome)
        self.inputs.append(found.input)
        self.answers.append(found.answer)
        self.labels.append(found.label)
        self.confidence.append(found.confidence)
        self.correct.append(found.correct)
        self.cost.append(found.cost)
        self.latency.append(found.latency_seconds)
        self.low_label_mass += found.has_low_label_mass
        if self.label_set is None:
            self._learn_labels(row.values.get("distribution") or row.values)

    def _learn_labels(self, values: Mapping[str, Any]) -> None:
        """Note label set and space, which `evaluate` and `optimize` write in different places."""
        found = values.get("labels") or values.get("probabilities")
        if isinstance(found, list | dict) and isinstance(values.get("space"), str):
            self.label_set, self.space = tuple(found), values["space"]
        if self.space is None and values.get("parts"):  # whose label set the directory knows
            self.space = _space_of(values)

    def saved(self, name: str, directory: Path | None) -> SavedPredictions:
        """Return what was read."""
        return SavedPredictions(
            name=name,
            index=np.array(list(self.index), dtype=np.int64),
            inputs=tuple(self.inputs),
            answers=tuple(self.answers),
            labels=tuple(self.labels),
            outcomes=tuple(self.outcomes),
            confidence=np.array(self.confidence, dtype=np.float64),
            correct=np.array(self.correct, dtype=np.int8),
            cost=np.array(self.cost, dtype=np.float64),
            latency_seconds=np.array(self.latency, dtype=np.float64),
            label_set=self.label_set,
            rows_with_low_label_mass=self.low_label_mass,
            fingerprint=None if directory is None else self._fingerprint(directory),
        )

    def _fingerprint(self, directory: Path) -> Fingerprint | None:
        if self.space is None:
            return None
        # A search leaves both files, and its result holds the prompt that was chosen.
        for file, read in (("result.json", _searched), ("run.json", _evaluated), ("batch.json", _submitted)):
            source = directory / file
            if not source.exists():
                continue
            try:
                record = json.loads(source.read_text(encoding="utf-8"))
                found = read(record, directory)
                if found is None:
                    return None
                prompt, model = found
                labels = self._labels(record)
                if labels is None:
                    return None
                return Fingerprint(
                    prompt=prompt,
                    model=model,
                    space=LogprobSpace(self.space),
                    labels=labels,
                )
            except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
                raise StateError(
                    f"{source}: expected what the predictions depend on, got something else ({error!r}): restore "
                    "the file, or give the predictions file alone, in a directory without it."
                ) from error
        return None

    def _labels(self, record: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the labels, which a run of answers with a structure writes down itself."""
        found = (record.get("described") or record).get("label_set")
        return self.label_set if found is None else labels_from_record(found)


def _space_of(values: Mapping[str, Any]) -> str | None:
    """Return the space of a row's parts, which `evaluate` and `optimize` write in different places."""
    if isinstance(values.get("space"), str):
        return str(values["space"])
    found = (part.get("distribution") for part in values["parts"] if isinstance(part, Mapping))
    return next((str(one["space"]) for one in found if one), None)


def _evaluated(record: Mapping[str, Any], _: Path) -> tuple[str, str]:
    """Return what was asked of an evaluation, and of which model."""
    prompt = asked_text(record["prompt"], record["user_template"], record.get("demonstrations"))
    return prompt, record["model"]


def _submitted(record: Mapping[str, Any], directory: Path) -> tuple[str, str] | None:
    """Return what a batch was asked; None where an older version submitted it, which did not say."""
    described = record.get("described")
    return None if described is None else _evaluated(described, directory)


def _searched(record: Mapping[str, Any], directory: Path) -> tuple[str, str]:
    """Return what was asked under the best prompt of a search."""
    best = record["best_candidate"]
    shown = None
    if best.get("demonstrations", "").strip():
        rows = (directory / DEMONSTRATIONS).read_text(encoding="utf-8")
        shown = demonstrated(DemonstrationSettings.from_text(best["demonstrations"]), rows)
    return asked_text(best["system_prompt"], best.get("user_template"), shown), record["model"]


def _broken(row: Row, message: str) -> DataError:
    return DataError(f"{message}: correct the row, or leave it out.", path=row.path, line=row.line)
