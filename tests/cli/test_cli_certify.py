"""Tests of ``calibrant certify``: a person, a command and a model as sources of labels, and what they do wrong."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import command, done, json_of, refusal, write_rows
from decision_server import DecisionServer
from review_page import Visitor, reviewed

run = command("certify")

TARGET = ("--target", "0.9")


def predictions(tmp_path: Path, n: int = 120) -> Path:
    """Write predictions whose surest half is right, and of the rest every second one."""
    rows = [
        {
            "input": f"{'sure' if place < n // 2 else 'odd' if place % 2 else 'even'} text {place}",
            "label": "cat",
            "answer": None,
            "confidence": 0.9 if place < n // 2 else 0.6,
            "probabilities": {"cat": 0.9, "dog": 0.1},
        }
        for place in range(n)
    ]
    return write_rows(tmp_path / "p.jsonl", rows)


def truth(text: str) -> str:
    """Return the true label of a text."""
    return "dog" if text.startswith("odd") else "cat"


def fill(path: Path) -> int:
    """Answer the rows that wait; return their number."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    waiting = [row for row in rows if not row["answer"]]
    for row in waiting:
        row["answer"] = truth(row["text"])
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return len(waiting)


def by_command(tmp_path: Path, body: str = "print('dog' if text.startswith('odd') else 'cat')") -> str:
    """Return a command that notes the texts it is asked about, and labels them."""
    script = tmp_path / "person.py"
    script.write_text(
        f"import sys\ntext = sys.stdin.read()\nopen({str(tmp_path / 'asked.txt')!r}, 'a').write(text + '\\n')\n{body}\n"
    )
    return f"{sys.executable} {script}"


def test_a_person_answers_in_a_file(tmp_path: Path) -> None:
    """Rounds of at most 20 rows are written to the file until the promise holds; the decisions are written."""
    path, answers, out = predictions(tmp_path), tmp_path / "answers.csv", tmp_path / "out"
    words = (path, *TARGET, "--budget", "70", "--ask", answers, "--out", out)
    first = done(run(*words))
    assert f"20 rows wait in {answers}" in first.stdout
    assert "Nothing certified" in first.stdout
    rounds = 0
    while fill(answers):
        last = done(run(*words))
        rounds += 1
    assert rounds < 12
    found = json.loads((out / "certificate.json").read_text())
    assert (found["certified"], found["object"], found["waiting"]) == (True, "file", 0)
    assert 0.45 < found["kept"] < 0.75
    assert f"Certified: {found['accepted']} rows" in last.stdout
    with (out / "decisions.csv").open(newline="") as file:
        decided = list(csv.DictReader(file))
    unseen = sum(row["decision"] == "accepted" for row in decided)
    assert f"are accepted, {unseen} of them without a label given, from" in last.stdout
    assert len(decided) == 120
    assert {row["decision"] for row in decided} == {"accepted", "answered", "review"}
    assert all(row["label"] == truth(f"odd {row}") for row in decided if row["label"] == "dog")


def mixed(tmp_path: Path) -> Path:
    """Write predictions whose wrong ones are rare among the surest, and come at odd places."""
    drawn = random.Random(5)
    rows = []
    for place in range(600):
        confidence = drawn.uniform(0.4, 1.0)
        is_right = drawn.random() < confidence**0.6
        row = {"input": f"{'even' if is_right else 'odd'} text {place}", "label": "cat"}
        rows.append(row | {"answer": None, "confidence": confidence})
    return write_rows(tmp_path / "mixed.jsonl", rows)


@pytest.mark.parametrize("budget", [60, 100])
def test_a_person_is_never_asked_for_more_than_the_budget(tmp_path: Path, budget: int) -> None:
    """Rows of a round that a wrong answer made needless count, too, and the reason says how many counted."""
    answers, out = tmp_path / "answers.csv", tmp_path / "out"
    words = (mixed(tmp_path), *TARGET, "--budget", budget, "--ask", answers, "--out", out)
    last = done(run(*words))
    while fill(answers):
        last = done(run(*words))
    found = json.loads((out / "certificate.json").read_text())
    assert (found["certified"], found["labels_given"], found["waiting"]) == (True, budget, 0)
    assert found["labels_used"] < budget
    given = f"{budget} labels are given, {found['labels_used']} of them of rows that the promise came to; "
    left = f"What is left of {budget} labels could not show more."
    assert f"Why not more: {given if budget == 60 else left}" in last.stdout
    more = done(run(*words, "--budget", budget + 200))
    assert f"20 rows wait in {answers}" in more.stdout


