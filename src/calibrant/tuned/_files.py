"""Folder of a bundle: atomic writes, and reads checked against the manifest."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

import pydantic

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import decoding_problem, without_doubles
from calibrant.core._sections import Section
from calibrant.tuned._task_record import BUNDLE as MANIFEST
from calibrant.tuned._task_record import checked_record

_KIND: Final = "calibrant bundle"
_VERSION: Final = 1
_REQUIRED: Final = (
    "figures.json history.json labels.json prompt.txt schema.json settings.json thresholds.json"
)
_OPTIONAL: Final = (
    "calibrator.json demonstrations.jsonl head.json label_prior.json plan.json user_template.txt"
)
_MANIFEST_BYTES: Final = 1 << 20
_FILE_BYTES: Final = 64 << 20
# Of nested JSON: schemas and options need about ten, and deeper values end recursive readers.
_DEPTH: Final = 64


class _FileEntry(Section):
    """Hash and size of a file."""

    sha256: str
    bytes: Annotated[int, pydantic.Field(strict=True, ge=0, le=_FILE_BYTES)]


class Manifest(Section):
    """Contents of ``manifest.json``."""

    kind: str
    version: int
    calibrant: str
    fingerprint: dict[str, Any]
    files: dict[str, _FileEntry]
    sha256: str


def damaged_file(place: Path | str, why: str) -> StateError:
    """Return the error for a damaged file of a bundle."""
    return StateError(f"{place}: {why}: copy the bundle again, or export the run again.")


def json_text(value: object) -> str:
    """Return the JSON text of a value in a bundle; floats keep their full precision."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def parse_json(text: str, place: Path) -> Any:  # noqa: ANN401 (any JSON value)
    """Return the JSON value of a file.

    Raises
    ------
    StateError
        The text is no JSON, repeats a key, is nested too deeply, or holds a number that JSON or a float cannot.
    """
    try:
        value = json.loads(
            text, parse_constant=_finite_number, parse_float=_finite_number, object_pairs_hook=without_doubles
        )
        _check_depth(value, _DEPTH)
    except (ValueError, RecursionError) as error:
        raise damaged_file(place, f"expected JSON, got something else ({error})") from error
    return value


def _finite_number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits:.40} is no finite number")
    return value


def _check_depth(value: object, levels: int) -> None:
    if levels == 0:
        raise ValueError(f"it is nested more than {_DEPTH} levels deep")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, levels - 1)


