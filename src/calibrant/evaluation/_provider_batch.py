"""Jobs at a provider's batch interface: submit, status, collect and retry."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeAlias

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from calibrant.calibration._prior import LabelPriorCorrection, correct_prediction
from calibrant.core._errors import ConfigurationError, ContextLengthError, ProviderError, StateError
from calibrant.core._files import SCHEMA_VERSION, atomic_writer, is_in_place, read_run_record
from calibrant.core._fingerprint import Fingerprint, asked_text, sha256_of
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import BoolArray, LogprobSpace, Outcome, Prediction, Record, Usage
from calibrant.core._reported import counted
from calibrant.core._rows import Example
from calibrant.core._structures import Field, FieldLabels, MultiLabels
from calibrant.evaluation._data import NO_TEXT
from calibrant.heads._head import Head
from calibrant.inference import RetryPolicy
from calibrant.inference._base import run_sync
from calibrant.inference._classifier import Classifier
from calibrant.inference._heads import apply_head_to_all, opened_head
from calibrant.inference._limits import Gate
from calibrant.inference._methods import Decoding
from calibrant.inference._models import open_batch_api
from calibrant.inference._reader import AnswerReader
from calibrant.runs._directory import (
    BATCH,
    PREDICTIONS,
    differing_keys,
    locked_folder,
    make_folder,
    refuse_lost_files,
    write_json,
)
from calibrant.runs._rows import origin_record, row_line

if TYPE_CHECKING:
    from calibrant.inference._models import BatchApi, RemoteBatch

_ROWS: Final = "batch-rows.jsonl"
_FINISHED_TOGETHER: Final = 2_048  # rows whose vectors are asked for together
HEAD: Final = "head.json"
LABEL_PRIOR: Final = "label_prior.json"
_STRICT: Final = ConfigDict(extra="forbid")  # saving the job would drop a key that is not known
_RESTORE: Final = "restore the file, or look the batches up at the provider, as they may have been paid for"
_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_NAME: Final = "row-"
_NO_SUCH_FILE: Final = 404


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """Size limits of one request file.

    Attributes
    ----------
    requests : int, default 50,000
        Requests, at least 1.
    bytes : int, default 200,000,000
        Size of the file, at least 1.

    Raises
    ------
    ConfigurationError
        A number is no whole one of at least 1.

    Examples
    --------
    >>> from calibrant.evaluation import BatchLimits
    >>> BatchLimits(requests=1000)  # for `submit_batch`: a request file of at most so many rows
    BatchLimits(requests=1000, bytes=200000000)
    """

    requests: int = 50_000
    bytes: int = 200_000_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int) or value < 1:
                raise ConfigurationError(
                    f"Expected {name} to be a whole number of at least 1, got {value!r}."
                )


@dataclass(frozen=True, kw_only=True)
class Polling:
    """Polling intervals of unfinished batches.

    Attributes
    ----------
    seconds : float, default 10
        Between the first two looks; half as much again between the next two, and so on.
    maximum_seconds : float, default 300
        Longest time between two looks.
    timeout_seconds : float or None, default None
        Longest time to wait in all; None waits for ever.
    failures : int, default 10
        Looks in a row that may fail, each after retries of its own.

    Raises
    ------
    ConfigurationError
        A number is not above 0.

    Examples
    --------
    >>> from calibrant.evaluation import Polling
    >>> Polling(seconds=60, timeout_seconds=3600)  # for `collect_batch`: looks for an hour at most
    Polling(seconds=60, maximum_seconds=300.0, timeout_seconds=3600, failures=10)
    """

    seconds: float = 10.0
    maximum_seconds: float = 300.0
    timeout_seconds: float | None = None
    failures: int = 10

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise ConfigurationError(f"Expected {name} above 0, got {value}.")


@dataclass(frozen=True, kw_only=True)
class BatchPart:
    """One request file and the batch created from it.

    Attributes
    ----------
    number : int
        One-based.
    requests : int
        Rows asked about.
    file_id : str or None
        The provider's name for the request file, once it is uploaded.
    asked : bool
        True once a call that makes the batch was begun.
    batch_id : str or None
        The provider's name for the batch, once it is known.
    status : str
        The provider's word, or ``prepared`` before it has one.
    completed, failed : int
        Requests, as the provider counts them.
    output_file, error_file : str or None
        The provider's names for the files of answers and errors.
    errors : tuple of str
        Reasons for the failure of the batch as a whole.
    fetched : bool
        True once all its answers and errors were fetched into the directory.
    sizes : mapping of str to int
        Bytes of the fetched files of ``answers`` and ``errors``, by which a missing or cut one is noticed.
    """

    __pydantic_config__ = _STRICT

    number: int
    requests: int
    file_id: str | None = None
    asked: bool = False
    batch_id: str | None = None
    status: str = "prepared"
    completed: int = 0
    failed: int = 0
    output_file: str | None = None
    error_file: str | None = None
    errors: tuple[str, ...] = ()
    fetched: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """True once the provider has finished the batch."""
        return self.status in _ENDED


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """State of a job, for the user.

    Attributes
    ----------
    path : Path
        Its directory.
    rows : int
        Rows of the job.
    parts : tuple of BatchPart
        Its batches.
    submitted : int
        Batches made by this call.
    outcomes : mapping of str to int
        Rows by outcome; empty until they are collected.
    unscored : int
        Rows with a label and without a confidence.
    prompt_tokens, completion_tokens : int
        Of the collected answers, and of the texts whose vectors a head needs.
    broken, unknown, duplicates : int
        Lines of the provider that were no JSON, named no row of their batch, or a row a second time.
    """

    path: Path
    rows: int
    parts: tuple[BatchPart, ...]
    submitted: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    unscored: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    broken: int = 0
    unknown: int = 0
    duplicates: int = 0

    @property
    def ended(self) -> bool:
        """True once the provider has finished every batch."""
        return all(part.ended for part in self.parts)

    @property
    def predictions(self) -> Path | None:
        """Path of ``predictions.jsonl`` if this call wrote the file, else None."""
        return self.path / PREDICTIONS if self.outcomes else None


def custom_id(row: int) -> str:
    """Return the ``custom_id`` of a row in request files."""
    return f"{_NAME}{row}"


def row_of(name: object) -> int | None:
    """Return the row number in a ``custom_id``; None if the id is not one of `custom_id`."""
    digits = str(name).removeprefix(_NAME)
    if not (digits.isascii() and digits.isdigit()):
        return None
    row = int(digits)
    return row if name == custom_id(row) else None


@dataclass(kw_only=True)
class BatchJob:
    """Job in a directory; ``batch.json`` holds all but the path, and no credentials.

    Attributes
    ----------
    path : Path
        The directory.
    run : str
        Tells this run's batches from all others of the account.
    created : float
        Unix seconds.
    rows : int
        Rows of the run.
    fingerprint : mapping
        Digests of all that the answers depend on.
    connection : mapping
        Name, ``api_base`` and ``timeout`` of the model.
    reading : mapping
        Description of the answers' reader: labels, fields and space.
    described : mapping
        `Classifier.describe`.
    parts : tuple of BatchPart
        Request files, those of retries last.
    """

    __pydantic_config__ = _STRICT

    path: Path
    run: str
    created: float
    rows: int
    fingerprint: Record
    connection: Record
    reading: Record
    described: Record
    parts: tuple[BatchPart, ...] = ()

    @classmethod
    def load(cls, path: Path) -> BatchJob | None:
        """Return the job in a directory; None if there is none yet.

        Raises
        ------
        StateError
            The job cannot be read, or the directory holds something else.
        """
        file = path / BATCH
        if not file.exists():
            _check_foreign(path)
            return None
        record = read_run_record(file, remedy=_RESTORE)
        del record["schema_version"]
        try:
            return TypeAdapter(cls).validate_python({**record, "path": path})
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"]))
            raise StateError(
                f"{file}: expected a batch job, got a damaged one ({key}: {problem['msg']:.200}): {_RESTORE}."
            ) from error

    def save(self) -> None:
        """Write the job to ``batch.json``.

        Raises
        ------
        StateError
            It cannot be written.
        """
        record = asdict(self)
        del record["path"]
        write_json(self.path / BATCH, {"schema_version": SCHEMA_VERSION, **record})

    def save_part(self, changed: BatchPart) -> BatchPart:
        """Put a changed part in its place, save the job, and return the part."""
        self.parts = tuple(changed if part.number == changed.number else part for part in self.parts)
        self.save()
        return changed

    def report(self, *, submitted: int = 0) -> BatchReport:
        """Return the state of the job, of which this call has submitted so many batches."""
        return BatchReport(path=self.path, rows=self.rows, parts=self.parts, submitted=submitted)

    def file(self, kind: str, part: BatchPart) -> Path:
        """Return the file of a part's ``requests``, ``answers`` or ``errors``."""
        return self.path / f"batch-{kind}-{part.number:04d}.jsonl"

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Raise if the directory is moved or removed during the block.

        Raises
        ------
        StateError
            A file of the job is missing from the start.
        CalibrantError
            The directory was moved or removed.
        """
        learned = {"head": HEAD, "label_prior": LABEL_PRIOR}
        kept = [name for key, name in learned.items() if self.described.get(key) is not None]
        paths = [self.path / name for name in (_ROWS, *kept)]
        paths += [self.file("requests", part) for part in self.parts]
        with contextlib.ExitStack() as stack:
            files = {}
            for path in paths:
                with _reading(path):
                    files[path] = stack.enter_context(path.open("rb"))

            def in_place() -> bool:
                return all(is_in_place(file.fileno(), path) for path, file in files.items())

            with refuse_lost_files(self.path, in_place):
                yield

    def write_rows(self, rows: Iterable[Example]) -> None:
        """Store the rows for joining with their answers."""
        with (self.path / _ROWS).open("w", encoding="utf-8") as file:
            for row in rows:
                context = dict(row.additional_context)
                record = {"input": row.input, "answer": row.answer, "context": context, **origin_record(row)}
                file.write(json.dumps(record) + "\n")

    def read_rows(self) -> Iterator[Example]:
        """Yield the stored rows.

        Raises
        ------
        StateError
            They cannot be read, or some are missing.
        """
        path = self.path / _ROWS
        number = 0
        with _reading(path), path.open(encoding="utf-8") as file:
            for line in file:
                number += 1
                record = json.loads(line)
                yield Example(
                    input=record["input"],
                    answer=record["answer"],
                    additional_context=record["context"],
                    source=record.get("source"),
                    row_id=record.get("id"),
                )
        if number != self.rows:
            raise StateError(f"{path}: expected {counted(self.rows, 'row')}, got {number}: restore the file.")

    def add_requests(self, lines: Iterable[str], limits: BatchLimits) -> None:
        """Write further request files within the size limits, and save the job.

        Parameters
        ----------
        lines : iterable of str
            Requests, without line ends.
        limits : BatchLimits
            Size limits of a file.

        Raises
        ------
        StateError
            A single request is larger than a file may be.
        """
        parts: list[BatchPart] = []
        requests = limits.requests  # in the file at hand; as if one before the first were full
        size = 0
        with contextlib.ExitStack() as files:
            for line in lines:
                data = line.encode() + b"\n"
                if len(data) > limits.bytes:
                    raise StateError(
                        f"Expected requests of at most {limits.bytes:,} bytes, got one of {len(data):,}: shorten "
                        "the text or the prompt."
                    )
                if requests >= limits.requests or size + len(data) > limits.bytes:
                    files.close()
                    number = len(self.parts) + len(parts) + 1
                    parts.append(BatchPart(number=number, requests=0))
                    file = files.enter_context(self.file("requests", parts[-1]).open("wb"))
                    requests = size = 0
                file.write(data)
                size += len(data)
                requests += 1
                parts[-1] = replace(parts[-1], requests=requests)
        self.parts += tuple(parts)
        self.save()

    def asked_rows(self, part: BatchPart) -> Iterator[tuple[int, str]]:
        """Yield the rows of a part with their requests.

        Raises
        ------
        StateError
            The request file cannot be read.
        """
        path = self.file("requests", part)
        with _reading(path), path.open(encoding="utf-8") as file:
            for line in file:
                # The name is the first value of a line, as we write it.
                row = row_of(line.split('"', 4)[3])
                if row is None:
                    raise ValueError(line[:40])
                yield row, line.rstrip("\n")


@contextlib.contextmanager
def locked_job(path: Path, *, create: bool = False) -> Iterator[None]:
    """Lock the directory of a job for the block; a killed process releases the lock.

    Raises
    ------
    StateError
        Another process holds the lock, there is no such directory, or it cannot be written.
    """
    if not create and not (path / BATCH).exists() and not path.is_file():
        raise StateError(
            f"{path}: expected a directory of `calibrant batch submit`, got one without {BATCH}."
        )
    make_folder(path)
    with locked_folder(path, f"{path}: another command is at work in this directory: wait until it ends."):
        yield


def _check_foreign(path: Path) -> None:
    """Raise StateError if the directory holds more than leftovers of an interrupted start."""
    ours = ["batch-requests-", f".{BATCH}."]
    if (path / _ROWS).exists():  # which is written first
        ours += [_ROWS, HEAD, LABEL_PRIOR, f".{HEAD}.", f".{LABEL_PRIOR}."]
    for found in path.iterdir():
        if not found.name.startswith(tuple(ours)):
            raise StateError(
                f"{path}: expected an empty directory or an earlier run, got {found.name}: choose another."
            )


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise StateError in place of the errors of a missing or damaged file."""
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
        raise StateError(f"{path}: not readable ({error!r:.200}): restore the file.") from error


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
            if kind in part.sizes:
                path = self._job.file(kind, part)
                self._files.append(path)
                self._index_lines(path, asked)

    def _index_lines(self, path: Path, asked: BoolArray) -> None:
        offset = 0
        with _reading(path), path.open("rb") as file:
            for line in file:
                row = None
                if line.strip():
                    row = self._row(line, asked)
                if row is not None and self._file[row] >= 0:
                    self.discarded["duplicates"] += 1
                elif row is not None:
                    self._file[row] = len(self._files) - 1
                    self._offset[row] = offset
                offset += len(line)

    def _row(self, line: bytes, asked: BoolArray) -> int | None:
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

    def _read(self, line: Record) -> Prediction:
        """Return the prediction in one line of an answer or error file."""
        response = line.get("response")
        error = line.get("error")
        if isinstance(response, Mapping):
            status = response.get("status_code")
            body = response.get("body")
            if status == 200 and not error:
                if isinstance(body, Mapping):
                    return self._reader.read(body)
                return _error(f"broken response: expected a JSON object, got {type(body).__name__}")
            if isinstance(status, int) and status >= 300:
                return self._refused(status, body)
        if not isinstance(error, Mapping):
            return _error(f"the line holds neither an answer nor an error: {_AGAIN}")
        code = str(error.get("code") or "")
        if code in _TIMED_OUT:
            return _error(f"{code.removeprefix('batch_')}: {_AGAIN}")
        words = filter(None, (code, error.get("message")))
        reason = ": ".join(map(str, words)) or "the provider does not say why"
        return _error(self._api.redacted(reason)[:500])

    def _refused(self, status: int, body: object) -> Prediction:
        failure = self._api.refusal(status, body)
        reason = str(failure)
        if isinstance(failure, ContextLengthError):
            return _without_label(Outcome.UNPARSED, reason)
        if status == 400 and any(word in reason.lower() for word in _BLOCKED):
            return _without_label(Outcome.REFUSAL, reason)
        return _error(reason)


