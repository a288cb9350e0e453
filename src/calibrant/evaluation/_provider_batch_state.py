"""A job at a provider's batch interface, in its directory: rows, requests, state and report."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import SCHEMA_VERSION, is_in_place, read_run_record
from calibrant.core._rows import Example
from calibrant.runs._directory import (
    BATCH,
    PREDICTIONS,
    locked_folder,
    make_folder,
    refuse_lost_files,
    write_json,
)
from calibrant.runs._rows import origin_record

_ROWS: Final = "batch-rows.jsonl"
HEAD: Final = "head.json"
LABEL_PRIOR: Final = "label_prior.json"
_RESTORE: Final = "restore the file, or look the batches up at the provider, as they may have been paid for"
_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_NAME: Final = "row-"


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """Size limits of one request file.

    Attributes
    ----------
    requests : int, default 50,000
        Requests, at least 1.
    bytes : int, default 200,000,000
        Size of the file, at least 1.

    Examples
    --------
    >>> from calibrant.evaluation import BatchLimits
    >>> BatchLimits(requests=1000)  # for `submit_batch`: a request file of at most so many rows
    BatchLimits(requests=1000, bytes=200000000)
    """

    requests: int = 50_000
    bytes: int = 200_000_000


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
        True once all its answers and errors are in the directory.
    """

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
    prompt_tokens, completion_tokens : int
        Of the collected answers.
    broken, unknown, duplicates : int
        Lines of the provider that were no JSON, named no row of their batch, or a row a second time.
    """

    path: Path
    rows: int
    parts: tuple[BatchPart, ...]
    submitted: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
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
    digits = name.removeprefix(_NAME) if isinstance(name, str) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and name == custom_id(int(digits)) else None


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

    path: Path
    run: str
    created: float
    rows: int
    fingerprint: Mapping[str, Any]
    connection: Mapping[str, Any]
    reading: Mapping[str, Any]
    described: Mapping[str, Any]
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
            parts = [BatchPart(**{**part, "errors": tuple(part["errors"])}) for part in record.pop("parts")]
            return cls(path=path, **record, parts=tuple(parts))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"{file}: expected a batch job, got a damaged one ({error!r:.200}): {_RESTORE}."
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
            files = []
            for path in paths:
                with _reading(path):
                    files.append(stack.enter_context(path.open("rb")))

            def in_place() -> bool:
                return all(is_in_place(file.fileno(), path) for file, path in zip(files, paths, strict=True))

            with refuse_lost_files(self.path, in_place):
                yield

    def write_rows(self, rows: Iterable[Example]) -> None:
        """Store the rows for joining with their answers."""
        with (self.path / _ROWS).open("w", encoding="utf-8") as file:
            for row in rows:
                record = {"input": row.input, "answer": row.answer, "context": dict(row.additional_context)}
                record |= origin_record(row)
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
            raise StateError(f"{path}: expected {self.rows} rows, got {number}: restore the file.")

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
        size = 0
        with contextlib.ExitStack() as files:
            file: IO[bytes] | None = None
            for line in lines:
                data = line.encode() + b"\n"
                if len(data) > limits.bytes:
                    raise StateError(
                        f"Expected requests of at most {limits.bytes:,} bytes, got one of {len(data):,}: shorten "
                        "the text or the prompt."
                    )
                full = parts and (parts[-1].requests >= limits.requests or size + len(data) > limits.bytes)
                if file is None or full:
                    files.close()
                    parts.append(BatchPart(number=len(self.parts) + len(parts) + 1, requests=0))
                    file = files.enter_context(self.file("requests", parts[-1]).open("wb"))
                    size = 0
                file.write(data)
                size += len(data)
                parts[-1] = replace(parts[-1], requests=parts[-1].requests + 1)
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