def _digest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest, without its own digest field."""
    content = {name: value for name, value in manifest.items() if name != "sha256"}
    return _sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_folder(
    path: Path,
    texts: Mapping[str, str],
    fingerprint: Mapping[str, Any],
    *,
    check: Callable[[Path], object],
) -> None:
    """Write a bundle's folder atomically, after it passed `check`.

    Raises
    ------
    ConfigurationError
        `path` is taken.
    StateError
        A file is too large, or the folder cannot be written.
    """
    files = {name: text.encode() for name, text in sorted(texts.items())}
    for name, data in files.items():
        if len(data) > _FILE_BYTES:
            raise StateError(f"{name}: expected at most {_FILE_BYTES >> 20} MB for a bundle, got more.")
    manifest = {
        "kind": _KIND,
        "version": _VERSION,
        "calibrant": metadata.version("calibrant"),
        "fingerprint": dict(fingerprint),
        "files": {name: {"sha256": _sha256(data), "bytes": len(data)} for name, data in files.items()},
    }
    files[MANIFEST] = json_text({**manifest, "sha256": _digest(manifest)}).encode()
    refuse_taken(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
        folder = temporary / "bundle"
        folder.mkdir()  # with the umask's permissions: a temporary folder is its owner's alone
        for name, data in files.items():
            _write(folder / name, data)
        check(folder)
        if path.exists():
            path.rmdir()  # fails if files were added meanwhile
        folder.rename(path)
    except (OSError, ValueError) as error:
        raise StateError(f"{path}: cannot be written ({error}): choose another folder.") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def refuse_taken(path: Path) -> None:
    """Raise ConfigurationError if a destination is anything but a missing or an empty folder."""
    try:
        taken = path.is_symlink() or (path.exists() and not path.is_dir())
        taken = taken or (path.is_dir() and any(path.iterdir()))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be looked up ({error}): choose another place.") from error
    if taken:
        raise ConfigurationError(
            f"{path}: expected a folder that is not there yet, or is empty, got one that is taken: choose another "
            "name, or remove it."
        )


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_folder(path: Path) -> tuple[Manifest, dict[str, Any]]:
    """Return a bundle's manifest, and the contents of its other files by name: JSON values, or text.

    Raises
    ------
    StateError
        The folder is no bundle, is of another version, or was changed after the export: a file is missing, added,
        altered, not a regular file, or not UTF-8.
    """
    if not os.path.isdir(path):  # noqa: PTH112 (a path that cannot be looked up is none, too)
        raise StateError(f"{path}: expected a bundle's folder, got none: make one with `calibrant export`.")
    manifest = _read_manifest(path)
    _check_names(path, set(manifest.files))
    content: dict[str, Any] = {}
    for name, entry in manifest.files.items():
        text = _read_listed_file(path / name, entry)
        content[name] = parse_json(text, path / name) if name.endswith(".json") else text
    return manifest, content


def _read_manifest(path: Path) -> Manifest:
    place = path / MANIFEST
    if not os.path.lexists(place):
        raise StateError(
            f"{path}: expected a bundle, got a folder without {MANIFEST}: make one of a run with `calibrant export`."
        )
    record = parse_json(_utf8_text(_content(place, most=_MANIFEST_BYTES), place), place)
    if not isinstance(record, dict) or record.get("kind") != _KIND:
        raise damaged_file(place, "expected the manifest of a bundle, got something else")
    version = record.get("version")
    if version != _VERSION:
        raise StateError(
            f"{place}: expected version {_VERSION} of a {_KIND}, got {version!r:.40}, written by calibrant "
            f"{record.get('calibrant')!r:.40}: use that version, or export the run again with this one "
            f"({metadata.version('calibrant')})."
        )
    manifest = checked_record(Manifest, record, place, damaged_file)
    if manifest.sha256 != _digest(record):
        raise damaged_file(place, "altered: its content does not have the SHA-256 it states")
    return manifest


def _check_names(path: Path, listed: set[str]) -> None:
    """Raise StateError if the manifest's list of files is invalid or differs from the folder."""
    place = path / MANIFEST
    required, optional = _REQUIRED.split(), _OPTIONAL.split()
    if unknown := listed.difference(required, optional):
        known = ", ".join(sorted([*required, *optional]))
        raise damaged_file(
            place, f"expected only files that bundles have ({known}), got {min(unknown)!r:.80}"
        )
    if unlisted := set(required) - listed:
        raise damaged_file(place, f"expected {min(unlisted)} among the files, got none")
    try:
        present = {entry.name for entry in path.iterdir()} - {MANIFEST}
    except OSError as error:
        raise StateError(
            f"{path}: cannot be read ({error.strerror or error}): allow it to be read."
        ) from error
    if extra := present - listed:
        raise StateError(
            f"{path}: expected only what {MANIFEST} lists, got {min(extra)!r:.80} too: remove it."
        )
    if missing := listed - present:
        raise damaged_file(path, f"expected {min(missing)}, which {MANIFEST} lists, got none")


def _read_listed_file(place: Path, entry: _FileEntry) -> str:
    data = _content(place, most=entry.bytes)
    digest = _sha256(data)
    if digest != entry.sha256:
        raise damaged_file(
            place,
            f"altered: expected {entry.bytes:,} bytes of SHA-256 {entry.sha256:.12}..., got {len(data):,} bytes of "
            f"{digest:.12}...",
        )
    return _utf8_text(data, place)


def _content(place: Path, *, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; refuse symbolic links."""
    if place.is_symlink():
        raise damaged_file(place, "expected a regular file, got a symbolic link")
    # O_NOFOLLOW: the name may lead to a link by now. O_NONBLOCK: opening a named pipe would block until another
    # process writes to it.
    flags = (
        os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        descriptor = os.open(place, flags)
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise damaged_file(place, "expected a regular file, got something else")
            if about.st_size > most:
                raise damaged_file(place, f"expected {most:,} bytes at most, got {about.st_size:,}")
            with open(descriptor, "rb", closefd=False) as file:  # reads on where a file system returns less
                return file.read(most + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise damaged_file(place, f"cannot be read ({error.strerror or error})") from error


def _utf8_text(data: bytes, place: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line, problem = decoding_problem(error)
        raise damaged_file(f"{place}:{line}", problem) from error
