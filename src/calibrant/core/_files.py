"""Atomic file writes, file locks, values as JSON, and JSON files with a version."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Final, Literal

from calibrant.core._errors import StateError

SCHEMA_VERSION: Final = 1
"""Version of the layout of a run's files."""


_TEMPORARY = ".tmp"
_XDG: Final = {"cache": ("XDG_CACHE_HOME", ".cache"), "state": ("XDG_STATE_HOME", ".local/state")}


def user_path(name: str, kind: Literal["cache", "state"]) -> Path:
    """Return the place of a file or folder of the user.

    It lies in ``$CALIBRANT_HOME``, or else in ``calibrant`` in the user's folder for caches (``$XDG_CACHE_HOME``,
    ``~/.cache``) or for state (``$XDG_STATE_HOME``, ``~/.local/state``).

    Raises
    ------
    RuntimeError
        The user has no home.
    """
    home = os.environ.get("CALIBRANT_HOME")
    if home:
        return Path(home).expanduser() / name
    variable, folder = _XDG[kind]
    xdg = Path(os.environ.get(variable, ""))
    # The standard says that a relative path is to be ignored.
    return (xdg if xdg.is_absolute() else Path.home() / folder) / "calibrant" / name


def write_atomically(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write `text` to `path` atomically, through a temporary file; see `atomic_writer`.

    Parameters
    ----------
    path : Path
        Destination. An existing file or symbolic link is replaced.
    text : str
        Content, written in UTF-8.
    mode : int, default 0o666
        Permissions of the file, from which the process's umask takes away.
    """
    with atomic_writer(path, mode=mode) as file:
        file.write(text)


def atomic_writer(
    path: Path, *, mode: int = 0o666, encoding: str = "utf-8"
) -> AbstractContextManager[IO[str]]:
    """Open a temporary text file beside `path`; rename it to `path` if the block succeeds.

    The old file or the new one survives a power cut. The temporary file's name cannot be foreseen, and no symbolic
    link is followed.

    Parameters
    ----------
    path : Path
        Destination. An existing file or symbolic link is replaced.
    mode : int, default 0o666
        Permissions of the file, from which the process's umask takes away.
    encoding : str, default "utf-8"
        Encoding of the file.

    Yields
    ------
    file
        Takes text, written with line feeds as they are.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    return _put_in_place(path, mode=mode, encoding=encoding)


def atomic_bytes_writer(path: Path) -> AbstractContextManager[IO[bytes]]:
    """Open a temporary binary file beside `path`; rename it to `path` if the block succeeds."""
    return _put_in_place(path, mode=0o666, encoding=None)


@contextlib.contextmanager
def _put_in_place(path: Path, *, mode: int, encoding: str | None) -> Iterator[IO[Any]]:
    """Open a temporary file, binary if `encoding` is None; rename it to `path` if the block succeeds."""
    newline = "\n" if encoding else None
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    # The kernel applies the umask: a file made private first and opened up by chmod would ignore it.
    temporary.touch(mode=mode, exist_ok=False)
    try:
        with temporary.open("w" if encoding else "wb", encoding=encoding, newline=newline) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def try_lock(descriptor: int) -> bool:
    """Lock an open file and return True; return False if the file is already locked.

    True as well where the system or the file system knows no such locks (Windows, some network file systems).
    """
    try:
        import fcntl  # noqa: PLC0415 (not on Windows)
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def is_in_place(descriptor: int, path: Path) -> bool:
    """Return True if `path` still names the open file or folder."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict; raise ValueError if a key is repeated.

    Raises
    ------
    ValueError
        A key is repeated.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r:.80} is there twice")
    return found


def json_text(value: object) -> str:
    """Return a JSON value as text on one line, with characters as they are."""
    return json.dumps(value, ensure_ascii=False)


def decoding_problem(error: UnicodeDecodeError) -> tuple[int, str]:
    """Return the line of the wrong byte in a text, and the message about it."""
    line = error.object.count(b"\n", 0, error.start) + 1
    byte = error.object[error.start]
    return line, f"expected UTF-8 text, got the byte 0x{byte:02x}"


def read_json_object(path: Path, *, remedy: str) -> dict[str, Any]:
    """Read the JSON object in a file that calibrant wrote.

    Parameters
    ----------
    path : Path
        The file.
    remedy : str
        What to do where it is damaged, for the message: "run the evaluation again".

    Raises
    ------
    StateError
        The file is missing, unreadable, or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(
            f"{path}: expected a JSON object, but it cannot be read ({error}): {remedy}."
        ) from error
    if not isinstance(found, dict):
        raise StateError(f"{path}: expected a JSON object, got {found!r:.40}: {remedy}.")
    return found


def read_run_record(path: Path, *, remedy: str) -> dict[str, Any]:
    """Read a JSON file of a run, and check that its layout is of this version.

    Parameters
    ----------
    path : Path
        ``run.json``, ``metrics.json``, ``result.json``, ``calibration.json`` or ``batch.json``.
    remedy : str
        What to do where it is damaged, for the message.

    Raises
    ------
    StateError
        The file is missing, unreadable, holds something else, or has another schema version.
    """
    record = read_json_object(path, remedy=remedy)
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise StateError(
            f"{path}: expected schema version {SCHEMA_VERSION}, got {version!r:.40}: use the calibrant that wrote it, "
            "or make it again in a new directory."
        )
    return record


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files that killed writers of `path` left; the caller must hold its lock."""
    beginning = f".{path.name}."
    length = len(f".{path.name}.") + 8 + len(_TEMPORARY)
    with os.scandir(path.parent) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        if name.startswith(beginning) and name.endswith(_TEMPORARY) and len(name) == length:
            (path.parent / name).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Sync a folder to disk, if the system allows it, so that a rename survives a power failure."""
    with contextlib.suppress(OSError):  # the file is in place already
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Recorded:
    """Dataclass that is written as an object of its fields."""

    _derived: ClassVar[tuple[str, ...]] = ()  # properties that are written, too

    def to_record(self) -> dict[str, Any]:
        """Return the fields, and what follows from them, as JSON values."""
        record = _fields_record(self)
        for name in self._derived:
            record[name] = getattr(self, name)
        return record


def as_record(value: Any) -> Any:  # noqa: ANN401 (JSON values)
    """Return a value as JSON values, parts of it by their own ``to_record`` where they have one.

    Fields of dataclasses that are not compared are no part of the value, and left out.
    """
    if hasattr(value, "to_record"):
        return value.to_record()
    if is_dataclass(value):
        return _fields_record(value)
    if isinstance(value, Mapping):
        return {key: as_record(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_record(item) for item in value]
    return value


def _fields_record(value: Any) -> dict[str, Any]:  # noqa: ANN401 (any dataclass)
    return {entry.name: as_record(getattr(value, entry.name)) for entry in fields(value) if entry.compare}


def write_record(path: str | Path, record: Mapping[str, Any], *, kind: str, version: int) -> None:
    """Write a JSON file with its format name and version, atomically and at full precision.

    Parameters
    ----------
    path : str or Path
        Destination path; an existing file is replaced.
    record : mapping
        JSON values, all numbers finite.
    kind : str
        Kind of the record, in words.
    version : int
        Version of the layout of `record`.

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
    """Read a record written by `write_record`.

    Parameters
    ----------
    path : str or Path
        The file.
    kind : str
        Expected kind of the record.
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
    """Return the error for a damaged file."""
    return StateError(f"{path}: damaged ({error!r}): {make} again.")
