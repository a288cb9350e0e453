"""Tests of demonstrations in bundles: the loaded classifier shows what the run showed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import calibrant
import in_process
from bundle_runs import run
from calibrant.assembly import open_classifier
from calibrant.calibration import LabelPriorCorrection
from calibrant.cascade import KeepPolicy, KeepRule, plan_cascade
from calibrant.core import ConfigurationError, DemonstrationSettings, StateError, Task
from calibrant.testing import FakeClient
from calibrant.tuned import Tuned
from command_line import lasting_rows

WriteTask = Callable[..., Path]
LABELS = ["cat", "dog"]
SECTION = "\n[demonstrations]\nk = 3\n"
TEXTS = ["train 0 meow", "something new meow", "woof", ""]


def copying(text: str, system: str) -> dict[str, float]:
    """Answer what is shown most, and more surely the longer the text."""
    cats, dogs = (system.count(f'"{label}"') for label in LABELS)
    share = (1 + cats) / (2 + cats + dogs)
    share = 0.9 * share + 0.1 * (len(text) % 7) / 7
    return {"cat": share, "dog": 1.0 - share}


@pytest.fixture
def client(use_model: Callable[..., Any]) -> FakeClient:
    """Return the model that is asked."""
    found: FakeClient = use_model(FakeClient(LABELS, copying, name="local/smollm2-135m"))
    return found


@pytest.fixture
def task(write_task: WriteTask) -> Path:
    """Return a task with demonstrations; one training row is a test row, too."""
    rows = [{"input": f"train {n} {('meow', 'woof')[n % 2]}", "answer": LABELS[n % 2]} for n in range(8)]
    held_out = [{"input": f"test {n} {('meow', 'woof')[n % 2]}", "answer": LABELS[n % 2]} for n in range(24)]
    return write_task(extra=SECTION, train=[*rows, held_out[0]], test=held_out)


@pytest.fixture
def evaluated(task: Path, client: FakeClient, tmp_path: Path) -> Path:
    """Return the directory of an evaluation."""
    run("evaluate", task, "--out", tmp_path / "run", "--no-cache")
    assert client.requests
    return tmp_path / "run"


def test_no_held_out_row_is_shown(evaluated: Path, client: FakeClient) -> None:
    """Each prompt shows three training rows; demonstrations.jsonl holds all rows to choose from."""
    assert len(client.requests) == 24
    for request in client.requests:
        assert request.messages[0]["content"].count("Text: train") == 3
        assert "Text: test" not in request.messages[0]["content"]
    rows = [json.loads(line) for line in (evaluated / "demonstrations.jsonl").read_text().splitlines()]
    assert [row["input"] for row in rows] == [f"train {n} {('meow', 'woof')[n % 2]}" for n in range(8)]


def test_workers_show_the_same_demonstrations(
    task: Path, evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers without the rows to choose from answer as one machine does."""
    in_process.install(monkeypatch, elsewhere=(task.parent / "train.jsonl").unlink)
    run("evaluate", task, "--out", tmp_path / "shared", "--engine", "ray", "--workers", 2)
    assert lasting_rows(tmp_path / "shared") == lasting_rows(evaluated)


def test_classify_shows_demonstrations(task: Path, client: FakeClient) -> None:
    """A training row that is classified is not shown among its own demonstrations."""
    run("classify", task, "--text", "train 0 meow")
    system = client.requests[0].messages[0]["content"]
    assert system.count("Text: ") == 3
    assert "Text: train 0 meow" not in system


def test_a_bundle_answers_as_the_run_did(task: Path, evaluated: Path, tmp_path: Path) -> None:
    """A loaded bundle answers as the run did after the task's data files are deleted."""
    bundle = Tuned.from_run(evaluated).save(tmp_path / "bundle")
    with calibrant.Classifier.from_task(Task.from_file(task)) as classifier:
        expected, fingerprint = classifier.classify_many(TEXTS), classifier.fingerprint()
    assert bundle.fingerprint.to_record() == fingerprint.to_record()
    said = run("export", evaluated, "--out", tmp_path / "again").output
    assert "It holds 8 training texts with their labels" in said
    for split in ("train", "validation", "test"):
        (task.parent / f"{split}.jsonl").unlink()
    with calibrant.load(tmp_path / "bundle") as loaded:
        found = loaded.classify_many(TEXTS)
    assert [(one.label, one.confidence) for one in found] == [(one.label, one.confidence) for one in expected]