Finisher: TypeAlias = Callable[[Sequence[Prediction], Sequence[str]], list[Prediction]]


def finisher(job: BatchJob, meter: Gate) -> Finisher:
    """Return a function that applies the job's label prior and head to predictions for texts.

    Parameters
    ----------
    job : BatchJob
        The job.
    meter : Gate
        Counts the calls of the embedding model.

    Raises
    ------
    ConfigurationError
        The embedding model that the head reads texts with cannot be opened, or is another.
    StateError
        The head or the label prior that the job was submitted with is missing or damaged.
    """
    about = job.described
    head = None
    prior = None
    if about.get("head") is not None:
        head = Head.load(job.path / HEAD, fingerprint=_fingerprint(job, about))
        if head.digest != about["head"]:
            raise StateError(
                f"{job.path / HEAD}: expected the head that the job was submitted with, got another: restore it."
            )
        head = opened_head(head, meter=meter)
    if about.get("label_prior") is not None:
        fingerprint = _fingerprint(job, about)
        prior = LabelPriorCorrection.load(job.path / LABEL_PRIOR, fingerprint=fingerprint)

    def finish(predictions: Sequence[Prediction], texts: Sequence[str]) -> list[Prediction]:
        found = list(predictions)
        if prior is not None:
            found = [correct_prediction(one, prior) for one in found]
        if head is None:
            return found
        return apply_head_to_all(head, found, texts, meter=meter)

    return finish


