"""Tests of stored artefacts: they are read, repeated without a call, and refused if their version is another."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import calibrant
from calibrant.runs import SavedRows
from calibrant.testing import FakeClient
from stored_files import NAME, PLANNED, SEARCH, SMALL, STORED, make, run, stored_models

Models = dict[str, FakeClient]
RUNS = ["evaluation", "cascade", "fields", "planned", "search", "job"]


@pytest.fixture
def models() -> Iterator[Models]:
    """Open the models that answered when the artefacts were made."""
    with stored_models() as found:
        yield found


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the artefacts, as the current directory."""
    directory = shutil.copytree(STORED, tmp_path / "stored")
    monkeypatch.chdir(directory)
    return directory


def rows(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of a run as written."""
    text = (directory / "predictions.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def answers(directory: Path) -> list[tuple[Any, ...]]:
    """Return what the rows of a run were answered, without what differs from session to session."""
    names = ("input", "label", "confidence", "accepted", "parts")
    return [tuple(row.get(name) for name in names) for row in rows(directory)]


def calls(models: Models) -> int:
    """Return the number of calls to all models."""
    return sum(len(client.requests) for client in models.values())


@pytest.mark.parametrize(
    ("directory", "command"),
    [
        ("evaluation", ("evaluate", "task.toml")),
        ("cascade", ("evaluate", "cascade.toml")),
        ("fields", ("evaluate", "fields.toml")),
        ("planned", ("cascade", "run", "plan", "task.toml", *PLANNED)),
        ("search", ("optimize", "task.toml", *SEARCH)),
    ],
)
def test_finished_runs_ask_nothing_again(
    models: Models, stored: Path, directory: str, command: tuple[object, ...]
) -> None:
    """A finished run is repeated without a call, and its answers stay the same."""
    before = answers(stored / directory)
    run(*command, "--out", directory)
    assert calls(models) == 0
    assert answers(stored / directory) == before


def test_shortened_runs_ask_the_missing_rows(models: Models, stored: Path) -> None:
    """A cascade's run without its last rows asks only those, and ends with the same answers."""
    path = stored / "cascade" / "predictions.jsonl"
    before = answers(stored / "cascade")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:17]) + lines[17][:50])
    (stored / "cascade" / "metrics.json").unlink()
    run("evaluate", "cascade.toml", "--out", "cascade", "--no-cache")
    assert len(models[SMALL].requests) == len(lines) - 17
    assert answers(stored / "cascade") == before


@pytest.mark.parametrize("directory", RUNS)
def test_predictions_have_their_fingerprint(stored: Path, directory: str) -> None:
    """Predictions load with the model and the labels of their run."""
    found = SavedRows.load(stored / directory)
    assert len(found) > 0
    assert found.fingerprint is not None


@pytest.mark.usefixtures("models")
def test_bundles_predict_what_their_runs_predicted(stored: Path) -> None:
    """A bundle gives the labels and confidences of the rows it was exported with."""
    final = [row for row in rows(stored / "search") if row["prompt"] == "final"]
    for name, expected in (("bundle", rows(stored / "evaluation")), ("bundle-of-search", final)):
        with calibrant.load(stored / name) as classifier:
            found = classifier.classify_many([row["input"] for row in expected])
        assert [one.label for one in found] == [row["label"] for row in expected]
        assert [one.confidence for one in found] == pytest.approx([row["confidence"] for row in expected])


@pytest.mark.usefixtures("stored")
def test_caches_answer_without_the_model(models: Models) -> None:
    """The stored cache answers all rows without a call."""
    run("evaluate", "task.toml", "--out", "fresh", "--cache", "cache.sqlite")
    assert calls(models) == 0


@pytest.mark.usefixtures("stored")
def test_databases_of_scores_and_routers_are_read() -> None:
    """The stored history holds the scores of the run, and router state the calls of both providers."""
    listed = json.loads(run("history", "list", "--history", "history.sqlite", "--json").stdout)
    assert [entry["scores"] for entry in listed] == [24, 24]
    found = json.loads(run("router", "stats", "--state", "router.sqlite", "--json").stdout)
    assert sum(one["observations"] for one in found["records"][0]["providers"]) == 24


