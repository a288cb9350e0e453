"""Tests of the one loader: a task file, a bundle or the directory of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundle_runs import run
from calibrant.core import ConfigurationError, DataError, StateError
from calibrant.evaluation import calibrate_predictions
from calibrant.runs import SavedRows
from calibrant.tuned import Tuned, load

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


def test_rows_of_a_run_are_read_for_its_figures_alone(evaluated: Path, tmp_path: Path) -> None:
    """A run whose later rows are broken is opened and labels texts; its figures and a bundle name the broken line."""
    path = evaluated / "predictions.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text(first + "no row\n" * len(others))
    tuned = Tuned.from_run(evaluated)
    with tuned.open() as classifier:
        assert classifier.classify("meow").label == "cat"
    for want in (lambda: tuned.figures, lambda: tuned.history, lambda: tuned.save(tmp_path / "bundle")):
        with pytest.raises(DataError, match=r"predictions\.jsonl:2: expected the line of a row"):
            want()
    assert not (tmp_path / "bundle").exists()
    (tmp_path / "new.csv").write_text("input\nmeow\n")
    said = run("label", evaluated, tmp_path / "new.csv", "--out", tmp_path / "labels", "--no-cache").stderr
    assert "warning: not compared with the labelled rows of the run" in " ".join(said.split())
    assert (tmp_path / "labels" / "labels.csv").read_text().count("cat") == 1


def test_load_takes_what_commands_take(task: Path, evaluated: Path, tmp_path: Path) -> None:
    """`load` opens a bundle, a run and a task file; a task file has its own options."""
    Tuned.from_run(evaluated).save(tmp_path / "bundle")
    for path in (tmp_path / "bundle", evaluated, task):
        with load(path) as classifier:
            assert classifier.classify("meow").label == "cat"
    with pytest.raises(
        ConfigurationError, match="Expected options and router_state for a bundle or a run alone"
    ):
        load(task, options={"api_key": "k"})


def test_a_report_says_what_it_takes(task: Path, evaluated: Path, tmp_path: Path) -> None:
    """A report of a bundle or a file, of a task or of predictions, is refused; so is anything that is no source."""
    Tuned.from_run(evaluated).save(tmp_path / "bundle")
    bundle = (tmp_path / "bundle", "a bundle, which holds no predictions")
    for path, got in ((task, "a file"), (evaluated / "predictions.jsonl", "a file"), bundle):
        said = " ".join(run("report", path, code=2).stderr.split())
        assert f"expected the directory of a run, got {got}: name the run's directory." in said
    said = " ".join(run("report", tmp_path / "nowhere", code=2).stderr.split())
    assert "expected a task file, a bundle or the directory of a run, got nothing" in said
    run("report", evaluated, "--out", tmp_path / "report.html")


def test_a_bundle_is_not_exported_again(evaluated: Path, tmp_path: Path) -> None:
    """It is one already, and a folder like others."""
    Tuned.from_run(evaluated).save(tmp_path / "bundle")
    said = " ".join(run("export", tmp_path / "bundle", "--out", tmp_path / "again", code=2).stderr.split())
    assert (
        "expected the directory of a run, got a bundle, which is exported already: copy the folder." in said
    )


def test_a_calibration_holds_the_tuned_classifier(
    write_task: Callable[..., Path], opened: dict[str, Any], tmp_path: Path
) -> None:
    """A calibration of a run's rows holds what is read from the run once the calibration is written into it."""
    rows = [{"input": f"{n} meow", "answer": "dog" if n % 10 == 0 else "cat"} for n in range(60)]
    run(
        "evaluate",
        write_task(extra='[model]\nname = "small"\n', test=rows),
        "--out",
        tmp_path / "run",
        "--no-cache",
    )
    result = calibrate_predictions(SavedRows.load(tmp_path / "run"), target_accuracy=0.5)
    tuned = result.tuned
    assert opened
    assert (tuned.calibrator, tuned.rule[0]) == (result.calibrator, "certified")
    assert not (tmp_path / "run" / "calibration.json").exists()
    result.write(tmp_path / "run")
    written = Tuned.from_run(tmp_path / "run")
    assert (tuned.thresholds, tuned.figures) == (written.thresholds, written.figures)
    assert any(figure.name.startswith("Brier score, calibrated") for figure in tuned.figures)
