"""The records of finished runs: how far a run came, and the circumstances that its rows depend on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from calibrant.core._errors import StateError
from calibrant.core._files import read_json_object
from calibrant.runs._directory import METRICS
from calibrant.runs._folder import MANIFEST

RESULT: Final = "result.json"
"""Result of a search, written when it ends."""

BATCH: Final = "batch.json"
"""State of a job at a provider's batch interface."""


def read_origin(directory: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the file that says what the rows of a run depend on, and its record; None where there is none.

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
    try:
        record = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged_origin(source, error) from error
    if not isinstance(record, dict):
        raise damaged_origin(source, TypeError(f"no JSON object: {record!r:.40}"))
    return source, record


def damaged_origin(source: Path, error: Exception) -> StateError:
    """Return the error for a file that does not say what the rows of a run depend on."""
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
    metrics = read_json_object(place / METRICS, remedy="delete it and run the evaluation again")
    if metrics.get("complete", True):
        return None
    return f"holds a run that ended early ({metrics.get('stopped') or 'rows are missing'})"
