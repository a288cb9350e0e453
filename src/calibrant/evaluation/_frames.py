"""Rows to label out of data frames, and results as data frames."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from calibrant.core._errors import StateError
from calibrant.core._frames import Frame, column_names, frame_texts, frame_values, pandas_frame, with_answers
from calibrant.core._rows import Example
from calibrant.evaluation._data import UnlabelledTexts
from calibrant.evaluation._label import Decide, answered_lines, label_values
from calibrant.evaluation._metrics import EvaluationResult
from calibrant.evaluation._parquet import NUMBERS, TRUTHS, WHOLE
from calibrant.runs._rows import row_record

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS: Final = (
    *("input", "answer", "label", "confidence", "correct", "outcome", "reason", "accepted", "label_mass"),
    *("unresolved_mass", "space", "model", "attempts", "latency_seconds", "prompt_tokens"),
    *("completion_tokens", "cost"),
)
_TYPES: Final = {"float64": NUMBERS, "int64": WHOLE, "boolean": TRUTHS}


class UnlabelledFrame(UnlabelledTexts):
    """Rows of a frame as examples without answers.

    Parameters
    ----------
    frame : data frame, table or dataset
        The rows, in memory.
    text : str
        Column of the text. A row whose cell is empty becomes an empty text.

    Raises
    ------
    ConfigurationError
        It has no such column, or its rows are not in memory.
    DataError
        A row has something else than text.
    """

    def __init__(self, frame: Frame, *, text: str) -> None:
        super().__init__(frame_texts(frame, text, with_blanks=True))
        self.frame = frame
        self.columns = dict.fromkeys(map(str, column_names(frame)))

    def __iter__(self) -> Iterator[Example]:
        return (example for _, example in super().records())  # without the other columns

    def records(self) -> Iterator[tuple[Mapping[str, Any], Example]]:
        """Yield the columns of each row, and the row as an example."""
        for values, example in zip(zip(*frame_values(self.frame), strict=True), self, strict=True):
            yield dict(zip(self.columns, values, strict=True)), example


def with_frame(result: EvaluationResult, frame: Frame, decide: Decide | None = None) -> EvaluationResult:
    """Return a result with a copy of its frame, to which the answers are added as columns.

    Parameters
    ----------
    result : EvaluationResult
        Result of the frame's rows.
    frame : data frame, table or dataset
        The frame.
    decide : callable, optional
        Returns the decisions on predictions.
    """
    return replace(result, frame=with_answers(frame, label_values(_records(result), decide)))


def result_frame(result: EvaluationResult, *, distribution: bool = False) -> pd.DataFrame:
    """Return the rows of a result as a data frame of pandas; see `EvaluationResult.to_pandas`.

    Raises
    ------
    ConfigurationError
        pandas is not installed.
    """
    records = _records(result)
    columns = {name: [record.get(name) for record in records] for name in _COLUMNS}
    if distribution:
        distributions = [record["probabilities"] or {} for record in records]
        labels = dict.fromkeys(label for distribution in distributions for label in distribution)
        columns |= {f"probability_{label}": [one.get(label) for one in distributions] for label in labels}
    index = getattr(result.frame, "index", None)
    rows = pandas_frame(columns, index=None if index is None else index[: len(records)])
    return rows.astype({name: kind for kind, names in _TYPES.items() for name in names if name in _COLUMNS})


def _records(result: EvaluationResult) -> list[Mapping[str, Any]]:
    """Return the rows of a result as records of ``predictions.jsonl``."""
    if result.directory is not None:
        records = [json.loads(line) for line in answered_lines(result.directory)]
        if result.metrics.rows and not records:
            raise StateError(
                f"{result.directory}: expected the run's rows, got none: restore them, or run again."
            )
        return records
    pairs = zip(result.examples, result.predictions, strict=True)
    return [row_record(index, example, prediction) for index, (example, prediction) in enumerate(pairs)]
