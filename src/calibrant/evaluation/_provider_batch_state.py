"""The directory of jobs at a provider's batch interface: what was asked, and how far it got."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, Final

from calibrant.core._errors import CalibrantError, StateError
from calibrant.core._files import is_in_place, make_rescue_folder
from calibrant.core._rows import Example
from calibrant.runs._directory import PREDICTIONS
from calibrant.runs._folder import locked_folder, make_folder, rescue_if_lost, write_json
from calibrant.runs._origin import BATCH

VERSION: Final = 1
_ROWS: Final = "batch-rows.jsonl"
HEAD: Final = "head.json"
LABEL_PRIOR: Final = "label_prior.json"
_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_NAME: Final = "row-"


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """How large one request file may be.

    Attributes
    ----------
    requests : int, default 50,000
        Requests, at least 1.
    bytes : int, default 200,000,000
        Size of the file, at least 1.
    """

    requests: int = 50_000
    bytes: int = 200_000_000


@dataclass(frozen=True, kw_only=True)
class BatchPart:
    """One request file and the batch made of it.

    Attributes
    ----------
    number : int
        One-based.
    requests : int
        Rows asked about.
    file_id : str or None
        The provider's name for the request file, once it is there.
    asked : bool
        Whether a call that makes the batch was begun.
    batch_id : str or None
        The provider's name for the batch, once that is known.
    status : str
        The provider's word, or ``prepared`` before it has one.
    completed, failed : int
        Requests, as the provider counts them.
    output_file, error_file : str or None
        The provider's names for what came of it.
    errors : tuple of str
        Why the batch failed as a whole.
    fetched : bool
        Whether everything that came of it is in the directory.
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
        """Whether the provider is done with it."""
        return self.status in _ENDED


@dataclass(frozen=True, kw_only=True)
class BatchState:
    """What ``batch.json`` holds; no credentials are part of it.

    Attributes
    ----------
    run : str
        Tells this run's batches from all others of the account.
    created : float
        Unix seconds.
    rows : int
        Rows of the run.
    fingerprint : mapping
        What the answers depend on.
    connection : mapping
        Name, ``api_base`` and ``timeout`` of the model.
    reading : mapping
        How answers are read: labels, fields and space.
    described : mapping or None
        What `Classifier.describe` said; None where an older version submitted.
    parts : tuple of BatchPart
        Request files, those of retries last.
    """

    run: str
    created: float
    rows: int
    fingerprint: Mapping[str, Any]
    connection: Mapping[str, Any]
    reading: Mapping[str, Any]
    described: Mapping[str, Any] | None = None
    parts: tuple[BatchPart, ...] = ()

    def with_part(self, part: BatchPart) -> BatchState:
        """Return a copy in which `part` has taken the place of the one with its number."""
        parts = tuple(part if other.number == part.number else other for other in self.parts)
        return replace(self, parts=parts)


def custom_id(row: int) -> str:
    """Return the name of a row in request files."""
    return f"{_NAME}{row}"


def row_of(name: object) -> int | None:
    """Return the row of that name, or None where it is none of our names."""
    if not isinstance(name, str) or not name.startswith(_NAME):
        return None
    digits = name.removeprefix(_NAME)
    return int(digits) if digits.isascii() and digits.isdigit() and name == custom_id(int(digits)) else None


