"""Tests of folders of runs: manifests, leftovers, resumed rows and journals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import Example, Prediction, ProviderError, StateError
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import Classifier
from calibrant.runs import JsonlStore, PredictionJournal
from calibrant.testing import FakeClient

LABELS = ["cat", "dog"]
ROWS = [Example(input="meow", answer="cat"), Example(input="woof", answer="dog")]


def evaluate(folder: Path, client: FakeClient | None = None, rows: list[Example] = ROWS) -> FakeClient:
    """Evaluate two rows into a folder, and return the model."""
    client = client or FakeClient(LABELS, {"meow": "cat", "woof": "dog"})
    classifier = Classifier(model=client, labels=LABELS, field="category", prompt="Which?")
    BatchEvaluator(classifier).evaluate(rows, out=folder)
    return client


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a finished run."""
    evaluate(tmp_path / "run")
    return tmp_path / "run"


def change(folder: Path, **changes: Any) -> None:
    """Change values of a manifest; None removes one."""
    record = json.loads((folder / "run.json").read_text()) | changes
    kept = {name: value for name, value in record.items() if value is not None}
    (folder / "run.json").write_text(json.dumps(kept))


@pytest.mark.parametrize("changes", [{"prompt": "What?"}, {"colour": 1}, {"prompt": None}])
def test_changed_runs_are_errors(folder: Path, changes: dict[str, Any]) -> None:
    """A new, changed or missing value raises StateError with its name, unless the folder has no rows."""
    (name,) = changes
    change(folder, **changes)
    with pytest.raises(StateError, match=f"that differs in {name} .*: choose a new directory"):
        evaluate(folder)
    (folder / "predictions.jsonl").unlink()
    assert len(evaluate(folder).requests) == 2


def test_unchanged_runs_continue(folder: Path) -> None:
    """A finished run is not asked again; the origin of its rows is not compared."""
    change(folder, data="elsewhere")
    assert evaluate(folder).requests == []


def test_foreign_files_are_errors(tmp_path: Path) -> None:
    """Files of something else raise StateError, hidden files do not."""
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(StateError, match="expected an empty directory or an earlier run, got other files"):
        evaluate(tmp_path)
    (tmp_path / "thesis.txt").rename(tmp_path / ".hidden")
    evaluate(tmp_path)


def test_damaged_manifests_are_errors(folder: Path) -> None:
    """A damaged manifest is an error with the file's name."""
    (folder / "run.json").write_text("[")
    with pytest.raises(StateError, match=r"run\.json: expected a JSON object"):
        evaluate(folder)


def test_files_are_no_folders(tmp_path: Path) -> None:
    """A file in the place of the folder raises StateError and is left alone."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StateError, match="expected a directory for the run, got a file"):
        evaluate(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(StateError, match=r"cannot be written .*: choose another directory"):
        evaluate(tmp_path / "file" / "run")


def test_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    """Leftover temporary files of the directory's own files are removed, other files are not."""
    for name in (".run.json.0123abcd.tmp", ".predictions.jsonl.0123abcd.tmp", ".mine.0123abcd.tmp"):
        (tmp_path / name).touch()
    evaluate(tmp_path)
    assert [path.name for path in tmp_path.glob("*.tmp")] == [".mine.0123abcd.tmp"]


def test_failed_rows_are_asked_again(tmp_path: Path) -> None:
    """A row with a transport error is asked again, one that could not be read is not; another text is an error."""
    down = ProviderError("down", provider="fake", status=400)
    evaluate(tmp_path, FakeClient(LABELS, {"meow": down, "woof": "neither"}))
    assert [request.messages[-1]["content"] for request in evaluate(tmp_path).requests] == ["meow"]
    with pytest.raises(StateError, match=r"predictions\.jsonl:2: "):
        evaluate(tmp_path, rows=[ROWS[0], Example(input="moo", answer="dog")])


def test_journals_keep_entries(tmp_path: Path) -> None:
    """A torn last line of a journal is dropped, and a moved journal keeps all entries."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"key": "a", "value": 1}\n{"key": "b", "va')
    with JsonlStore(path) as journal:
        journal.put("c", 3)
        assert (journal.get("a"), journal.get("b"), journal.get("c"), len(journal)) == (1, None, 3, 2)
        path.rename(tmp_path / "moved")
        assert not journal.in_place
    with JsonlStore(tmp_path / "moved") as journal:
        assert (journal.get("a"), journal.get("c")) == (1, 3)


def test_prediction_journals_have_a_length() -> None:
    """The length is the number of keys."""
    journal = PredictionJournal(JsonlStore(None))
    assert len(journal) == 0
    for key in ("a", "b", "a"):
        journal.put(key, Prediction(label="x"))
    assert len(journal) == 2
