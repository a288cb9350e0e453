"""The run directory: whose run it holds, and whether it may go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from calibrant.core import StateError, write_atomically

__all__ = ["JOURNAL", "open_directory"]

JOURNAL = "journal.jsonl"


def open_directory(path: Path, fingerprint: dict[str, Any]) -> Path:
    """Make the run directory, or check that what it holds is an earlier part of this run."""
    if path.exists() and not path.is_dir():
        raise StateError(f"{path}: expected a directory for the run, got a file: choose another name.")
    state = path / "run.json"
    if state.exists():
        try:
            stored = dict(json.loads(state.read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            raise StateError(f"{state}: not readable ({error}): choose a new directory.") from error
        changed = sorted(key for key in fingerprint if stored.get(key) != fingerprint[key])
        if changed and _paid(path):
            raise StateError(
                f"{path}: holds a run that differs in {', '.join(changed)}: choose a new one, or run it unchanged."
            )
        if not changed:
            return path
    elif path.exists() and any(path.iterdir()):
        raise StateError(
            f"{path}: expected an empty directory or an earlier run, got other files: choose a new one."
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(state, json.dumps(fingerprint, indent=2))
    except OSError as error:
        raise StateError(f"{path}: cannot be written ({error}): choose another directory.") from error
    return path


def _paid(path: Path) -> bool:
    """Return whether the run got as far as a single prediction; a failed start may be started otherwise."""
    journal = path / JOURNAL
    return journal.exists() and journal.stat().st_size > 0
