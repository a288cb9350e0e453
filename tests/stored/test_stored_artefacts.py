"""Tests of artefacts of an earlier version: each opens and gives its old results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import calibrant
from calibrant.testing import FakeClient
from stored_files import rows, run


def test_a_bundle_predicts_what_its_run_predicted(model: FakeClient, stored: Path) -> None:
    """The bundle gives the label and confidence of every row of its run."""
    expected = rows(stored / "evaluation")
    classifier = calibrant.load(stored / "bundle")
    found = classifier.classify_many([row["input"] for row in expected])
    assert [(p.label, p.confidence) for p in found] == [(row["label"], row["confidence"]) for row in expected]
    assert len(model.requests) == 40
    classifier.close()


def test_a_finished_evaluation_asks_nothing_again(model: FakeClient, stored: Path) -> None:
    """A finished evaluation is repeated without a call, and its rows stay the same."""
    before = rows(stored / "evaluation")
    run("evaluate", "task.toml", "--out", "evaluation", "--no-cache")
    assert model.requests == []
    assert rows(stored / "evaluation") == before
    assert json.loads((stored / "evaluation" / "metrics.json").read_text())["baselines"]["rows"] == 40


def test_a_killed_evaluation_goes_on(model: FakeClient, stored: Path) -> None:
    """A killed evaluation keeps its rows, and ends with those of the finished run."""
    kept = len(rows(stored / "killed"))
    run("evaluate", "task.toml", "--out", "killed", "--no-cache")
    assert 0 < len(model.requests) <= 40 - kept
    assert rows(stored / "killed") == rows(stored / "evaluation")


def test_a_cache_answers_without_the_model(model: FakeClient, stored: Path) -> None:
    """The stored cache answers all rows without a call."""
    run("evaluate", "task.toml", "--out", "fresh", "--cache", "cache.sqlite")
    assert model.requests == []
    assert rows(stored / "fresh") == rows(stored / "evaluation")


@pytest.mark.usefixtures("stored")
def test_a_history_gives_the_interval_it_gave() -> None:
    """The stored history gives the same interval as then."""
    listed = json.loads(run("history", "list", "--history", "history.sqlite", "--json").stdout)
    assert [entry["scores"] for entry in listed] == [40, 40]
    words = ("--evaluator", "animals", "--profile", listed[0]["profile_name"])
    found = json.loads(run("history", "interval", *words, "--history", "history.sqlite", "--json").stdout)
    assert (found["lower"], found["upper"]) == (0.775, 0.975)


@pytest.mark.parametrize("place", ["router.json", "router.sqlite"])
def test_router_state_is_read(stored: Path, place: str) -> None:
    """The stored router state has the same alpha and beta as then."""
    found = json.loads(run("router", "stats", "--state", stored / place, "--json").stdout)
    providers = found["records"][0]["providers"]
    assert [(p["provider"], p["alpha"], p["beta"]) for p in providers] == [("a", 6.0, 1.0), ("b", 3.0, 4.0)]


@pytest.mark.usefixtures("stored")
def test_runs_are_reported_compared_calibrated_and_exported(model: FakeClient) -> None:
    """Stored runs are reported, compared, calibrated and exported without a call."""
    for words in (
        ("report", "evaluation", "search", "--out", "report.html"),
        ("compare", "evaluation", "search"),
        ("calibrate", "evaluation", "--out", "calibrated"),
        ("calibrate", "search", "--out", "calibrated-search"),
        ("export", "evaluation", "--out", "again"),
        ("export", "search", "--out", "best"),
    ):
        run(*words)
    assert model.requests == []


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(("directory", "budget"), [("search", 60), ("search-with-head", 80)])
def test_a_finished_search_asks_nothing_again(model: FakeClient, directory: str, budget: int) -> None:
    """A finished search is repeated without a call."""
    options = ("--max-metric-calls", budget, "--minibatch-size", "3")
    for _ in range(2):
        run("optimize", "task.toml", "--out", directory, *options)
        assert model.requests == []


def test_a_bundle_with_a_head_predicts_what_its_search_tested(model: FakeClient, stored: Path) -> None:
    """The bundle with a head gives the labels and confidences that its search tested."""
    tested = rows(stored / "search-with-head", prompt="final")
    classifier = calibrant.load(stored / "bundle-with-head", model=model)
    found = classifier.classify_many([row["input"] for row in tested])
    assert [p.label for p in found] == [row["label"] for row in tested]
    assert [p.confidence for p in found] == pytest.approx([row["confidence"] for row in tested])


@pytest.mark.usefixtures("model")
def test_the_best_prompt_of_a_search_is_evaluated(stored: Path) -> None:
    """Evaluating the search's best prompt gives the search's own test rows."""
    run("evaluate", "task.toml", "--run", "search", "--out", "best", "--no-cache")
    assert rows(stored / "best") == rows(stored / "search", prompt="best")
