"""Data frames as rows without answers, and those of results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from calibrant.core._frames import Frame, column_names, frame_texts, frame_values, pandas_frame, with_answers
from calibrant.core._rows import Example
from calibrant.evaluation._data import UnlabelledTexts
from calibrant.evaluation._label import Decide, label_values
from calibrant.evaluation._metrics import EvaluationResult
from calibrant.runs._directory import PREDICTIONS
from calibrant.runs._records import RowFile, row_record

if TYPE_CHECKING:
    import pandas as pd

# Columns with one value a row, and the types of those that do not hold text.
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
        self._inputs = frame_texts(frame, text, with_blanks=True)
        super().__init__(self._inputs)
        self.frame = frame
        self.columns = dict.fromkeys(map(str, column_names(frame)))

    def __iter__(self) -> Iterator[Example]:
        return (Example(input=text if text.strip() else "", answer="") for text in self._inputs)

    def records(self) -> Iterator[tuple[Mapping[str, Any], Example]]:
        """Yield the columns of each row, and the row as an example."""
        for values, example in zip(zip(*frame_values(self.frame), strict=True), self, strict=True):
            yield dict(zip(self.columns, values, strict=True)), example


def with_frame(result: EvaluationResult, frame: Frame, decide: Decide | None = None) -> EvaluationResult:
    """Return a result with a copy of the given frame that has columns for the answers.

    Parameters
    ----------
    result : EvaluationResult
        Result of the frame's rows.
    frame : data frame, table or dataset
        The frame.
    decide : callable, optional
        Returns the decisions on predictions.
    """
    return replace(result, frame=with_answers(frame, label_values(list(_records(result)), decide)))


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
    index = getattr(result.frame, "index", None)
    found = pandas_frame(columns, index=None if index is None else index[: len(records)])
    return found.astype({name: kind for name, kind in _TYPES.items() if kind is not None})


def _records(result: EvaluationResult) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a result as lines of ``predictions.jsonl`` hold them."""
    if result.directory is not None:
        lines = RowFile(result.directory / PREDICTIONS).lines()
        yield from (json.loads(line) for line in lines if line.endswith(b"\n"))
        return
    pairs = zip(result.examples, result.predictions, strict=True)
    for index, (example, prediction) in enumerate(pairs):
        yield row_record(index, example, prediction)