def test_rows_that_wait_for_another_command_are_not_asked_for(tmp_path: Path) -> None:
    """A budget too small is told although rows of an estimate wait in the file; those answered come free."""
    answers, out = tmp_path / "answers.csv", tmp_path / "out"
    words = (mixed(tmp_path), "--ask", answers, "--out", out)
    done(command("estimate")(*words, "--budget", 100))
    certifying = (*words, *TARGET)
    small = done(run(*certifying, "--budget", 20))
    assert "Why not more: A promise of 0.9 with probability 0.9 takes at least 24 labels" in small.stdout
    assert "run the same command again" not in small.stdout
    fill(answers)
    asked = done(run(*certifying, "--budget", 60)).stdout
    assert f"20 rows wait in {answers}" in asked
    while fill(answers):
        asked = done(run(*certifying, "--budget", 60)).stdout
    found = json.loads((out / "certificate.json").read_text())
    assert found["certified"]
    with answers.open(newline="") as file:
        assert len(list(csv.DictReader(file))) <= 160
    assert "run the same command again" not in asked


def test_columns_of_whoever_answers_are_kept(tmp_path: Path) -> None:
    """A column that a person adds is in the file of the next round, empty for its new rows."""
    answers = tmp_path / "answers.csv"
    words = (predictions(tmp_path), *TARGET, "--budget", "70", "--ask", answers, "--out", tmp_path / "out")
    done(run(*words))
    fill(answers)
    with answers.open(newline="") as file:
        first = [row | {"by": "Ann, again", "answer": row["answer"]} for row in csv.DictReader(file)]
    with answers.open("w", newline="") as file:
        writer = csv.DictWriter(file, first[0])
        writer.writeheader()
        writer.writerows(first)
    done(run(*words))
    with answers.open(newline="") as file:
        second = list(csv.DictReader(file))
    assert second[: len(first)] == first
    assert len(second) == len(first) + 20
    assert {row["by"] for row in second[len(first) :]} == {""}


@pytest.mark.parametrize(
    ("separator", "encoding", "end"), [(";", "utf-8-sig", "\r\n"), ("\t", "utf-16", "\n")]
)
def test_a_file_of_answers_keeps_its_form(tmp_path: Path, separator: str, encoding: str, end: str) -> None:
    """The program that saved it opens the next round, too."""
    answers = tmp_path / "answers.csv"
    words = (predictions(tmp_path), *TARGET, "--budget", "70", "--ask", answers, "--out", tmp_path / "out")
    done(run(*words))
    fill(answers)
    with answers.open(newline="") as file:
        rows = list(csv.reader(file))
    with answers.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=separator, lineterminator=end).writerows(rows)
    before = answers.read_bytes()
    assert "20 labels given" in done(run(*words)).stdout
    assert answers.read_bytes().startswith(before)
    assert len(answers.read_bytes()) > len(before)


