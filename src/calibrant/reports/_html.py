"""``report.html``: one self-contained page for a run directory."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from calibrant.core import StateError, write_atomically

__all__ = ["write_report"]

MAX_MISTAKES = 100
SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class _Mistake:
    input: str
    answer: str
    given: str
    confidence: float | None
    reason: str


def write_report(directory: Path) -> Path:
    """Write ``report.html`` for a finished run; every text in it is escaped.

    Parameters
    ----------
    directory : Path
        A run directory with ``result.json`` and ``predictions.jsonl``.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    StateError
        The directory holds no finished run, or one of another version.
    """
    result = _load_result(directory / "result.json")
    rows = _load_predictions(directory / "predictions.jsonl")
    try:
        page = _render(result, rows)
    except (KeyError, TypeError, AttributeError, jinja2.UndefinedError) as error:
        raise StateError(
            f"{directory}: expected a complete run, got one that does not fit ({error!r}): run it again."
        ) from error
    path = directory / "report.html"
    write_atomically(path, page)
    return path


def _render(result: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    best = [row for row in rows if row["prompt"] == "best"]
    labels = _labels(best)
    return (
        _environment()
        .get_template("run.html")
        .render(
            result=result,
            diff=_diff(result["seed_prompt"]["prompt"], result["best_prompt"]["prompt"]),
            labels=labels,
            confusion=_confusion(best, labels),
            mistakes=_mistakes(best),
        )
    )


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("calibrant.reports", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _load_result(path: Path) -> dict[str, Any]:
    try:
        result: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StateError(
            f"{path}: expected the result of a finished run ({error}): run `calibrant optimize` first."
        ) from error
    version = result.get("schema_version") if isinstance(result, dict) else None
    if version != SCHEMA_VERSION:
        raise StateError(
            f"{path}: expected schema version {SCHEMA_VERSION}, got {version!r}: use the calibrant that wrote it."
        )
    found: dict[str, Any] = result
    return found


def _load_predictions(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except (OSError, ValueError) as error:
        raise StateError(f"{path}: expected one prediction per line ({error}).") from error


def _labels(rows: list[dict[str, Any]]) -> list[str]:
    return sorted({row["answer"] for row in rows} | {row["label"] for row in rows if row["label"]})


def _confusion(rows: list[dict[str, Any]], labels: list[str]) -> list[list[int]]:
    """Return counts by true label (rows) and given label (columns); the last column holds rows without one."""
    counts = Counter((row["answer"], row["label"]) for row in rows)
    return [[counts[answer, label] for label in [*labels, None]] for answer in labels]


def _mistakes(rows: list[dict[str, Any]]) -> list[_Mistake]:
    wrong = [row for row in rows if not row["correct"] and row["outcome"] != "error"]
    wrong.sort(key=lambda row: -(row["confidence"] or 0.0))
    return [
        _Mistake(
            input=row["input"],
            answer=row["answer"],
            given=row["label"] or row["outcome"],
            confidence=row["confidence"],
            reason=row["reason"],
        )
        for row in wrong[:MAX_MISTAKES]
    ]


def _diff(seed: str, best: str) -> list[tuple[str, str]]:
    """Return the lines of both prompts as (kind, text); kind is same, added or removed."""
    kinds = {"  ": "same", "+ ": "added", "- ": "removed"}
    compared = difflib.ndiff(seed.splitlines(), best.splitlines())
    return [(kinds[line[:2]], line[2:]) for line in compared if line[:2] in kinds]
