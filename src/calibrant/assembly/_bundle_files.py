"""A bundle's folder: written whole, and read only if it is what was written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NoReturn

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import without_doubles

MANIFEST: Final = "manifest.json"
_KIND: Final = "calibrant bundle"
_VERSION: Final = 1
_REQUIRED: Final = frozenset(
    {
        "card.md",
        "figures.json",
        "history.json",
        "labels.json",
        "prompt.txt",
        "schema.json",
        "settings.json",
        "thresholds.json",
    }
)
_OPTIONAL: Final = frozenset(
    {
        "calibrator.json",
        "demonstrations.jsonl",
        "head.json",
        "label_prior.json",
        "learned.json",
        "plan.json",
        "user_template.txt",
    }
)
_MANIFEST_BYTES: Final = 1 << 20
_FILE_BYTES: Final = 64 << 20
_DEPTH: Final = (
    64  # of nested JSON: schemas and options need about ten, and deeper values end recursive readers
)
_AGAIN: Final = "copy the bundle again, or export the run again"


@dataclass(frozen=True, kw_only=True)
class Folder:
    """Contents of a bundle's folder, checked against its manifest.

    Attributes
    ----------
    calibrant : str
        Version of calibrant that wrote it.
    fingerprint : mapping
        As `calibrant.calibration.Fingerprint.to_record` writes it.
    texts : mapping of str to str
        Every file's content by name, the manifest aside.
    digest : str
        SHA-256 of the manifest, 64 hexadecimal digits.
    """

    calibrant: str
    fingerprint: Mapping[str, Any]
    texts: Mapping[str, str]
    digest: str


def json_text(value: object) -> str:
    """Return JSON as bundles hold it; floats keep their full precision."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def parse_json(text: str, place: Path) -> Any:  # noqa: ANN401 (any JSON value)
    """Return the JSON value of a file.

    Raises
    ------
    StateError
        The text is no JSON, repeats a key, is nested too deeply, or holds a number that JSON or a float cannot.
    """
    try:
        found = json.loads(
            text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=without_doubles
        )
        _check_depth(found)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{place}: expected JSON, got something else ({error}): {_AGAIN}.") from error
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits:.40} is beyond every float")
    return value


def _check_depth(value: Any) -> None:  # noqa: ANN401 (any JSON value)
    level = [value]
    for _ in range(_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEPTH} levels deep")


