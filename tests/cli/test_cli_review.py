"""Tests of ``calibrant review``: what it prints, what it leaves behind, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrant import BatchEvaluator, Classifier, Example, MultiLabels
from calibrant.core import Task
from calibrant.serving import Review
from calibrant.testing import FakeClient
from command_line import animals, command, done, refusal, unlike_animals, write_rows
from review_page import Visitor, answers_in, reviewed

run = command("review")


def predictions(tmp_path: Path) -> Path:
    """Write 60 predictions, each sure of its label."""
    rows = [
        {"input": row["input"], "label": row["answer"], "answer": None, "confidence": 0.9}
        for row in animals(60)
    ]
    return write_rows(tmp_path / "p.jsonl", rows)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_what_was_decided(tmp_path: Path, number: signal.Signals) -> None:
    """The end names the files and the next command; exit code 0, and nothing on standard error."""
    source = predictions(tmp_path)
    with reviewed(source) as page:
        visitor = Visitor(page.url)
        for row in range(4):
            visitor.decide(row, "dog" if row else "cat")
        page.process.send_signal(number)
        out, err = page.process.communicate()
        assert (page.process.returncode, err) == (0, "")
    assert f"4 rows have an answer in {tmp_path / 'answers.csv'}." in out
    assert f"  calibrant init {tmp_path / 'reviewed.csv'} --text-column input --label-column answer" in out


def test_of_several_labels_the_answers_that_occur_are_offered(tmp_path: Path) -> None:
    """A line says so, and where others can be written."""
    labels = MultiLabels(["Bills", "Food", "Travel"])
    client = FakeClient(labels, {}, default='["Bills", "Travel"]', field="labels")
    with Classifier(model=client, labels=labels, field="labels") as classifier:
        rows = [Example(input=f"text {place}", answer='["Bills", "Travel"]') for place in range(5)]
        BatchEvaluator(classifier).evaluate(rows, out=tmp_path / "topics")
    with reviewed(tmp_path / "topics") as page:
        page.process.send_signal(signal.SIGINT)
        _, err = page.process.communicate()
    told = " ".join(err.split())
    assert "the page offers the 1 that occur. Others can be written into " in told


@pytest.mark.parametrize("answers", [[], ["dog", "-", "dog"]])
def test_answers_that_teach_nothing_are_no_task(tmp_path: Path, answers: list[str]) -> None:
    """Where fewer than two labels were given, no command is printed that would refuse them."""
    with reviewed(predictions(tmp_path)) as page:
        visitor = Visitor(page.url)
        for row, answer in enumerate(answers):
            visitor.decide(row, answer)
        page.process.send_signal(signal.SIGINT)
        out, _ = page.process.communicate()
    assert f"{tmp_path / 'reviewed.csv'} has every row" in out
    assert "calibrant init" not in out


def test_the_printed_command_makes_a_task_of_the_answers(tmp_path: Path) -> None:
    """The rows that have an answer are those that `optimize` learns from, with the answers as labels."""
    source = predictions(tmp_path)
    with reviewed(source, "--out", tmp_path / "out") as page:
        visitor = Visitor(page.url)
        for row in range(40):
            visitor.decide(row, "-" if row == 0 else "dog" if row % 3 else "cat")
        page.process.terminate()
        printed = page.process.communicate()[0].splitlines()[-1].split()
    assert printed[:2] == ["calibrant", "init"]
    done(command(*printed[1:])("--out", tmp_path / "mine"))
    task = Task.from_file(tmp_path / "mine" / "task.toml")
    learned = [*task.train, *task.validation, *task.test]
    texts = [row["input"] for row in animals(60)]
    assert {row.input: row.answer for row in learned} == {
        texts[row]: "dog" if row % 3 else "cat" for row in range(1, 40)
    }


def test_a_review_leads_from_drift_to_a_promise(tmp_path: Path) -> None:
    """With --certify the rows of a directory are asked for until a promise stands, which the end repeats."""
    folder = tmp_path / "labelled"
    folder.mkdir()
    predictions(tmp_path).rename(folder / "predictions.jsonl")
    with reviewed(folder, "--certify", "--target", "0.8") as page:
        visitor = Visitor(page.url)
        while wanted := visitor.ask("/api/promise").json["wanted"]:
            for row in wanted:
                visitor.decide(row, dict(enumerate(animals(60)))[row]["answer"])
        page.process.send_signal(signal.SIGINT)
        out = page.process.communicate()[0]
    certificate = json.loads((folder / "certificate.json").read_text())
    assert certificate["certified"]
    assert f"Certified: {certificate['accepted']} rows (100.0%) are accepted" in out
    assert len(answers_in(folder / "answers.csv")) == certificate["labels_used"]
    assert f"Files in {folder}: certificate.json, decisions.csv" in out


def test_a_file_that_label_warned_of_is_reviewed(
    write_task: Callable[..., Path], fake: Callable[..., Any], tmp_path: Path
) -> None:
    """The command that `label` prints after drift opens its directory, in which every row is to be reviewed."""
    fake(name="local/smollm2-135m")
    run_folder, out, data = tmp_path / "run", tmp_path / "labelled", tmp_path / "cats.csv"
    done(command("evaluate")(write_task(test=unlike_animals(60)), "--out", run_folder, "--no-cache"))
    done(command("calibrate")(run_folder, "--target-accuracy", "0.6", "--out", run_folder))
    data.write_text("input\n" + "".join(f"meow {number}\n" for number in range(60)))
    printed = done(command("label")(run_folder, data, "--out", out, "--no-cache")).stdout
    (words,) = [line.split() for line in printed.splitlines() if line.startswith("  calibrant review ")]
    assert words[2:] == [str(out), "--certify", "--target", "0.6"]
    with Review.opened(Path(words[2])) as review:
        review.certify(target=0.6, budget=200)
        assert review.columns()["flags"] == [1] * 60
        promise = review.promise()
    assert promise is not None
    assert 0 < promise["missing"] <= len(promise["wanted"]) <= 20


def test_without_answers_nothing_is_promised(tmp_path: Path) -> None:
    """A page that was opened and left alone has written no certificate, and no look is counted."""
    with reviewed(predictions(tmp_path), "--certify") as page:
        assert Visitor(page.url).ask("/api/promise").json["used"] == 0
        assert not (tmp_path / "certificate.json").exists()
        page.process.terminate()
        out = page.process.communicate()[0]
    assert "0 rows have an answer" in out
    assert "Nothing is certified." in out
    assert sorted(path.name for path in tmp_path.glob("*.json")) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--certify", "--target", "2"), "target"),
        (("--certify", "--budget", "0"), "budget"),
        (("--certify", "--predicted", "bird"), "bird"),
        (("--certify", "--recall", "cat"), "probabilities"),
        (("--certify", "--predicted", "cat", "--recall", "cat"), "got both"),
        (("--certify", "--metric", "nothing"), "metric"),
    ],
)
def test_a_promise_that_cannot_be_asked_for_is_refused(tmp_path: Path, words: Any, said: str) -> None:
    """Before the page is opened, with the error of `certify`."""
    assert said in refusal(run(predictions(tmp_path), "--no-open", *words))


def test_answers_to_other_rows_are_refused(tmp_path: Path) -> None:
    """A file of answers beside the rows that is about other texts is an error, and stays as it is."""
    source, path = predictions(tmp_path), tmp_path / "answers.csv"
    path.write_text("index,text,label,answer\n0,another text,cat,cat\n")
    before = path.read_text()
    assert "these answers are about other rows" in refusal(run(source, "--no-open"))
    assert path.read_text() == before


def test_a_missing_source_is_refused(tmp_path: Path) -> None:
    """The error names the path."""
    assert str(tmp_path / "nothing.jsonl") in refusal(run(tmp_path / "nothing.jsonl", "--no-open"))


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    """The error names the port, and the answers are free again."""
    source = predictions(tmp_path)
    with reviewed(source, "--out", tmp_path / "one") as page:
        port = page.url.split(":")[2].split("/")[0]
        assert port in refusal(run(source, "--no-open", "--port", port, "--out", tmp_path / "two"))


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    """Without fastapi the command says in one sentence what to install."""
    code = "import sys; sys.modules['fastapi'] = None\nfrom calibrant.cli import main; main()"
    words = [sys.executable, "-c", code, "review", str(predictions(tmp_path))]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 (our own code)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: Serving needs fastapi, which is not installed: run pip install ")
    assert ended.stderr.count("\n") == 1
