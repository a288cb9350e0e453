"""Tests of the one loader: a task file, a bundle or the directory of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundle_runs import run
from calibrant.core import StateError, Task
from calibrant.tuned import Tuned, load
from calibrant.tuned._task_record import read_source

ROWS = [{"input": f"{n} meow", "answer": "cat"} for n in range(4)]


@pytest.fixture
def task(write_task: Callable[..., Path], opened: dict[str, Any]) -> Path:
    """Return a task file of the model called small."""
    assert opened == {}
    return write_task(extra='[model]\nname = "small"\n', test=ROWS)


@pytest.fixture
def evaluated(task: Path, tmp_path: Path) -> Path:
    """Return the directory of a run."""
    run("evaluate", task, "--out", tmp_path / "run", "--no-cache")
    return tmp_path / "run"


def everything_in(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder by path."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_reading_a_run_writes_nothing(
    evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is read, opened and classified with where nothing can be written, not even temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    before = everything_in(tmp_path)
    with Tuned.from_run(evaluated).open() as classifier:
        assert classifier.classify("meow").label == "cat"
    assert everything_in(tmp_path) == before


def test_a_run_and_its_bundle_are_one_value(evaluated: Path, tmp_path: Path) -> None:
    """What is read from a run equals what is read from its bundle, but for the folder."""
    read = Tuned.from_run(evaluated)
    saved = read.save(tmp_path / "bundle")
    for name in ("fingerprint", "thresholds", "figures", "history", "plan", "prompt_for_all"):
        assert getattr(saved, name) == getattr(read, name), name
    assert saved.task == read.task
    assert saved.save(tmp_path / "copy").digest == saved.digest
    assert (read.digest, read.path, saved.path) == (None, evaluated, tmp_path / "bundle")


def test_each_kind_of_source_is_read(task: Path, evaluated: Path, tmp_path: Path) -> None:
    """A file is a task, a bundle and a run are tuned classifiers."""
    saved = Tuned.from_run(evaluated).save(tmp_path / "bundle")
    assert isinstance(read_source(task), Task)
    for path in (evaluated, tmp_path / "bundle"):
        found = read_source(path)
        assert isinstance(found, Tuned)
        assert found.fingerprint == saved.fingerprint


@pytest.mark.parametrize("command", ["classify", "evaluate", "label", "serve"])
def test_commands_say_what_they_take(command: str, tmp_path: Path) -> None:
    """A path that is neither task file, bundle nor run is refused in one sentence by every command."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.csv").write_text("input\nmeow\n")
    more: dict[str, tuple[object, ...]] = {
        "classify": ("--text", "meow"),
        "evaluate": ("--out", tmp_path / "out"),
        "label": (tmp_path / "rows.csv", "--out", tmp_path / "out"),
        "serve": (),
    }
    for name, got in (("nowhere", "nothing"), ("empty", "a directory with neither")):
        result = run(command, tmp_path / name, *more[command], code=2)
        expected = f"expected a task file, a bundle or the directory of a run, got {got}: check the path."
        assert expected in " ".join(result.stderr.split())


def test_a_value_is_opened_without_a_folder(evaluated: Path) -> None:
    """`load` takes a value as it takes a folder."""
    with load(Tuned.from_run(evaluated)) as classifier:
        assert classifier.classify("meow").label == "cat"


def test_a_run_of_other_settings_is_refused(evaluated: Path) -> None:
    """A run whose task.json names another model raises StateError when it is read."""
    path = evaluated / "task.json"
    record = json.loads(path.read_text())
    record["tasks"][0]["model"]["name"] = "large"
    path.write_text(json.dumps(record))
    with pytest.raises(StateError, match="model \\('small' in the run, 'large' in the task\\)"):
        Tuned.from_run(evaluated)
