"""The output directory: whose run it holds, and that only one process works on it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from calibrant.core import (
    CalibrantError,
    StateError,
    is_in_place,
    make_rescue_folder,
    read_json_object,
    try_lock,
    write_atomically,
)
from calibrant.evaluation._metrics import EvaluationMetrics
from calibrant.inference.doctor import public_description

__all__ = ["RunDirectory"]

_LOCK: Final = ".lock"
_INFORMATION: Final = ("data", "calibrant")  # kept for the reader, not compared
_SHOWN: Final = 60


@dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """Where an evaluation leaves its files.

    Attributes
    ----------
    path : Path
        The directory.
    fingerprint : mapping
        What the predictions depend on, as JSON values.
    lock : file or None
        Held while the run goes on.
    """

    path: Path
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    lock: IO[str] | None = field(default=None, repr=False, compare=False)

    @property
    def predictions(self) -> Path:
        """One JSON object a row, in the order of the input."""
        return self.path / "predictions.jsonl"

    @property
    def parquet(self) -> Path:
        """The same rows in columns, where they are wanted; see `write_parquet`."""
        return self.path / "predictions.parquet"

    @property
    def shards(self) -> Path:
        """One file for each block of rows, where several machines evaluate."""
        return self.path / "shards"

    @property
    def metrics(self) -> Path:
        """The numbers; see `EvaluationMetrics`."""
        return self.path / "metrics.json"

    @property
    def run(self) -> Path:
        """What the predictions depend on."""
        return self.path / "run.json"

    @property
    def journal(self) -> Path:
        """Answers that are not written yet, where there is no cache."""
        return self.path / "journal.sqlite"

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path, fingerprint: Mapping[str, Any]) -> Iterator[RunDirectory]:
        """Make the directory, or check that it holds an earlier part of this run; nobody else may use it meanwhile.

        Parameters
        ----------
        path : Path
            The directory.
        fingerprint : mapping
            What the predictions depend on, as JSON values; kept in ``run.json``.

        Raises
        ------
        StateError
            It holds another run or other files, is in use, or cannot be written.
        """
        if path.exists() and not path.is_dir():
            raise StateError(f"{path}: expected a directory for the run, got a file: choose another name.")
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = (path / _LOCK).open("a")
        except OSError as error:
            raise _unwritable(path, error) from error
        with lock:
            if not try_lock(lock.fileno()):
                raise StateError(
                    f"{path}: another process is evaluating into this directory: wait for it, or choose another one."
                )
            # Tuples become lists, as stored.
            directory = cls(
                path=path, fingerprint=json.loads(json.dumps(fingerprint, default=repr)), lock=lock
            )
            directory._claim()
            yield directory

    def _claim(self) -> None:
        fingerprint = self.fingerprint
        if self.run.exists():
            # Earlier versions wrote some texts in full that are digests today.
            stored, current = public_description(self._stored()), public_description(fingerprint)
            changed = sorted(
                name
                for name in {*stored, *fingerprint}.difference(_INFORMATION)
                if stored.get(name) != current.get(name)
            )
            if changed and self._paid():
                raise StateError(
                    f"{self.path}: holds an evaluation that differs in {_differences(changed, stored, current)}: "
                    "choose a new directory, or run it unchanged."
                )
        elif any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise StateError(
                f"{self.path}: expected an empty directory or an earlier evaluation, got other files: choose a new one."
            )
        self.write(self.run, fingerprint)

    def _stored(self) -> dict[str, Any]:
        return read_json_object(self.run, remedy="choose a new directory")

    def _paid(self) -> bool:
        """Return whether there is a single row; a failed start may be started otherwise."""
        written = self.predictions.exists() and self.predictions.stat().st_size > 0
        return written or any(self.shards.glob("*.jsonl"))

    def write_metrics(self, metrics: EvaluationMetrics, about: Mapping[str, Any]) -> None:
        """Write ``metrics.json``, whole or not at all."""
        self.write(self.metrics, {**metrics.to_record(), **about})

    def write(self, path: Path, record: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all.

        Raises
        ------
        StateError
            It cannot be written.
        """
        try:
            write_atomically(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise _unwritable(self.path, error) from error

    @property
    def in_place(self) -> bool:
        """False once somebody moved or removed the directory, or what is in it, during the run."""
        held = self.lock is None or is_in_place(self.lock.fileno(), self.path / _LOCK)
        return held and self.run.exists()

    def rescued(self) -> RunDirectory:
        """Return a new directory for what this one should hold, which was moved or removed during the run.

        It holds ``run.json``: with its predictions beside it, it is an earlier part of the same run.

        Raises
        ------
        StateError
            It cannot be made.
        """
        rescue = RunDirectory(path=make_rescue_folder(self.path), fingerprint=self.fingerprint)
        rescue.write(rescue.run, rescue.fingerprint)
        return rescue

    def lost(self, rescue: RunDirectory, what: str) -> CalibrantError:
        """Return the error for a run whose files were moved or removed; `what` is kept in `rescue`."""
        return CalibrantError(
            f"{self.path}: its files were moved or removed during the run: {what} in {rescue.path}. Give that "
            "directory as the output of the same command to go on from there."
        )

    def remove_journal(self) -> None:
        """Remove the journal, with what SQLite keeps beside it."""
        for path in self.path.glob(f"{self.journal.name}*"):
            path.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> StateError:
    reason = error.strerror or error
    return StateError(f"{path}: cannot be written ({reason}): choose another directory, or make room.")


def _differences(changed: list[str], stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    parts = []
    for name in changed:
        values = [json.dumps(found.get(name), ensure_ascii=False) for found in (stored, now)]
        short = all(len(value) <= _SHOWN for value in values)
        parts.append(f"{name} ({values[0]} then, {values[1]} now)" if short else name)
    return ", ".join(parts)
