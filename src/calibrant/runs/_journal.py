"""Finished predictions of a run, on disk as they are made."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

from calibrant.core._errors import StateError
from calibrant.core._files import is_in_place
from calibrant.core._prediction import (
    Journal,
    JsonObject,
    Prediction,
    prediction_from_record,
    prediction_to_record,
)
from calibrant.runs._directory import hold_lock

JOURNAL: Final = "journal.jsonl"
"""File with every answer that a search has paid for."""

_KEY_PART: Final = 3  # of a line, divided at its quotes


class JsonlStore:
    """Append-only key-value file: one JSON object per line, readable after a kill at any moment.

    Parameters
    ----------
    path : Path or None
        Created when missing, and locked until it is closed. A last line cut off by a kill is dropped. None keeps all
        in memory.

    Raises
    ------
    StateError
        Another process writes the file, or a line is damaged.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._values: JsonObject = {}
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        if path is not None:
            with ExitStack() as stack:
                file = stack.enter_context(path.open("a+b"))
                # Before the first look: half a line may be one that another process is writing.
                hold_lock(
                    file.fileno(),
                    f"{path}: another process is writing this journal: wait for it, or choose another directory.",
                )
                self._load(path, file)
                stack.pop_all()
            self._file = file

    def _load(self, path: Path, file: IO[bytes]) -> None:
        file.seek(0)
        data = file.read()
        complete = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:complete].splitlines(), 1):
            try:
                entry = json.loads(line)
                self._values[entry["key"]] = entry["value"]
            except (ValueError, KeyError, TypeError) as error:
                raise StateError(
                    f"{path}:{number}: expected a journal entry, got {line!r:.80}: remove the line or start a new run."
                ) from error
        if complete < len(data):
            file.truncate(complete)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> Any:  # noqa: ANN401  (JSON)
        """Return the value under `key`, or None."""
        return self._values.get(key)

    def values(self) -> list[Any]:
        """Return all values, in the order of their first keys."""
        return list(self._values.values())

    def put(self, key: str, value: Any) -> None:  # noqa: ANN401  (JSON)
        """Store `value` under `key` and hand it to the operating system at once."""
        with self._lock:
            self._values[key] = value
            if self._file is not None:
                self._file.write(_line(key, value).encode())
                self._file.flush()

    @property
    def in_place(self) -> bool:
        """False once the file was moved or removed; writes still go to the open file."""
        return self._file is None or self._path is None or is_in_place(self._file.fileno(), self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None  # what is kept in memory can still be read


@dataclass(eq=False)
class PredictionJournal:
    """A `calibrant.core.Journal` over a `JsonlStore`."""

    store: JsonlStore

    def __len__(self) -> int:
        return len(self.store)

    def get_many(self, keys: Sequence[str]) -> dict[str, Prediction]:
        """Return the stored predictions by key; missing keys are left out."""
        found = {key: self.store.get(key) for key in keys}
        return {key: prediction_from_record(record) for key, record in found.items() if record is not None}

    def put(self, key: str, prediction: Prediction) -> None:
        """Store `prediction` under `key`."""
        self.store.put(key, prediction_to_record(prediction))


class SavedAnswers:
    """A `calibrant.core.Journal` that only reads: the answers that a search has paid for.

    Lines are decoded when they are looked up, as a search with text features leaves megabytes. A line that cannot be
    read counts as missing: its row is asked again.

    Parameters
    ----------
    path : Path
        ``journal.jsonl`` in the directory of the search, which may still be running.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[bytes, bytes] | None = None

    def get_many(self, keys: Sequence[str]) -> dict[str, Prediction]:
        """Return the stored predictions by key; missing keys are left out."""
        if self._lines is None:
            self._lines = _lines_by_key(self._path)
        found = {}
        for key in keys:
            line = self._lines.get(key.encode())
            prediction = None if line is None else _prediction_in(line)
            if prediction is not None:
                found[key] = prediction
        return found

    def put(self, key: str, prediction: Prediction) -> None:
        """Do nothing: the file belongs to the search."""


@dataclass(eq=False)
class JournalAfterSearch:
    """A `calibrant.core.Journal` that looks into the answers of a search before its own.

    Attributes
    ----------
    journal : Journal
        Where new answers are kept.
    saved : SavedAnswers
        Answers of the search.
    """

    journal: Journal
    saved: SavedAnswers

    def get_many(self, keys: Sequence[str]) -> dict[str, Prediction]:
        """Return the stored predictions by key; missing keys are left out."""
        found = self.saved.get_many(keys)
        missing = [key for key in keys if key not in found]
        return {**found, **self.journal.get_many(missing)}

    def put(self, key: str, prediction: Prediction) -> None:
        """Store `prediction` under `key` among the new answers."""
        self.journal.put(key, prediction)


def _lines_by_key(path: Path) -> dict[bytes, bytes]:
    """Return the complete lines of a journal, by the key at the beginning of each."""
    data = path.read_bytes()
    complete = data.rfind(b"\n") + 1  # the last line may be one that is being written
    found = {}
    for line in data[:complete].split(b"\n"):
        parts = line.split(b'"', 4)  # {"key": "...", as `_line` writes it
        if len(parts) > _KEY_PART:
            found[parts[_KEY_PART]] = line
    return found


def _prediction_in(line: bytes) -> Prediction | None:
    """Return the prediction in a line of a journal; None if it cannot be read."""
    try:
        return prediction_from_record(json.loads(line)["value"])
    except (StateError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _line(key: str, value: object) -> str:
    return json.dumps({"key": key, "value": value}, ensure_ascii=False) + "\n"
