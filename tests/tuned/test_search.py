"""Tests of bundles of a search: they ask with the best prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import calibrant
from bundle_runs import run
from calibrant.cascade import Cascade
from calibrant.core import Client
from calibrant.testing import FakeClient
from calibrant.tuned import Tuned
from command_line import prediction_rows
from saved_prediction import to_record

WriteTask = Callable[..., Path]
CASCADE = """
[cascade]
confidence_method = "label_probability"
threshold = 0.9
[[cascade.models]]
name = "small"
prompt = "Small: which animal?"
[[cascade.models]]
name = "large"
"""
TRAIN = [
    {"input": f"train {n} {'meow' if n % 2 else 'woof'}", "answer": "cat" if n % 2 else "dog"}
    for n in range(12)
]


def rule(name: str) -> Callable[[str, str], tuple[str, float]]:
    """Return a model that is right once its prompt shows examples; the small one is sure of cats only."""

    def answer(text: str, prompt: str) -> tuple[str, float]:
        truth = "cat" if "meow" in text else "dog"
        if "Answer:" not in prompt:
            return "cat", 0.55
        return truth, 0.6 if name == "small" and truth == "dog" else 0.97

    return answer


@pytest.fixture
def asked(use_model: Callable[..., Any]) -> dict[str, list[FakeClient]]:
    """Put fakes in the place of models called small and large."""
    found: dict[str, list[FakeClient]] = {}

    def open_fake(model: str, **_: Any) -> Client:
        found.setdefault(model, []).append(FakeClient(["cat", "dog"], rule(model), name=model))
        return found[model][-1]

    for name in ("small", "large"):
        use_model(open_fake, name)
    return found


def searched(task: Path, out: Path) -> list[dict[str, Any]]:
    """Run a search, and return the predictions of the best prompt on the test rows."""
    run("optimize", task, "--out", out, "--minibatch-size", 4, "--max-metric-calls", 120)
    rows = prediction_rows(out)
    assert json.loads((out / "result.json").read_text())["chosen"]
    return [row for row in rows if row["prompt"] == "final"] or [
        row for row in rows if row["prompt"] == "best"
    ]


@pytest.mark.parametrize("extra", [CASCADE, '\n[model]\nname = "small"\n'])
def test_the_best_prompt_replaces_all_prompts(
    write_task: WriteTask, asked: dict[str, list[FakeClient]], tmp_path: Path, extra: str
) -> None:
    """The bundle repeats the search's test rows, steps and verdicts included."""
    rows = searched(write_task(extra=extra, train=TRAIN), tmp_path / "run")
    bundle = Tuned.from_run(tmp_path / "run").save(tmp_path / "bundle")
    asked.clear()
    classifier = calibrant.load(tmp_path / "bundle")
    assert isinstance(classifier, Cascade) is (extra == CASCADE)
    found = classifier.classify_many([row["input"] for row in rows])
    classifier.close()
    for prediction, row in zip(found, rows, strict=True):
        record = json.loads(json.dumps(to_record(prediction)))
        assert record["confidence"] == pytest.approx(
            row["confidence"], abs=1e-9
        )  # a head's words are rounded
        for name in ("label", "accepted", "steps"):
            assert record.get(name) == row.get(name)
    prompts = {
        request.messages[0]["content"]
        for fakes in asked.values()
        for fake in fakes
        for request in fake.requests
    }
    assert prompts == {bundle.prompt}
    assert "Answer:" in bundle.prompt
