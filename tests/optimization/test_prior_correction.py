"""A search that is not misled by what a prompt makes the model prefer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calibrant.calibration import LabelPriorCorrection
from calibrant.cli._app import app
from calibrant.core import ConfigurationError, StateError
from calibrant.core._settings import CalibrationSettings
from calibrant.inference import Classifier
from calibrant.optimization import optimize
from calibrant.testing import FakeClient
from small_tasks import LABELS, make_task

WriteTask = Callable[..., Path]


def biased(text: str) -> dict[str, float]:
    """Hear the difference, and prefer cats."""
    cat = 0.9 if "meow" in text else 0.6
    return {"cat": cat, "dog": 1.0 - cat}


def test_both_prompts_are_judged_by_corrected_predictions(tmp_path: Path) -> None:
    """All rows are right instead of half; the files hold answers and correction."""
    plain = optimize(make_task(), model=FakeClient(LABELS, biased), max_metric_calls=60, minibatch_size=3)
    assert plain.seed_prompt.accuracy is not None
    assert plain.seed_prompt.accuracy.estimate == 0.5
    out = tmp_path / "run"
    found = optimize(
        make_task(),
        model=FakeClient(LABELS, biased),
        max_metric_calls=80,
        minibatch_size=3,
        prior_correction="batch",
        out=out,
    )
    assert found.seed_prompt.accuracy is not None
    assert found.seed_prompt.accuracy.estimate == 1.0
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert all(line["correct"] for line in lines)
    classifier = Classifier(
        model=FakeClient(LABELS, biased),
        labels=LABELS,
        field="category",
        prompt=(out / "best_prompt.txt").read_text(),
    )
    assert classifier.classify("woof").label == "cat"
    classifier.prior_correction = LabelPriorCorrection.load(
        out / "label_prior.json", fingerprint=classifier.fingerprint()
    )
    assert classifier.classify("woof").label == "dog"
    heard: list[str | None] = []
    classifier.classify_many(["woof"], on_prediction=lambda _, prediction: heard.append(prediction.label))
    assert heard == ["dog"]
    assert classifier.with_prompt("Another prompt").prior_correction is None


def test_the_caller_overrides_the_task_on_prior_correction(tmp_path: Path) -> None:
    """`prior_correction` of the call beats `[calibration]` of the task."""
    task = make_task(calibration=CalibrationSettings(prior_correction="batch"))
    for wished, corrected in ((None, True), ("off", False)):
        out = tmp_path / str(wished)
        optimize(
            task,
            model=FakeClient(LABELS, biased),
            max_metric_calls=80,
            minibatch_size=3,
            prior_correction=wished,  # type: ignore[arg-type]
            out=out,
        )
        assert (out / "label_prior.json").exists() is corrected


def test_an_unknown_correction_is_refused() -> None:
    """Another method raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="'batch' or 'off'"):
        optimize(make_task(), model=FakeClient(LABELS, biased), prior_correction="contextual")  # type: ignore[arg-type]


def test_the_command_line_corrects_and_uses_the_correction(
    write_task: WriteTask, tmp_path: Path, use_model: Callable[..., Any]
) -> None:
    """`classify --label-prior` reads what `optimize` wrote."""
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


def test_a_correction_of_another_prompt_is_refused(tmp_path: Path) -> None:
    """A prior belongs to its prompt."""
    out = tmp_path / "run"
    optimize(
        make_task(),
        model=FakeClient(LABELS, biased),
        max_metric_calls=80,
        minibatch_size=3,
        prior_correction="batch",
        out=out,
    )
    other = Classifier(model=FakeClient(LABELS, biased), labels=LABELS, field="category", prompt="Hm?")
    with pytest.raises(StateError, match="prompt"):
        LabelPriorCorrection.load(out / "label_prior.json", fingerprint=other.fingerprint())
