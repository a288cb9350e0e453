"""Tests of plans whose models are runs or bundles: each answers as in its run, here and in a bundle."""

from __future__ import annotations

import json
import re
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
from stubborn_server import StubbornServer

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
    """A run or a bundle in a plan answers as alone; so do the plan's own run, its bundle, and an evaluation of it."""
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
    run("evaluate", out, "--file", file, "--out", tmp_path / "again", "--no-cache")
    assert answers(calibrant.load(tmp_path / "again")) == found
    Tuned.from_run(out).save(tmp_path / "bundle")
    assert answers(calibrant.load(tmp_path / "bundle")) == found


def test_a_plan_knows_the_texts_of_its_members(
    searched: Path, large: Path, plan: Path, file: Path, tmp_path: Path
) -> None:
    """Its run knows the rows of the search and of the evaluation that it was planned on, and its own."""
    out = tmp_path / "planned"
    run("cascade", "run", plan, searched, large, "--file", file, "--out", out)
    member = Tuned.from_run(searched).known_texts
    others = Tuned.from_run(large).known_texts
    found = Tuned.from_run(out).known_texts
    assert len(member.digests) > len(others.digests) > 0
    assert {*member.digests, *others.digests} <= {*found.digests}
    assert found.share_known(TEXTS) == 1.0


@pytest.mark.parametrize("name", ["head-1.json", "label_prior-1.json"])
def test_what_corrects_a_member_is_missed_by_its_name(
    name: str, task: Path, searched: Path, large: Path, plan: Path, file: Path, tmp_path: Path
) -> None:
    """A run of a plan without the head or the label prior of a member is refused; the same command writes it again."""
    member = searched if name == "head-1.json" else with_prior(task, searched, tmp_path / "member")
    out = tmp_path / "planned"
    words = ("cascade", "run", plan, member, large, "--file", file, "--out", out)
    run(*words)
    before = (out / name).read_bytes()
    (out / name).unlink()
    with pytest.raises(calibrant.core.StateError, match=f"{name}: .* got none: run the same command again"):
        calibrant.load(out)
    run(*words)
    assert (out / name).read_bytes() == before


def test_a_head_is_kept_where_the_plan_does_not_know_its_run(
    searched: Path, large: Path, file: Path, tmp_path: Path
) -> None:
    """A plan of a file of answers is carried out with a run and its head, and its own run answers as before."""
    answered = tmp_path / "answers.jsonl"
    answered.write_bytes((searched / "predictions.jsonl").read_bytes())
    found = plan_cascade(answered, large, small_cost=1, large_cost=50)
    policy = KeepPolicy(name="threshold 0.5", members=(0, 1), rules=(KeepRule.from_threshold(0.5),))
    replace(found, policy=policy).save(tmp_path / "plan.json")
    out = tmp_path / "planned"
    run("cascade", "run", tmp_path / "plan.json", searched, large, "--file", file, "--out", out)
    before = [(row["label"], row["confidence"]) for row in prediction_rows(out)]
    assert answers(calibrant.load(out)) == before
    Tuned.from_run(out).save(tmp_path / "bundle")
    assert answers(calibrant.load(tmp_path / "bundle")) == before


def test_rows_are_named_with_file_where_the_first_model_is_a_run(
    searched: Path, large: Path, plan: Path, tmp_path: Path
) -> None:
    """A run has no section for rows, so the message asks for --file alone."""
    for words in (("cascade", "run", plan, searched, large), ("evaluate", searched)):
        message = refusal(command(*map(str, words))("--out", tmp_path / "planned"))
        assert "name their file with --file" in message
        assert "[data]" not in message


def test_a_member_of_several_models_is_refused(
    searched: Path, large: Path, plan: Path, file: Path, tmp_path: Path
) -> None:
    """The run of a plan is no member of another one."""
    out = tmp_path / "planned"
    run("cascade", "run", plan, searched, large, "--file", file, "--out", out)
    assert "to ask one model, got several" in refusal(cascade("run", plan, out, large, "--file", file))


def test_a_task_file_in_place_of_a_head_is_told(
    task: Path, searched: Path, large: Path, tmp_path: Path
) -> None:
    """A task file with the prompt of a search is no stand-in for its head, which the plan remembers."""
    made = tmp_path / "made"
    run("cascade", "plan", searched, large, "--small-cost", 1, "--large-cost", 50, "--out", made)
    copied = task.with_name("copied.toml")
    prompt = json.dumps((searched / "best_prompt.txt").read_text())
    copied.write_text(re.sub("(?m)^prompt = .*$", lambda _: f"prompt = {prompt}", task.read_text()))
    told = "was planned with the head or label prior of its run"
    assert told in run("cascade", "run", made, copied, large, "--text", "other 1").output
    assert told not in run("cascade", "run", made, searched, large, "--text", "other 1").output


TASK = """\
name = "pets"
labels = ["cat", "dog"]
prompt = "Which animal?"

[data]
test = "test.jsonl"

[model]
name = "openai/{name}"
api_base = "{api_base}"
"""


@pytest.mark.parametrize("members", [(0, 1), (1,)])
def test_a_member_is_asked_as_in_its_run(
    members: tuple[int, ...],
    start_stubborn_server: Callable[..., StubbornServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that found out how its models answer is carried out, and opened elsewhere, without finding out again."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    rows = tmp_path / "test.jsonl"
    rows.write_text("".join(json.dumps({"input": f"{n} meow", "answer": "cat"}) + "\n" for n in range(12)))
    servers = {
        "hiding": start_stubborn_server(),
        "stubborn": start_stubborn_server(has_logprobs=True, refused=["json_schema"]),
    }
    for name, server in servers.items():
        (tmp_path / f"{name}.toml").write_text(TASK.format(name=name, api_base=server.api_base))
        run("evaluate", tmp_path / f"{name}.toml", "--out", tmp_path / name, "--no-cache")
    runs = [tmp_path / name for name in servers]
    found = plan_cascade(*runs, small_cost=1, large_cost=50)
    rules = tuple(KeepRule.from_threshold(0.5) for _ in members[1:])
    policy = KeepPolicy(name="as told", members=members, rules=rules)
    replace(found, policy=policy).save(tmp_path / "plan.json")
    out = tmp_path / "planned"
    run("cascade", "run", tmp_path / "plan.json", *runs, "--file", rows, "--out", out)
    for server in servers.values():
        server.bodies.clear()
    monkeypatch.setenv("CALIBRANT_HOME", str(tmp_path / "elsewhere"))
    with calibrant.load(out) as opened:
        texts = [row["input"] for row in prediction_rows(out)]
        again = [(one.label, one.confidence) for one in opened.classify_many(texts)]
    assert again == [(row["label"], row["confidence"]) for row in prediction_rows(out)]
    asked = [len(server.formats) for server in servers.values()]
    assert asked == ([36, 0] if 0 in members else [0, 12])
