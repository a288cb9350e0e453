"""Common steps of run folders: create, lock, claim, write records, rescue files."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from calibrant.core._errors import CalibrantError, StateError
from calibrant.core._files import read_json_object, try_lock, write_atomically

MANIFEST: Final = "run.json"
_SHOWN: Final = 60  # characters of a value in a message


def unwritable(
    path: Path, error: OSError, *, remedy: str = "make room, and run the same command again"
) -> StateError:
    """Return the error for a file or folder that cannot be written."""
    return StateError(f"{path}: cannot be written ({error.strerror or error}): {remedy}.")


def make_folder(path: Path) -> None:
    """Make the folder of a run, if it does not exist.

    Raises
    ------
    StateError
        A file is in its place, or it cannot be made.
    """
    if path.exists() and not path.is_dir():
        raise StateError(f"{path}: expected a directory for the run, got a file: choose another name.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error, remedy="choose another directory, or make room") from error


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON file of a run, whole or not at all.

    Raises
    ------
    StateError
        It cannot be written.
    """
    try:
        write_atomically(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise unwritable(path, error) from error


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


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest record of a run, ``run.json``.

    Raises
    ------
    StateError
        The manifest is missing or damaged.
    """
    return read_json_object(folder / MANIFEST, remedy="choose a new directory")


def check_manifest(
    folder: Path,
    fingerprint: Mapping[str, Any],
    *,
    kind: str,
    has_rows: bool,
    ignored: Collection[str] = (),
    comparable: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
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
    comparable : callable, default dict
        Brings a record, perhaps of an earlier version, to the form that is compared.

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
    stored, current = comparable(read_manifest(folder)), comparable(fingerprint)
    changed = [name for name in differing_keys(stored, current) if name not in ignored]
    if changed and has_rows:
        raise StateError(
            f"{folder}: holds {kind} that differs in {_differences(changed, stored, current)}: "
            "choose a new directory, or run it unchanged."
        )
    return has_rows


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the sorted keys whose values differ between two records; a missing key is None."""
    return sorted(key for key in {**first, **second} if first.get(key) != second.get(key))


def _differences(changed: list[str], stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    parts = []
    for name in changed:
        values = [json.dumps(found.get(name), ensure_ascii=False) for found in (stored, now)]
        short = all(len(value) <= _SHOWN for value in values)
        parts.append(f"{name} ({values[0]} then, {values[1]} now)" if short else name)
    return ", ".join(parts)


@contextlib.contextmanager
def rescue_if_lost(in_place: Callable[[], bool], rescued: Callable[[], CalibrantError]) -> Iterator[None]:
    """Raise `rescued()` at the end of the block, or instead of its error, if the files are not `in_place` any more."""
    try:
        yield
    except BaseException as error:  # a file that cannot be written is how the loss shows first
        if not in_place():
            raise rescued() from error
        raise
    if not in_place():
        raise rescued()