def _fingerprint(job: BatchJob, about: Record) -> Fingerprint:
    return Fingerprint(
        prompt=asked_text(about["prompt"], about["user_template"], about.get("demonstrations")),
        model=job.connection["model"],
        space=job.reading["space"],
        labels=_labels(job.reading),
    )


def _reader(reading: Record) -> AnswerReader:
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


def _labels(reading: Record) -> LabelSet:
    """Return the label set of a reader's description."""
    if "fields" in reading:
        fields = reading["fields"]
        return FieldLabels([Field(name=name, path=path, labels=labels) for name, path, labels in fields])
    kind = MultiLabels if reading.get("several") else LabelSet
    return kind(reading["labels"])


def _without_label(outcome: Outcome, reason: str) -> Prediction:
    return Prediction(label=None, outcome=outcome, reason=reason)


def _error(reason: str) -> Prediction:
    return _without_label(Outcome.ERROR, reason)


_LOG = logging.getLogger("calibrant")
_NOT_SENT: Final = ("api_key", "api_base", "timeout")


def _asked_once(classifier: Classifier) -> tuple[Classifier, Decoding]:
    """Return a classifier whose model is asked once a row, and how; raise ConfigurationError for another one."""
    if classifier.space is LogprobSpace.FUSED:
        raise ConfigurationError(
            f"Expected a model that is asked once a row, got {classifier.method.calls_a_row} calls a row for "
            f"{classifier.name}, which gives no log-probabilities. Classify without the batch interface, or set "
            "scoring = 'decode' under [model] for labels without a confidence."
        )
    classifier = classifier.unless_told()
    method = classifier.method
    if not isinstance(method, Decoding):
        raise ConfigurationError(
            f"Expected a model that decodes, got {type(method).__name__} for {classifier.name}: a batch "
            "asks a chat model once per row. Classify without the batch interface, or set scoring = 'decode' under "
            "[model] if it is one."
        )
    return classifier, method


