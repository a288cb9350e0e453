"""Tests of a head from an evaluation, named in the task file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import calibrant
import in_process
from biased_model import LABELS, biased, biased_task, place, run, search
from calibrant.assembly import open_classifier
from calibrant.core import StateError, Task
from calibrant.testing import FakeClient
from calibrant.tuned import Tuned
from command_line import done, json_of, prediction_rows, refusal

TEXTS = [f"other {n}" for n in range(12)]
TRUTH = [LABELS[place(text)] for text in TEXTS]
ASKED = [argument for text in TEXTS for argument in ("--text", text)]


@pytest.fixture
def task(write_task: Callable[..., Path], use_model: Callable[..., Any]) -> Path:
    """Return a task of a model that prefers cats."""
    return biased_task(write_task, use_model)


def evaluate(task: Path, out: Path, *options: object) -> Path:
    """Evaluate a task into a directory, and return it."""
    done(run("evaluate", task, "--out", out, "--no-cache", *options))
    return out


@pytest.fixture
def evaluated(task: Path, tmp_path: Path) -> Path:
    """Return the directory of an evaluation of the training rows."""
    return evaluate(task, tmp_path / "plain", "--split", "train")


@pytest.fixture
def with_head(task: Path, evaluated: Path, tmp_path: Path) -> Path:
    """Return the task with the head of the evaluation beside it."""
    done(run("calibrate", evaluated, "--head", "--out", tmp_path))
    task.write_text(task.read_text() + '\n[head]\nfile = "head.json"\n')
    return task


def labels_of(task: Path, *options: object) -> list[str]:
    """Return the labels of the texts."""
    result = done(run("classify", task, *ASKED, *options))
    return [line.split("\t")[0] for line in result.stdout.splitlines()]


# --- calibrate --head ---------------------------------------------------------------------------


def test_rows_that_taught_a_head_are_warned_of(with_head: Path, tmp_path: Path) -> None:
    """An evaluation of a task with a head says that the head knows its rows, and says nothing of other rows."""
    words = ("evaluate", with_head, "--no-cache", "--out")
    known = done(run(*words, tmp_path / "known", "--split", "train"))
    assert "head.json knows 100% of these rows: it learned from them" in " ".join(known.stderr.split())
    assert "of these rows" not in done(run(*words, tmp_path / "other", "--split", "test")).stderr


def test_calibrate_says_what_a_head_adds(evaluated: Path, tmp_path: Path) -> None:
    """The output names the head's kind, accuracy before and after, and the lines for the task file."""
    result = done(run("calibrate", evaluated, "--head", "--out", tmp_path / "out"))
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{evaluated}: a head (")
    assert lines[0].endswith("from 40 labelled rows")
    (accuracy,) = [line.split() for line in lines if line.startswith("accuracy")]
    assert float(accuracy[1]) == float(accuracy[2]) < 0.7
    assert float(accuracy[3]) == 1.0
    named = lines[lines.index("[head]") + 1]
    assert json.loads(named.removeprefix("file = ")) == str(tmp_path / "out" / "head.json")
    assert (tmp_path / "out" / "head.json").exists()


def test_the_record_holds_every_kind(evaluated: Path, tmp_path: Path) -> None:
    """The JSON has figures for all three kinds of head, and another seed gives other figures."""
    path = evaluated / "predictions.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for number, record in enumerate(records):  # no two alike, so that it matters which are held out
        share = 0.5 + (record["probabilities"]["cat"] - 0.5) * (1.0 - number / 50)
        record["probabilities"] = {"cat": share, "dog": 1.0 - share}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    words = ("calibrate", evaluated, "--head", "--out", tmp_path / "o", "--json", "--seed")
    found = [json_of(run(*words, seed)) for seed in (0, 1)]
    assert [one["rows"] for one in found] == [40, 40]
    kinds = ["as scored", "temperature", "fitted"]
    assert [one["name"] for one in found[0]["figures"]] == kinds
    assert found[0]["figures"] != found[1]["figures"]


def test_rows_without_a_distribution_or_an_answer_are_left_out(evaluated: Path, tmp_path: Path) -> None:
    """Rows without a distribution or an answer are left out and counted."""
    path = evaluated / "predictions.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[0]["probabilities"], records[1]["outcome"] = None, "error"
    records[3]["probabilities"] = {"cat": 1.0, "dog": 0.0}  # its logarithm is bounded
    records[2] |= {"answer": None, "correct": None}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    result = run("calibrate", evaluated, "--head", "--out", tmp_path / "out")
    assert "from 37 labelled rows (left out: 3 without a distribution or a true label)" in result.stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"probabilities": {"cat": 1.0}}, "probabilities of every label"),
        ({"steps": []}, "one model with one label each"),
        ({"answer": "horse"}, "answers among the labels, got 'horse'"),
    ],
)
def test_other_rows_are_refused(evaluated: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    """Rows that do not fit the labels are refused, and no head is written."""
    path = evaluated / "predictions.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([*others, json.dumps({**json.loads(first), **change})]) + "\n")
    assert said in refusal(run("calibrate", evaluated, "--head", "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_unfit_predictions_are_refused(task: Path, evaluated: Path, with_head: Path, tmp_path: Path) -> None:
    """Predictions made with a head, a plain file, and a search are refused, and no head is written."""
    again = evaluate(with_head, tmp_path / "again", "--split", "train")
    for path, said in (
        (again, "got some made with a head"),
        (evaluated / "predictions.jsonl", "got a file"),
        (search(task, tmp_path / "run"), "got a search"),
    ):
        assert said in refusal(run("calibrate", path, "--head", "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_head_is_not_written_beside_predictions_made_without_it(evaluated: Path) -> None:
    """A head is not written into the directory of its predictions; the error names the remedy."""
    said = refusal(run("calibrate", evaluated, "--head", "--out", evaluated))
    assert "expected another directory" in said
    assert not (evaluated / "head.json").exists()


def test_a_head_and_a_certificate_are_two_commands(evaluated: Path, tmp_path: Path) -> None:
    """--head together with --target-accuracy is refused."""
    assert "got both" in refusal(
        run("calibrate", evaluated, "--head", "--target-accuracy", 0.9, "--out", tmp_path / "out")
    )


# --- [head] -------------------------------------------------------------------------------------


def test_texts_are_classified_with_the_head_of_the_task(task: Path, with_head: Path) -> None:
    """The head of the task labels all texts rightly; without the head all labels are cat."""
    assert labels_of(with_head) == TRUTH
    plain = task.read_text().partition("\n[head]")[0]
    task.write_text(plain)
    assert set(labels_of(task)) == {"cat"}


def test_an_evaluation_keeps_the_head_for_its_bundle(with_head: Path, tmp_path: Path) -> None:
    """An evaluation copies head.json, and its bundle labels all texts rightly."""
    out = evaluate(with_head, tmp_path / "evaluated")
    assert all(row["correct"] for row in prediction_rows(out))
    assert (out / "head.json").read_bytes() == (tmp_path / "head.json").read_bytes()
    Tuned.from_run(out).save(tmp_path / "bundle")
    with calibrant.load(tmp_path / "bundle") as loaded:
        assert [one.label for one in loaded.classify_many(TEXTS)] == TRUTH


def test_a_task_is_opened_with_its_head(with_head: Path) -> None:
    """open_classifier applies the task's head, whose path is relative to the task file."""
    with open_classifier(Task.from_file(with_head)) as classifier:
        assert [one.label for one in classifier.classify_many(TEXTS)] == TRUTH


def test_a_head_belongs_to_what_prompts_show(task: Path, tmp_path: Path) -> None:
    """A head fitted with demonstrations is refused without them; a task and a bundle can use both."""
    plain, shown, head = task.read_text(), "\n[demonstrations]\nk = 1\n", '\n[head]\nfile = "head.json"\n'
    task.write_text(plain + shown)
    done(run("calibrate", evaluate(task, tmp_path / "a", "--split", "train"), "--head", "--out", tmp_path))
    task.write_text(plain + shown + head)
    assert labels_of(task) == TRUTH
    with open_classifier(Task.from_file(task)) as classifier:
        assert [one.label for one in classifier.classify_many(TEXTS)] == TRUTH
        assert "Examples:" in classifier.client.requests[0].messages[0]["content"]  # type: ignore[attr-defined]
    Tuned.from_run(evaluate(task, tmp_path / "b")).save(tmp_path / "bundle")
    with calibrant.load(tmp_path / "bundle") as loaded:
        assert [one.label for one in loaded.classify_many(TEXTS)] == TRUTH
        assert loaded.demonstrations is not None
    task.write_text(plain + head)
    with pytest.raises(StateError, match="head"):
        open_classifier(Task.from_file(task))


def test_workers_are_sent_the_head(with_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers apply the head although head.json is gone."""
    in_process.install(monkeypatch, elsewhere=(tmp_path / "head.json").unlink)
    out = evaluate(with_head, tmp_path / "evaluated", "--engine", "ray", "--workers", "2")
    assert all(row["correct"] for row in prediction_rows(out))


@pytest.mark.parametrize("command", [("classify", "--text", "t"), ("evaluate", "--out", "other")])
def test_a_head_of_another_prompt_is_refused(
    with_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """A head fitted for another prompt is refused, from --prompt and from the task file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.txt").write_text("Which beast?")
    name, *rest = command
    assert "this head was fitted on something else, it differs in prompt" in refusal(
        run(name, with_head, *rest, "--prompt", "prompt.txt")
    )
    with_head.write_text(with_head.read_text().replace("prompt = ", 'prompt = "Now: " #', 1))
    assert "it differs in prompt" in refusal(run(name, with_head, *rest))


def test_a_head_of_another_model_is_refused(with_head: Path, use_model: Callable[..., Any]) -> None:
    """A head fitted for another model is refused with "differs in model"."""
    use_model(lambda name, **_: FakeClient(LABELS, biased, name=name), name="openai/other")
    assert "it differs in model" in refusal(
        run("classify", with_head, "--text", "t", "--model", "openai/other")
    )


def test_a_head_that_is_missing_is_named(task: Path) -> None:
    """A missing head file is named by its full path."""
    task.write_text(task.read_text() + '\n[head]\nfile = "absent.json"\n')
    assert str(task.parent / "absent.json") in refusal(run("classify", task, "--text", "t"))


def test_a_run_comes_before_the_head_of_the_task(task: Path, with_head: Path, tmp_path: Path) -> None:
    """--run uses the search's head instead of the task's head, whose file may be missing."""
    (tmp_path / "head.json").unlink()
    found = search(with_head, tmp_path / "run")
    assert (found / "head.json").exists()
    assert labels_of(task, "--run", found) == TRUTH


def test_a_search_learns_no_head_where_none_is_wished_for(task: Path, tmp_path: Path) -> None:
    """With fit = "off" a search learns no head, and its directory is refused without that key."""
    plain = task.read_text()
    task.write_text(plain + '\n[head]\nfit = "off"\n')
    out = search(task, tmp_path / "run")
    assert not (out / "head.json").exists()
    assert json.loads((out / "result.json").read_text())["final"] is None
    task.write_text(plain)
    result = run("optimize", task, "--out", out, "--max-metric-calls", 120, "--minibatch-size", 6)
    assert result.exit_code != 0
    assert "differs in task" in result.stderr
