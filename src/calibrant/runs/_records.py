"""Lines of ``predictions.jsonl``: their format, and how they are written and read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from calibrant.core._composite import part_of
from calibrant.core._errors import DataError, StateError
from calibrant.core._prediction import LabelDistribution, Outcome, Part, Prediction
from calibrant.core._records import step_to_record
from calibrant.core._rows import Example
from calibrant.core._run_rows import RunRow

_LONGEST_TEXT: Final = 500

CountRow: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Called with the record of a row that has its final prediction; raises KeyError, TypeError or ValueError otherwise."""


@dataclass(frozen=True, kw_only=True)
class StoredRow:
    """Line of an earlier session, compared with the input row at its position.

    Attributes
    ----------
    record : mapping
        The line.
    is_same : bool
        True if it is of that row: text, answer and context are equal.
    is_finished : bool
        True if the row has its final answer; one that failed with a transport error has not.
    """

    record: Mapping[str, Any]
    is_same: bool
    is_finished: bool

    @classmethod
    def read(cls, line: bytes, example: Example | None) -> StoredRow:
        """Read a line and compare it with an input row.

        Parameters
        ----------
        line : bytes
            One line of ``predictions.jsonl``, or of a shard.
        example : Example or None
            The row of the input today; None beyond its end.

        Raises
        ------
        KeyError, TypeError, ValueError, RecursionError
            The line does not hold a row.
        """
        record = json.loads(line)
        asked = record["input"], record["answer"] or "", record.get("context")
        return cls(
            record=record,
            is_same=example is not None and asked == (example.input, example.answer, example.context),
            is_finished=Outcome(record["outcome"]) is not Outcome.ERROR,
        )


def row_record(index: int, example: Example, prediction: Prediction) -> dict[str, Any]:
    """Return the line of a row as JSON values.

    ``correct`` is None if the row failed with a transport error, or its true label is not known.
    ``attempts`` is 0 where the model's answer was known already, so that nothing was paid; tokens and
    cost are those of the answer. An answer that is no label has its ``text``, 500 characters at most. Answers that
    hold several labels have ``parts``, and the least label mass of these; a row with a context has that, and one of
    a file has its ``source`` and, where there is one, its ``id``.

    Parameters
    ----------
    index : int
        Position of the row in the input, from 0.
    example : Example
        The row; its answer is spelled as in the label set, or empty where it is not known.
    prediction : Prediction
        The classifier's answer.
    """
    distribution = prediction.distribution
    lowest = min(
        prediction.distributions, key=lambda found: found.label_mass + found.unresolved_mass, default=None
    )
    usage = prediction.usage
    unknown = not example.answer or prediction.outcome is Outcome.ERROR
    record = {
        "index": index,
        "input": example.input,
        "answer": example.answer or None,
        "label": prediction.label,
        "confidence": prediction.confidence,
        "correct": None if unknown else prediction.label == example.answer,
        "outcome": prediction.outcome.value,
        "reason": prediction.reason,
        "probabilities": _probabilities(distribution),
        "label_mass": None if lowest is None else lowest.label_mass,
        "unresolved_mass": None if lowest is None else lowest.unresolved_mass,
        "space": None if lowest is None else lowest.space.value,
        "model": prediction.model,
        "attempts": prediction.attempts,
        "latency_seconds": prediction.latency_seconds,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost": usage.cost,
    }
    if prediction.outcome is Outcome.UNPARSED and prediction.text:
        record["text"] = prediction.text[:_LONGEST_TEXT]  # what the model wrote, as it is no label
    if example.context is not None:
        record["context"] = example.context
    record |= origin_record(example)
    if prediction.steps:
        record["steps"] = [step_to_record(step) for step in prediction.steps]
        record["accepted"] = prediction.accepted
    if prediction.parts:
        record["parts"] = [
            _part(part, None if unknown else part_of(example.answer, part.name)) for part in prediction.parts
        ]
    return record


def origin_record(example: Example) -> dict[str, str]:
    """Return the file, line and identifier of a row as JSON values, as far as they are known."""
    values = {"source": example.source, "id": example.row_id}
    return {name: value for name, value in values.items() if value is not None}


def _part(part: Part, truth: str | None) -> dict[str, Any]:
    return {
        "name": part.name,
        "label": part.label,
        "confidence": part.confidence,
        "probabilities": _probabilities(part.distribution),
        "correct": None if truth is None else part.label == truth,
    }


def _probabilities(distribution: LabelDistribution | None) -> dict[str, float] | None:
    if distribution is None:
        return None
    return dict(zip(distribution.labels, distribution.probabilities.tolist(), strict=True))


def row_line(index: int, example: Example, prediction: Prediction) -> bytes:
    """Return the output line of a row; see `row_record`."""
    return record_line(row_record(index, example, prediction))


def record_line(record: Mapping[str, Any], *, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return a record as one line of the file; `default` converts values that JSON lacks."""
    try:
        return json.dumps(record, ensure_ascii=False, default=default).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, which only the escaped form can hold
        return json.dumps(record, default=default).encode() + b"\n"


class RowFile:
    """Reader of the rows in a ``predictions.jsonl`` file.

    Parameters
    ----------
    path : Path
        ``predictions.jsonl``.
    finished : bool, default True
        True if the run ended. The last line of one that did not may be cut off, and is then left out.

    Attributes
    ----------
    torn : bool
        True once the reader came to a last line that is cut off.
    """

    def __init__(self, path: Path, *, finished: bool = True) -> None:
        self.path = path
        self.torn = False
        self._finished = finished

    def lines(self) -> Iterator[bytes]:
        """Yield the lines as bytes, without decoding them.

        Raises
        ------
        StateError
            The file is missing or cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                yield from file
        except OSError as error:
            raise StateError(
                f"{self.path}: expected the predictions of a run ({error.strerror or error}): run `calibrant evaluate` "
                "or `calibrant optimize` into this directory first."
            ) from error

    def rows(self) -> Iterator[tuple[int, RunRow]]:
        """Yield the byte offset of each line and its checked row.

        Raises
        ------
        StateError
            As `lines`.
        DataError
            A line is broken; the message names file and line.
        """
        offset = 0
        for number, line in enumerate(self.lines(), start=1):
            try:
                row = read_row(line)
            except ValueError as error:
                if not self._finished and not line.endswith(b"\n"):
                    self.torn = True
                    return
                raise self.broken(error, line=number) from error
            yield offset, row
            offset += len(line)

    def records_at(self, offsets: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the records at these byte offsets, in the given order."""
        with self.path.open("rb") as file:
            for offset in offsets:
                file.seek(offset)
                yield json.loads(file.readline())

    def broken(self, error: Exception, *, line: int | None = None) -> DataError:
        """Return the error for an invalid line."""
        reason = f"no {error}" if isinstance(error, KeyError) else error
        return DataError(
            f"expected the line of a row, got one that does not fit ({reason}): restore the file, or run the "
            "evaluation again in a new directory.",
            path=self.path,
            line=line,
        )


def read_row(line: bytes) -> RunRow:
    """Read one line of ``predictions.jsonl``.

    Raises
    ------
    ValueError
        The line is no JSON object, or holds no row.
    """
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, got {record!r:.40}")  # noqa: TRY004 (one error for all lines)
    return RunRow.checked(record)
