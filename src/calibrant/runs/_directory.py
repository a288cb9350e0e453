"""Directory of a run: files, lock, rescue and progress."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from calibrant.core._errors import CalibrantError, StateError
from calibrant.core._files import is_in_place, make_rescue_folder, read_json_object, remove_leftovers
from calibrant.runs._folder import MANIFEST, check_manifest, hold_lock, make_folder, unwritable, write_json

_LOCK: Final = ".lock"
_INFORMATION: Final = ("data", "calibrant")  # kept for the reader, not compared
PREDICTIONS: Final = "predictions.jsonl"
METRICS: Final = "metrics.json"
RESULT: Final = "result.json"
"""Result of a search, written when it ends."""

BATCH: Final = "batch.json"
"""State of a job at a provider's batch interface."""


@dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """The files of an evaluation.

    Attributes
    ----------
    path : Path
        The directory.
    fingerprint : mapping
        All that the predictions depend on, as JSON values.
    lock : file or None
        Held while the run goes on.
    """

    path: Path
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    lock: IO[str] | None = field(default=None, repr=False, compare=False)

    @property
    def predictions(self) -> Path:
        """One JSON object a row, in the order of the input."""
        return self.path / PREDICTIONS

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
        """The numbers, as JSON values."""
        return self.path / METRICS

    @property
    def run(self) -> Path:
        """The manifest: all that the predictions depend on."""
        return self.path / MANIFEST

    @property
    def journal(self) -> Path:
        """Answers that are not written yet, where there is no cache."""
        return self.path / "journal.sqlite"

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls,
        path: Path,
        fingerprint: Mapping[str, Any],
        *,
        comparable: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> Iterator[RunDirectory]:
        """Create the directory, or check that it belongs to this run; lock it for the block.

        Parameters
        ----------
        path : Path
            The directory.
        fingerprint : mapping
            All that the predictions depend on, as JSON values; kept in ``run.json``.
        comparable : callable, default dict
            Brings a fingerprint, perhaps of an earlier version, to the form that is compared.

        Raises
        ------
        StateError
            It holds another run or other files, is in use, or cannot be written.
        """
        make_folder(path)
        try:
            lock = (path / _LOCK).open("a")
        except OSError as error:
            raise unwritable(path, error, remedy="choose another directory, or make room") from error
        with lock:
            hold_lock(
                lock.fileno(),
                f"{path}: another process is evaluating into this directory: wait for it, or choose another one.",
            )
            # Tuples become lists, as stored.
            directory = cls(
                path=path, fingerprint=json.loads(json.dumps(fingerprint, default=repr)), lock=lock
            )
            check_manifest(
                path,
                directory.fingerprint,
                kind="an evaluation",
                has_rows=directory._has_rows(),
                ignored=_INFORMATION,
                comparable=comparable,
            )
            write_json(directory.run, directory.fingerprint)
            for written in (directory.run, directory.predictions):
                remove_leftovers(written)  # of a killed writer; others write them under this lock only
            yield directory

    def _has_rows(self) -> bool:
        written = self.predictions.exists() and self.predictions.stat().st_size > 0
        return written or any(self.shards.glob("*.jsonl"))

    @property
    def in_place(self) -> bool:
        """False once the directory or its files were moved or removed."""
        held = self.lock is None or is_in_place(self.lock.fileno(), self.path / _LOCK)
        return held and self.run.exists()

    def rescued(self) -> RunDirectory:
        """Return a replacement for this directory, which was moved or removed.

        It holds ``run.json``: with its predictions beside it, it is an earlier part of the same run.

        Raises
        ------
        StateError
            It cannot be made.
        """
        rescue = RunDirectory(path=make_rescue_folder(self.path), fingerprint=self.fingerprint)
        write_json(rescue.run, rescue.fingerprint)
        return rescue

    def lost(self, rescue: RunDirectory, what: str) -> CalibrantError:
        """Return the error for moved or removed files; `what` names those kept in `rescue`."""
        return CalibrantError(
            f"{self.path}: its files were moved or removed during the run: {what} in {rescue.path}. Give that "
            "directory as the output of the same command to go on from there."
        )

    def remove_journal(self) -> None:
        """Remove the journal and SQLite's files beside it."""
        for path in self.path.glob(f"{self.journal.name}*"):
            path.unlink(missing_ok=True)


def read_origin(directory: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the manifest of a run and its record; None without one.

    A search leaves ``result.json`` beside ``run.json``: the result counts, as it holds the prompt that was chosen.

    Raises
    ------
    StateError
        The file is damaged.
    """
    source = next(
        (directory / name for name in (RESULT, MANIFEST, BATCH) if (directory / name).exists()), None
    )
    if source is None:
        return None
    try:
        return source, read_json_object(source, remedy="restore it")
    except StateError as error:
        raise damaged_origin(source, error) from error


def damaged_origin(source: Path, error: Exception) -> StateError:
    """Return the error for an invalid manifest."""
    return StateError(
        f"{source}: expected what the predictions depend on, got something else ({error!r}): restore the file, or give "
        "the predictions file alone, in a directory without it."
    )


def unfinished(path: str | Path) -> str | None:
    """Return the reason why the directory of a run does not hold all of its rows, or None.

    Parameters
    ----------
    path : path
        Directory of `calibrant evaluate` or `calibrant optimize`; nothing is known of others. A search writes its
        result when it ends.

    Raises
    ------
    StateError
        ``metrics.json`` is damaged.
    """
    place = Path(path)
    if not (place / MANIFEST).exists() or (place / RESULT).exists():
        return None
    if not (place / METRICS).exists():
        return "has neither metrics.json nor result.json, so the run is not finished"
    metrics = read_json_object(place / METRICS, remedy="delete it and run the evaluation again")
    if metrics.get("complete", True):
        return None
    return f"holds a run that ended early ({metrics.get('stopped') or 'rows are missing'})"
