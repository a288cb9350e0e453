"""Shards: one file for each block of rows, whole or not there; together they are a run."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from calibrant.core._errors import StateError
from calibrant.core._files import atomic_bytes_writer, write_atomically
from calibrant.core._rows import Example
from calibrant.runs._records import RowCounter, StoredRow

_DIGITS: Final = 9  # their names sort like their numbers


@dataclass(kw_only=True)
class FinishedBlocks:
    """The rows that earlier sessions finished.

    Attributes
    ----------
    rows : int
        Rows that are finished; those that failed for the server's reasons are not.
    done : set of int
        Blocks of which every row is finished.
    kept : dict of int to frozenset of int
        Of the other blocks that are begun, the places of the rows that are finished.
    """

    rows: int = 0
    done: set[int] = field(default_factory=set)
    kept: dict[int, frozenset[int]] = field(default_factory=dict)


class Shards:
    """The rows of a run on disk, by block.

    Parameters
    ----------
    folder : Path
        Where the files are.
    block_rows : int
        Rows of a block.
    """

    def __init__(self, folder: Path, block_rows: int) -> None:
        self._folder = folder
        self._block_rows = block_rows

    def recover(self, examples: Iterable[Example], tally: RowCounter) -> FinishedBlocks:
        """Count the rows that are finished, and find out which are not.

        Raises
        ------
        StateError
            A file is damaged, or belongs to another input.
        """
        found = FinishedBlocks()
        present = {path.name for path in self._folder.glob("*.jsonl")}
        if not present:
            return found  # without reading the input
        for number, block in blocks_of(examples, self._block_rows):
            path = self._path(number)
            if path.name not in present:
                continue
            present.remove(path.name)
            finished = set()
            for index, line in self._lines(path).items():
                if _counted(path, line, block, index, tally):
                    finished.add(index)
            found.rows += len(finished)
            if len(finished) == len(block):
                found.done.add(number)
            else:
                found.kept[number] = frozenset(finished)
        if present:
            raise _too_long(self._folder / min(present))
        return found

    def count_finished(self, path: Path, examples: Iterable[Example], tally: RowCounter) -> bool:
        """Count the rows of a finished run by its one file; False where some are to be asked again.

        Raises
        ------
        StateError
            The file is damaged, or belongs to another input.
        """
        whole = True
        with path.open("rb") as file:
            for _, block in blocks_of(examples, self._block_rows):
                for index, _ in block:
                    line = file.readline()
                    if not line:
                        return False  # the input has grown
                    whole = _counted(path, line, block, index, tally) and whole
            if file.readline():
                raise _too_long(path)
        return whole

    def split(self, path: Path) -> None:
        """Write the rows of a finished run to a file for each block again.

        Raises
        ------
        StateError
            They cannot be written.
        """
        with path.open("rb") as file:
            for number in itertools.count():
                lines = b"".join(itertools.islice(file, self._block_rows))
                if not lines:
                    return
                self.add(number, lines)

    def remove(self) -> None:
        """Remove the files: all, or none that would be taken for a part of a run."""
        gone = self._folder.with_name(f".{self._folder.name}.old")
        for folder in (gone, self._folder):
            if folder.exists():
                if folder is not gone:
                    folder.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)

    def add(self, number: int, lines: bytes) -> None:
        """Put the rows of a block on disk, in the places of earlier ones with the same index.

        Raises
        ------
        StateError
            The file cannot be written.
        """
        path = self._path(number)
        rows = self._lines(path) if path.exists() else {}
        rows |= {int(json.loads(line)["index"]): line for line in lines.splitlines(keepends=True)}
        try:
            self._folder.mkdir(exist_ok=True)
            write_atomically(path, b"".join(rows[index] for index in sorted(rows)).decode())
        except OSError as error:
            raise _unwritable(path, error) from error

    def lines(self) -> Iterator[bytes]:
        """Yield all rows in the order of the input."""
        for path in sorted(self._folder.glob("*.jsonl")):
            yield from self._lines(path).values()

    def join(self, path: Path) -> None:
        """Write all rows to one file, which is whole or not there.

        Raises
        ------
        StateError
            It cannot be written.
        """
        try:
            with atomic_bytes_writer(path) as file:
                file.writelines(self.lines())
        except OSError as error:
            raise _unwritable(path, error) from error

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:0{_DIGITS}d}.jsonl"

    def _lines(self, path: Path) -> dict[int, bytes]:
        try:
            lines = path.read_bytes().splitlines(keepends=True)
            rows = {int(json.loads(line)["index"]): line for line in lines}
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise _damaged(path, error) from error
        if len(rows) != len(lines) or list(rows) != sorted(rows):
            raise _damaged(path, ValueError("a row twice, or out of order"))
        return rows


def _counted(
    path: Path, line: bytes, block: list[tuple[int, Example]], index: int, tally: RowCounter
) -> bool:
    """Count a row and return True, or return False where it is to be asked again."""
    place = index - block[0][0]
    try:
        row = StoredRow.read(line, block[place][1] if 0 <= place < len(block) else None)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    if not row.is_same:
        raise StateError(
            f"{path}: row {index + 1} was evaluated on another text, answer or context than the input has now: choose "
            "a new directory, or restore the data."
        )
    if row.is_finished:
        tally.add_record(row.record)
    return row.is_finished


def blocks_of(examples: Iterable[Example], size: int) -> Iterator[tuple[int, list[tuple[int, Example]]]]:
    """Yield number and rows of one block after the other; every row with its place in the input."""
    rows = iter(enumerate(examples))
    number = 0
    while block := list(itertools.islice(rows, size)):
        yield number, block
        number += 1


def _too_long(path: Path) -> StateError:
    return StateError(
        f"{path}: holds rows beyond the end of the input: choose a new directory, or evaluate as many rows as before."
    )


def _unwritable(path: Path, error: OSError) -> StateError:
    reason = error.strerror or error
    return StateError(f"{path}: cannot be written ({reason}): make room, and run the same command again.")


def _damaged(path: Path, error: Exception) -> StateError:
    return StateError(
        f"{path}: expected the rows of a block, got something else ({error}): delete the file, and its rows are "
        "asked again."
    )