def submit_batch(
    classifier: Classifier,
    rows: Iterable[Example],
    *,
    out: Path,
    limits: BatchLimits | None = None,
    retry: RetryPolicy | None = None,
) -> BatchReport:
    """Send rows to the batch interface of the classifier's provider, each row once.

    After a crash, the same call goes on where it stopped; once everything is sent, it does nothing.

    Parameters
    ----------
    classifier : Classifier
        Built from a model's name; decodes. Its head and its label-prior correction are kept in the directory, and
        applied to the collected answers.
    rows : iterable of Example
        Its texts; an answer may be empty. They are read twice, and never all in memory; an iterator is.
    out : Path
        Directory of the job.
    limits : BatchLimits, optional
        Size limits of a request file; by default those of OpenAI.
    retry : RetryPolicy, optional
        Retries of passing faults.

    Returns
    -------
    BatchReport
        The state of the job.

    Raises
    ------
    ConfigurationError
        The model has no batch interface, does not decode, or there are no rows.
    StateError
        The directory holds something else, or a job of another task, prompt, model or data.
    ProviderError
        The provider cannot be reached, or refuses; nothing that was sent is lost.

    Examples
    --------
    It needs a provider and its key:

    >>> from pathlib import Path
    >>> from calibrant import Classifier, Example
    >>> from calibrant.evaluation import submit_batch
    >>> classifier = Classifier(model="openai/gpt-4.1-mini", labels=["cat", "dog"], field="category")  # doctest: +SKIP
    >>> report = submit_batch(classifier, [Example(input="purrs", answer="")], out=Path("job"))  # doctest: +SKIP
    >>> report.rows, report.submitted  # doctest: +SKIP
    (1, 1)
    """
    classifier, method = _asked_once(classifier)
    if iter(rows) is rows:
        rows = list(rows)
    count, digest = _counted(rows)
    if not count:
        raise ConfigurationError("Expected at least one row to submit, got none.")
    with (
        closing(open_batch_api(classifier.name, options=classifier.options, retry=retry)) as api,
        locked_job(out, create=True),
    ):
        wanted = _new_job(classifier, method, api, count, digest, out)
        job = BatchJob.load(out)
        if job is None:
            job = wanted
            job.write_rows(rows)
            classifier.save_learned(out)
            lines = (
                api.line(custom_id(number), classifier.request(classifier.query(row.input)))
                for number, row in enumerate(job.read_rows())
                if row.input or row.answer  # about an unlabelled row without text nothing is asked
            )
            job.add_requests(lines, limits or BatchLimits())
        differing = differing_keys(job.fingerprint, wanted.fingerprint)
        if differing:
            raise StateError(
                f"{out}: holds a job that differs in {', '.join(differing)}: choose another directory, or submit the "
                "same again."
            )
        return run_sync(_send(api, job))


