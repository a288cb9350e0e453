"""Tests of searches over a task with demonstrations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import calibrant
from calibrant.cli import app
from calibrant.core import DemonstrationSettings, Example, LabelSet, Task
from calibrant.optimization import optimize
from calibrant.testing import FakeClient
from calibrant.tuned import Tuned

LABELS = ["cat", "dog"]


def copying(_: str, system: str) -> dict[str, float]:
    """Answer the label that is shown most, and more surely the more is shown."""
    cats, dogs = (system.count(f'"{label}"') for label in LABELS)
    share = (1 + cats) / (2 + cats + dogs)
    return {"cat": share, "dog": 1.0 - share}


def rows(split: str, count: int) -> list[dict[str, str]]:
    """Return rows whose words tell their label."""
    return [
        {"input": f"{split} {n} {('meow', 'woof')[n % 2]}", "answer": LABELS[n % 2]} for n in range(count)
    ]


def run(*arguments: object) -> str:
    """Run a command, and check that it succeeds."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def searched(write_task: Callable[..., Path], use_model: Callable[..., Any], tmp_path: Path) -> Path:
    """Return the directory of a search that begins with one demonstration."""
    use_model(lambda name, **_: FakeClient(LABELS, copying, name=name))
    task = write_task(
        extra="[demonstrations]\nk = 1\n",
        train=rows("train", 40),
        validation=rows("validation", 20),
        test=rows("test", 20),
    )
    out = tmp_path / "run"
    limits = ("--max-metric-calls", 200, "--minibatch-size", 6)
    run("optimize", task, "--out", out, *limits, "--prior-correction", "batch")
    return out


def test_a_run_says_what_was_shown(searched: Path, tmp_path: Path) -> None:
    """A search writes its demonstrations beside the result, and a bundle shows as many."""
    best = json.loads((searched / "result.json").read_text())["best_candidate"]
    settings = DemonstrationSettings.from_text(best["demonstrations"])
    assert len((searched / "demonstrations.jsonl").read_text().splitlines()) == 40
    bundle = Tuned.from_run(searched).save(tmp_path / "bundle")
    with calibrant.load(tmp_path / "bundle") as loaded:
        assert loaded.demonstrations is not None
        assert loaded.demonstrations.settings == settings
        assert loaded.fingerprint().to_record() == bundle.fingerprint.to_record()


def test_later_commands_ask_as_the_search_did(searched: Path, tmp_path: Path) -> None:
    """An evaluation of the best prompt gives the search's predictions and fingerprint."""
    task = searched.parent / "task.toml"
    run("evaluate", task, "--run", searched, "--out", tmp_path / "evaluated", "--no-cache")
    again = [
        json.loads(line) for line in (tmp_path / "evaluated" / "predictions.jsonl").read_text().splitlines()
    ]
    first = [json.loads(line) for line in (searched / "predictions.jsonl").read_text().splitlines()]
    final = [
        row for row in first if row["prompt"] == ("final" if (searched / "head.json").exists() else "best")
    ]
    assert [row["confidence"] for row in again] == pytest.approx([row["confidence"] for row in final])
    run("calibrate", searched, "--out", tmp_path / "one", "--seed", 1)
    run("calibrate", tmp_path / "evaluated", "--out", tmp_path / "two", "--seed", 1)
    one, two = (json.loads((tmp_path / name / "calibration.json").read_text()) for name in ("one", "two"))
    assert one["fingerprint"] == two["fingerprint"]


def task_of(**changes: Any) -> Task:
    """Return the task of a search that shows one demonstration."""
    splits = {
        split: tuple(Example(**row) for row in rows(split, count))
        for split, count in (("train", 40), ("validation", 20), ("test", 20))
    }
    given = {"labels": LabelSet(LABELS), "prompt": "Which animal?", "field": "category", **splits}
    return Task(**{"name": "animals", "demonstrations": DemonstrationSettings(k=1), **given, **changes})


def hesitant(text: str, system: str) -> dict[str, float]:
    """Answer the label that is shown most if much is shown, and cats otherwise."""
    shown = sum(system.count(f'"{label}"') for label in LABELS)
    return copying(text, system) if shown >= 4 else {"cat": 0.6, "dog": 0.4}


def attentive(text: str, system: str) -> dict[str, float]:
    """Answer by the word in the text once the prompt has examples, and cats otherwise."""
    share = 0.9 if "meow" in text else 0.1
    return {"cat": share, "dog": 1.0 - share} if "Examples:" in system else {"cat": 0.6, "dog": 0.4}


def test_prompts_show_more_where_the_task_shows_some() -> None:
    """A search tries four and eight demonstrations first, if the task shows some."""
    found = optimize(task_of(), model=FakeClient(LABELS, hesitant), max_metric_calls=400)
    tried = [DemonstrationSettings.from_text(one.candidate["demonstrations"]).k for one in found.validated]
    assert tried[:3] == [1, 4, 8]
    assert found.best_candidate["demonstrations"] in {
        one.candidate["demonstrations"] for one in found.validated[1:]
    }
    plain = optimize(
        task_of(demonstrations=None),
        model=FakeClient(LABELS, attentive),
        minibatch_size=8,
        max_metric_calls=400,
    )
    assert len(plain.validated) > 1
    assert not any("demonstrations" in one.candidate for one in plain.validated)


def test_a_reflecting_model_is_not_asked_about_demonstrations(tmp_path: Path) -> None:
    """The reflection model is not asked to change the demonstrations."""
    task, asked = task_of(user_template="{input}!"), []

    def reflect(prompt: str) -> str:
        asked.append(prompt)
        return f"```\n{{input}} {len(asked)}\n```"

    client = FakeClient(LABELS, lambda _: {"cat": 0.6, "dog": 0.4})
    found = optimize(task, model=client, reflection_model=reflect, max_metric_calls=300, out=tmp_path)
    assert task.demonstrations is not None
    shown = task.demonstrations.to_text()
    assert len(asked) >= 4
    assert not any(shown in prompt for prompt in asked)
    assert {one.candidate["demonstrations"] for one in found.validated} == {shown}
    assert len((tmp_path / "demonstrations.jsonl").read_text().splitlines()) == 40


def test_an_interrupted_search_shows_the_same_when_it_goes_on(tmp_path: Path) -> None:
    """A second search with demonstrations makes no call, and gives the same result."""
    client = FakeClient(LABELS, copying)
    first = optimize(task_of(), model=client, max_metric_calls=200, out=tmp_path)
    calls = len(client.requests)
    again = optimize(task_of(), model=client, max_metric_calls=200, out=tmp_path)
    assert len(client.requests) == calls
    assert again.best_candidate == first.best_candidate
