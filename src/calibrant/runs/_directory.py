"""Directory of a run: its files and manifest, lock and progress."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Final

from calibrant.core._errors import CalibrantError, StateError
from calibrant.core._files import (
    is_in_place,
    json_text,
    read_json_object,
    read_run_record,
    remove_leftovers,
    try_lock,
    write_atomically,
    write_record,
)
from calibrant.core._prediction import JsonObject, Record

_LOCK: Final = ".lock"
_MAKE_ROOM: Final = "make room, and run the same command again"
_INFORMATION: Final = ("data", "calibrant")  # kept for the reader, not compared
_SHOWN: Final = 60  # characters of a value in a message
MANIFEST: Final = "run.json"
KNOWN_TEXTS: Final = "known_texts"
HEAD_TEXTS: Final = "head_texts.json"  # beside a head: which texts it learned from
"""Key of a search's manifest: digests, divided by blanks, of the texts that its prompt and head owe something to."""
PREDICTIONS: Final = "predictions.jsonl"
METRICS: Final = "metrics.json"
RESULT: Final = "result.json"
"""Result of a search, written when it ends."""

CALIBRATION: Final = "calibration.json"

BATCH: Final = "batch.json"
"""State of a job at a provider's batch interface."""

DEMONSTRATIONS: Final = "demonstrations.jsonl"
"""Labelled texts that the prompts of a run were shown from."""

SETTINGS: Final = "task.json"
SETTINGS_KIND: Final = "settings of a run"
SETTINGS_VERSION: Final = 1


@dataclass(frozen=True)
class NumberedDirectory:
    """Directory that a run looks for itself: with a number behind its name where that holds another run.

    Attributes
    ----------
    path : Path
        The directory without a number.
    """

    path: Path

    def chosen(self, fingerprint: Record, *, has_rows: Callable[[Path], bool]) -> Path:
        """Return the first directory that holds this run, or nothing yet.

        Parameters
        ----------
        fingerprint : mapping
            All that the rows depend on, as JSON values.
        has_rows : callable
            Returns True if a directory holds a row that was paid for.
        """
        for number in count(1):
            path = self.path if number == 1 else self.path.with_name(f"{self.path.name}-{number}")
            if not path.exists() or (path.is_dir() and _may_hold(path, fingerprint, has_rows=has_rows(path))):
                return path
        raise AssertionError


def _may_hold(path: Path, fingerprint: Record, *, has_rows: bool) -> bool:
    """Return True if a directory is empty, or holds this run, or a failed start without any row."""
    has_rows = has_rows or (path / PREDICTIONS).exists()
    try:
        check_manifest(path, fingerprint, kind="a run", has_rows=has_rows)
    except StateError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """Directory of a run, and the paths of its files.

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
    fingerprint: Record = field(default_factory=dict)
    lock: IO[str] | None = field(default=None, repr=False, compare=False)

    @property
    def predictions(self) -> Path:
        """File of the predictions: one JSON object per row, in input order."""
        return self.path / PREDICTIONS

    @property
    def parquet(self) -> Path:
        """File of the same rows in columns, if requested; see `write_parquet`."""
        return self.path / "predictions.parquet"

    @property
    def shards(self) -> Path:
        """Folder with one file per block of rows, in a run with several workers."""
        return self.path / "shards"

    @property
    def metrics(self) -> Path:
        """File of the metrics, as JSON."""
        return self.path / METRICS

    @property
    def run(self) -> Path:
        """File of the manifest: all that the predictions depend on."""
        return self.path / MANIFEST

    @property
    def journal(self) -> Path:
        """File of answers that are not written yet, in a run without a cache."""
        return self.path / "journal.sqlite"

    @property
    def paid(self) -> Path:
        """File of the calls of answered rows; see `calibrant.runs._output.PaidRows`."""
        return self.path / "paid.jsonl"

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls,
        path: Path,
        fingerprint: Record,
    ) -> Iterator[RunDirectory]:
        """Create the directory, or check that it belongs to this run; lock it for the block.

        Parameters
        ----------
        path : Path
            The directory.
        fingerprint : mapping
            All that the predictions depend on, as JSON values; kept in ``run.json``.

        Raises
        ------
        StateError
            It holds another run or other files, is in use, or cannot be written.
        """
        make_folder(path)
        with while_writing(path, remedy="choose another directory, or make room"):
            lock = (path / _LOCK).open("a")
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
                has_rows=directory.has_rows(),
                ignored=_INFORMATION,
            )
            write_json(directory.run, directory.fingerprint)
            for written in (directory.run, directory.predictions):
                remove_leftovers(written)  # of a killed writer; others write them under this lock only
            yield directory

    def has_rows(self) -> bool:
        """Return True if it holds rows, in one file or several."""
        written = self.predictions.exists() and self.predictions.stat().st_size > 0
        return written or any(self.shards.glob("*.jsonl"))

    @property
    def in_place(self) -> bool:
        """False once the directory or its files were moved or removed."""
        held = self.lock is None or is_in_place(self.lock.fileno(), self.path / _LOCK)
        return held and self.run.exists()

    def lost(self) -> CalibrantError:
        """Return the error for moved or removed files."""
        return lost_files(self.path)

    def remove_journal(self) -> None:
        """Remove the journal and SQLite's files beside it, and the file of calls."""
        for path in (self.paid, *self.path.glob(f"{self.journal.name}*")):
            path.unlink(missing_ok=True)


