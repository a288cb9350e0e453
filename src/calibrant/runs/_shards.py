"""Shards: one file per block of rows, written atomically; together they hold the rows of a run."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from calibrant.core._errors import StateError
from calibrant.core._files import atomic_bytes_writer, write_atomically
from calibrant.core._rows import Example
from calibrant.runs._directory import while_writing
from calibrant.runs._rows import CountRow, StoredRow

_DIGITS: Final = 9  # their names sort like their numbers

FinishedRows: TypeAlias = dict[int, Collection[int]]
"""Places of the finished rows by the number of their block; rows that failed with a transport error are not in it."""


@dataclass(eq=False)
class Shards:
    """Rows of a run on disk, in one file per block.

    Attributes
    ----------
    folder : Path
        Folder of the files.
    block_rows : int
        Rows of a block.
    """

    folder: Path
    block_rows: int

    def recover(self, examples: Iterable[Example], count: CountRow) -> FinishedRows:
        """Count the finished rows and return their positions, by block.

        Raises
        ------
        StateError
            A file is damaged, or belongs to another input.
        """
        finished: FinishedRows = {}
        present = {path.name for path in self.folder.glob("*.jsonl")}
        if not present:
            return finished  # without reading the input
        for number, block in blocks_of(examples, self.block_rows):
            path = self._path(number)
            if path.name not in present:
                continue
            present.remove(path.name)
            places = [
                i for i, line in self._lines(path).items() if _count_if_finished(path, line, block, i, count)
            ]
            # A range for a whole block: a run of millions of rows travels to the workers in few bytes.
            is_whole = len(places) == len(block)
            finished[number] = range(places[0], places[-1] + 1) if is_whole else frozenset(places)
        if present:
            raise _too_long(self.folder / min(present))
        return finished

    def count_finished(self, path: Path, examples: Iterable[Example], count: CountRow) -> bool:
        """Count the rows of a run's merged file; return False if rows must be retried.

        Raises
        ------
        StateError
            The file is damaged, or belongs to another input.
        """
        whole = True
        with path.open("rb") as file:
            for _, block in blocks_of(examples, self.block_rows):
                for index, _ in block:
                    line = file.readline()
                    if not line:
                        return False  # the input has grown
                    whole = _count_if_finished(path, line, block, index, count) and whole
            if file.readline():
                raise _too_long(path)
        return whole

    def split(self, path: Path) -> None:
        """Split the merged rows of a finished run into one file per block again.

        Raises
        ------
        StateError
            They cannot be written.
        """
        with path.open("rb") as file:
            for number in itertools.count():
                lines = b"".join(itertools.islice(file, self.block_rows))
                if not lines:
                    return
                self.add(number, lines)

    def remove(self) -> None:
        """Rename, then delete the shard folder, so that an interruption leaves no partial run."""
        gone = self.folder.with_name(f".{self.folder.name}.old")
        for folder in (gone, self.folder):
            if folder.exists():
                if folder is not gone:
                    folder.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)

    def add(self, number: int, lines: bytes) -> None:
        """Write the shard of a block, replacing earlier rows of the same index.

        Raises
        ------
        StateError
            The file cannot be written.
        """
        path = self._path(number)
        rows = {}
        if path.exists():
            rows = self._lines(path)
        rows |= {int(json.loads(line)["index"]): line for line in lines.splitlines(keepends=True)}
        with while_writing(path):
            self.folder.mkdir(exist_ok=True)
            write_atomically(path, b"".join(rows[index] for index in sorted(rows)).decode())

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of all rows in input order."""
        for path in sorted(self.folder.glob("*.jsonl")):
            yield from self._lines(path).values()

    def join(self, path: Path) -> None:
        """Merge all rows into one file, atomically.

        Raises
        ------
        StateError
            The file cannot be written.
        """
        with while_writing(path), atomic_bytes_writer(path) as file:
            file.writelines(self.lines())

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:0{_DIGITS}d}.jsonl"

    def _lines(self, path: Path) -> dict[int, bytes]:
        try:
            lines = path.read_bytes().splitlines(keepends=True)
            rows = {int(json.loads(line)["index"]): line for line in lines}
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise _damage_error(path, error) from error
        if len(rows) != len(lines) or list(rows) != sorted(rows):
            raise _damage_error(path, ValueError("a row twice, or out of order"))
        return rows


def _count_if_finished(
    path: Path, line: bytes, block: list[tuple[int, Example]], index: int, count: CountRow
) -> bool:
    """Count a finished row and return True; return False for a row to retry."""
    place = index - block[0][0]
    try:
        row = StoredRow.read(line, block[place][1] if 0 <= place < len(block) else None)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damage_error(path, error) from error
    if not row.is_same:
        raise StateError(
            f"{path}: row {index + 1} was evaluated on another text, answer or context than the input has now: choose "
            "a new directory, or restore the data."
        )
    if row.is_finished:
        count(row.record)
    return row.is_finished


def blocks_of(examples: Iterable[Example], size: int) -> Iterator[tuple[int, list[tuple[int, Example]]]]:
    """Yield the number and the rows of each block, every row with its position in the input."""
    rows = iter(enumerate(examples))
    number = 0
    while block := list(itertools.islice(rows, size)):
        yield number, block
        number += 1


def _too_long(path: Path) -> StateError:
    return StateError(
        f"{path}: holds rows beyond the end of the input: choose a new directory, or evaluate as many rows as before."
    )


def _damage_error(path: Path, error: Exception) -> StateError:
    return StateError(
        f"{path}: expected the rows of a block, got something else ({error}): delete the file, and its rows are "
        "asked again."
    )
