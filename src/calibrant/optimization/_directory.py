"""The run directory: whose run it holds, and whether it may go on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant.core import CalibrantError, StateError, make_rescue_folder, read_json_object, write_atomically
from calibrant.optimization._journal import JsonlStore

__all__ = ["JOURNAL", "is_current", "open_directory", "rescuing"]

JOURNAL = "journal.jsonl"
_VERSION = "search"  # a key of run.json
_CURRENT = 2


def open_directory(path: Path, fingerprint: dict[str, Any]) -> Path:
    """Make the run directory, or check that what it holds is an earlier part of this run."""
    if path.exists() and not path.is_dir():
        raise StateError(f"{path}: expected a directory for the run, got a file: choose another name.")
    state = path / "run.json"
    if state.exists():
        stored = read_json_object(state, remedy="choose a new directory")
        changed = sorted(key for key in fingerprint if stored.get(key) != fingerprint[key])
        if changed and _paid(path):
            raise StateError(
                f"{path}: holds a run that differs in {', '.join(changed)}: choose a new one, or run it unchanged."
            )
        if not changed and _paid(path):
            return path
    elif path.exists() and any(path.iterdir()):
        raise StateError(
            f"{path}: expected an empty directory or an earlier run, got other files: choose a new one."
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(state, json.dumps({**fingerprint, _VERSION: _CURRENT}, indent=2))
    except OSError as error:
        raise StateError(f"{path}: cannot be written ({error}): choose another directory.") from error
    return path


def is_current(path: Path) -> bool:
    """Return whether a run is not one of an earlier version, which searched otherwise and taught no head."""
    state = path / "run.json"
    if not state.exists() or not _paid(path):
        return True
    return read_json_object(state, remedy="choose a new directory").get(_VERSION) == _CURRENT


@contextlib.contextmanager
def rescuing(
    directory: Path | None, fingerprint: Mapping[str, Any], stores: Sequence[JsonlStore], *, current: bool
) -> Iterator[None]:
    """Keep the entries of `stores` in another directory when theirs is moved or removed before the block ends.

    Parameters
    ----------
    directory : Path or None
        The run directory; None where there is none to lose.
    fingerprint : mapping
        What it was opened with.
    stores : sequence of JsonlStore
        Its journals, still open.
    current : bool
        `is_current` of it.

    Raises
    ------
    CalibrantError
        It was moved or removed; the message names the other directory, from which the same run goes on.
    """
    try:
        yield
    except BaseException as error:  # a file that cannot be written is how the loss shows first
        if directory is not None and not all(store.in_place for store in stores):
            raise _rescued(directory, fingerprint, stores, current=current) from error
        raise
    if directory is not None and not all(store.in_place for store in stores):
        raise _rescued(directory, fingerprint, stores, current=current)


def _rescued(
    directory: Path, fingerprint: Mapping[str, Any], stores: Sequence[JsonlStore], *, current: bool
) -> CalibrantError:
    rescue, mark = make_rescue_folder(directory), {_VERSION: _CURRENT} if current else {}
    try:
        write_atomically(rescue / "run.json", json.dumps({**fingerprint, **mark}, indent=2))
        for store in stores:
            store.copy_to(rescue)
    except OSError as error:
        return StateError(
            f"{directory}: was moved or removed during the run, and its answers cannot be written to {rescue} "
            f"({error})."
        )
    return CalibrantError(
        f"{directory}: its files were moved or removed during the run: the answers so far are kept in {rescue}. Give "
        "that directory as the output of the same command to go on from there, at no cost."
    )


def _paid(path: Path) -> bool:
    """Return whether the run got as far as a single prediction; a failed start may be started otherwise."""
    journal = path / JOURNAL
    return journal.exists() and journal.stat().st_size > 0