def test_answers_in_lines_that_end_in_cr_are_read(tmp_path: Path) -> None:
    """A file as old spreadsheets write it is no file without rows."""
    answers = tmp_path / "answers.csv"
    words = (predictions(tmp_path), *TARGET, "--budget", "70", "--ask", answers, "--out", tmp_path / "out")
    done(run(*words))
    fill(answers)
    answers.write_bytes(answers.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r"))
    assert "20 labels given" in done(run(*words)).stdout


def test_a_command_is_asked_once_for_each_row(tmp_path: Path) -> None:
    """A command that fails midway keeps what it answered; the same command goes on there, to the same result."""
    path = predictions(tmp_path)
    words = (path, *TARGET, "--budget", "70", "--out", tmp_path / "out", "--json")
    limit = f"import os\nif len(open({str(tmp_path / 'asked.txt')!r}).readlines()) == 5: sys.exit('no more today')\n"
    whole = "print('dog' if text.startswith('odd') else 'cat')"
    error = refusal(run(*words, "--ask", by_command(tmp_path, limit + whole)))
    assert "no more today" in error
    found = json_of(run(*words, "--ask", by_command(tmp_path, whole)))
    assert found["certified"]
    asked = (tmp_path / "asked.txt").read_text().splitlines()
    assert len(asked) == len(set(asked)) + 1 == found["labels_used"] + 1
    assert json_of(run(*words, "--ask", by_command(tmp_path, "sys.exit('not again')"))) == found


def test_promises_on_the_same_rows_add_up(tmp_path: Path) -> None:
    """Another target is another promise, which states the sum; more labels for the same one are none."""
    words = (predictions(tmp_path), "--ask", by_command(tmp_path), "--out", tmp_path / "out", "--json")
    first = json_of(run(*words, *TARGET, "--budget", "60"))
    more = json_of(run(*words, *TARGET, "--budget", "70"))
    other = json_of(run(*words, "--target", "0.8", "--budget", "70"))
    assert [one["certified"] for one in (first, more, other)] == [True, True, True]
    assert [one["delta"] for one in (first, more, other)] == pytest.approx([0.1, 0.1, 0.2])
    shown = done(run(*words[:-1], "--target", "0.8", "--budget", "70")).stdout
    assert "with probability 0.8, at least 80.0% of them are right" in shown
    assert "With that probability all promises asked of these rows hold." in shown


def test_promises_about_other_labels_of_the_same_rows_add_up(tmp_path: Path) -> None:
    """What is promised of another model's labels is another promise, even where both are equally sure of each row."""
    deltas = []
    for number, label in enumerate(("cat", "dog")):
        rows = [
            {
                "input": f"sure text {place}",
                "label": label if place % 9 == 0 else "cat",
                "answer": None,
                "confidence": 0.9,
            }
            for place in range(120)
        ]
        source = write_rows(tmp_path / f"{number}.jsonl", rows)
        words = (
            *("--ask", by_command(tmp_path), "--out", tmp_path / f"out{number}"),
            *("--target", "0.7", "--budget", "70", "--json"),
        )
        deltas.append(json_of(run(source, *words))["delta"])
    assert deltas == pytest.approx([0.1, 0.2])


def test_a_file_of_labels_has_another_confidence_than_its_promise(tmp_path: Path) -> None:
    """A threshold names the file whose confidences it is of, where labels beside it may hold calibrated ones."""
    source = predictions(tmp_path).rename(tmp_path / "predictions.jsonl")
    words = (source, "--ask", by_command(tmp_path), "--out", tmp_path / "out", *TARGET, "--budget", "70")
    assert " in predictions.jsonl" not in done(run(*words)).stdout
    (tmp_path / "labels.csv").write_text("input,label,confidence\n")
    assert "from a confidence of 0.6 on in predictions.jsonl;" in done(run(*words)).stdout


def test_a_command_that_prints_no_label_is_named(tmp_path: Path) -> None:
    """An answer that is none of the labels is said of the command that gave it, not of the predictions."""
    ask = by_command(tmp_path, "print('cow')")
    error = refusal(
        run(predictions(tmp_path), *TARGET, "--budget", "70", "--ask", ask, "--out", tmp_path / "out")
    )
    assert f"expected a label from {ask!r} of --ask, one of cat, dog, or " in error
    assert "got 'cow' for the row with index " in error
    assert "predictions.jsonl" not in error


def test_promises_asked_too_often_are_refused(tmp_path: Path) -> None:
    """Where a promise would fail more often than not, nothing is accepted."""
    words = (
        predictions(tmp_path),
        "--ask",
        by_command(tmp_path),
        "--out",
        tmp_path / "out",
        "--budget",
        "70",
        "--json",
    )
    for target in ("0.9", "0.85", "0.8", "0.75", "0.7"):
        assert json_of(run(*words, "--target", target))["certified"]
    asked = tmp_path / "asked.txt"
    asked.write_text("")
    refused = json_of(run(*words, "--target", "0.65"))
    assert (refused["certified"], refused["accepted"]) == (False, 0)
    assert "may be wrong with probability 0.5" in refused["reason"]
    person = ("--ask", tmp_path / "person.csv", "--out", tmp_path / "by_person")
    told = json_of(run(*words, *person, "--target", "0.65"))
    assert (told["reason"], told["waiting"]) == (refused["reason"], 0)
    assert not (tmp_path / "person.csv").exists()
    assert asked.read_text() == "", "no label is paid for that a promise could not use"
    assert json_of(run(*words, "--target", "0.9"))["certified"]


def test_answers_that_a_review_has_open_are_left_alone(tmp_path: Path) -> None:
    """`certify` and `estimate` say which process it is, and ask nobody; once it ended, they go on."""
    source = predictions(tmp_path)
    out = tmp_path / "reviewed"
    words = (source, "--ask", out / "answers.csv", "--budget", "70", "--out", tmp_path / "out")
    with reviewed(source, "--out", out) as page:
        Visitor(page.url).decide(3, "cat")
        for name, target in (("certify", TARGET), ("estimate", ())):
            error = refusal(command(name)(*words, *target))
            assert f"answers.csv: process {page.process.pid} of calibrant has these answers open" in error
        assert (out / "answers.csv").read_text().count("\n") == 2
    assert "20 rows wait" in done(run(*words, *TARGET)).stdout


def test_a_file_that_is_not_labelled_whole_is_refused(tmp_path: Path) -> None:
    """The promise is about all rows of the file: a run that ended early is to be finished first."""
    folder = tmp_path / "run"
    folder.mkdir()
    predictions(tmp_path).rename(folder / "predictions.jsonl")
    (folder / "run.json").write_text("{}")
    (folder / "metrics.json").write_text(
        json.dumps({"schema_version": 1, "complete": False, "stopped": "the deadline of 4 s is over"})
    )
    words = (folder, "--ask", by_command(tmp_path), "--budget", "70", "--out", tmp_path / "out")
    for name, target in (("certify", TARGET), ("estimate", ())):
        error = refusal(command(name)(*words, *target))
        assert "ended early (the deadline of 4 s is over): run the command that wrote it again" in error
    assert "ended early" in refusal(command("review")(folder, "--certify", "--no-open"))
    assert not (tmp_path / "asked.txt").exists()


def test_rows_without_a_label_are_in_review(tmp_path: Path) -> None:
    """They are counted apart, and have a line in the decisions."""
    path = predictions(tmp_path)
    lost = [{"input": f"lost {n}", "label": None, "answer": None, "confidence": None} for n in range(2)]
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in lost)
    words = (path, *TARGET, "--budget", "70", "--ask", by_command(tmp_path), "--out", tmp_path / "out")
    assert "120 rows, 2 others have no label and are in review; " in done(run(*words)).stdout
    with (tmp_path / "out" / "decisions.csv").open(newline="") as file:
        decided = list(csv.DictReader(file))
    assert len(decided) == 122
    assert decided[120:] == [
        {"index": str(index), "label": "", "confidence": "", "decision": "review"} for index in (120, 121)
    ]
    record = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert (record["rows"], record["rows_without_label"]) == (120, 2)


