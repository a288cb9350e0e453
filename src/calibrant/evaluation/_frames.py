"""Data frames of evaluation results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from calibrant.core._errors import ConfigurationError
from calibrant.core._frames import DECISIONS, Frame, pandas_frame, with_answers
from calibrant.evaluation._metrics import EvaluationResult
from calibrant.runs._directory import RunDirectory
from calibrant.runs._records import RowFile, row_record

if TYPE_CHECKING:
    import pandas as pd

_TYPES: Final = {
    "input": None,
    "answer": None,
    "label": None,
    "confidence": "float64",
    "correct": "boolean",
    "outcome": None,
    "reason": None,
    "accepted": "boolean",
    "label_mass": "float64",
    "unresolved_mass": "float64",
    "space": None,
    "model": None,
    "attempts": "int64",
    "latency_seconds": "float64",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "cost": "float64",
}
"""Columns with one value a row, and their types in pandas."""


def result_frame(result: EvaluationResult, *, distribution: bool = False) -> pd.DataFrame:
    """Return the rows of a result as a data frame of pandas; see `EvaluationResult.to_pandas`.

    Raises
    ------
    ConfigurationError
        pandas is not installed.
    """
    records = list(_records(result))
    columns = {name: [record.get(name) for record in records] for name in _TYPES}
    if distribution:
        spread = [record["probabilities"] or {} for record in records]
        labels = dict.fromkeys(label for one in spread for label in one)
        columns |= {f"probability_{label}": [one.get(label) for one in spread] for label in labels}
    index = getattr(result.source, "index", None)
    found = pandas_frame(columns, index=None if index is None else index[: len(records)])
    return found.astype({name: kind for name, kind in _TYPES.items() if kind is not None})


def labelled_frame(result: EvaluationResult) -> Frame:
    """Return the evaluated frame with columns for the answers; see `EvaluationResult.to_frame`.

    Raises
    ------
    ConfigurationError
        No frame was evaluated.
    """
    if result.source is None:
        raise ConfigurationError(
            "Expected the result of an evaluated frame, got that of other rows: use to_pandas()."
        )
    return with_answers(result.source, map(_answer, _records(result)))


def _answer(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of `ANSWER_COLUMNS` in a line; see `answer_of`."""
    models = [step["model"] for step in record.get("steps", ()) if step["label"] == record["label"]]
    return (
        record["label"],
        record["confidence"],
        DECISIONS[record.get("accepted")],
        record["outcome"],
        models[-1] if models else record["model"],
        record["cost"],
    )


def _records(result: EvaluationResult) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a result as lines of ``predictions.jsonl`` hold them."""
    if result.directory is not None and not result.predictions:
        lines = RowFile(RunDirectory(path=result.directory).predictions).lines()
        yield from (json.loads(line) for line in lines if line.endswith(b"\n"))
        return
    pairs = zip(result.examples, result.predictions, strict=True)
    for index, (example, prediction) in enumerate(pairs):
        yield row_record(index, example, prediction)
