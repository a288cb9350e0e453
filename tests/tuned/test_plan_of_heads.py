"""Tests of plans whose models are runs or bundles: each answers with its prompt and its head, here and in a bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import calibrant
from biased_model import LABELS, biased_task, search
from bundle_runs import run
from calibrant.calibration import LabelPriorCorrection
from calibrant.cascade import KeepPolicy, KeepRule, plan_cascade
from calibrant.testing import FakeClient
from calibrant.tuned import Tuned
from command_line import command, prediction_rows, refusal

cascade = command("cascade")
TEXTS = [f"other {n}" for n in range(20)]


@pytest.fixture
def task(write_task: Callable[..., Path], use_model: Callable[..., Any]) -> Path:
    """Return a task of a model that prefers cats, beside one that says dog of everything."""
    path = biased_task(write_task, use_model)
    use_model(FakeClient(LABELS, {}, default="dog", name="large"), "large")
    return path


@pytest.fixture
def searched(task: Path, tmp_path: Path) -> Path:
    """Return the directory of a search, whose head mends what the model prefers."""
    return search(task, tmp_path / "run")


@pytest.fixture
def large(task: Path, tmp_path: Path) -> Path:
    """Return an evaluation of the large model."""
    run("evaluate", task, "--model", "large", "--out", tmp_path / "large", "--no-cache")
    return tmp_path / "large"


@pytest.fixture
def plan(searched: Path, large: Path, tmp_path: Path) -> Path:
    """Return a plan that keeps every answer of the search's model."""
    found = plan_cascade(searched, large, small_cost=1, large_cost=50)
    policy = KeepPolicy(name="threshold 0.5", members=(0, 1), rules=(KeepRule.from_threshold(0.5),))
    replace(found, policy=policy).save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file of labelled rows."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"input": text, "answer": "dog"}) + "\n" for text in TEXTS))
    return path


def answers(predictor: Any) -> list[tuple[str | None, float | None]]:
    """Return labels and confidences of the texts."""
    with predictor as opened:
        return [(one.label, one.confidence) for one in opened.classify_many(TEXTS)]


def with_prior(task: Path, searched: Path, out: Path) -> Path:
    """Return an evaluation under the search's prompt with a label prior in place of its head."""
    prior = out.parent / "label_prior.json"
    correction = LabelPriorCorrection("batch").fit([[-0.1, -2.4], [-0.2, -1.7]])
    correction.save(prior, fingerprint=Tuned.from_run(searched).fingerprint)
    prompt = searched / "best_prompt.txt"
    run("evaluate", task, "--prompt", prompt, "--label-prior", prior, "--out", out, "--no-cache")
    return out


@pytest.mark.parametrize("kind", ["run", "bundle", "label prior"])
def test_a_member_keeps_its_head(
    kind: str, task: Path, searched: Path, large: Path, plan: Path, file: Path, tmp_path: Path
) -> None:
    """A run or a bundle in a plan answers as alone, and so do the plan's own run and its bundle."""
    member = searched
    if kind == "bundle":
        member = tmp_path / "member"
        Tuned.from_run(searched).save(member)
    elif kind == "label prior":
        member = with_prior(task, searched, tmp_path / "member")
    out = tmp_path / "planned"
    run("cascade", "run", plan, member, large, "--file", file, "--out", out)
    found = [(row["label"], row["confidence"]) for row in prediction_rows(out)]
    assert found == answers(calibrant.load(member))
    assert found != answers(calibrant.load(task))
    assert answers(calibrant.load(out)) == found
    Tuned.from_run(out).save(tmp_path / "bundle")
    assert answers(calibrant.load(tmp_path / "bundle")) == found


def test_a_head_that_is_missing_is_noticed(
    searched: Path, large: Path, plan: Path, file: Path, tmp_path: Path
) -> None:
    """A run of a plan without the head of a member is not opened as if it had none."""
    out = tmp_path / "planned"
    run("cascade", "run", plan, searched, large, "--file", file, "--out", out)
    (out / "head-1.json").unlink()
    with pytest.raises(calibrant.core.StateError, match="asked otherwise than in the run"):
        calibrant.load(out)


def test_a_member_of_several_models_is_refused(
    searched: Path, large: Path, plan: Path, file: Path, tmp_path: Path
) -> None:
    """The run of a plan is no member of another one."""
    out = tmp_path / "planned"
    run("cascade", "run", plan, searched, large, "--file", file, "--out", out)
    assert "to ask one model, got several" in refusal(cascade("run", plan, out, large, "--file", file))
