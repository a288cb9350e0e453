"""Plans as JSON files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from calibrant.core import ConfigurationError, StateError, write_atomically

__all__ = ["read_plan", "write_plan"]

KIND: Final = "cascade plan"
VERSION: Final = 1
_NAME: Final = "plan.json"

_Plan = TypeVar("_Plan")


def write_plan(path: str | Path, record: Mapping[str, Any]) -> None:
    """Write one JSON file, atomically; floats keep their full precision.

    Raises
    ------
    StateError
        The file cannot be written.
    """
    text = json.dumps(
        {"kind": KIND, "version": VERSION, **record}, indent=2, ensure_ascii=False, allow_nan=False
    )
    try:
        write_atomically(Path(path), text + "\n")
    except OSError as error:
        raise StateError(f"{path}: cannot be written ({error}): choose another place.") from error


def read_plan(path: str | Path, make: Callable[[Mapping[str, Any]], _Plan]) -> _Plan:
    """Return what `make` makes of a file of `write_plan`.

    Raises
    ------
    StateError
        The file is missing or damaged, or holds something else or another version.
    """
    file = Path(path) / _NAME if Path(path).is_dir() else Path(path)
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise StateError(f"{file}: cannot be read ({error.strerror or error}): make a plan first.") from error
    except ValueError as error:
        raise _damaged(file, error) from error
    if not isinstance(record, dict) or record.get("kind") != KIND:
        found = record.get("kind") if isinstance(record, dict) else type(record).__name__
        raise StateError(f"{file}: expected a {KIND}, got {found!r}: choose the file that holds one.")
    if record.get("version") != VERSION:
        raise StateError(
            f"{file}: expected version {VERSION} of a {KIND}, got {record.get('version')!r}: plan again with this "
            "version of calibrant, or use the version that wrote it."
        )
    try:
        return make(record)
    except (AttributeError, ConfigurationError, KeyError, TypeError, ValueError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> StateError:
    return StateError(f"{file}: damaged ({error!r}): plan again.")
