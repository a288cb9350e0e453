"""Tests of folders of runs: manifests, locks, rescue and journals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import CalibrantError, Example, Outcome, Prediction, StateError
from calibrant.runs._directory import (
    RunDirectory,
    check_manifest,
    locked_folder,
    make_folder,
    read_manifest,
    rescue_if_lost,
    write_json,
)
from calibrant.runs._journal import JsonlStore, PredictionJournal
from calibrant.runs._rows import StoredRow, row_line
from calibrant.runs._shards import blocks_of

FOUND: dict[str, object] = {"schema_version": 1, "prompt": "Which?", "model": "fake"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run."""
    write_json(tmp_path / "run.json", FOUND)
    return tmp_path


def check(folder: Path, record: dict[str, object], *, has_rows: bool = True, **options: Any) -> bool:
    """Compare a record with the one in the folder."""
    return check_manifest(folder, record, kind="a run", has_rows=has_rows, **options)


def test_unchanged_runs_continue(folder: Path) -> None:
    """A folder with the same record is continued."""
    assert check(folder, FOUND)
    assert not check(folder, FOUND, has_rows=False)
    assert read_manifest(folder) == FOUND


@pytest.mark.parametrize("changed", [{"prompt": "What?"}, {"seed": 1}, {"model": None}])
def test_changed_runs_are_errors(folder: Path, changed: dict[str, object]) -> None:
    """A new, changed or missing value raises StateError with its name, if the folder has rows."""
    (name,) = changed
    with pytest.raises(StateError, match=f"holds a run that differs in {name} .*: choose a new directory"):
        check(folder, FOUND | changed)
    assert not check(folder, FOUND | changed, has_rows=False)


def test_ignored_keys_are_not_compared(folder: Path) -> None:
    """Ignored keys are not compared."""
    assert check(folder, {**FOUND, "data": 3}, ignored=("data",))


def test_foreign_files_are_errors(tmp_path: Path) -> None:
    """Files of something else raise StateError, hidden files do not."""
    (tmp_path / ".hidden").touch()
    assert not check(tmp_path, FOUND, has_rows=False)
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(StateError, match="expected an empty directory or an earlier run, got other files"):
        check(tmp_path, FOUND, has_rows=False)


def test_damaged_manifests_are_errors(folder: Path) -> None:
    """A damaged manifest is an error with the file's name."""
    (folder / "run.json").write_text("[")
    with pytest.raises(StateError, match=r"run\.json: expected a JSON object"):
        check(folder, FOUND)


def test_files_are_no_folders(tmp_path: Path) -> None:
    """A file in the place of the folder raises StateError and is left alone."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StateError, match="expected a directory for the run, got a file"):
        make_folder(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(StateError, match=r"cannot be written .*: choose another directory"):
        make_folder(tmp_path / "file" / "run")


def test_one_process_holds_the_folder(tmp_path: Path) -> None:
    """One process holds the lock during the block, and no file is left."""
    with locked_folder(tmp_path, "busy"):
        with pytest.raises(StateError, match="busy"), locked_folder(tmp_path, "busy"):
            pytest.fail("was locked twice")
        assert list(tmp_path.iterdir()) == []
    with locked_folder(tmp_path, "busy"):
        pass


def test_evaluations_lock_their_directory(tmp_path: Path) -> None:
    """A second evaluation raises StateError while the first one runs."""
    path = tmp_path / "run"
    with RunDirectory.opened(path, FOUND):
        with pytest.raises(StateError, match="another process"), RunDirectory.opened(path, FOUND):
            pytest.fail("was opened twice")
        assert json.loads((path / "run.json").read_text()) == FOUND
    with RunDirectory.opened(path, FOUND) as again:
        assert again.in_place


def test_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    """Leftover temporary files of the directory's own files are removed, other files are not."""
    for name in (".run.json.0123abcd.tmp", ".predictions.jsonl.0123abcd.tmp", ".mine.0123abcd.tmp"):
        (tmp_path / name).touch()
    with RunDirectory.opened(tmp_path, FOUND):
        assert {path.name for path in tmp_path.iterdir()} == {".lock", ".mine.0123abcd.tmp", "run.json"}


def test_lost_files_raise_the_rescue() -> None:
    """If files were moved, the rescue is raised at the end of the block or instead of its error."""
    lost = CalibrantError("rescued")
    with rescue_if_lost(lambda: True, lambda: lost):
        pass
    with pytest.raises(CalibrantError, match="rescued"), rescue_if_lost(lambda: False, lambda: lost):
        pass
    with (
        pytest.raises(CalibrantError, match="rescued") as caught,
        rescue_if_lost(lambda: False, lambda: lost),
    ):
        raise OSError("gone")
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(OSError, match="full"), rescue_if_lost(lambda: True, lambda: lost):
        raise OSError("full")


def test_moved_directories_are_rescued_beside(tmp_path: Path) -> None:
    """A moved directory's manifest is copied beside it, and the run continues there."""
    with RunDirectory.opened(tmp_path / "run", FOUND) as directory:
        (tmp_path / "run").rename(tmp_path / "elsewhere")
        assert not directory.in_place
        rescue = directory.rescued()
    assert rescue.path == tmp_path / "run.rescued"
    assert json.loads(rescue.run.read_text()) == FOUND


@pytest.mark.parametrize(
    ("text", "outcome", "expected"),
    [
        ("a", Outcome.OK, (True, True)),
        ("a", Outcome.UNPARSED, (True, True)),
        ("a", Outcome.ERROR, (True, False)),
        ("b", Outcome.OK, (False, True)),
    ],
)
def test_stored_rows_are_resumed(text: str, outcome: Outcome, expected: tuple[bool, bool]) -> None:
    """A stored row of the same text is finished, unless it has a transport error."""
    label = "cat" if outcome is Outcome.OK else None
    line = row_line(0, Example(input="a", answer="cat"), Prediction(label=label, outcome=outcome))
    row = StoredRow.read(line, Example(input=text, answer="cat"))
    assert (row.is_same, row.is_finished) == expected
    assert not StoredRow.read(line, None).is_same


def test_blocks_keep_the_places_of_rows() -> None:
    """Blocks hold consecutive rows with their places, and the last block is shorter."""
    rows = [Example(input=text, answer="x") for text in "abcde"]
    found = [(number, [place for place, _ in block]) for number, block in blocks_of(rows, 2)]
    assert found == [(0, [0, 1]), (1, [2, 3]), (2, [4])]


def test_journals_keep_entries(tmp_path: Path) -> None:
    """A torn last line of a journal is dropped, and a moved journal keeps all entries."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"key": "a", "value": 1}\n{"key": "b", "va')
    with JsonlStore(path) as journal:
        journal.put("c", 3)
        assert (journal.get("a"), journal.get("b"), journal.get("c"), len(journal)) == (1, None, 3, 2)
        path.rename(tmp_path / "moved")
        assert not journal.in_place
        (tmp_path / "rescue").mkdir()
        journal.copy_to(tmp_path / "rescue")
    with JsonlStore(tmp_path / "rescue" / path.name) as journal:
        assert (journal.get("a"), journal.get("c")) == (1, 3)


def test_prediction_journals_have_a_length() -> None:
    """The length is the number of keys."""
    journal = PredictionJournal(JsonlStore(None))
    assert len(journal) == 0
    for key in ("a", "b", "a"):
        journal.put(key, Prediction(label="x"))
    assert len(journal) == 2