def batch_status(path: Path, *, api_key: str | None = None, retry: RetryPolicy | None = None) -> BatchReport:
    """Poll every unfinished batch once.

    Parameters
    ----------
    path : Path
        Directory of the job.
    api_key : str, optional
        By default the environment's.
    retry : RetryPolicy, optional
        Retries of passing faults.

    Raises
    ------
    StateError
        The directory holds no job.
    ProviderError
        The provider cannot be asked.

    Examples
    --------
    A directory that holds no job is refused; `submit_batch` makes one:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant.evaluation import batch_status
    >>> from calibrant.core import StateError
    >>> try:
    ...     batch_status(Path(tempfile.mkdtemp()))
    ... except StateError as error:
    ...     print(str(error).partition(": ")[2])
    expected a directory of `calibrant batch submit`, got one without batch.json.

    At a provider:

    >>> batch_status(Path("job")).ended  # doctest: +SKIP
    False
    """
    with _opened_job(path, api_key, retry) as (job, api):
        run_sync(_look(api, job))
        return job.report()


def collect_batch(
    path: Path,
    *,
    wait: Polling | None = None,
    api_key: str | None = None,
    retry: RetryPolicy | None = None,
    on_look: Callable[[BatchReport], None] | None = None,
) -> BatchReport:
    """Fetch the answers of ended batches, and write ``predictions.jsonl`` once all have ended.

    Parameters
    ----------
    path : Path
        Directory of the job.
    wait : Polling, optional
        Wait until every batch has ended; by default there is one look.
    api_key : str, optional
        By default the environment's.
    retry : RetryPolicy, optional
        Retries of passing faults.
    on_look : callable, optional
        Called with the report of each look.

    Returns
    -------
    BatchReport
        Without outcomes if a batch has not ended.

    Raises
    ------
    StateError
        The directory holds no job, not everything was submitted, or a fetched file was lost and cannot be
        fetched again.
    ProviderError
        The provider cannot be asked, or one of its files is gone.
    CalibrantError
        The directory was moved or removed meanwhile; the message names the directory that keeps the job.

    Examples
    --------
    After `submit_batch`, with looks for an hour at most:

    >>> from pathlib import Path
    >>> from calibrant.evaluation import Polling
    >>> from calibrant.evaluation import collect_batch
    >>> report = collect_batch(Path("job"), wait=Polling(timeout_seconds=3600))  # doctest: +SKIP
    >>> report.outcomes, report.predictions  # doctest: +SKIP
    ({'ok': 1}, PosixPath('job/predictions.jsonl'))
    """
    with _opened_job(path, api_key, retry) as (job, api):
        unsent = [part.number for part in job.parts if part.batch_id is None]
        if unsent:
            raise StateError(
                f"{path}: part {unsent[0]} of {len(job.parts)} was not submitted: run the command that was cut off "
                "(calibrant batch submit or retry) again."
            )
        with job.watched():
            run_sync(_watch(api, job, wait, on_look))
            report = job.report()
            if report.ended:
                return _join(job, api)
            return report