@pytest.fixture
def server() -> Iterator[DecisionServer]:
    """Return a decision model that is sure of the first label."""
    found = DecisionServer(0.8, 0.2)
    yield found
    found.stop()


def test_a_larger_model_answers_under_the_prompt_of_the_run(tmp_path: Path, server: DecisionServer) -> None:
    """Of a directory of label another model is asked with the task's labels; the promise is agreement with it."""
    labelled, folder, task = command("label"), tmp_path / "labelled", tmp_path / "task.toml"
    texts = write_rows(tmp_path / "texts.jsonl", [{"input": f"text {n}"} for n in range(60)])
    model = f'{{ name = "systemone/small", api_base = "{server.root}" }}'
    task.write_text(f'name = "pets"\nlabels = ["cat", "dog"]\nprompt = "Which pet?"\nmodel = {model}\n')
    done(labelled(task, texts, "--out", folder))
    server.asked.clear()
    words = (folder, *TARGET, "--budget", "50", "--ask", "model:systemone/large", "--out")
    found = json_of(run(*words, tmp_path / "out", "--json"))
    assert (found["kept"], found["labels_used"]) == (1.0, len(server.asked))
    assert {body["model"] for body in server.asked} == {"large"}
    assert found["agreement_with"] == "systemone/large"
    shown = done(run(*words, tmp_path / "out")).stdout
    assert f"given by systemone/large, {found['labels_given']} of them as predicted" in shown
    assert "at least 90.0% of them agree with systemone/large." in shown
    assert f"Files in {tmp_path / 'out'}: certificate.json, decisions.csv, answers.csv\n" in shown
    output = done(run(*words, tmp_path / "output", "--metric", "output")).stdout
    assert "get the label asked for, agree with systemone/large." in output
    recall = done(run(*words, tmp_path / "recall", "--recall", "cat")).stdout
    assert "of all rows that systemone/large labels cat are among them" in recall
    assert "right" not in shown + output + recall
    assert "true" not in shown + output + recall
    server.probabilities = (0.2, 0.8)
    assert not json_of(run(*words, tmp_path / "other", "--json"))["certified"]
    error = refusal(run(predictions(tmp_path), *words[1:], tmp_path / "third"))
    assert "directory of calibrant label" in error


