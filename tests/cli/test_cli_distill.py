"""Tests of ``calibrant distill``: what it prints, and the commands that take what it wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibrant.cascade import KeepPolicy, KeepRule, plan_cascade
from calibrant.testing import FakeClient
from command_line import command, done, json_of, lasting_rows, refusal, unlike_animals, write_rows

run = command("distill")

WORDS = (
    "sun rain",
    "tree door",
    "lamp book",
    "road hill",
    "fish wine",
    "shoe rope",
    "snow sand",
    "milk salt",
)


def predictions(folder: Path, *, known: bool = True) -> Path:
    """Write predictions of a model that knows two sounds."""
    rows = [
        {
            "input": f"it {sound} {first} {second} {third}",
            "label": label,
            "confidence": 0.95,
            "answer": label if known else None,
        }
        for sound, label in (("purrs", "cat"), ("barks", "dog"))
        for first in WORDS
        for second in WORDS
        for third in WORDS[:3]
    ]
    return write_rows(folder / "large.jsonl", rows)


def test_student_is_measured_and_what_comes_next_is_printed(tmp_path: Path) -> None:
    """The figures, the certificate and the command of the plan, which runs as printed."""
    lines = done(run(predictions(tmp_path), "--out", tmp_path / "student")).stdout.splitlines()
    assert lines[0].startswith(f"{tmp_path}/large.jsonl: a student (text) from ")
    assert lines[2].split()[:6] == ["says", "what", "the", "model", "says", "1.000"]
    assert "rows with a true label" in lines[3]
    assert lines[4].startswith("Certified: the student may answer 100.0% of the texts")
    plan = lines[6].split()
    assert plan[:3] == ["calibrant", "cascade", "plan"]
    assert "Certified" in done(command("cascade", "plan")(*plan[3:])).stdout
    assert (tmp_path / "student" / "plan" / "plan.json").exists()


def test_certificate_counts_among_those_of_its_rows(tmp_path: Path) -> None:
    """The plan of a student states its probability and no further one; an earlier promise on the rows lowers both."""
    source = predictions(tmp_path)
    first = json_of(run(source, "--out", tmp_path / "first", "--json"))["certified"]
    plan = command("cascade", "plan")
    costs = ("--small-cost", 0, "--large-cost", 1)
    pair = (tmp_path / "first", tmp_path / "first" / "model.jsonl")
    planned = json_of(plan(*pair, *costs, "--out", tmp_path / "plan", "--json"))["certificate"]
    assert (first["delta"], planned["delta"]) == (0.1, 0.1)
    done(plan(*pair, *costs, "--epsilon", 0.2, "--delta", 0.3, "--out", tmp_path / "other"))
    shown = done(run(source, "--out", tmp_path / "again")).stdout
    assert "with probability 0.6, at most 0.02 of the accuracy is lost" in shown
    assert "Earlier certificates of these rows are allowed for." in shown
    done(plan(*pair, *costs, "--epsilon", 0.3, "--delta", 0.1, "--out", tmp_path / "third"))
    source.write_text(source.read_text().replace("0.95", "0.9"))
    used_up = json_of(run(source, "--out", tmp_path / "last", "--json"))["certified"]
    assert (used_up["share_kept"], used_up["threshold"]) == (0.0, None)


def test_unlabelled_rows_are_said_to_stand_on_the_model(tmp_path: Path) -> None:
    """No accuracy is printed without a true label."""
    found = done(run(predictions(tmp_path, known=False), "--out", tmp_path / "student")).stdout
    assert "rows the model's label stands in for the true one." in found
    assert "with a true label" not in found
    rows = tmp_path / "student" / "model.jsonl"
    agreement = "what is said of these rows is agreement with that model, not being right"
    costs = ("--small-cost", 0, "--large-cost", 1, "--out", tmp_path / "plan")
    assert agreement in done(command("cascade", "plan")(tmp_path / "student", rows, *costs)).stderr
    for source in (rows, tmp_path / "student"):
        assert agreement in done(command("calibrate")(source, "--out", tmp_path / "calibrated")).stderr
    assert agreement in done(command("compare")(tmp_path / "student", rows)).stderr


def test_promise_of_a_student_without_true_labels_is_of_agreement(tmp_path: Path) -> None:
    """Its certificate says what right means, and so do the labels that it decides on, by a bundle, too."""
    student = tmp_path / "student"
    rows = [
        {**row, "label": row["answer"], "confidence": 0.95, "answer": None} for row in unlike_animals(300)
    ]
    done(run(write_rows(tmp_path / "large.jsonl", rows), "--out", student))
    said = "Labels of a model stood in for true ones that are not known: right means as that model says."
    target = ("--target-accuracy", 0.9, "--out", student)
    assert said in done(command("calibrate")(student, *target)).stdout
    done(command("export")(student, "--out", tmp_path / "bundle"))
    texts = write_rows(tmp_path / "texts.jsonl", [{"input": "meow"}])
    for number, source in enumerate((student, tmp_path / "bundle")):
        assert said in done(command("label")(source, texts, "--out", tmp_path / f"labelled-{number}")).stdout


def test_nothing_certified_is_said(tmp_path: Path) -> None:
    """Too few held-out rows prove nothing."""
    rows = predictions(tmp_path).read_text().splitlines()
    (tmp_path / "few.jsonl").write_text("\n".join(rows[::8]) + "\n")
    found = done(run(tmp_path / "few.jsonl", "--out", tmp_path / "student")).stdout
    assert "Nothing certified: these rows do not show" in found


def test_label_and_classify_take_the_student(tmp_path: Path) -> None:
    """The folder is a run like any other."""
    done(run(predictions(tmp_path), "--out", tmp_path / "student"))
    texts = write_rows(
        tmp_path / "texts.jsonl", [{"input": "it purrs sun rain"}, {"input": "it barks milk salt"}]
    )
    said = done(command("label")(tmp_path / "student", texts, "--out", tmp_path / "labelled")).stdout
    assert "\n0 calls, 2 rows without a call, 0 + 0 tokens, at no cost; 2 rows in " in said
    metrics = json.loads((tmp_path / "labelled" / "metrics.json").read_text())
    assert (metrics["calls"], metrics["rows_from_cache"], metrics["answered"]) == (0, 2, 2)
    labelled = (tmp_path / "labelled" / "labels.jsonl").read_text()
    assert [line.count('"label": "cat"') for line in labelled.splitlines()] == [1, 0]
    assert "dog" in done(command("classify")(tmp_path / "student", "--text", "it barks snow sand")).stdout


def test_two_students_of_one_name_are_no_plan(tmp_path: Path) -> None:
    """A student that was moved has the name of the one that is in its old folder now: a plan would mix them up."""
    student, moved, source = tmp_path / "student", tmp_path / "moved", predictions(tmp_path)
    done(run(source, "--out", student))
    student.rename(moved)
    assert "dog" in done(command("classify")(moved, "--text", "it barks snow sand")).stdout
    source.write_text(source.read_text().replace("0.95", "0.7"))
    done(run(source, "--out", student))
    plan_cascade(moved, student, small_cost=0, large_cost=1).save(tmp_path / "plan.json")
    asked = ("run", tmp_path / "plan.json", moved, student, "--text", "it barks")
    assert f"Expected one student with the name 'distilled:{student}'" in refusal(command("cascade")(*asked))


TASK = 'name = "pets"\nlabels = ["cat", "dog"]\nprompt = {}\n[model]\nname = "{}"\n'


def labelled(source: Path, texts: Path, out: Path) -> list[tuple[str, float, str]]:
    """Return labels, confidences and models of texts, as `calibrant label` finds them."""
    done(command("label")(source, texts, "--out", out, "--no-cache"))
    return [(row["label"], row["confidence"], row["model"]) for row in lasting_rows(out)]


@pytest.mark.parametrize(("kind", "then"), [("run", "gone"), ("bundle", "another"), ("task file", "gone")])
def test_the_run_of_a_plan_holds_its_student(
    kind: str, then: str, use_model: Callable[..., Any], tmp_path: Path
) -> None:
    """The run and its bundle answer as before where the student's folder is gone, or holds another student."""
    use_model(FakeClient(["cat", "dog"], {"sleeps": ("dog", 0.9)}, name="large", field="label"), "large")
    student = tmp_path / "student"
    done(run(predictions(tmp_path), "--out", student))
    plan = plan_cascade(student, student / "model.jsonl", small_cost=0, large_cost=1)
    policy = KeepPolicy(name="threshold 0.8", members=(0, 1), rules=(KeepRule.from_threshold(0.8),))
    replace(plan, policy=policy).save(tmp_path / "plan.json")
    prompt = json.dumps(json.loads((student / "run.json").read_text())["prompt"])
    first = student
    if kind == "bundle":
        first = tmp_path / "first"
        done(command("export")(student, "--out", first))
    elif kind == "task file":
        first = tmp_path / "first.toml"
        first.write_text(TASK.format(prompt, f"distilled:{student}"))
    (tmp_path / "large.toml").write_text(TASK.format(prompt, "large"))
    rows = [{"input": f"it {sound} sun", "answer": "cat"} for sound in ("purrs", "barks", "sleeps")]
    texts = write_rows(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "both"
    members = (first, tmp_path / "large.toml")
    said = done(
        command("cascade")("run", tmp_path / "plan.json", *members, "--file", texts, "--out", out)
    ).stdout
    assert "\n1 call, 2 rows without a call, " in said, "an answer of the student is no call"
    (total,) = (line.split() for line in said.splitlines() if line.startswith("all models"))
    assert total[-2] == "1"
    record = json.loads((out / "metrics.json").read_text())
    assert (record["calls"], record["rows_from_cache"]) == (1, 2)
    known = ("run", tmp_path / "plan.json", *members, "--file", texts, "--out", tmp_path / "known")
    assert "\n0 calls, 3 rows without a call, " in done(command("cascade")(*known)).stdout
    before = [(row["label"], row["confidence"], row["model"]) for row in lasting_rows(out)]
    shutil.rmtree(student)
    if then == "another":
        source = tmp_path / "large.jsonl"
        source.write_text(source.read_text().replace("0.95", "0.7"))
        done(run(source, "--out", student))
    assert labelled(out, texts, tmp_path / "labelled") == before
    done(command("export")(out, "--out", tmp_path / "exported"))
    assert labelled(tmp_path / "exported", texts, tmp_path / "again") == before
    done(command("evaluate")(out, "--file", texts, "--out", tmp_path / "evaluated", "--no-cache"))
    assert labelled(tmp_path / "evaluated", texts, tmp_path / "third") == before
    assert [label for label, _, model in before if not model.startswith("distilled:")] == ["dog"]


def test_rows_that_taught_a_student_are_warned_of(use_model: Callable[..., Any], tmp_path: Path) -> None:
    """A plan is not judged without a word on rows that one of its models knows."""
    use_model(FakeClient(["cat", "dog"], ("cat", 0.9), name="large", field="label"), "large")
    student = tmp_path / "student"
    taught = predictions(tmp_path)
    done(run(taught, "--out", student))
    costs = ("--small-cost", 0, "--large-cost", 1)
    done(command("cascade")("plan", student, student / "model.jsonl", *costs, "--out", tmp_path / "plan"))
    prompt = json.dumps(json.loads((student / "run.json").read_text())["prompt"])
    (tmp_path / "large.toml").write_text(TASK.format(prompt, "large"))
    asked = ("run", tmp_path / "plan", student, tmp_path / "large.toml", "--file", taught)
    said = done(command("cascade")(*asked, "--out", tmp_path / "both")).stderr
    assert "knows 100% of these rows: it learned from them" in said


def test_json_has_the_figures(tmp_path: Path) -> None:
    """One line of JSON has what the lines say."""
    found = json_of(run(predictions(tmp_path), "--out", tmp_path / "student", "--json"))
    assert found["taught"] + found["held_out"] == found["rows"] == 384
    assert found["certified"]["share_kept"] == 1.0
    assert found["head"]["uses_model"] is False
    assert found["agreement"]["estimate"] == 1.0


def test_taken_folder_is_refused(tmp_path: Path) -> None:
    """Nothing is written into a folder that holds other files."""
    path = predictions(tmp_path)
    assert "expected a folder that is not there yet" in refusal(run(path, "--out", tmp_path))
