"""Answers of a provider's batch interface, joined with their rows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration._prior import LabelPriorCorrection, correct_prediction
from calibrant.core._composite import Field, FieldLabels, MultiLabels
from calibrant.core._errors import ContextLengthError, StateError
from calibrant.core._fingerprint import Fingerprint, asked_text
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LogprobSpace, Outcome, Prediction
from calibrant.evaluation._provider_batch_state import (
    HEAD,
    LABEL_PRIOR,
    BatchJob,
    BatchPart,
    row_of,
)
from calibrant.heads._head import Head
from calibrant.inference._heads import apply_head, opened_head
from calibrant.inference._models import BatchApi
from calibrant.inference._reader import AnswerReader

_AGAIN: Final = "submit again (calibrant batch retry)"
_TIMED_OUT: Final = ("batch_expired", "batch_cancelled")
# In a batch's file of errors the reason of a status 400 is a code or words, by provider.
_BLOCKED: Final = ("content_policy_violation", "content_filter", "responsibleaipolicyviolation")
_OPEN_FILES: Final = 32  # a process may hold few open files, and a job may have hundreds


class BatchAnswers:
    """Index of the answers of a job; lines stay in their files until read.

    Parameters
    ----------
    job : BatchJob
        Its directory holds all files of the ended parts.
    api : BatchApi
        Explains refused requests.

    Attributes
    ----------
    discarded : dict of str to int
        Numbers of lines that are ``broken`` (no JSON objects), ``unknown`` (name no row of their part) or
        ``duplicates`` (name a row that has a line already).

    Raises
    ------
    StateError
        A file is missing, or the state does not say how to read answers.
    """

    def __init__(self, job: BatchJob, api: BatchApi) -> None:
        self._job = job
        self._api = api
        self._reader = _reader(job.reading)
        self._files: list[Path] = []
        self._part = np.full(job.rows, -1, dtype=np.int32)  # the last part that asked about a row
        self._attempts = np.zeros(job.rows, dtype=np.int32)
        self._file = np.full(job.rows, -1, dtype=np.int32)
        self._offset = np.zeros(job.rows, dtype=np.int64)
        self.discarded = {"broken": 0, "unknown": 0, "duplicates": 0}
        for place, part in enumerate(job.parts):
            self._add_part(place, part)

    def predictions(self) -> Iterator[Prediction]:
        """Yield the prediction of every row, in order."""
        with contextlib.ExitStack() as stack:
            opened: dict[int, IO[bytes]] = {}
            for row, number in enumerate(self._file.tolist()):
                if number >= 0 and number not in opened:
                    if len(opened) >= _OPEN_FILES:
                        stack.close()
                        opened.clear()
                    opened[number] = stack.enter_context(self._files[number].open("rb"))
                found = self._predict(row, opened.get(number))
                yield replace(found, attempts=int(self._attempts[row]))

    def _predict(self, row: int, file: IO[bytes] | None) -> Prediction:
        if file is None:
            return _error(self._why_missing(self._job.parts[int(self._part[row])]))
        file.seek(int(self._offset[row]))
        return self._read(json.loads(file.readline()))

    def _why_missing(self, part: BatchPart) -> str:
        """Return the reason why a row has no line in the provider's files."""
        if part.status == "failed":
            return f"the batch failed: {'; '.join(part.errors[:3]) or 'the provider does not say why'}"
        if part.status in {"expired", "cancelled"}:
            return f"{part.status}: {_AGAIN}"
        return f"the provider returned no line for this row: {_AGAIN}"

    def _add_part(self, place: int, part: BatchPart) -> None:
        asked = np.zeros(len(self._part), dtype=np.bool_)
        for row, _ in self._job.asked_rows(part):
            asked[row] = True
        self._part[asked] = place
        self._attempts[asked] += 1
        self._file[asked] = -1
        for kind in ("answers", "errors"):
            path = self._job.file(kind, part)
            if path.exists():
                self._files.append(path)
                self._index_lines(path, asked)

    def _index_lines(self, path: Path, asked: NDArray[np.bool_]) -> None:
        offset = 0
        with path.open("rb") as file:
            for line in file:
                row = self._row(line, asked) if line.strip() else None
                if row is not None and self._file[row] >= 0:
                    self.discarded["duplicates"] += 1
                elif row is not None:
                    self._file[row] = len(self._files) - 1
                    self._offset[row] = offset
                offset += len(line)

    def _row(self, line: bytes, asked: NDArray[np.bool_]) -> int | None:
        """Return the row number of an answer's line; None if the line is discarded."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            self.discarded["broken"] += 1
            return None
        row = row_of(record.get("custom_id"))
        if row is None or row >= len(asked) or not asked[row]:
            self.discarded["unknown"] += 1
            return None
        return row

    def _read(self, line: Mapping[str, Any]) -> Prediction:
        """Return the prediction in one line of an answer or error file."""
        response, error = line.get("response"), line.get("error")
        if isinstance(response, Mapping):
            status, body = response.get("status_code"), response.get("body")
            if status == 200 and not error:
                if isinstance(body, Mapping):
                    return self._reader.read(body)
                return _error(f"broken response: expected a JSON object, got {type(body).__name__}")
            if isinstance(status, int) and status >= 300:
                return self._refused(status, body)
        if not isinstance(error, Mapping):
            return _error(f"the line holds neither an answer nor an error: {_AGAIN}")
        code, message = (str(error.get(name) or "") for name in ("code", "message"))
        if code in _TIMED_OUT:
            return _error(f"{code.removeprefix('batch_')}: {_AGAIN}")
        reason = ": ".join(filter(None, [code, message])) or "the provider does not say why"
        return _error(self._api.redacted(reason)[:500])

    def _refused(self, status: int, body: object) -> Prediction:
        failure = self._api.refusal(status, body)
        if isinstance(failure, ContextLengthError):
            return Prediction(label=None, outcome=Outcome.UNPARSED, reason=str(failure))
        if status == 400 and any(word in str(failure).lower() for word in _BLOCKED):
            return Prediction(label=None, outcome=Outcome.REFUSAL, reason=str(failure))
        return _error(str(failure))


def finisher(job: BatchJob) -> Callable[[Prediction, str], Prediction]:
    """Return a function that applies the job's label prior and head to a prediction.

    Raises
    ------
    ConfigurationError
        The embedding model that the head reads texts with cannot be opened, or is another.
    StateError
        The head or the label prior that the job was submitted with is missing or damaged.
    """
    about = job.described
    head, prior = None, None
    if about.get("head") is not None:
        head = Head.load(job.path / HEAD, fingerprint=_fingerprint(job, about))
        if head.digest != about["head"]:
            raise StateError(
                f"{job.path / HEAD}: expected the head that the job was submitted with, got another: restore it."
            )
        head = opened_head(head)
    if about.get("label_prior") is not None:
        prior = LabelPriorCorrection.load(job.path / LABEL_PRIOR, fingerprint=_fingerprint(job, about))

    def finish(prediction: Prediction, text: str) -> Prediction:
        if prior is not None:
            prediction = correct_prediction(prediction, prior)
        return prediction if head is None else apply_head(head, prediction, text)

    return finish


def _fingerprint(job: BatchJob, about: Mapping[str, Any]) -> Fingerprint:
    return Fingerprint(
        prompt=asked_text(about["prompt"], about["user_template"], about.get("demonstrations")),
        model=job.connection["model"],
        space=job.reading["space"],
        labels=_labels(job.reading),
    )


def _reader(reading: Mapping[str, Any]) -> AnswerReader:
    try:
        return AnswerReader(
            labels=_labels(reading),
            field=reading["field"],
            answer_field=reading["answer_field"],
            space=LogprobSpace(reading["space"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"batch.json: does not say how to read answers ({error!r:.200}): restore it."
        ) from error


def _labels(reading: Mapping[str, Any]) -> LabelSet:
    """Return the label set of a reader's description."""
    if "fields" in reading:
        return FieldLabels(
            [Field(name=name, path=path, labels=labels) for name, path, labels in reading["fields"]]
        )
    return (MultiLabels if reading.get("several") else LabelSet)(reading["labels"])


def _error(reason: str) -> Prediction:
    return Prediction(label=None, outcome=Outcome.ERROR, reason=reason)