@pytest.fixture
def corrected(task: Path, evaluated: Path, tmp_path: Path) -> Path:
    """Return an evaluation with demonstrations and a label prior."""
    prior = tmp_path / "label_prior.json"
    correction = LabelPriorCorrection("batch").fit([[-0.1, -2.4], [-0.2, -1.7]])
    correction.save(prior, fingerprint=Tuned.from_run(evaluated).fingerprint)
    run("evaluate", task, "--label-prior", prior, "--out", tmp_path / "corrected", "--no-cache")
    return tmp_path / "corrected"


@pytest.mark.parametrize(
    ("members", "kind"),
    [((0, 1), "run"), ((0,), "run"), ((1,), "run"), ((1, 0), "run"), ((0, 1), "task file")],
)
def test_a_model_of_a_plan_shows_what_its_run_showed(
    members: tuple[int, ...],
    kind: str,
    task: Path,
    corrected: Path,
    client: FakeClient,
    use_model: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Run and bundle of a plan answer as before after the data files and the model's own run are gone."""
    other = use_model(FakeClient(LABELS, {}, default="dog", name="large"), "large")
    plain = task.with_name("plain.toml")
    plain.write_text(task.read_text().replace(SECTION, ""))
    run("evaluate", plain, "--model", "large", "--out", tmp_path / "large", "--no-cache")
    runs = [corrected, tmp_path / "large"]
    if members == (1, 0):
        runs.reverse()
    members = tuple(sorted(members))
    rules = tuple(KeepRule.from_threshold(0.93) for _ in members[1:])
    policy = KeepPolicy(name="as told", members=members, rules=rules)
    found = plan_cascade(*runs, small_cost=1, large_cost=50)
    replace(found, policy=policy).save(tmp_path / "plan.json")
    out = tmp_path / "planned"
    rows = Path(shutil.copy(task.parent / "test.jsonl", tmp_path / "rows.jsonl"))
    named = runs if kind == "run" else [task, runs[1]]
    run("cascade", "run", tmp_path / "plan.json", *named, "--file", rows, "--out", out)
    before = lasting_rows(out)
    shutil.rmtree(corrected)
    for split in ("train", "validation", "test"):
        (task.parent / f"{split}.jsonl").unlink()
    asked = len(client.requests), len(other.requests)
    run("export", out, "--out", tmp_path / "bundle")
    run("evaluate", out, "--file", rows, "--out", tmp_path / "again", "--no-cache")
    for place in (out, tmp_path / "bundle", tmp_path / "again"):
        with calibrant.load(place) as opened:
            again = opened.classify_many([row["input"] for row in before])
        assert [one.label for one in again] == [row["label"] for row in before]
        assert [one.confidence for one in again] == [row["confidence"] for row in before]
    assert (len(client.requests) > asked[0]) or (len(other.requests) > asked[1])
    wrong = run("export", out, "--out", tmp_path / "without", "--no-texts", code=2)
    assert "with its texts, as its plan is one of models whose prompts show them" in wrong.output
    (shown,) = out.glob("demonstrations-*.jsonl")
    shown.write_text(shown.read_text().replace("meow", "miau", 1))
    with pytest.raises(StateError, match="prompt"):
        calibrant.load(out)
    shown.unlink()
    with pytest.raises(StateError, match=shown.name):
        calibrant.load(out)


def test_export_without_texts_drops_their_figures(
    evaluated: Path, client: FakeClient, tmp_path: Path
) -> None:
    """A bundle exported with --no-texts holds no demonstrations, and has the plain prompt's fingerprint."""
    run("calibrate", evaluated, "--out", evaluated, "--seed", 1)
    run("export", evaluated, "--out", tmp_path / "bundle", "--no-texts")
    bundle = Tuned.load(tmp_path / "bundle")
    assert not (tmp_path / "bundle" / "demonstrations.jsonl").exists()
    assert "train 0" not in "".join(path.read_text() for path in (tmp_path / "bundle").iterdir())
    assert bundle.figures == ()
    assert bundle.calibrator is None
    assert bundle.rule == (None, None)
    assert bundle.history.rows == 0
    words = ("label", tmp_path / "bundle", tmp_path / "rows.csv", "--out", tmp_path / "out", "--watch-drift")
    assert "Expected a bundle or a run with predictions" in run(*words, code=2).output
    asked = len(client.requests)
    with calibrant.load(tmp_path / "bundle") as loaded:
        assert loaded.demonstrations is None
        assert loaded.fingerprint().to_record() == bundle.fingerprint.to_record()
        loaded.classify("train 0 meow")
    assert client.requests[asked].messages[0]["content"] == "Which animal?"
    assert (
        Tuned.from_run(evaluated).save(tmp_path / "with").fingerprint.digest() != bundle.fingerprint.digest()
    )


def test_no_texts_changes_nothing_without_demonstrations(
    write_task: WriteTask, client: FakeClient, tmp_path: Path
) -> None:
    """Without demonstrations, a bundle exported without texts has the same digest as one with texts."""
    run("evaluate", write_task(), "--out", tmp_path / "run", "--no-cache")
    assert client.requests
    plain = Tuned.from_run(tmp_path / "run").save(tmp_path / "one")
    assert Tuned.from_run(tmp_path / "run", texts=False).save(tmp_path / "two").digest == plain.digest


def test_changed_demonstrations_are_refused(evaluated: Path, tmp_path: Path) -> None:
    """Changed or missing texts raise StateError, in the run and in the bundle."""
    Tuned.from_run(evaluated).save(tmp_path / "bundle")
    rows = evaluated / "demonstrations.jsonl"
    text = rows.read_text()
    for damage in (text.replace("meow", "miau", 1), text.split("\n", 1)[1], ""):
        rows.write_text(damage)
        with pytest.raises(StateError):
            Tuned.from_run(evaluated).save(tmp_path / "again")
    rows.unlink()
    with pytest.raises(StateError, match=r"demonstrations\.jsonl"):
        Tuned.from_run(evaluated).save(tmp_path / "again")
    inside = tmp_path / "bundle" / "demonstrations.jsonl"
    inside.write_text(text.replace("meow", "miau", 1))
    with pytest.raises(StateError, match=r"demonstrations\.jsonl"):
        Tuned.load(tmp_path / "bundle")


def test_classify_uses_demonstrations_of_a_search(
    task: Path, evaluated: Path, client: FakeClient, tmp_path: Path
) -> None:
    """The demonstrations of the best candidate replace those of the task file."""
    searched = tmp_path / "searched"
    index = (evaluated / "demonstrations.jsonl").read_text()
    searched.mkdir()
    (searched / "best_prompt.txt").write_text("Which one?")
    (searched / "demonstrations.jsonl").write_text(index)
    for chosen, expected in ((DemonstrationSettings(k=1).to_text(), 1), ("", 0)):
        best = {"system_prompt": "Which one?", "demonstrations": chosen}
        (searched / "result.json").write_text(json.dumps({"best_candidate": best}))
        run("classify", task, "--run", searched, "--text", "meow")
        system = client.requests[-1].messages[0]["content"]
        assert system.startswith("Which one?")
        assert system.count("Text: ") == expected


def test_demonstrations_beside_a_cascade_are_refused(write_task: WriteTask) -> None:
    """A task with [demonstrations] and [cascade] raises ConfigurationError that names both sections."""
    extra = f'{SECTION}[cascade]\nconfidence_method = "margin"\n[[cascade.models]]\nname = "a"\n'
    with pytest.raises(ConfigurationError, match=r"\[demonstrations\] beside \[cascade\]"):
        open_classifier(Task.from_file(write_task(extra=extra)))
