"""Tests of stored evaluations and searches: they are read, repeated and continued.

``small`` and ``large`` are evaluations of ``task.toml`` with the models of these names; ``plan`` was made by
``calibrant cascade plan --key stored`` from runs of both on 400 such texts, and ``planned`` by
``calibrant cascade run`` on the test rows. ``cascade``, ``fields``, ``shown`` and ``routed`` (its first 12 rows) are
evaluations of the task files of these names; ``cascade``, ``planned`` and ``shown`` were calibrated in place, ``shown``
with ``--target-accuracy 0.6``. ``sharded`` is a run of `calibrant.distributed.evaluate` on threads, in blocks of eight
rows, that a budget of 20 calls ended. ``search-reflected`` is ``optimize("few.toml",
reflection_model=written_prompt, max_metric_calls=60, minibatch_size=3)``. ``predictions.parquet`` is that of
``calibrant evaluate task.toml --parquet``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import in_process
from calibrant.assembly import open_classifier
from calibrant.calibration import load_calibrator
from calibrant.cascade.planning._plan import CascadePlan
from calibrant.core import DataSource, LabelSet, Limits, Task
from calibrant.distributed import Cluster, evaluate
from calibrant.evaluation import Dataset
from calibrant.inference import Classifier
from calibrant.optimization import optimize
from calibrant.runs import SavedRows
from calibrant.testing import FakeClient
from stored_files import content, rows, run
from stored_model import LARGE, NAME, SMALL

Models = dict[str, FakeClient]
PLAIN = ["evaluation", "small", "large", "cascade", "planned", "fields", "shown", "routed", "job"]
PRIOR = "shown/label_prior.json"


def lines(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of a run as written."""
    text = (directory / "predictions.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def asked(models: Models) -> int:
    """Return the number of calls to all models."""
    return sum(len(client.requests) for client in models.values())


@pytest.mark.parametrize(
    ("directory", "words"),
    [
        ("small", ("task.toml", "--model", SMALL)),
        ("cascade", ("cascade.toml",)),
        ("fields", ("fields.toml",)),
        ("shown", ("shown.toml", "--label-prior", PRIOR)),
        ("routed", ("routed.toml", "--max-rows", 12)),
    ],
)
def test_a_finished_evaluation_asks_nothing_again(
    models: Models, stored: Path, directory: str, words: tuple[object, ...]
) -> None:
    """A finished evaluation of any kind is repeated without a call, and its rows stay the same."""
    before = (stored / directory / "predictions.jsonl").read_bytes()
    numbers = content(stored / directory / "metrics.json")
    run("evaluate", *words, "--out", directory, "--no-cache")
    assert asked(models) == 0
    assert (stored / directory / "predictions.jsonl").read_bytes() == before
    after = content(stored / directory / "metrics.json")
    same = ("rows", "outcomes", "correct", "accuracy", "ece", "brier", "cascade", "composite", "cost")
    assert {name: after.get(name) for name in same} == {name: numbers.get(name) for name in same}


@pytest.mark.parametrize("kept", [0, 17])
def test_a_run_that_lost_its_last_rows_goes_on(models: Models, stored: Path, kept: int) -> None:
    """A cascade's run without its last rows asks only those, and ends with the same rows."""
    path = stored / "cascade" / "predictions.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:kept]) + whole[kept][:50])
    (stored / "cascade" / "metrics.json").unlink()
    run("evaluate", "cascade.toml", "--out", "cascade", "--no-cache")
    assert len(models[SMALL].requests) == 40 - kept
    assert lasting(path.read_bytes()) == lasting(b"".join(whole))


def lasting(data: bytes) -> list[dict[str, object]]:
    """Return rows without the fields that differ from run to run, or that the stored rows lack."""
    passing = {"latency_seconds", "steps", "source"}
    rows = map(json.loads, data.splitlines())
    return [{name: row[name] for name in row if name not in passing} for row in rows]


def test_a_plan_is_carried_out_again_without_a_call(models: Models, stored: Path) -> None:
    """A finished run of a plan is repeated without a call, and its rows stay the same."""
    before = (stored / "planned" / "predictions.jsonl").read_bytes()
    run("cascade", "run", "plan", "task.toml", "--model", SMALL, "--model", LARGE, "--out", "planned")
    assert asked(models) == 0
    assert (stored / "planned" / "predictions.jsonl").read_bytes() == before


def test_a_plan_is_replayed_on_recorded_runs(stored: Path) -> None:
    """The plan's replay sends 25 of 40 rows to the large model, with the stored accuracy."""
    plan = CascadePlan.load(stored / "plan")
    assert (plan.certified, plan.key, plan.tied_confidence) == (True, "stored", 1.0)
    assert plan.tied_share == 0.539650131369772
    assert [len(rows(stored / "planned")), len(plan.frontier)] == [40, 10]
    found = json.loads(run("cascade", "replay", "plan", "small", "large", "--json").stdout)
    steps = [line["steps"] for line in lines(stored / "planned")]
    assert sum(len(one) == 2 for one in steps) == 25
    assert [share["estimate"] for share in found["shares"]] == [15 / 40, 25 / 40]
    assert found["cost"]["estimate"] == 1 + 50 * 25 / 40
    assert found["accuracy"]["estimate"] == 35 / 40


def test_the_calibrator_of_a_planned_model_divides_the_log_odds(untouched: Path) -> None:
    """The plan's calibrator divides the log-odds by its temperature, and ties have stored ranks."""
    plan = CascadePlan.load(untouched / "plan" / "plan.json")
    calibrator = plan.models[0].calibrator
    assert calibrator is not None
    assert plan.models[0].fingerprint is not None
    assert plan.models[0].fingerprint["model"] == SMALL
    p = np.array([0.55, 0.75, 0.95])
    expected = 1 / (1 + np.exp(-np.log(p / (1 - p)) / 9.825042121859104))
    assert calibrator.predict(p) == pytest.approx(expected)
    ranks = plan.policy.ranks(["a", "b", "c", "d"])
    assert ranks.tolist() == [pytest.approx([0.85049251, 0.57471862, 0.69191105, 0.58620539], abs=1e-8)]


def test_the_distributed_run_goes_on(
    models: Models, model: FakeClient, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The distributed run asks only the missing rows, and ends with those of the local run."""
    in_process.install(monkeypatch)
    task = Task.from_file(stored / "task.toml", splits=())

    def opening(*, limits: Limits) -> Classifier:
        return open_classifier(task, limits=limits)

    data = Dataset(source=DataSource(path=stored / "test.jsonl"), labels=LabelSet.of(task.labels))
    cluster, out = Cluster(workers=2, block_rows=8), stored / "sharded"
    found = evaluate(data, opening=opening, out=out, cluster=cluster, limits=Limits(concurrency=4))
    assert (found.metrics.complete, asked(models), len(model.requests)) == (True, 20, 20)
    assert rows(out) == rows(stored / "evaluation")
    assert not (out / "shards").exists()


class Silent:
    """A reflection model that must not be called."""

    name = "stored_model.written_prompt"

    def __call__(self, prompt: str) -> str:
        """Fail the test."""
        raise AssertionError(prompt)


def test_a_search_with_reflections_asks_nobody_again(models: Models, stored: Path) -> None:
    """A finished search with reflections is repeated without a call, with the same result."""
    before = content(stored / "search-reflected" / "result.json")
    written = len((stored / "search-reflected" / "reflections.jsonl").read_text().splitlines())
    found = optimize(
        stored / "few.toml",
        reflection_model=Silent(),
        max_metric_calls=60,
        minibatch_size=3,
        out=stored / "search-reflected",
    )
    assert (asked(models), written) == (0, 4)
    assert found.best_prompt.prompt == before["best_prompt"]["prompt"]
    assert content(stored / "search-reflected" / "result.json")["metric_calls"] == before["metric_calls"]


def test_a_search_that_was_cut_off_ends_where_it_ended(model: FakeClient, stored: Path) -> None:
    """A search with half of its journal asks only the other half, and ends with the same prompt."""
    directory = stored / "search"
    before, expected = content(directory / "result.json"), rows(directory, prompt="best")
    journal = (directory / "journal.jsonl").read_bytes()
    entries = journal.count(b"\n")
    for name in ("result.json", "predictions.jsonl", "best_prompt.txt", "task.json"):
        (directory / name).unlink()
    kept = journal[: len(journal) // 2]
    (directory / "journal.jsonl").write_bytes(kept)
    run("optimize", "task.toml", "--out", "search", "--max-metric-calls", 60, "--minibatch-size", 3)
    assert len(model.requests) == entries - kept.count(b"\n")
    assert rows(directory, prompt="best") == expected
    after = content(directory / "result.json")
    assert after["best_candidate"] == before["best_candidate"]
    assert after["metric_calls"] == before["metric_calls"]


def test_the_label_prior_of_a_search_is_used(model: FakeClient, stored: Path) -> None:
    """Evaluating with the search's label prior gives the search's own test rows."""
    assert (stored / "search-reflected" / "label_prior.json").exists()
    run("evaluate", "few.toml", "--run", "search-reflected", "--out", "best", "--no-cache")
    assert len(model.requests) == 6
    assert rows(stored / "best") == rows(stored / "search-reflected", prompt="best")


@pytest.mark.parametrize("directory", PLAIN)
def test_predictions_are_read_with_their_fingerprint(untouched: Path, directory: str) -> None:
    """Predictions load with every column and with the run's fingerprint."""
    found = SavedRows.load(untouched / directory)
    check_columns(found, lines(untouched / directory))
    assert found.fingerprint is not None
    settings = [
        content(path)
        for name in ("run.json", "batch.json")
        if (path := untouched / directory / name).exists()
    ]
    told = settings[0].get("described") or settings[0]
    assert found.fingerprint.model == told["model"]
    assert found.fingerprint.to_record()["labels"] == list(found.fingerprint.labels)


@pytest.mark.parametrize(
    ("directory", "prompt"), [("search", "best"), ("search-with-head", "final"), ("search-reflected", "best")]
)
def test_predictions_of_a_search_are_those_of_its_prompt(
    untouched: Path, directory: str, prompt: str
) -> None:
    """Predictions of a search are those of its best prompt, or of its head."""
    found = SavedRows.load(untouched / directory)
    check_columns(found, [line for line in lines(untouched / directory) if line["prompt"] == prompt])
    assert found.fingerprint is not None
    assert (found.fingerprint.model, found.fingerprint.space) == (NAME, "masked")


def check_columns(found: SavedRows, told: list[dict[str, Any]]) -> None:
    """Compare loaded predictions with the lines of the file."""
    assert found.inputs == tuple(line["input"] for line in told)
    assert found.answers == tuple(line["answer"] for line in told)
    assert found.labels == tuple(line["label"] for line in told)
    assert found.index.tolist() == list(range(len(told)))
    assert found.confidence.tolist() == [line["confidence"] for line in told]
    assert found.correct.tolist() == [int(bool(line["correct"])) for line in told]
    assert found.latency_seconds.tolist() == [line["latency_seconds"] for line in told]


def test_a_parquet_file_is_read_like_the_lines(untouched: Path) -> None:
    """The Parquet file gives the texts, labels and confidences of the lines."""
    found, told = SavedRows.load(untouched / "predictions.parquet"), rows(untouched / "evaluation")
    assert found.inputs == tuple(row["input"] for row in told)
    assert found.labels == tuple(row["label"] for row in told)
    assert found.confidence.tolist() == [row["confidence"] for row in told]
    assert found.correct.sum() == 35


def test_calibrations_are_read_for_the_run_they_belong_to(untouched: Path) -> None:
    """The calibrator loads for the run's fingerprint, and gives the values of its stored points."""
    found = SavedRows.load(untouched / "evaluation")
    assert found.fingerprint is not None
    calibrator = load_calibrator(untouched / "evaluation" / "calibrator.json", fingerprint=found.fingerprint)
    expected = np.interp([0.6, 0.975, 0.99], [0.56, 0.97, 0.98, 0.99], [13 / 17, 13 / 17, 1.0, 1.0])
    assert calibrator.predict([0.6, 0.975, 0.99]) == pytest.approx(expected)


@pytest.mark.usefixtures("models")
def test_a_report_shows_the_figures_of_every_run(stored: Path) -> None:
    """The report of every run shows the accuracy counted from its rows."""
    names = [name for name in PLAIN if name != "job"]
    for name in names:
        run("report", name, "--out", "report.html")
        page = (stored / "report.html").read_text(encoding="utf-8")
        told = rows(stored / name)
        accuracy = sum(line["label"] == line["answer"] for line in told) / len(told)
        assert f"{accuracy:.3f}" in page, name
        if name == "shown":
            assert "0.524" in page


@pytest.mark.usefixtures("model")
def test_a_run_in_a_history_counts_once(stored: Path) -> None:
    """A run that is recorded again replaces its own scores in the history."""
    name = content(stored / "evaluation" / "history.json")["run_id"]
    run("evaluate", "task.toml", "--out", "evaluation", "--no-cache", "--history", "history.sqlite")
    assert content(stored / "evaluation" / "history.json")["run_id"] == name
    listed = json.loads(run("history", "list", "--history", "history.sqlite", "--json").stdout)
    assert [entry["scores"] for entry in listed] == [40, 40]