def test_plans_are_replayed(stored: Path) -> None:
    """A replay of the stored plan has the accuracy of the run of the plan."""
    found = json.loads(run("cascade", "replay", "plan", "small", "large", "--json").stdout)
    right = [row["label"] == row["answer"] for row in rows(stored / "planned")]
    assert found["accuracy"]["estimate"] == pytest.approx(sum(right) / len(right))


@pytest.mark.usefixtures("stored")
def test_runs_serve_every_later_command(models: Models) -> None:
    """Stored runs are reported, compared, calibrated and exported without a call."""
    for command in (
        ("report", "evaluation", "search", "--out", "report.html"),
        ("compare", "evaluation", "small"),
        ("calibrate", "evaluation", "--out", "again"),
        ("export", "evaluation", "--out", "exported"),
        ("cascade", "replay", "plan", "small", "large"),
        ("batch", "collect", "job"),
    ):
        run(*command)
    assert calls(models) == 0


JSON_FILES = [
    ("evaluation/run.json", ("evaluate", "task.toml", "--out", "evaluation")),
    ("evaluation/metrics.json", ("report", "evaluation", "--out", "report.html")),
    ("evaluation/calibration.json", ("export", "evaluation", "--out", "exported")),
    ("evaluation/calibrator.json", ("export", "evaluation", "--out", "exported")),
    ("evaluation/task.json", ("export", "evaluation", "--out", "exported")),
    ("search/run.json", ("optimize", "task.toml", *SEARCH, "--out", "search")),
    ("search/result.json", ("report", "search", "--out", "report.html")),
    ("search/result.json", ("calibrate", "search", "--out", "again")),
    ("search/head.json", ("export", "search", "--out", "exported")),
    ("bundle/manifest.json", ("label", "bundle", "test.jsonl", "--out", "labelled")),
    ("plan/plan.json", ("cascade", "replay", "plan", "small", "large")),
    ("job/batch.json", ("batch", "status", "job")),
]


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(("name", "command"), JSON_FILES)
def test_other_versions_are_refused(stored: Path, name: str, command: tuple[object, ...]) -> None:
    """A file of another version ends the command with 2: what was expected, what came, and what to do."""
    record = json.loads((stored / name).read_text())
    record["schema_version" if "schema_version" in record else "version"] = 99
    (stored / name).write_text(json.dumps(record))
    told = run(*command, code=2).stderr.replace("\n", " ")
    assert Path(name).name in told
    assert "expected " in told
    assert "version 1" in told
    assert "got 99" in told
    assert "calibrant" in told


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("cache.sqlite", ("evaluate", "task.toml", "--out", "fresh", "--cache", "cache.sqlite")),
        ("history.sqlite", ("history", "list", "--history", "history.sqlite")),
        ("router.sqlite", ("router", "stats", "--state", "router.sqlite")),
    ],
)
@pytest.mark.usefixtures("models")
def test_databases_of_other_versions_are_refused(
    stored: Path, name: str, command: tuple[object, ...]
) -> None:
    """A database of another schema version ends the command with an error, and is not written."""
    with closing(sqlite3.connect(stored / name)) as connection, connection:
        connection.execute("UPDATE calibrant_versions SET version = 99")
    told = run(*command, code=None).stderr.replace("\n", " ")
    assert f"{name}: expected" in told
    assert "schema version 1, got 99: use the calibrant that wrote it" in told


def layout(value: object) -> object:
    """Return a JSON value with the kinds of its values only: keys of objects, and the first element of lists."""
    if isinstance(value, dict):
        return {key: layout(inner) for key, inner in value.items()}
    return [layout(inner) for inner in value[:1]] if isinstance(value, list) else type(value).__name__


def layouts(directory: Path) -> dict[str, object]:
    """Return the layout of each JSON file below a directory, by its name."""
    found: dict[str, object] = {}
    for path in sorted(directory.rglob("*.json*")):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            text = text.partition("\n")[0] or "null"
        found[str(path.relative_to(directory))] = layout(json.loads(text))
    return found


def test_stored_layouts_are_those_that_are_written(tmp_path: Path) -> None:
    """Artefacts made anew have the files and the keys of the stored ones."""
    make(tmp_path / "made")
    assert layouts(tmp_path / "made") == layouts(STORED)
    assert NAME in (tmp_path / "made" / "task.toml").read_text()
