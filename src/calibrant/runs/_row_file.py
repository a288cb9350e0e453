"""The reader of ``predictions.jsonl``: rows in order, in little memory, and single rows again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from calibrant.core._errors import DataError, StateError
from calibrant.core._run_rows import RunRow


class RowFile:
    """The rows of a run on disk.

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
        """Yield the lines, unread.

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
        """Yield each row, checked, behind the place in bytes where its line begins.

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
        """Yield the records whose lines begin at these places, in that order."""
        with self.path.open("rb") as file:
            for offset in offsets:
                file.seek(offset)
                yield json.loads(file.readline())

    def broken(self, error: Exception, *, line: int | None = None) -> DataError:
        """Return the error for a line that does not fit."""
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
        It is no JSON object, or not of a row.
    """
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, got {record!r:.40}")  # noqa: TRY004 (one error for all lines)
    return RunRow.checked(record)