def retry_batch(
    path: Path,
    *,
    limits: BatchLimits | None = None,
    api_key: str | None = None,
    retry: RetryPolicy | None = None,
) -> BatchReport:
    """Submit the failed rows of a collected job again, with the same requests.

    After a crash, the same call goes on where it stopped.

    Parameters
    ----------
    path : Path
        Directory of the job.
    limits : BatchLimits, optional
        Size limits of a request file; by default those of OpenAI.
    api_key : str, optional
        By default the environment's.
    retry : RetryPolicy, optional
        Retries of passing faults.

    Raises
    ------
    StateError
        The directory holds no job, not everything was collected, or a fetched file was lost and cannot be
        fetched again.
    ProviderError
        The provider cannot be reached, or refuses.

    Examples
    --------
    After a `collect_batch` whose report counts an error:

    >>> from pathlib import Path
    >>> from calibrant.evaluation import collect_batch
    >>> from calibrant.evaluation import retry_batch
    >>> collect_batch(Path("job")).outcomes  # doctest: +SKIP
    {'ok': 98, 'error': 2}
    >>> retry_batch(Path("job")).submitted  # doctest: +SKIP
    1
    """
    with _opened_job(path, api_key, retry) as (job, api):
        if all(part.batch_id is not None for part in job.parts):
            if not all(part.fetched for part in job.parts):
                raise StateError(f"{path}: not everything was collected: collect first.")
            # Rows whose answers only miss in the directory would be paid for a second time.
            run_sync(_fetch(api, job))
            job.add_requests(_failed_requests(job, api), limits or BatchLimits())
        return run_sync(_send(api, job))


