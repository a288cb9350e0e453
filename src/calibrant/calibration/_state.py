"""Fitted calibrators as JSON files that know what they were fitted on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrant.calibration._fingerprint import Fingerprint
from calibrant.core import StateError, write_atomically

__all__ = ["damaged", "read_state", "write_state"]


def write_state(
    path: str | Path, *, kind: str, version: int, fingerprint: Fingerprint, state: Mapping[str, Any]
) -> None:
    """Write one JSON file, atomically; floats keep their full precision.

    Parameters
    ----------
    path : str or Path
        Where to; an existing file is replaced.
    kind : str
        What was fitted, in words.
    version : int
        Of the layout of `state`.
    fingerprint : Fingerprint
        What it was fitted on.
    state : mapping
        JSON values, all numbers finite.

    Raises
    ------
    StateError
        The file cannot be written.
    """
    record = {"kind": kind, "version": version, "fingerprint": fingerprint.to_record(), "state": dict(state)}
    try:
        write_atomically(Path(path), json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    except (OSError, ValueError) as error:
        raise StateError(f"{path}: cannot be written ({error}): choose another place.") from error


def read_state(path: str | Path, *, kind: str, version: int, fingerprint: Fingerprint) -> dict[str, Any]:
    """Return the state written by `write_state` for the same fingerprint.

    Raises
    ------
    StateError
        The file is missing or damaged, holds something else or another version, or belongs to
        another prompt, model, log-probability space or label set; the message names which.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise StateError(f"{path}: cannot be read ({error}): fit and save it first.") from error
    except ValueError as error:
        raise damaged(path, error) from error
    if not isinstance(record, dict) or record.get("kind") != kind:
        found = record.get("kind") if isinstance(record, dict) else type(record).__name__
        raise StateError(f"{path}: expected a {kind}, got {found!r}: choose the file that holds one.")
    if record.get("version") != version:
        raise StateError(
            f"{path}: expected version {version} of a {kind}, got {record.get('version')!r}: "
            "fit and save it again with this version of calibrant, or use the version that wrote it."
        )
    try:
        changed = fingerprint.differences(record["fingerprint"])
        state = dict(record["state"])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, error) from error
    if changed:
        raise StateError(
            f"{path}: this {kind} was fitted on something else, it differs in {'; '.join(changed)}: "
            "fit it again on present answers, or choose the file that belongs to them."
        )
    return state


def damaged(path: str | Path, error: Exception) -> StateError:
    """Return the error to raise for a file that is not as it was written."""
    return StateError(f"{path}: damaged ({error!r}): fit and save it again.")