class FailingServer(DecisionServer):
    """A decision model that fails once it was asked so often."""

    most = math.inf

    async def _body(self, request: Any) -> dict[str, Any]:
        self.failures = [400] if len(self.asked) >= self.most else []
        return await super()._body(request)


@pytest.mark.parametrize("name", ["certify", "estimate"])
def test_a_call_that_fails_is_no_answer(tmp_path: Path, name: str) -> None:
    """A larger model that cannot be asked ends the command; its answers are kept, and the others asked for later."""
    server = FailingServer(0.8, 0.2)
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        folder, task = tmp_path / "labelled", tmp_path / "task.toml"
        texts = write_rows(tmp_path / "texts.jsonl", [{"input": f"text {n}"} for n in range(60)])
        model = f'{{ name = "systemone/small", api_base = "{server.root}" }}'
        task.write_text(f'name = "pets"\nlabels = ["cat", "dog"]\nprompt = "Which pet?"\nmodel = {model}\n')
        done(command("label")(task, texts, "--out", folder))
        target = TARGET if name == "certify" else ()
        words = (folder, *target, "--budget", 40, "--ask", "model:systemone/large", "--out", tmp_path / "out")
        server.most = len(server.asked) + 5
        stopped = command(name)(*words)
        assert stopped.exit_code == 1
        assert "The answers before it are kept: run the same command again." in stopped.stderr
        server.most = math.inf
        server.asked.clear()
        assert json_of(command(name)(*words, "--json"))["labels_used"] == len(server.asked) + 5


def test_precision_of_one_label(tmp_path: Path) -> None:
    """With a label, its rows alone are asked about, accepted and written."""
    rows = [
        {"input": f"text {n}", "label": ("cat", "dog")[n % 2], "answer": None, "confidence": 0.9}
        for n in range(400)
    ]
    path, out = write_rows(tmp_path / "p.jsonl", rows), tmp_path / "out"
    ask = by_command(tmp_path, "print('cat')")
    found = json_of(
        run(path, *TARGET, "--budget", "100", "--predicted", "cat", "--ask", ask, "--out", out, "--json")
    )
    assert (found["kept"], found["rows"]) == (1.0, 200)
    other = (
        "--predicted",
        "dog",
        "--budget",
        "100",
        "--ask",
        by_command(tmp_path, "print('dog')"),
        "--out",
        out,
    )
    dogs = json_of(run(path, *TARGET, *other, "--json"))
    assert dogs["labels_given"] == dogs["labels_right"] == dogs["labels_used"]  # those of dogs alone
    error = refusal(run(path, *TARGET, "--budget", "100", "--predicted", "cow", "--ask", ask, "--out", out))
    assert "'cow'" in error


def spread(tmp_path: Path, n: int = 400) -> Path:
    """Write predictions whose first quarter is likely a dog, as it is, and the others are not."""
    rows = [
        {
            "input": f"{'odd' if place < n // 4 else 'even'} text {place}",
            "label": "dog" if place < n // 4 else "cat",
            "answer": None,
            "confidence": 0.95,
            "probabilities": {"cat": 0.05, "dog": 0.95} if place < n // 4 else {"cat": 0.95, "dog": 0.05},
        }
        for place in range(n)
    ]
    return write_rows(tmp_path / "p.jsonl", rows)


def test_recall_of_one_label_by_a_person(tmp_path: Path) -> None:
    """The rows that hold the label are flagged, the others left out; answers go on where they were."""
    path, answers, out = spread(tmp_path), tmp_path / "answers.csv", tmp_path / "out"
    words = (path, *TARGET, "--recall", "dog", "--budget", "90", "--out", out)
    for _ in range(4):
        assert "20 rows wait in" in done(run(*words, "--ask", answers)).stdout
        assert fill(answers) == 20
    assert "10 rows wait in" in done(run(*words, "--ask", answers)).stdout
    fill(answers)
    last = done(run(*words, "--ask", answers)).stdout
    found = json.loads((out / "certificate.json").read_text())
    assert (found["certified"], found["metric"], found["label"], found["labels_used"]) == (
        True,
        "recall",
        "dog",
        90,
    )
    assert 0.25 <= found["kept"] < 0.85
    assert f"Certified: {found['accepted']} rows" in last
    assert "of all rows whose true label is dog are among them" in last
    assert json_of(run(*words, "--ask", by_command(tmp_path), "--json")) == found
    with (out / "decisions.csv").open(newline="") as file:
        decided = list(csv.DictReader(file))
    assert {row["decision"] for row in decided} == {"flagged", "left out", "answered"}
    assert not any(row["label"] == "dog" for row in decided if row["decision"] == "left out")


