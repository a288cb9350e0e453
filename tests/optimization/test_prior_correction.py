"""Tests of a search with the label-prior correction."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calibrant.calibration import LabelPriorCorrection
from calibrant.cli import app
from calibrant.core import CalibrationSettings, ConfigurationError, StateError
from calibrant.inference import Classifier
from calibrant.optimization import OptimizationResult, optimize
from calibrant.testing import FakeClient
from small_tasks import LABELS, make_task

WriteTask = Callable[..., Path]


def biased(text: str) -> dict[str, float]:
    """Give the right label the higher evidence, but prefer cats."""
    cat = 0.9 if "meow" in text else 0.6
    return {"cat": cat, "dog": 1.0 - cat}


def search(out: Path | None = None, **options: Any) -> OptimizationResult:
    """Search with a biased model."""
    settings: dict[str, Any] = {"task": make_task(), "max_metric_calls": 80, "minibatch_size": 3, **options}
    return optimize(settings.pop("task"), model=FakeClient(LABELS, biased), out=out, **settings)


def test_both_prompts_are_judged_by_corrected_predictions(tmp_path: Path) -> None:
    """The correction raises the seed prompt's accuracy, and the written one belongs to its prompt."""
    plain, found = search(), search(tmp_path, prior_correction="batch")
    assert plain.seed_prompt.accuracy is not None
    assert found.seed_prompt.accuracy is not None
    assert (plain.seed_prompt.accuracy.estimate, found.seed_prompt.accuracy.estimate) == (0.5, 1.0)
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert all(line["correct"] for line in lines)
    prompt, path = (tmp_path / "best_prompt.txt").read_text(), tmp_path / "label_prior.json"
    classifier = Classifier(model=FakeClient(LABELS, biased), labels=LABELS, field="category", prompt=prompt)
    assert classifier.classify("woof").label == "cat"
    classifier.prior_correction = LabelPriorCorrection.load(path, fingerprint=classifier.fingerprint())
    assert classifier.classify("woof").label == "dog"
    heard: list[str | None] = []
    classifier.classify_many(["woof"], on_prediction=lambda _, prediction: heard.append(prediction.label))
    assert heard == ["dog"]
    other = classifier.with_prompt("Another prompt")
    assert other.prior_correction is None
    with pytest.raises(StateError, match="prompt"):
        LabelPriorCorrection.load(path, fingerprint=other.fingerprint())


def test_the_caller_overrides_the_task_on_prior_correction(tmp_path: Path) -> None:
    """The argument `prior_correction` comes before `[calibration]` of the task."""
    task = make_task(calibration=CalibrationSettings(prior_correction="batch"))
    for wished, corrected in ((None, True), ("off", False)):
        search(tmp_path / str(wished), task=task, prior_correction=wished)
        assert (tmp_path / str(wished) / "label_prior.json").exists() is corrected


def test_an_unknown_correction_is_refused() -> None:
    """Another correction than "batch" or "off" raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="'batch' or 'off'"):
        search(prior_correction="contextual")


def test_the_command_line_corrects_and_uses_the_correction(
    write_task: WriteTask, tmp_path: Path, use_model: Callable[..., Any]
) -> None:
    """`classify --label-prior` uses the correction that `optimize` wrote, for its prompt only."""
    use_model(lambda *_, **__: FakeClient(LABELS, biased))
    task, out = write_task(), tmp_path / "run"
    run = CliRunner().invoke
    budget = ("--max-metric-calls", "60", "--minibatch-size", "2")
    done = run(app, ["optimize", str(task), "--prior-correction", "batch", *budget, "--out", str(out)])
    assert done.exit_code == 0, done.output
    asked = ["classify", str(task), "--text", "woof", "--prompt", str(out / "best_prompt.txt")]
    assert run(app, asked).stdout.startswith("cat\t")
    asked += ["--label-prior", str(out / "label_prior.json")]
    assert run(app, asked).stdout.startswith("dog\t")
    other = tmp_path / "other.txt"
    other.write_text("Another prompt")
    refused = run(app, [*asked, "--prompt", str(other)])
    assert refused.exit_code == 2
    assert "prompt" in refused.stderr
