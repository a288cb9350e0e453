"""Tests of a search's head on the command line: the table, and the commands that use the head."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from biased_model import BUDGET, LABELS, biased_task, run, search
from command_line import done, prediction_rows, refusal


@pytest.fixture
def task(write_task: Callable[..., Path], use_model: Callable[..., Any]) -> Path:
    """Return a task of a model that prefers cats."""
    return biased_task(write_task, use_model)


@pytest.fixture
def searched(task: Path, tmp_path: Path) -> Path:
    """Return the directory of a search."""
    return search(task, tmp_path / "run")


def final_rows(searched: Path) -> list[dict[str, Any]]:
    """Return the test rows with the head, as the search wrote them."""
    lines = (searched / "predictions.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["prompt"] == "final"]


def test_the_table_shows_the_head_beside_what_needs_no_model(task: Path, tmp_path: Path) -> None:
    """The table holds the seed prompt, what the user gets and baselines; the output speaks of what the user gets."""
    out = tmp_path / "table"
    result = done(run("optimize", task, "--out", out, *BUDGET))
    lines = result.stdout.splitlines()[2:6]
    cells = {name: more for name, *more in (re.split(r"\s{2,}", line) for line in lines)}
    assert list(cells) == ["seed prompt", "final: prompt + head", "majority", "TF-IDF"]
    accuracy = {name: float(more[0].split()[0]) for name, more in cells.items()}
    assert (cells["final: prompt + head"][2], cells["majority"][2]) == ("2 of 2", "1 of 2")
    assert accuracy["final: prompt + head"] == 1.0
    assert accuracy["seed prompt"] < 0.7
    assert accuracy["TF-IDF"] < 0.8
    assert (
        "The seed prompt with its head is better than the seed prompt alone on the test rows: +"
        in result.stdout
    )
    assert json.loads((out / "result.json").read_text())["improved"]
    assert "The model adds +" in result.stdout
    assert "labelled rows: On held-out rows log loss goes from" in result.stdout


def test_texts_are_classified_with_the_head_of_a_run(task: Path, searched: Path) -> None:
    """--run classifies with the search's head; --prompt takes the prompt without the head."""
    texts = [argument for row in final_rows(searched) for argument in ("--text", row["input"])]
    result = done(run("classify", task, *texts, "--run", searched, "--json"))
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["label"], row["confidence"]) for row in found] == [
        (row["label"], row["confidence"]) for row in final_rows(searched)
    ]
    assert {row["label"] for row in found} == set(LABELS)
    plain = run("classify", task, *texts, "--prompt", searched / "best_prompt.txt")
    assert {line.split("\t")[0] for line in plain.stdout.splitlines()} == {"cat"}


def test_rows_are_evaluated_with_the_head_of_a_run(task: Path, searched: Path, tmp_path: Path) -> None:
    """--run evaluates with the search's head, and copies head.json into the directory."""
    out = tmp_path / "evaluated"
    done(run("evaluate", task, "--run", searched, "--out", out, "--no-cache"))
    found = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [(row["label"], row["confidence"]) for row in found] == [
        (row["label"], row["confidence"]) for row in final_rows(searched)
    ]
    assert all(row["correct"] for row in found)
    assert (out / "head.json").read_bytes() == (searched / "head.json").read_bytes()


def test_an_evaluation_says_what_the_runs_certificate_accepts(
    task: Path, searched: Path, tmp_path: Path
) -> None:
    """--run prints how many of the evaluated rows the run's certificate accepts, and how many of these are right."""
    rows = tmp_path / "fresh.jsonl"
    texts = {row["answer"]: row["input"] for row in final_rows(searched)}
    lines = [
        {"input": f"{texts[label]} {number}", "answer": label} for number in range(5) for label in LABELS
    ]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("evaluate", task, "--run", searched, "--file", rows, "--no-cache", "--out")
    calibration = searched / "calibration.json"
    record = json.loads(calibration.read_text())
    for threshold, expected in (
        (0.0, "10 (100.0 %) of these rows, accuracy "),
        (1.0, "0 (0.0 %) of these rows"),
    ):
        certified = {"threshold": threshold, "target_accuracy": 0.9}
        calibration.write_text(json.dumps({**record, "certified": certified}))
        printed = done(run(*command, tmp_path / str(threshold))).stdout
        (line,) = [line for line in printed.splitlines() if line.startswith("accepted at the confidence")]
        assert "promised 0.9 right" in line
        assert expected in line
        if threshold == 0.0:
            right = [row["correct"] for row in prediction_rows(tmp_path / str(threshold))]
            assert f"accuracy {sum(right) / 10:.3f} (" in line
    itself = done(
        run("evaluate", searched, "--file", rows, "--no-cache", "--out", tmp_path / "itself")
    ).stdout
    assert "certifies (1 or more, promised 0.9 right): 0 (0.0 %) of these rows" in itself
    calibration.write_text(json.dumps({**record, "certified": None}))
    assert "accepted at" not in done(run(*command, tmp_path / "none")).stdout


def test_labels_say_whose_confidence_it_is(searched: Path, tmp_path: Path) -> None:
    """The mean confidence of labels under a head is said to be that after the head."""
    (tmp_path / "new.csv").write_text("input\ntest 0\ntest 1\n")
    result = done(run("label", searched, tmp_path / "new.csv", "--out", tmp_path / "labelled"))
    assert ", after the head" in result.stdout


def test_a_head_of_another_prompt_or_a_damaged_one_is_refused(task: Path, searched: Path) -> None:
    """A damaged head.json, and a head beside another prompt, are refused."""
    head = searched / "head.json"
    whole = head.read_text()
    head.write_text(whole[: len(whole) // 2])
    assert "head.json" in refusal(run("classify", task, "--text", "t", "--run", searched))
    head.write_text(whole)
    (searched / "best_prompt.txt").write_text("Another prompt")
    assert "prompt" in refusal(run("classify", task, "--text", "t", "--run", searched))


def test_a_label_prior_that_is_named_comes_before_the_head(task: Path, tmp_path: Path) -> None:
    """--label-prior replaces the head of a run; without the option the head is used."""
    out = tmp_path / "run"
    done(run("optimize", task, "--out", out, "--prior-correction", "batch", *BUDGET))
    asked = ("classify", task, "--text", "test 1", "--run", out, "--json")
    with_head = json.loads(run(*asked).stdout)
    assert with_head["confidence"] == final_rows(out)[1]["confidence"]
    with_prior = json.loads(run(*asked, "--label-prior", out / "label_prior.json").stdout)
    assert with_prior["confidence"] != with_head["confidence"]