def test_recall_is_of_a_known_label_by_its_probabilities(tmp_path: Path) -> None:
    """Without a label, with one that is none, or without probabilities nothing is asked for."""
    words = (*TARGET, "--budget", "90", "--ask", by_command(tmp_path), "--out")
    path, out = spread(tmp_path), tmp_path / "out"
    assert "--recall LABEL" in refusal(run(path, *words, out, "--metric", "recall"))
    assert "got both" in refusal(run(path, *words, out, "--recall", "cat", "--predicted", "cat"))
    assert "'cow'" in refusal(run(path, *words, out, "--recall", "cow"))
    bare = write_rows(
        tmp_path / "bare.jsonl", [{"input": "a", "label": "cat", "answer": None, "confidence": 0.9}]
    )
    assert "column probabilities" in refusal(run(bare, *words, out, "--recall", "cat"))
    assert not (tmp_path / "asked.txt").exists()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("0,sure text 0,cat,cow", "'cow'"),
        ("900,sure text 900,cat,cat", "not among the rows"),
        ("0,sure text 0,cat,cat\n0,sure text 0,cat,dog", "twice"),
        ("0,another text,cat,cat", "another one"),
        ("x,sure text 0,cat,cat", "'x'"),
        ("0,sure text 0,cat,?", "- where none fits"),
    ],
)
def test_wrong_answers_are_named(tmp_path: Path, line: str, named: str) -> None:
    """Unknown labels and rows, repeated rows and those of another file are refused with their line."""
    answers = tmp_path / "answers.csv"
    answers.write_text(f"index,text,label,answer\n{line}\n")
    words: tuple[Any, ...] = (predictions(tmp_path), *TARGET, "--budget", "90", "--ask", answers)
    error = refusal(run(*words, "--out", tmp_path / "out"))
    assert named in error
    assert "answers.csv" in error
    assert not (tmp_path / "out").exists()


def test_a_file_without_indices_is_named(tmp_path: Path) -> None:
    """A file of something else is told apart from a row that is unknown, by its columns."""
    (tmp_path / "labels.csv").write_text("ticket,answer\n7,cat\n")
    words = (predictions(tmp_path), *TARGET, "--budget", "90", "--ask", tmp_path / "labels.csv")
    error = refusal(run(*words, "--out", tmp_path / "out"))
    assert "expected the columns index, text, label, answer, got ticket, answer" in error


@pytest.mark.parametrize("ask", ["", "  ", "my 'model"])
def test_a_command_that_is_none_is_refused(tmp_path: Path, ask: str) -> None:
    """A blank, or a quote that is not closed, is refused before anything is written."""
    error = refusal(
        run(predictions(tmp_path), *TARGET, "--budget", "90", "--ask", ask, "--out", tmp_path / "out")
    )
    assert "Expected --ask to name a file of answers, a command, or model:NAME" in error
    assert not (tmp_path / "out").exists()


def test_answers_are_in_a_csv_file(tmp_path: Path) -> None:
    """A file of another kind is refused, and stays as it is."""
    sheet = tmp_path / "answers.xlsx"
    sheet.write_bytes(b"mine")
    words = (predictions(tmp_path), *TARGET, "--budget", "90", "--ask", sheet, "--out", tmp_path / "out")
    assert "answers.xlsx" in refusal(run(*words))
    assert sheet.read_bytes() == b"mine"


def test_a_budget_too_small_is_said(tmp_path: Path) -> None:
    """Nothing is asked for where the labels could not prove the promise."""
    ask = by_command(tmp_path)
    result = done(
        run(predictions(tmp_path), *TARGET, "--budget", "5", "--ask", ask, "--out", tmp_path / "out")
    )
    assert "labels, all of them as predicted, got a budget of 5" in result.stdout
    assert "answers.csv" not in result.stdout
    assert not (tmp_path / "asked.txt").exists()


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A file where the certificate's directory is to be is refused in a sentence, and stays as it is."""
    taken = tmp_path / "taken"
    taken.write_text("mine")
    words = (predictions(tmp_path), *TARGET, "--budget", "70", "--ask", tmp_path / "answers.csv")
    assert "expected a directory for the run, got a file" in refusal(run(*words, "--out", taken))
    assert taken.read_text() == "mine"
