"""Tests of jobs at a provider's batch interface that are exported as bundles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import calibrant
from calibrant.cli import app
from calibrant.core import StateError
from calibrant.runs import SavedRows
from calibrant.tuned import Tuned

WriteTask = Callable[..., Path]
MODEL = '\n[model]\nname = "openai/tiny"\n[model.options]\nseed = 3\n'
ROWS = [
    {"input": f"{n} {'meow' if n % 3 else 'woof'}", "answer": "cat" if n % 4 else "dog"} for n in range(40)
]


def run(*arguments: object) -> None:
    """Run a command that succeeds."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output


@pytest.fixture
def task(server: Any, write_task: WriteTask) -> Path:
    """Return a task whose jobs end at once."""
    server.states = ["completed"]
    return write_task(extra=MODEL, test=ROWS)


def collected(task: Path, out: Path, *options: object) -> Path:
    """Return the directory of a job that was collected."""
    run("batch", "submit", task, "--out", out, *options)
    run("batch", "collect", out)
    return out


def test_a_job_is_exported_and_predicts_what_it_predicted(task: Path, tmp_path: Path) -> None:
    """A job is exported with and without its task file, and the bundle predicts the job's rows."""
    job = collected(task, tmp_path / "job")
    bundle = Tuned.from_run(job).save(tmp_path / "bundle")
    assert Tuned.from_run(job, task=task).save(tmp_path / "again").digest == bundle.digest
    rows = [json.loads(line) for line in (job / "predictions.jsonl").read_text().splitlines()]
    accuracy = {figure.name: figure for figure in bundle.figures}["accuracy, all rows"]
    assert (accuracy.estimate, accuracy.rows) == (sum(row["correct"] for row in rows) / 40, 40)
    classifier = calibrant.load(tmp_path / "bundle")
    found = classifier.classify_many([row["input"] for row in rows])
    classifier.close()
    assert [(one.label, one.confidence) for one in found] == [
        (row["label"], row["confidence"]) for row in rows
    ]


def test_a_calibrated_job_brings_its_calibrator(task: Path, tmp_path: Path) -> None:
    """The bundle of a calibrated job has the job's calibrator."""
    job = collected(task, tmp_path / "job")
    run("calibrate", job, "--out", job)
    assert Tuned.load(Tuned.from_run(job).save(tmp_path / "bundle").path).calibrator is not None


def test_another_prompt_is_the_one_that_was_submitted(task: Path, tmp_path: Path) -> None:
    """The bundle has the submitted prompt; a task file with other options raises StateError."""
    (tmp_path / "prompt.txt").write_text("Say which.")
    job = collected(task, tmp_path / "job", "--prompt", tmp_path / "prompt.txt")
    assert Tuned.from_run(job).save(tmp_path / "bundle").prompt == "Say which."
    assert Tuned.from_run(job, task=task).save(tmp_path / "again").prompt == "Say which."
    text = task.read_text()
    task.write_text(text.replace("seed = 3", "seed = 4"))
    with pytest.raises(StateError, match="options of the model"):
        Tuned.from_run(job, task=task).save(tmp_path / "other")


def test_a_job_without_its_description_says_so(task: Path, tmp_path: Path) -> None:
    """A job without its description raises StateError when it is read or exported."""
    job = collected(task, tmp_path / "job")
    record = json.loads((job / "batch.json").read_text())
    del record["described"]
    (job / "batch.json").write_text(json.dumps(record))
    with pytest.raises(StateError, match=r"batch\.json: expected what the predictions depend on"):
        SavedRows.load(job)
    with pytest.raises(StateError, match=r"batch\.json: expected what the predictions depend on"):
        Tuned.from_run(job, task=task).save(tmp_path / "bundle")


def test_a_job_that_is_not_collected_is_no_run(task: Path, tmp_path: Path) -> None:
    """Exporting a job that is not collected raises StateError."""
    run("batch", "submit", task, "--out", tmp_path / "job")
    with pytest.raises(StateError, match=r"predictions\.jsonl: expected the predictions of a run"):
        Tuned.from_run(tmp_path / "job").save(tmp_path / "bundle")
