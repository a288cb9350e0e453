"""What came back from a provider's batch interface, joined with the rows that were asked about."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from calibrant.core._composite import Field, FieldLabels, MultiLabels
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import ContextLengthError, StateError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Outcome, Prediction
from calibrant.evaluation._provider_batch_state import BatchDirectory, BatchPart, BatchState, row_of
from calibrant.inference._models import BatchApi
from calibrant.inference._reader import AnswerReader

_AGAIN: Final = "submit again (calibrant batch retry)"
_EXPIRED: Final = "batch_expired"
_CANCELLED: Final = "batch_cancelled"
_BLOCKED: Final = ("content_policy_violation", "content_filter", "responsibleaipolicyviolation")
_OPEN_FILES: Final = 32


@dataclass(frozen=True)
class _Source:
    """A file with lines of a part."""

    path: Path
    part: BatchPart


class Answers:
    """Where the answer to every row is; lines stay in their files until they are read.

    Parameters
    ----------
    directory : BatchDirectory
        Holds everything that came of the ended parts.
    state : BatchState
        What was asked.
    api : BatchApi
        Says what a refused request means.

    Attributes
    ----------
    broken, unknown, duplicates : int
        Lines that are no JSON objects, that name no row of their part, or a row that has a line already.

    Raises
    ------
    StateError
        A file is missing.
    """

    def __init__(self, directory: BatchDirectory, state: BatchState, api: BatchApi) -> None:
        self._directory = directory
        self._api = api
        self._reader = _reader(state)
        self._sources: list[_Source] = []
        self._parts = state.parts
        self._part = np.full(state.rows, -1, dtype=np.int32)  # the last part that asked
        self._attempts = np.zeros(state.rows, dtype=np.int32)
        self._source = np.full(state.rows, -1, dtype=np.int32)
        self._offset = np.zeros(state.rows, dtype=np.int64)
        self.broken = self.unknown = self.duplicates = 0
        for place, part in enumerate(state.parts):
            self._add_part(place, part)

    def predictions(self) -> Iterator[Prediction]:
        """Yield the prediction of every row, in order."""
        with contextlib.ExitStack() as stack:
            files: dict[int, IO[bytes]] = {}
            for row in range(len(self._part)):
                source = int(self._source[row])
                if source >= 0 and source not in files:
                    if len(files) >= _OPEN_FILES:
                        stack.close()
                        files.clear()
                    files[source] = stack.enter_context(self._sources[source].path.open("rb"))
                found = self._predict(row, files.get(source))
                yield replace(found, attempts=int(self._attempts[row]))

    def _predict(self, row: int, file: IO[bytes] | None) -> Prediction:
        if file is None:
            return _error(self._why_missing(row))
        file.seek(int(self._offset[row]))
        return self._read(json.loads(file.readline()))

    def _why_missing(self, row: int) -> str:
        part = self._parts[int(self._part[row])]
        if part.status == "failed":
            return f"the batch failed: {'; '.join(part.errors[:3]) or 'the provider does not say why'}"
        if part.status in {"expired", "cancelled"}:
            return f"{part.status}: {_AGAIN}"
        return f"the provider returned no line for this row: {_AGAIN}"

    def _add_part(self, place: int, part: BatchPart) -> None:
        asked = np.zeros(len(self._part), dtype=np.bool_)
        for row, _ in self._directory.asked_rows(part):
            asked[row] = True
        self._part[asked] = place
        self._attempts[asked] += 1
        self._source[asked] = -1
        for path in (self._directory.answers(part), self._directory.errors(part)):
            if path.exists():
                self._add_file(_Source(path, part), asked)

    def _add_file(self, source: _Source, asked: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        number = len(self._sources)
        self._sources.append(source)
        offset = 0
        with source.path.open("rb") as file:
            for line in file:
                row = self._row(line, asked)
                if row is not None and self._source[row] >= 0:
                    self.duplicates += 1
                elif row is not None:
                    self._source[row] = number
                    self._offset[row] = offset
                offset += len(line)

    def _row(self, line: bytes, asked: np.ndarray[Any, np.dtype[np.bool_]]) -> int | None:
        """Return the row a line is about, or None and count what is wrong with it."""
        if not line.strip():
            return None
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            self.broken += 1
            return None
        row = row_of(record.get("custom_id"))
        if row is None or row >= len(asked) or not asked[row]:
            self.unknown += 1
            return None
        return row

    def _read(self, line: Mapping[str, Any]) -> Prediction:
        """Return the prediction in one line of an answer or error file."""
        response, error = line.get("response"), line.get("error")
        if isinstance(response, Mapping):
            status, body = response.get("status_code"), response.get("body")
            if status == 200 and not error:
                return self._answer(body)
            if isinstance(status, int) and status >= 300:
                return self._refused(status, body)
        if not isinstance(error, Mapping):
            return _error(f"the line holds neither an answer nor an error: {_AGAIN}")
        code, message = (str(error.get(name) or "") for name in ("code", "message"))
        if code in {_EXPIRED, _CANCELLED}:
            return _error(f"{code.removeprefix('batch_')}: {_AGAIN}")
        told = ": ".join(filter(None, [code, message])) or "the provider does not say why"
        return _error(self._api.redacted(told)[:500])

    def _answer(self, body: object) -> Prediction:
        if isinstance(body, Mapping):
            return self._reader.read(body)
        return _error(f"broken response: expected a JSON object, got {type(body).__name__}")

    def _refused(self, status: int, body: object) -> Prediction:
        failure = self._api.refusal(status, body)
        if isinstance(failure, ContextLengthError):
            return Prediction(label=None, outcome=Outcome.UNPARSED, reason=str(failure))
        if status == 400 and any(word in str(failure).lower() for word in _BLOCKED):
            return Prediction(label=None, outcome=Outcome.REFUSAL, reason=str(failure))
        return _error(str(failure))


def _reader(state: BatchState) -> AnswerReader:
    reading = state.reading
    try:
        return AnswerReader(
            labels=labels_of_reading(reading),
            field=reading["field"],
            answer_field=reading["answer_field"],
            space=LogprobSpace(reading["space"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"batch.json: does not say how to read answers ({error!r:.200}): restore it."
        ) from error


def labels_of_reading(reading: Mapping[str, Any]) -> LabelSet:
    """Return the label set of a reader's description."""
    if "fields" in reading:
        return FieldLabels(
            [Field(name=name, path=path, labels=labels) for name, path, labels in reading["fields"]]
        )
    return (MultiLabels if reading.get("several") else LabelSet)(reading["labels"])


def _error(reason: str) -> Prediction:
    return Prediction(label=None, outcome=Outcome.ERROR, reason=reason)
