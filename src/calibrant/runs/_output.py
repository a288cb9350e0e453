"""``predictions.jsonl``: written in order and in batches, readable after a kill at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Final

from calibrant.core._errors import StateError
from calibrant.core._files import is_in_place
from calibrant.core._prediction import Prediction
from calibrant.core._rows import Example
from calibrant.runs._directory import RunDirectory, to_keep_answers, unwritable, while_writing
from calibrant.runs._rows import CountRow, StoredRow, record_line, row_lines, row_record

_BATCH: Final = 256  # rows
_SECONDS: Final = 0.2  # between writes


class PredictionsFile:
    """Writer of ``predictions.jsonl``, which also continues the file of an earlier session.

    Rows that failed in an earlier session are answered again. As a file cannot change in its middle, a
    new one is then written beside it, and takes its place at the end.

    Parameters
    ----------
    directory : RunDirectory
        The run's directory; an earlier part of the run may be there.
    count : callable
        Called with every row that has its final prediction.
    """

    def __init__(self, directory: RunDirectory, count: CountRow) -> None:
        self._directory = directory
        self._path = path = directory.predictions
        self._count = count
        self._new = path.with_name(f".{path.name}.new")
        self._file: IO[bytes] | None = None
        self._old: IO[bytes] | None = None
        self._copied = 0
        self._queued: list[tuple[int, Example, Prediction]] = []
        self._lines: list[bytes] = []
        self._written = time.monotonic()
        self._end = 0
        self._failure: StateError | None = None
        self.rows = 0
        self.failed = array("q")

    def recover(self, examples: Iterable[Example]) -> None:
        """Read the stored rows; set `rows` to their number and `failed` to those to retry.

        Parameters
        ----------
        examples : iterable of Example
            The input, from its first row.

        Raises
        ------
        StateError
            A line is damaged or out of order, or belongs to another input.
        """
        if not self._path.exists():
            return
        rows = iter(examples)
        for line in row_lines(self._path):
            if not line.endswith(b"\n"):
                break  # cut off by a kill
            self._recover(line, next(rows, None))
            self._end += len(line)

    def _recover(self, line: bytes, example: Example | None) -> None:
        number = self.rows + 1
        try:
            row = StoredRow.read(line, example)
            index = row.record["index"]
            if row.is_same and row.is_finished:
                self._count(row.record)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise StateError(
                f"{self._path}:{number}: expected the line of a row, got one that does not fit ({error}): "
                "choose a new directory, or restore the file."
            ) from error
        if index != self.rows:
            raise StateError(
                f"{self._path}:{number}: expected the row with index {self.rows}, got index {index!r:.40}: choose a "
                "new directory, or restore the file."
            )
        if example is None:
            raise StateError(
                f"{self._path}: holds more rows than the {self.rows:,} that the input has now: "
                f"{to_keep_answers(self._directory.path)}"
            )
        if not row.is_same:
            raise StateError(
                f"{self._path}:{number}: was evaluated on another text, answer or context than row {number} of the "
                f"input has now: {to_keep_answers(self._directory.path)}"
            )
        if not row.is_finished:
            self.failed.append(self.rows)
        self.rows += 1

    def is_finished(self, index: int) -> bool:
        """Return True if the row at `index` has its final answer."""
        if index >= self.rows:
            return False
        place = bisect_left(self.failed, index)
        return place == len(self.failed) or self.failed[place] != index

    def open(self) -> None:
        """Open the file for writing.

        Raises
        ------
        StateError
            The file cannot be written.
        """
        with while_writing(self._path):
            self._new.unlink(missing_ok=True)  # left by a kill
            if self.failed:
                self._old = self._path.open("rb")
                self._file = self._new.open("wb")
            else:
                self._file = self._path.open("ab")
                self._file.truncate(self._end)
                self._copied = self.rows

    def add(self, index: int, example: Example, prediction: Prediction) -> None:
        """Queue a row, to be written with the next batch.

        Raises
        ------
        StateError
            The file cannot be written.
        """
        if self._failure is not None:
            raise self._failure  # a batch is missing: nothing may follow it
        if self._file is None:
            return  # closed meanwhile: the row is answered again, or known to the cache
        self._copy(index)
        if self._old is not None and index < self.rows:
            self._old.readline()
            self._copied += 1
        self._queued.append((index, example, prediction))
        if len(self._queued) >= _BATCH or time.monotonic() - self._written >= _SECONDS:
            self.flush()

    def flush(self) -> None:
        """Count and write the queued rows."""
        self._written = time.monotonic()
        self._encode()
        lines = self._lines
        self._lines = []
        if lines:
            self._write(b"".join(lines))

    def _encode(self) -> None:
        """Count the queued rows and make lines of them.

        Together, because one at a time, between the calls of other rows, each takes two to three times as long.
        """
        for index, example, prediction in self._queued:
            record = row_record(index, example, prediction)
            self._lines.append(record_line(record))
            self._count(record)
        self._queued.clear()

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            self._failure = unwritable(self._path, error)
            raise self._failure from error

    def _copy(self, until: int) -> None:
        """Copy the lines before row `until` from the old file, failed rows included."""
        if self._old is None:
            return
        self._encode()  # they are before the lines copied now
        while self._copied < min(until, self.rows):
            line = self._old.readline()
            if not self.is_finished(self._copied):
                self._count(json.loads(line))
            self._lines.append(line)
            self._copied += 1
            if len(self._lines) >= _BATCH:
                self.flush()

    def close(self) -> None:
        """Write the queued rows, move a new file into place, and close. Closing again does nothing.

        Raises
        ------
        StateError
            The file cannot be written; what it was before a new one was begun stays.
        CalibrantError
            The file was moved or removed by somebody.
        """
        file = self._file
        if file is None:
            return
        try:
            with while_writing(self._path):
                if self._failure is not None:
                    raise self._failure
                self._copy(self.rows)
                self.flush()
                os.fsync(file.fileno())
                if not is_in_place(file.fileno(), self._path if self._old is None else self._new):
                    raise self._directory.lost()
                if self._old is not None:
                    self._new.replace(self._path)
        finally:
            self._file = None
            for opened in filter(None, (file, self._old)):
                with contextlib.suppress(OSError):
                    opened.close()


class PaidRows:
    """``paid.jsonl``: the calls that each answered row took, noted at once.

    ``predictions.jsonl`` gets rows in order and in batches. After a kill the others come from the journal or the cache,
    which do not know whether this run paid for them.

    Parameters
    ----------
    path : Path
        The file; that of an earlier session is continued.
    is_finished : callable
        Tells of a row's index whether predictions.jsonl has its final answer: such a row needs no calls restored.

    Raises
    ------
    StateError
        It cannot be written.
    """

    def __init__(self, path: Path, *, is_finished: Callable[[int], bool]) -> None:
        self._earlier: dict[int, list[int]] = {}
        self._under_way: dict[int, list[int]] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):  # a line cut off by a kill
                    index, *attempts = json.loads(line)
                    if not is_finished(index):
                        self._earlier[index] = attempts
        with while_writing(path):
            self._file = path.open("ab", buffering=0)
            self._file.write(b"\n")  # after such a line

    def add(self, index: int, prediction: Prediction) -> None:
        """Note the calls of a row, if it took some."""
        if not prediction.attempts:
            return
        prediction = self._restored(index, prediction)
        numbers = [index, prediction.attempts, *(step.attempts for step in prediction.steps)]
        if self._under_way.get(index) == numbers:
            return
        self._under_way[index] = numbers
        with contextlib.suppress(OSError, ValueError):  # full, or closed: the totals may lack the row
            self._file.write(f"{numbers}\n".encode())  # a list of whole numbers is spelled as in JSON

    def finished(self, index: int, prediction: Prediction) -> Prediction:
        """Note the calls of a row that nobody noted on the way; return it with those of an earlier session."""
        self.add(index, prediction)
        self._under_way.pop(index, None)
        return self._restored(index, prediction)

    def _restored(self, index: int, prediction: Prediction) -> Prediction:
        """Return a prediction with the calls that an earlier session made for what the journal or the cache had."""
        if index not in self._earlier:
            return prediction
        own, *of_steps = self._earlier[index]
        steps = tuple(
            replace(step, attempts=step.attempts or calls)
            for step, calls in zip(prediction.steps, chain(of_steps, repeat(0)), strict=False)
        )
        attempts = sum(step.attempts for step in steps) if steps else prediction.attempts or own
        return replace(prediction, attempts=attempts, steps=steps)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