@dataclass(frozen=True)
class BatchDirectory:
    """The files of one run.

    Attributes
    ----------
    path : Path
        The directory.
    """

    path: Path

    @property
    def predictions(self) -> Path:
        """Where the collected rows are written."""
        return self.path / PREDICTIONS

    def requests(self, part: BatchPart) -> Path:
        """Return the request file of a part."""
        return self.path / f"batch-requests-{part.number:04d}.jsonl"

    def answers(self, part: BatchPart) -> Path:
        """Return the file with the answers to a part."""
        return self.path / f"batch-answers-{part.number:04d}.jsonl"

    def errors(self, part: BatchPart) -> Path:
        """Return the file with the requests of a part that failed."""
        return self.path / f"batch-errors-{part.number:04d}.jsonl"

    @contextlib.contextmanager
    def locked(self, *, create: bool = False) -> Iterator[None]:
        """Keep other processes out; a killed process lets go.

        Raises
        ------
        StateError
            Another process is in, there is no such directory, or it cannot be written.
        """
        if not create and not (self.path / BATCH).exists() and not self.path.is_file():
            raise StateError(
                f"{self.path}: expected a directory of `calibrant batch submit`, got one without {BATCH}."
            )
        make_folder(self.path)
        with locked_folder(
            self.path, f"{self.path}: another command is at work in this directory: wait until it ends."
        ):
            yield

    def load(self) -> BatchState | None:
        """Return what is stored, or None where nothing is.

        Raises
        ------
        StateError
            It cannot be read, or the directory holds something else.
        """
        path = self.path / BATCH
        if not path.exists():
            self._check_foreign()
            return None
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record.pop("version") != VERSION:
                raise StateError(f"{path}: written by another version of calibrant: use that one.")
            parts = tuple(_part(entry) for entry in record.pop("parts"))
            return BatchState(**record, parts=parts)
        except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise StateError(
                f"{path}: not readable ({error!r:.200}). Batches may have been paid for: restore the file, or look "
                "the batches up at the provider."
            ) from error

    def save(self, state: BatchState) -> None:
        """Put `state` in place of what is stored.

        Raises
        ------
        StateError
            It cannot be written.
        """
        write_json(self.path / BATCH, {"version": VERSION, **asdict(state)})

    @contextlib.contextmanager
    def rescuing(self, state: BatchState) -> Iterator[None]:
        """Keep what tells of the batches in another directory when this one is moved or removed before the block ends.

        Answers that were fetched already are fetched from the provider again.

        Raises
        ------
        StateError
            A file of the job is missing from the start.
        CalibrantError
            The directory was moved or removed; the message names the other one, from which the job goes on.
        """
        learned = {"head": HEAD, "label_prior": LABEL_PRIOR}
        kept = [name for key, name in learned.items() if (state.described or {}).get(key) is not None]
        paths = [*(self.path / name for name in (_ROWS, *kept)), *map(self.requests, state.parts)]
        with contextlib.ExitStack() as stack:
            try:
                files = [stack.enter_context(path.open("rb")) for path in paths]
            except OSError as error:
                raise StateError(
                    f"{error.filename}: not readable ({error.strerror}): restore the file."
                ) from error

            def in_place() -> bool:
                return all(is_in_place(file.fileno(), path) for file, path in zip(files, paths, strict=True))

            with rescue_if_lost(in_place, lambda: self._rescued(state, files)):
                yield

    def _rescued(self, state: BatchState, files: Sequence[IO[bytes]]) -> CalibrantError:
        rescue = BatchDirectory(make_rescue_folder(self.path))
        for file in files:
            with (rescue.path / Path(file.name).name).open("xb") as copy:
                shutil.copyfileobj(file, copy)
        rescue.save(replace(state, parts=tuple(replace(part, fetched=False) for part in state.parts)))
        return CalibrantError(
            f"{self.path}: its files were moved or removed meanwhile: the job is kept in {rescue.path}. Collect it "
            "from that directory."
        )

    def write_rows(self, rows: Iterable[Example]) -> None:
        """Keep the rows, for the day their answers come."""
        with (self.path / _ROWS).open("w", encoding="utf-8") as file:
            for row in rows:
                record = {"input": row.input, "answer": row.answer, "context": dict(row.additional_context)}
                file.write(json.dumps(record) + "\n")

    def read_rows(self, count: int) -> Iterator[Example]:
        """Yield the rows that were kept.

        Raises
        ------
        StateError
            They cannot be read, or are not `count`.
        """
        path = self.path / _ROWS
        number = 0
        try:
            with path.open(encoding="utf-8") as file:
                for line in file:
                    number += 1
                    record = json.loads(line)
                    yield Example(
                        input=record["input"], answer=record["answer"], additional_context=record["context"]
                    )
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"{path}: not readable ({error!r:.200}): restore the file.") from error
        if number != count:
            raise StateError(f"{path}: expected {count} rows, got {number}: restore the file.")

    def write_requests(
        self, lines: Iterable[str], *, first: int, limits: BatchLimits
    ) -> tuple[BatchPart, ...]:
        """Write request files, a new one whenever the next line would not fit.

        Parameters
        ----------
        lines : iterable of str
            Requests, without line ends.
        first : int
            Number of the first file.
        limits : BatchLimits
            How large a file may be.

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
                    parts.append(BatchPart(number=first + len(parts), requests=0))
                    file = files.enter_context(self.requests(parts[-1]).open("wb"))
                    size = 0
                file.write(data)
                size += len(data)
                parts[-1] = replace(parts[-1], requests=parts[-1].requests + 1)
        return tuple(parts)

    def asked_rows(self, part: BatchPart) -> Iterator[tuple[int, str]]:
        """Yield the rows a part asks about, with their requests.

        Raises
        ------
        StateError
            The request file cannot be read.
        """
        path = self.requests(part)
        try:
            with path.open(encoding="utf-8") as file:
                for line in file:
                    yield _named_row(line), line.rstrip("\n")
        except (OSError, ValueError, IndexError) as error:
            raise StateError(f"{path}: not readable ({error!r:.200}): restore the file.") from error

    def _check_foreign(self) -> None:
        """Refuse files that are not ours; what a start that was cut off left behind is written anew."""
        ours = ["batch-requests-", f".{BATCH}."]
        if (self.path / _ROWS).exists():  # which is written first
            ours += [_ROWS, HEAD, LABEL_PRIOR, f".{HEAD}.", f".{LABEL_PRIOR}."]
        for found in self.path.iterdir():
            if not found.name.startswith(tuple(ours)):
                raise StateError(
                    f"{self.path}: expected an empty directory or an earlier run, got {found.name}: choose another."
                )


def _named_row(line: str) -> int:
    """Return the row of a request; its name is the first value of the line, as we write it."""
    row = row_of(line.split('"', 4)[3])
    if row is None:
        raise ValueError(line[:40])
    return row


def _part(record: dict[str, Any]) -> BatchPart:
    known = {entry.name for entry in fields(BatchPart)}
    if not set(record) <= known:
        raise ValueError(sorted(set(record) - known))
    return BatchPart(**{**record, "errors": tuple(record.get("errors", ()))})
