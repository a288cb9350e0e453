"""Saved predictions of a file or run directory, with their fingerprint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from calibrant.calibration._saved import DEMONSTRATIONS, SavedPredictions, read_predictions
from calibrant.core._errors import DataError
from calibrant.core._fingerprint import Fingerprint, asked_text, demonstrated
from calibrant.core._label_records import labels_from_record
from calibrant.core._prediction import LogprobSpace
from calibrant.core._rows import MAX_RUN_ROW_BYTES, read_rows
from calibrant.core._settings import DemonstrationSettings
from calibrant.runs._directory import BATCH, MANIFEST, PREDICTIONS, RESULT, damaged_origin, read_origin


def load_predictions(path: str | Path) -> SavedPredictions:
    """Read saved predictions.

    Parameters
    ----------
    path : path
        A directory of `calibrant evaluate`, `calibrant batch` or `calibrant optimize` (whose best prompt
        counts), or a file of predictions: JSON Lines, CSV or Parquet. A row needs ``correct``, or ``label``
        and ``answer``; it may have ``confidence``, ``cost``, ``latency_seconds``, ``input``, ``index`` (by
        default its place) and ``outcome`` (by default ``ok``).

    Raises
    ------
    DataError
        The file is missing, or a row is invalid; the message names file and line.
    StateError
        The directory's ``run.json`` or ``result.json`` is damaged.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant.evaluation import load_predictions
    >>> path = Path(tempfile.mkdtemp()) / "mine.jsonl"
    >>> _ = path.write_text('{"input": "purrs", "label": "cat", "answer": "dog", "confidence": 0.9}')
    >>> saved = load_predictions(path)
    >>> len(saved), saved.inputs, saved.correct.tolist(), saved.confidence.tolist()
    (1, ('purrs',), [0], [0.9])
    """
    place = Path(path)
    file = place / PREDICTIONS if place.is_dir() else place
    if place.is_dir() and not file.exists():
        raise DataError(
            f"expected {PREDICTIONS} in it, as `calibrant evaluate` and `calibrant optimize` leave it: choose another "
            "directory, or run the evaluation first.",
            path=place,
        )
    if not file.exists():
        raise DataError("no such file or directory: check the path.", path=file)
    # A file of our own holds more than the text it was asked about.
    rows = read_rows(file, max_row_bytes=MAX_RUN_ROW_BYTES)
    return read_predictions(rows, name=str(path), fingerprint=partial(_fingerprint, file.parent))


def _fingerprint(directory: Path, space: LogprobSpace, label_set: Sequence[str] | None) -> Fingerprint | None:
    """Return the fingerprint stored in a directory."""
    origin = read_origin(directory)
    if origin is None:
        return None
    source, record = origin
    try:
        found = _READERS[source.name](record, directory)
        # A run of answers with a structure writes its labels down itself.
        described = (record.get("described") or record).get("label_set")
        labels = label_set if described is None else labels_from_record(described)
        if found is None or labels is None:
            return None
        prompt, model = found
        return Fingerprint(prompt=prompt, model=model, space=space, labels=labels)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged_origin(source, error) from error


def _evaluated(record: Mapping[str, Any], _: Path) -> tuple[str, str]:
    """Return the prompt and the model of an evaluation."""
    prompt = asked_text(record["prompt"], record["user_template"], record.get("demonstrations"))
    return prompt, record["model"]


def _submitted(record: Mapping[str, Any], directory: Path) -> tuple[str, str] | None:
    """Return the prompt and the model of a batch; None for a job of an older version."""
    described = record.get("described")
    return None if described is None else _evaluated(described, directory)


def _searched(record: Mapping[str, Any], directory: Path) -> tuple[str, str]:
    """Return the best prompt of a search, and its model."""
    best = record["best_candidate"]
    shown = None
    if best.get("demonstrations", "").strip():
        rows = (directory / DEMONSTRATIONS).read_text(encoding="utf-8")
        shown = demonstrated(DemonstrationSettings.from_text(best["demonstrations"]), rows)
    return asked_text(best["system_prompt"], best.get("user_template"), shown), record["model"]


_READERS = {RESULT: _searched, MANIFEST: _evaluated, BATCH: _submitted}
