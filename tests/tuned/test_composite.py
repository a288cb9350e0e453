"""Tests of bundles whose answers hold several labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundle_runs import fresh, run
from calibrant.core import Field, FieldLabels, LabelSet, MultiLabels
from calibrant.tuned import Tuned
from command_line import prediction_rows
from fault_server import FaultServer

TOPICS = MultiLabels(["Bills", "Food", "Travel"])
FIELDS = FieldLabels(
    [
        Field(name="category", labels=LabelSet(["Bills", "Food"])),
        Field(name="urgency", labels=LabelSet(["low", "high"]), path="result.urgency"),
    ]
)
HEADS = {
    "topics": 'labels = ["Bills", "Food", "Travel"]\nmulti_label = true\n',
    "fields": (
        '[[fields]]\nname = "category"\nlabels = ["Bills", "Food"]\n'
        '[[fields]]\nname = "urgency"\nlabels = ["low", "high"]\npath = "result.urgency"\n'
    ),
}
ROWS = {
    "topics": [
        {"input": f"{number} Bills and Food", "answer": ["Food", "Bills"] if number % 4 else ["Travel"]}
        for number in range(40)
    ],
    "fields": [
        {"input": f"{number} Food high", "category": "Food", "urgency": "high" if number % 4 else "low"}
        for number in range(40)
    ],
}


@pytest.fixture(params=["topics", "fields"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return which kind of answers the task is about."""
    return str(request.param)


@pytest.fixture
def server(kind: str) -> Iterator[FaultServer]:
    """Return a server that writes such answers."""
    with FaultServer(TOPICS if kind == "topics" else FIELDS, field="labels") as found:
        yield found


@pytest.fixture
def evaluated(kind: str, server: FaultServer, tmp_path: Path) -> Path:
    """Return the directory of a run."""
    model = f'[model]\nname = "openai/fake"\napi_base = "{server.api_base}"\noptions = {{ api_key = "k" }}\n'
    text = f'name = "{kind}"\nprompt = "p"\n{HEADS[kind]}[data]\ntest = "rows.jsonl"\n{model}'
    (tmp_path / "task.toml").write_text(text)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[kind]))
    run("evaluate", tmp_path / "task.toml", "--out", tmp_path / "run", "--no-cache")
    return tmp_path / "run"


def test_a_fresh_process_repeats_the_run(evaluated: Path, tmp_path: Path) -> None:
    """A loaded bundle gives the run's answers, confidences and parts in a fresh process."""
    run("export", evaluated, "--out", tmp_path / "bundle")
    rows = prediction_rows(evaluated)
    found = fresh(tmp_path / "bundle", rows, {"api_key": "k"})
    assert [[row[name] for name in ("label", "confidence", "parts")] for row in found] == [
        [row[name] for name in ("label", "confidence", "parts")] for row in rows
    ]


def test_a_bundle_holds_label_set_and_figures(kind: str, evaluated: Path, tmp_path: Path) -> None:
    """The label set keeps its kind, and every field has figures."""
    run("export", evaluated, "--out", tmp_path / "bundle")
    bundle = Tuned.load(tmp_path / "bundle")
    assert bundle.labels == (TOPICS if kind == "topics" else FIELDS)
    figures = {figure.name: figure for figure in bundle.figures}
    if kind == "topics":
        assert figures["Jaccard index, mean of rows"].estimate == pytest.approx(0.75)
        assert bundle.history.labels == {"Bills": 40, "Food": 40}
    else:
        assert figures["accuracy of the field urgency"].estimate == pytest.approx(0.75)
        assert bundle.history.labels == {"category=Food": 40, "urgency=high": 40}


def test_the_summary_names_parts(kind: str, evaluated: Path, tmp_path: Path) -> None:
    """`evaluate` prints figures of fields and sets, and --fail-under applies to them."""
    again = run("evaluate", tmp_path / "task.toml", "--out", evaluated, "--no-cache").stdout
    if kind == "fields":
        assert re.search(r"field urgency +0\.750 \(0\.\d+ to 0\.\d+\) +30 of 40 answered rows", again)
    else:
        assert re.search(r"Jaccard index +0\.750 ", again)
        assert re.search(r"Hamming loss +0\.250 +3 labels of 40 answered rows; 0 is best", again)
        gated = ("--fail-under", "jaccard=0.9")
        run("evaluate", tmp_path / "task.toml", "--out", evaluated, "--no-cache", *gated, code=3)


def test_calibration_and_history_take_whole_answers(evaluated: Path, tmp_path: Path) -> None:
    """`calibrate`, the history and `compare` work with whole answers."""
    run("calibrate", evaluated, "--out", tmp_path / "calibration")
    run("export", evaluated, "--out", tmp_path / "bundle", "--calibration", tmp_path / "calibration")
    assert Tuned.load(tmp_path / "bundle").calibrator is not None
    history = f"sqlite:///{tmp_path / 'history.sqlite'}"
    run("evaluate", tmp_path / "task.toml", "--out", evaluated, "--no-cache", "--history", history)
    run("evaluate", tmp_path / "task.toml", "--out", tmp_path / "again", "--no-cache")
    assert "+0.000" in run("compare", evaluated, tmp_path / "again").stdout
