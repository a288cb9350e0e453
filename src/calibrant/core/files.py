"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrant.core.errors import StateError

__all__ = ["damaged_record", "read_record", "remove_leftovers", "write_atomically", "write_record"]

_TEMPORARY = ".tmp"


def write_atomically(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write `text` to a temporary file beside `path`, then put it in place; both survive a power cut.

    The temporary file's name cannot be foreseen, nobody else can open it, and no symbolic link is followed.

    Parameters
    ----------
    path : Path
        Where to; what is there is replaced, be it a symbolic link.
    text : str
        What to write, in UTF-8.
    mode : int, default 0o644
        Permissions of the file.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_TEMPORARY)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files of writers of `path` that were killed; only for who keeps others from writing."""
    beginning, length = f".{path.name}.", len(f".{path.name}.") + 8 + len(_TEMPORARY)
    with os.scandir(path.parent) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        if name.startswith(beginning) and name.endswith(_TEMPORARY) and len(name) == length:
            (path.parent / name).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Let the new name survive a power cut, where the file system can promise that."""
    with contextlib.suppress(OSError):  # the file is in place already
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_record(path: str | Path, record: Mapping[str, Any], *, kind: str, version: int) -> None:
    """Write one JSON file that says what it is, atomically; floats keep their full precision.

    Parameters
    ----------
    path : str or Path
        Where to; an existing file is replaced.
    record : mapping
        JSON values, all numbers finite.
    kind : str
        What it is, in words.
    version : int
        Of the layout of `record`.

    Raises
    ------
    StateError
        The file cannot be written.
    """
    text = json.dumps(
        {"kind": kind, "version": version, **record}, indent=2, ensure_ascii=False, allow_nan=False
    )
    try:
        write_atomically(Path(path), text + "\n")
    except (OSError, ValueError) as error:
        raise StateError(f"{path}: cannot be written ({error}): choose another place.") from error


def read_record(path: str | Path, *, kind: str, version: int, make: str) -> dict[str, Any]:
    """Return what `write_record` wrote.

    Parameters
    ----------
    path : str or Path
        The file.
    kind : str
        What it has to be.
    version : int
        Which layout it has to have.
    make : str
        How such files are made, for messages: "fit and save it".

    Raises
    ------
    StateError
        The file is missing or damaged, or holds something else or another version.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise StateError(f"{path}: cannot be read ({error.strerror or error}): {make} first.") from error
    except (ValueError, RecursionError) as error:
        raise damaged_record(path, error, make=make) from error
    if not isinstance(record, dict) or record.get("kind") != kind:
        found = record.get("kind") if isinstance(record, dict) else type(record).__name__
        raise StateError(f"{path}: expected a {kind}, got {found!r}: choose the file that holds one.")
    if record.get("version") != version:
        raise StateError(
            f"{path}: expected version {version} of a {kind}, got {record.get('version')!r}: {make} again with this "
            "version of calibrant, or use the version that wrote it."
        )
    return record


def damaged_record(path: str | Path, error: Exception, *, make: str) -> StateError:
    """Return the error to raise for a file that is not as it was written."""
    return StateError(f"{path}: damaged ({error!r}): {make} again.")