def _manifest(texts: Mapping[str, str], fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    manifest = {
        "kind": _KIND,
        "version": _VERSION,
        "calibrant": metadata.version("calibrant"),
        "fingerprint": dict(fingerprint),
        "files": {
            name: {"sha256": _sha256(text.encode()), "bytes": len(text.encode())}
            for name, text in sorted(texts.items())
        },
    }
    return {**manifest, "sha256": _own_digest(manifest)}


def _own_digest(manifest: Mapping[str, Any]) -> str:
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
    """Write a bundle's folder: it is there whole, and passed `check`, or not at all.

    Raises
    ------
    ConfigurationError
        `path` is taken.
    StateError
        A file is too large, or the folder cannot be written.
    """
    for name, text in texts.items():
        if len(text.encode()) > _FILE_BYTES:
            raise StateError(f"{name}: expected at most {_FILE_BYTES >> 20} MB for a bundle, got more.")
    refuse_taken(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
        folder = temporary / "bundle"
        folder.mkdir()  # with the umask's permissions: a temporary folder is its owner's alone
        for name, text in {**texts, MANIFEST: json_text(_manifest(texts, fingerprint))}.items():
            _write(folder / name, text)
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
    """Raise ConfigurationError where a bundle would take something's place, or cannot have one."""
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


def _write(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_folder(path: str | Path) -> Folder:
    """Return the contents of a bundle's folder.

    Raises
    ------
    StateError
        The folder is no bundle, is of another version, or was changed after the export: a file is missing, added,
        altered, not a regular file, or not UTF-8.
    """
    path = Path(path)
    if not os.path.isdir(path):  # noqa: PTH112 (a path that cannot be looked up is none, too)
        raise StateError(f"{path}: expected a bundle's folder, got none: make one with `calibrant export`.")
    manifest = _read_manifest(path)
    listed = _listed(manifest, path / MANIFEST)
    _check_names(path, set(listed))
    texts = {name: _checked_text(path / name, *expected) for name, expected in listed.items()}
    for name, text in texts.items():
        if name.endswith(".json"):  # every file: a calibrator nested a thousand deep would crash its reader
            parse_json(text, path / name)
    return Folder(
        calibrant=str(manifest["calibrant"]),
        fingerprint=manifest["fingerprint"],
        texts=texts,
        digest=str(manifest["sha256"]),
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    place = path / MANIFEST
    if not os.path.lexists(place):
        raise StateError(
            f"{path}: expected a bundle, got a folder without {MANIFEST}: make one of a run with `calibrant export`."
        )
    manifest = parse_json(_decoded(_content(place, most=_MANIFEST_BYTES), place), place)
    if not isinstance(manifest, dict) or manifest.get("kind") != _KIND:
        raise StateError(f"{place}: expected the manifest of a bundle, got something else: {_AGAIN}.")
    version = manifest.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise StateError(f"{place}: expected a version from 1, got {version!r:.40}: {_AGAIN}.")
    if version > _VERSION:
        raise StateError(
            f"{place}: expected a bundle of version {_VERSION} at most, got version {version}, written by calibrant "
            f"{manifest.get('calibrant')!r:.40}: upgrade calibrant (this is {metadata.version('calibrant')})."
        )
    if set(manifest) != {"kind", "version", "calibrant", "fingerprint", "files", "sha256"}:
        named = ", ".join(map(repr, sorted(manifest)))
        raise StateError(f"{place}: expected other keys than {named:.200}: {_AGAIN}.")
    if manifest["sha256"] != _own_digest(manifest):
        raise StateError(f"{place}: altered: its content does not have the SHA-256 it states: {_AGAIN}.")
    if not isinstance(manifest["calibrant"], str) or not isinstance(manifest["fingerprint"], dict):
        raise StateError(f"{place}: expected calibrant as text and fingerprint as an object: {_AGAIN}.")
    return manifest


def _listed(manifest: Mapping[str, Any], place: Path) -> dict[str, tuple[str, int]]:
    """Return SHA-256 and size of every file that is listed; only names that bundles have."""
    files = manifest["files"]
    if not isinstance(files, dict):
        raise StateError(f"{place}: expected files as an object, got {type(files).__name__}: {_AGAIN}.")
    unknown = sorted(set(files) - _REQUIRED - _OPTIONAL)
    if unknown:
        raise StateError(
            f"{place}: expected only files that bundles have ({', '.join(sorted(_REQUIRED | _OPTIONAL))}), got "
            f"{unknown[0]!r:.80}: {_AGAIN}."
        )
    missing = sorted(_REQUIRED - set(files))
    if missing:
        raise StateError(f"{place}: expected {missing[0]} among the files, got none: {_AGAIN}.")
    found = {}
    for name, entry in files.items():
        given = (entry.get("sha256"), entry.get("bytes")) if isinstance(entry, dict) else (None, None)
        if not isinstance(given[0], str) or type(given[1]) is not int or not 0 <= given[1] <= _FILE_BYTES:
            raise StateError(
                f"{place}: expected sha256 and bytes (at most {_FILE_BYTES}) of {name}, got {entry!r:.80}: {_AGAIN}."
            )
        found[name] = (given[0], given[1])
    return found


def _check_names(path: Path, listed: set[str]) -> None:
    try:
        there = {entry.name for entry in path.iterdir()} - {MANIFEST}
    except OSError as error:
        raise StateError(
            f"{path}: cannot be read ({error.strerror or error}): allow it to be read."
        ) from error
    if there - listed:
        extra = min(there - listed)
        raise StateError(f"{path}: expected only what {MANIFEST} lists, got {extra!r:.80} too: remove it.")
    if listed - there:
        raise StateError(
            f"{path}: expected {min(listed - there)}, which {MANIFEST} lists, got none: {_AGAIN}."
        )


def _checked_text(place: Path, sha256: str, size: int) -> str:
    data = _content(place, most=size)
    if len(data) != size:
        raise StateError(f"{place}: truncated: expected {size:,} bytes, got {len(data):,}: {_AGAIN}.")
    found = _sha256(data)
    if found != sha256:
        raise StateError(f"{place}: altered: expected SHA-256 {sha256:.12}..., got {found:.12}...: {_AGAIN}.")
    return _decoded(data, place)


def _content(place: Path, *, most: int) -> bytes:
    """Return the content of a regular file; no link is followed, and nothing beyond `most` bytes is read."""
    with _opened(place) as descriptor:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise StateError(f"{place}: expected a regular file, got something else: {_AGAIN}.")
        if about.st_size > most:
            raise StateError(f"{place}: expected {most:,} bytes at most, got {about.st_size:,}: {_AGAIN}.")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(most + 1)


@contextlib.contextmanager
def _opened(place: Path) -> Iterator[int]:
    if place.is_symlink():  # a clearer message than O_NOFOLLOW's, and for systems without it
        raise StateError(f"{place}: expected a regular file, got a symbolic link: {_AGAIN}.")
    # O_NONBLOCK: opening a named pipe would block until another process writes to it.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    flags |= getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(place, flags)
    except OSError as error:
        raise StateError(f"{place}: cannot be read ({error.strerror or error}): {_AGAIN}.") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _decoded(data: bytes, place: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise StateError(
            f"{place}:{line}: expected UTF-8 text, got the byte 0x{data[error.start]:02x}: {_AGAIN}."
        ) from error
