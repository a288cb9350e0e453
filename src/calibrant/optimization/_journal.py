"""Finished predictions of a run, on disk as they are made."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from calibrant.core import Prediction, StateError, prediction_from_record, prediction_to_record

__all__ = ["FileLogger", "JsonlStore", "PredictionJournal"]


class JsonlStore:
    """Append-only key-value file: one JSON object per line, readable after a kill at any moment.

    Parameters
    ----------
    path : Path or None
        Created when missing. A last line cut off by a kill is dropped. None keeps all in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._values: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._file: IO[str] | None = None
        if path is not None:
            self._load(path)
            self._file = path.open("a", encoding="utf-8")

    def _load(self, path: Path) -> None:
        if not path.exists():
            return
        data = path.read_bytes()
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
            with path.open("r+b") as file:
                file.truncate(complete)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> Any:  # noqa: ANN401  (JSON)
        """Return the value under `key`, or None."""
        return self._values.get(key)

    def put(self, key: str, value: Any) -> None:  # noqa: ANN401  (JSON)
        """Store `value` under `key` and hand it to the operating system at once."""
        with self._lock:
            self._values[key] = value
            if self._file is not None:
                self._file.write(json.dumps({"key": key, "value": value}, ensure_ascii=False) + "\n")
                self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()


class PredictionJournal:
    """A `calibrant.core.Journal` in a JSON Lines file, or in memory where there is no path."""

    def __init__(self, path: Path | None) -> None:
        self._store = JsonlStore(path)

    def __len__(self) -> int:
        return len(self._store)

    def get_many(self, keys: Sequence[str]) -> dict[str, Prediction]:
        """Return the predictions stored under `keys`, those that are there."""
        found = {key: self._store.get(key) for key in keys}
        return {key: prediction_from_record(record) for key, record in found.items() if record is not None}

    def put(self, key: str, prediction: Prediction) -> None:
        """Store `prediction` under `key`."""
        self._store.put(key, prediction_to_record(prediction))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._store.__exit__(*exception)


class FileLogger:
    """GEPA's log, kept in the run directory or dropped."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def log(self, message: object) -> None:
        """Append a message."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{message}\n")
