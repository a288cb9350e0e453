"""Tests of the readers of ``predictions.jsonl``."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrant.core import DataError, Example, Outcome, Prediction, StateError
from calibrant.runs._rows import RowFile, row_line

TEXTS = ("first", "zweite Zeile: größer", "third\nwith a break")


def line(index: int) -> bytes:
    """Return the line of a row that is right."""
    example = Example(input=TEXTS[index], answer="cat")
    return row_line(index, example, Prediction(label="cat", outcome=Outcome.OK, confidence=0.5))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file of three rows."""
    path = tmp_path / "predictions.jsonl"
    path.write_bytes(b"".join(map(line, range(3))))
    return path


def test_rows_are_found_by_offset(path: Path) -> None:
    """Rows are read in order and by byte offset, with any characters in their texts."""
    file = RowFile(path)
    found = list(file.rows())
    assert [(row.index, row.input, row.correct, row.confidence) for _, row in found] == [
        (index, text, 1, 0.5) for index, text in enumerate(TEXTS)
    ]
    places = [place for place, _ in reversed(found)]
    assert [record["input"] for record in file.records_at(places)] == list(reversed(TEXTS))


def test_torn_lines_end_unfinished_runs(path: Path) -> None:
    """A torn last line ends an unfinished run, and raises an error in a finished one."""
    path.write_bytes(line(0) + line(1)[:-9])
    file = RowFile(path, finished=False)
    assert ([row.index for _, row in file.rows()], file.torn) == ([0], True)
    with pytest.raises(DataError, match=r"predictions\.jsonl:2: expected the line of a row"):
        list(RowFile(path).rows())


@pytest.mark.parametrize("broken", [b"[]\n", b'{"label": "cat"}\n', b"\n", b"[" * 100_000 + b"\n", b"\xff\n"])
def test_broken_lines_are_located(path: Path, broken: bytes) -> None:
    """A broken line raises an error with file and line, also in an unfinished run."""
    path.write_bytes(line(0) + broken + line(1))
    with pytest.raises(DataError, match=r"predictions\.jsonl:2: expected the line of a row"):
        list(RowFile(path, finished=False).rows())


def test_missing_files_are_explained(tmp_path: Path) -> None:
    """A missing file raises an error with the command that writes it."""
    with pytest.raises(
        StateError, match=r"none\.jsonl: expected the predictions of a run .*calibrant evaluate"
    ):
        list(RowFile(tmp_path / "none.jsonl").lines())