@contextmanager
def _opened_job(
    path: Path, api_key: str | None, retry: RetryPolicy | None
) -> Iterator[tuple[BatchJob, BatchApi]]:
    """Lock the directory of a submitted job and open its provider's interface."""
    with locked_job(path):
        job = BatchJob.load(path)
        if job is None:
            raise StateError(f"{path}: holds no submitted job: submit one first.")
        options = {**job.connection, "api_key": api_key}
        with closing(open_batch_api(options.pop("model"), options=options, retry=retry)) as api:
            yield job, api


def _counted(rows: Iterable[Example]) -> tuple[int, str]:
    """Return the number of rows and the digest of their texts and answers."""
    count = 0
    digest = hashlib.sha256()
    for row in rows:
        count += 1
        digest.update(json.dumps([row.input, row.answer]).encode())
    return count, digest.hexdigest()


def _new_job(
    classifier: Classifier, method: Decoding, api: BatchApi, rows: int, digest: str, out: Path
) -> BatchJob:
    """Return a new job; its fingerprint holds digests instead of texts."""
    options = {name: value for name, value in classifier.options.items() if name not in _NOT_SENT}
    about = classifier.describe()
    prompt = [classifier.prompt, classifier.user_template]
    shown = about.get("demonstrations")
    if shown:
        prompt.append(shown)
    fingerprint = {
        "model": _digest([classifier.name, api.address]),
        "prompt": _digest(prompt),
        "labels": _digest([method.describe(), classifier.response_format]),
        "options": _digest([options, classifier.top_logprobs]),
        "rows": digest,
    }
    learned = [about.get("head"), about["label_prior"]]
    if any(learned):
        fingerprint["corrections"] = _digest(learned)
    return BatchJob(
        path=out,
        run=uuid.uuid4().hex,
        created=time.time(),
        rows=rows,
        fingerprint=fingerprint,
        connection={
            "model": classifier.name,
            "api_base": api.address,
            "timeout": classifier.options.get("timeout", 60.0),
        },
        reading=dict(method.reader.describe()),
        described=json.loads(json.dumps(about, default=repr)),
    )


def _digest(value: object) -> str:
    return sha256_of(json.dumps(value, sort_keys=True, default=repr))


async def _send(api: BatchApi, job: BatchJob) -> BatchReport:
    """Create the batches that do not exist yet; save each step to disk before the next."""
    unsent = [part for part in job.parts if part.batch_id is None]
    for prepared in unsent:
        part = prepared
        if part.file_id is None:
            file_id = await api.upload(job.file("requests", part))
            part = job.save_part(replace(part, file_id=file_id))
        # A call that was begun before a crash may have made the batch.
        look_first = part.asked
        part = job.save_part(replace(part, asked=True))
        batch = await api.create(
            str(part.file_id),
            metadata={"calibrant_run": job.run, "calibrant_part": str(part.number)},
            since=job.created,
            look_first=look_first,
        )
        job.save_part(_as_reported(part, batch))
    return job.report(submitted=len(unsent))


def _as_reported(part: BatchPart, batch: RemoteBatch) -> BatchPart:
    """Return a part in the state that the provider reports."""
    names = ("status", "completed", "failed", "output_file", "error_file", "errors")
    return replace(part, batch_id=batch.id, **{name: getattr(batch, name) for name in names})


async def _look(api: BatchApi, job: BatchJob) -> None:
    for part in job.parts:
        if part.batch_id is not None and not part.ended:
            batch = await api.look(part.batch_id)
            job.save_part(_as_reported(part, batch))


async def _fetch(api: BatchApi, job: BatchJob) -> None:
    """Fetch the files of ended batches that the directory does not hold as they were fetched.

    Raises
    ------
    ProviderError
        A file cannot be fetched.
    StateError
        A file that was fetched before is missing or cut, and cannot be fetched again.
    """
    for part in job.parts:
        if not part.ended:
            continue
        sizes = await _fetched_sizes(api, job, part)
        if not part.fetched or sizes != part.sizes:
            job.save_part(replace(part, fetched=True, sizes=sizes))