def to_keep_answers(folder: Path) -> str:
    """Return the end of a message on changed data: the command that keeps the run's answers."""
    if (folder / BATCH).exists():  # a cache never gets the answers of a provider's batches
        return (
            f"restore the data to use the answers in {folder / PREDICTIONS}, or submit it with a new --out, which asks "
            "about all rows again."
        )
    journal = RunDirectory(path=folder).journal
    if journal.exists():
        return (
            f"restore the data, or run the command with a new --out and with --cache {journal} instead of --no-cache: "
            "only new and changed rows are asked about."
        )
    return (
        "restore the data, or run the command with a new --out: the cache has the answers to unchanged rows (unless "
        "--no-cache was given), so only new and changed ones are asked about."
    )


def method_of_rows(directory: Path) -> Record | None:
    """Return the description of the method by which the rows in a run's directory were answered.

    None if it has no rows, or says nothing of it.
    """
    if not RunDirectory(path=directory).has_rows():
        return None
    with contextlib.suppress(StateError, LookupError, TypeError):  # whoever opens the directory says more
        return dict(read_json_object(directory / MANIFEST, remedy="")["method"])
    return None


def read_origin(directory: Path) -> tuple[Path, JsonObject] | None:
    """Return the path and the content of a run's manifest or result; None without such a file.

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
    return source, read_run_record(
        source, remedy="restore it, or give the predictions file alone, in a directory without it"
    )


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
    metrics = read_run_record(place / METRICS, remedy="delete it and run the evaluation again")
    if metrics.get("complete", True):
        return None
    return f"holds a run that ended early ({metrics.get('stopped') or 'rows are missing'})"


def unwritable(path: Path, error: OSError, *, remedy: str = _MAKE_ROOM) -> StateError:
    """Return the error for a file or folder that cannot be written."""
    return StateError(f"{path}: cannot be written ({error.strerror or error}): {remedy}.")


@contextlib.contextmanager
def while_writing(path: Path, *, remedy: str = _MAKE_ROOM) -> Iterator[None]:
    """Raise a StateError instead of an OSError of the block, which writes a file or folder."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, remedy=remedy) from error


def make_folder(path: Path) -> None:
    """Make the folder of a run, if it does not exist.

    Raises
    ------
    StateError
        A file is in its place, or it cannot be made.
    """
    if path.exists() and not path.is_dir():
        raise StateError(f"{path}: expected a directory for the run, got a file: choose another name.")
    with while_writing(path, remedy="choose another directory, or make room"):
        path.mkdir(parents=True, exist_ok=True)