async def _fetched_sizes(api: BatchApi, job: BatchJob, part: BatchPart) -> dict[str, int]:
    """Return the sizes of a part's files; download those that are not in place."""
    sizes = {}
    for kind, remote in (("answers", part.output_file), ("errors", part.error_file)):
        if remote is None:
            continue
        path = job.file(kind, part)
        known = part.sizes.get(kind)
        if known is None or _size(path) != known:
            try:
                await api.download(remote, path)
            except ProviderError as error:
                if known is not None:
                    raise _lost(path, known, error) from error
                if error.status != _NO_SUCH_FILE:
                    raise
                raise ProviderError(
                    f"the provider no longer has the file {remote}, which holds the {kind} of part {part.number}.",
                    provider=api.name,
                    status=error.status,
                    hint="Providers delete such files after some time: submit the rows with a new --out, which asks "
                    "about all of them again.",
                ) from error
        sizes[kind] = _size(path) or 0
    return sizes


def _lost(path: Path, size: int, error: ProviderError) -> StateError:
    """Return the error for a file that was fetched, is not in place, and cannot be fetched again."""
    return StateError(
        f"{path}: expected {counted(size, 'byte')} as fetched from the provider, got a missing or changed file, and it "
        f"cannot be fetched again ({error}): restore it, or run the command again later. Nothing was overwritten."
    )


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


async def _watch(
    api: BatchApi, job: BatchJob, wait: Polling | None, on_look: Callable[[BatchReport], None] | None
) -> None:
    """Poll batches and fetch answers: once, or until every batch has ended or the time is over."""
    start = time.monotonic()
    failures = 0
    pause = 0.0
    if wait is not None:
        pause = min(wait.seconds, wait.maximum_seconds)
    while True:
        try:
            await _look(api, job)
            await _fetch(api, job)
            failures = 0
        except ProviderError as error:
            failures += 1
            if wait is None or not error.retryable or failures >= wait.failures:
                raise
            _LOG.warning("%s (looking again)", error)
        report = job.report()
        if on_look is not None:
            on_look(report)
        if wait is None or (report.ended and all(part.fetched for part in job.parts)):
            return
        if wait.timeout_seconds is not None:
            left = start + wait.timeout_seconds - time.monotonic()
            if left <= 0:
                return
            pause = min(pause, left)
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, wait.maximum_seconds)


def _join(job: BatchJob, api: BatchApi) -> BatchReport:
    """Write the predictions of all rows in input order, atomically."""
    outcomes: Counter[str] = Counter()
    unscored = 0
    usage = Usage()
    meter = Gate()
    answers = BatchAnswers(job, api)
    finish = finisher(job, meter)
    with atomic_writer(job.path / PREDICTIONS) as file:
        rows = zip(job.read_rows(), answers.predictions(), strict=True)
        for index, (example, prediction) in enumerate(_finished_rows(rows, finish)):
            file.write(row_line(index, example, prediction).decode())
            outcomes[prediction.outcome.value] += 1
            unscored += prediction.label is not None and prediction.confidence is None
            usage += prediction.usage
    discarded = answers.discarded
    return replace(
        job.report(),
        outcomes=dict(outcomes),
        unscored=unscored,
        prompt_tokens=usage.prompt_tokens + meter.tokens,
        completion_tokens=usage.completion_tokens,
        broken=discarded["broken"],
        unknown=discarded["unknown"],
        duplicates=discarded["duplicates"],
    )


def _finished_rows(
    rows: Iterator[tuple[Example, Prediction]], finish: Finisher
) -> Iterator[tuple[Example, Prediction]]:
    """Yield rows with their final predictions, in blocks whose vectors are asked for together."""
    without_text = _without_label(Outcome.UNPARSED, NO_TEXT)
    while block := list(islice(rows, _FINISHED_TOGETHER)):
        examples = [example for example, _ in block]
        answers = [answer if one.input or one.answer else without_text for one, answer in block]
        texts = [one.input for one in examples]
        yield from zip(examples, finish(answers, texts), strict=True)


def _failed_requests(job: BatchJob, api: BatchApi) -> Iterator[str]:
    """Yield the requests of the failed rows, each once."""
    predictions = enumerate(BatchAnswers(job, api).predictions())
    failed = {row for row, prediction in predictions if prediction.outcome is Outcome.ERROR}
    for part in job.parts:
        for row, line in job.asked_rows(part):
            if row in failed:
                failed.discard(row)
                yield line