def write_json(path: Path, record: Record) -> None:
    """Write a JSON file of a run atomically.

    Raises
    ------
    StateError
        It cannot be written.
    """
    with while_writing(path):
        write_atomically(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def write_settings(directory: Path, settings: Record) -> None:
    """Write the settings of a run's tasks into its directory, for export without the task file.

    Parameters
    ----------
    directory : Path
        Directory of the run.
    settings : mapping
        The records of its tasks, a plan or None, and whether one prompt was for all models.

    Raises
    ------
    StateError
        The record cannot be written.
    """
    write_record(directory / SETTINGS, settings, kind=SETTINGS_KIND, version=SETTINGS_VERSION)


def hold_lock(descriptor: int, busy: str) -> None:
    """Lock an open file or folder until it is closed; a killed process releases the lock.

    Parameters
    ----------
    descriptor : int
        The open file or folder.
    busy : str
        The message where another process holds it: what it is doing, and what to do.

    Raises
    ------
    StateError
        Another process holds the lock.
    """
    if not try_lock(descriptor):
        raise StateError(busy)


@contextlib.contextmanager
def locked_folder(path: Path, busy: str) -> Iterator[None]:
    """Lock the folder itself for the block, without a lock file; see `hold_lock`."""
    if os.name != "posix":  # pragma: no cover (folders cannot be opened there)
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        hold_lock(handle, busy)
        yield
    finally:
        os.close(handle)


def read_manifest(folder: Path) -> JsonObject:
    """Return the manifest record of a run, ``run.json``.

    Raises
    ------
    StateError
        The manifest is missing or damaged.
    """
    return read_run_record(folder / MANIFEST, remedy="choose a new directory")


def check_manifest(
    folder: Path,
    fingerprint: Record,
    *,
    kind: str,
    has_rows: bool,
    ignored: Collection[str] = (),
) -> bool:
    """Check that a folder is empty or of the same run; return True if it has rows.

    A failed start, which has no row, may be started with other settings.

    Parameters
    ----------
    folder : Path
        The folder of the run.
    fingerprint : mapping
        All that the rows depend on, as JSON values.
    kind : str
        The job, for messages: "an evaluation".
    has_rows : bool
        True if the folder holds a row that was paid for.
    ignored : collection of str, default ()
        Keys that are kept for the reader and not compared.

    Raises
    ------
    StateError
        The folder holds another run, or files of something else.
    """
    if not (folder / MANIFEST).exists():
        if folder.exists() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise StateError(
                f"{folder}: expected an empty directory or an earlier run, got other files: choose a new one."
            )
        return False
    stored = read_manifest(folder)
    current = dict(fingerprint)
    changed = [name for name in differing_keys(stored, current) if name not in ignored]
    if changed and has_rows:
        raise StateError(
            f"{folder}: holds {kind} that differs in {_differences(changed, stored, current)}: "
            "choose a new directory, or run it unchanged."
        )
    return has_rows


def differing_keys(first: Record, second: Record) -> list[str]:
    """Return the sorted keys whose values differ between two records; a missing key is None."""
    keys = first.keys() | second.keys()
    return sorted(key for key in keys if first.get(key) != second.get(key))


def _differences(changed: list[str], stored: Record, now: Record) -> str:
    parts = []
    for name in changed:
        values = [json_text(found.get(name)) for found in (stored, now)]
        short = all(len(value) <= _SHOWN for value in values)
        parts.append(f"{name} ({values[0]} then, {values[1]} now)" if short else name)
    return ", ".join(parts)


def lost_files(path: Path) -> CalibrantError:
    """Return the error for a directory whose files were moved or removed while its run went on."""
    return CalibrantError(
        f"{path}: its files were moved or removed during the run, which is not complete. Were they moved, give the "
        "same command the new place to go on from there; else run it again."
    )


@contextlib.contextmanager
def refuse_lost_files(path: Path, in_place: Callable[[], bool]) -> Iterator[None]:
    """Raise the error of `lost_files` when the block ends or fails, if the files are no longer `in_place`."""
    try:
        yield
    except BaseException as error:  # a file that cannot be written is how the loss shows first
        if not in_place():
            raise lost_files(path) from error
        raise
    if not in_place():
        raise lost_files(path)
