"""Tests of ``calibrant estimate``: a person and a command as sources of labels, two predictions, what is refused."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from calibrant import BatchEvaluator, Classifier, Example, MultiLabels
from calibrant.testing import FakeClient
from command_line import command, done, json_of, refusal, write_rows
from decision_server import DecisionServer

run = command("estimate")

N = 120


def truth(place: int) -> str:
    """Return the true label of a row."""
    return "cat" if place % 3 else "dog"


def predictions(tmp_path: Path, name: str = "p.jsonl", n_wrong: int = 12, **values: Any) -> Path:
    """Write predictions, the first ones wrong and unsure."""
    rows = [
        {
            "input": f"{truth(place)} {place}",
            "label": truth(place + 1 if place < n_wrong else place),
            "answer": None,
            "confidence": 0.6 if place < n_wrong else 0.95,
            **values,
        }
        for place in range(N)
    ]
    return write_rows(tmp_path / name, rows)


def by_command(tmp_path: Path, body: str = "print(text.split()[0])") -> str:
    """Return a command that notes the texts it is asked about, and labels them."""
    script = tmp_path / "person.py"
    noted = str(tmp_path / "asked.txt")
    script.write_text(
        f"import sys\ntext = sys.stdin.read()\nopen({noted!r}, 'a').write(text + '\\n')\n{body}\n"
    )
    return f"{sys.executable} {script}"


def fill(path: Path, most: int = N) -> None:
    """Answer the first rows that wait."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows[:most]:
        row["answer"] = row["text"].split()[0]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def test_a_person_answers_in_a_file(tmp_path: Path) -> None:
    """All rows are written to the file; estimates come of those that are filled in, and of all in the end."""
    answers, out = tmp_path / "answers.csv", tmp_path / "out"
    words = (predictions(tmp_path), "--budget", "60", "--ask", answers, "--out", out)
    first = done(run(*words))
    assert "120 rows; no label given yet" in first.stdout
    assert f"60 rows wait in {answers}" in first.stdout
    assert "shares" not in json.loads((out / "estimate.json").read_text())
    fill(answers, 25)
    assert "25 labels used" in done(run(*words)).stdout
    fill(answers)
    last = done(run(*words))
    assert "rows wait" not in last.stdout
    assert all(len(line) <= 80 for line in last.stdout.splitlines() if "tmp" not in line)
    found = json.loads((out / "estimate.json").read_text())
    assert (found["labels_used"], found["waiting"]) == (60, 0)
    share = found["shares"]["dog"]
    assert share["lower"] <= 1 / 3 <= share["upper"]
    assert share["plain_labels"] > 60
    assert f"{share['estimate']:.1%}" in last.stdout
    assert found["accuracy"]["lower"] <= 0.9 <= found["accuracy"]["upper"]


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    """Return the run of a model whose answers hold several labels, all of them right."""
    labels = MultiLabels(["Bills", "Food", "Travel"])
    client = FakeClient(labels, {}, default='["Bills", "Travel"]', field="labels")
    with Classifier(model=client, labels=labels, field="labels") as classifier:
        rows = [Example(input=f"text {place}", answer='["Bills", "Travel"]') for place in range(40)]
        BatchEvaluator(classifier).evaluate(rows, out=tmp_path / "topics")
    return tmp_path / "topics"


@pytest.mark.parametrize("written", ['["Bills", "Travel"]', '["travel","bills"]'])
def test_several_labels_are_right_in_any_order(topics: Path, tmp_path: Path, written: str) -> None:
    """The answers of a person are read as the label set reads them, by `certify`, too."""
    answers = tmp_path / "answers.csv"
    words = (topics, "--budget", "30", "--ask", answers, "--out", tmp_path / "out")
    done(run(*words))
    with answers.open(newline="") as file:
        rows = [row | {"answer": written} for row in csv.DictReader(file)]
    with answers.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    estimated = json_of(run(*words, "--json"))
    assert estimated["accuracy"]["estimate"] == pytest.approx(1.0)
    assert {name: share["estimate"] for name, share in estimated["shares"].items()} == {
        "Bills": 1.0,
        "Travel": 1.0,
    }
    assert estimated["macro_f1"] is None
    assert "accuracy of whole answers" in done(run(*words)).stdout
    certified = command("certify")(*words, "--target", "0.5", "--json")
    found = json_of(certified)
    assert found["labels_right"] == found["labels_given"] > 0


def test_label_studio_is_told_to_offer_other_labels(topics: Path, tmp_path: Path) -> None:
    """The config has the predicted answers alone, as `certify` says, too; another one is read as a choice in JSON."""
    tasks = tmp_path / "tasks.json"
    words = (topics, "--budget", "30", "--ask", tasks, "--out", tmp_path / "out")
    told = "the config offers those predicted (1 choice): add others to the project as choices"
    assert told in done(command("certify")(*words, "--target", "0.5")).stdout
    assert told in done(run(*words)).stdout
    choice = {"from_name": "label", "value": {"choices": ['["food"]']}}
    exported = [task | {"annotations": [{"result": [choice]}]} for task in json.loads(tasks.read_text())]
    tasks.write_text(json.dumps(exported))
    assert list(json_of(run(*words, "--json"))["shares"]) == ["Bills", "Food", "Travel"]


@pytest.mark.parametrize("option", ["--predicted", "--recall"])
def test_one_label_of_several_is_no_promise(topics: Path, tmp_path: Path, option: str) -> None:
    """The error says what can be promised."""
    words = (
        topics,
        "--target",
        "0.5",
        "--budget",
        "30",
        "--ask",
        tmp_path / "a.csv",
        "--out",
        tmp_path / "out",
    )
    assert "for one about whole answers" in refusal(command("certify")(*words, option, "Bills"))


@pytest.mark.parametrize("written", ["Bills; Travel", '["Bils"]', "Bills"])
def test_answers_that_are_no_set_of_labels_are_refused(topics: Path, tmp_path: Path, written: str) -> None:
    """The error shows how several labels are written, whoever answers."""
    words = (topics, "--budget", "30", "--out", tmp_path / "out", "--ask")
    told = refusal(run(*words, by_command(tmp_path, f"print({written!r})")))
    assert 'the labels in JSON, in any order, as in ["Bills", "Travel"]' in " ".join(told.split())


def test_a_command_is_asked_once_for_each_row(tmp_path: Path) -> None:
    """A command that fails midway keeps what it answered, and a larger budget asks for the further rows alone."""
    words = (predictions(tmp_path), "--out", tmp_path / "out", "--json", "--budget")
    noted = tmp_path / "asked.txt"
    limit = f"if len(open({str(noted)!r}).readlines()) == 5: sys.exit('no more today')\n"
    whole = "print(text.split()[0])"
    assert "no more today" in refusal(run(*words, "30", "--ask", by_command(tmp_path, limit + whole)))
    assert json_of(run(*words, "30", "--ask", by_command(tmp_path)))["labels_used"] == 30
    assert json_of(run(*words, "40", "--ask", by_command(tmp_path)))["labels_used"] == 40
    asked = noted.read_text().splitlines()
    assert len(asked) == len(set(asked)) + 1 == 41
    assert (
        json_of(run(*words, "30", "--ask", by_command(tmp_path, "sys.exit('not again')")))["labels_used"]
        == 30
    )


def test_labels_in_another_case_are_the_same(tmp_path: Path) -> None:
    """Predictions and answers that differ in case or space are equal, and have one share."""
    rows = [
        {
            "input": f"{truth(n)} {n}",
            "label": (truth(n), f"{truth(n)} ", truth(n).upper())[n // 3 % 3],
            "confidence": 0.9,
        }
        for n in range(N)
    ]
    path = write_rows(tmp_path / "p.jsonl", rows)
    ask = by_command(tmp_path, "print(text.split()[0].capitalize())")
    found = json_of(run(path, "--budget", "60", "--ask", ask, "--out", tmp_path / "out", "--json"))
    assert sorted(found["shares"]) == ["cat", "dog"]
    assert found["accuracy"]["estimate"] == 1.0


def test_rows_that_no_label_fits_are_said(tmp_path: Path) -> None:
    """Where shares lack rows that no label fits, these are counted, and nothing else is said to be the reason."""
    words = (predictions(tmp_path), "--budget", str(N), "--out", tmp_path / "out")
    body = (
        f"import os\nn = len(open({str(tmp_path / 'asked.txt')!r}).readlines())\n"
        "print('-' if n <= 3 else text.split()[0])"
    )
    found = done(run(*words, "--ask", by_command(tmp_path, body)))
    assert "No label fits 3 of the 120 rows asked about: no share counts them." in found.stdout
    assert "on its own" not in found.stdout
    assert json.loads((tmp_path / "out" / "estimate.json").read_text())["without_label"] == 3


def test_certify_and_estimate_share_their_answers(tmp_path: Path) -> None:
    """Rows that certify has asked about are not asked about again."""
    path, out = predictions(tmp_path), tmp_path / "out"
    certify = command("certify")
    ask = by_command(tmp_path)
    done(run(path, "--budget", "60", "--ask", ask, "--out", out))
    before = len((tmp_path / "asked.txt").read_text().splitlines())
    found = json_of(certify(path, "--target", "0.8", "--budget", "60", "--ask", ask, "--out", out, "--json"))
    after = len((tmp_path / "asked.txt").read_text().splitlines())
    assert found["labels_used"] > after - before


def test_probabilities_of_all_labels_narrow_the_shares(tmp_path: Path) -> None:
    """Rows with a distribution are estimated by it; labels that nobody gave are listed, and a dash is no label."""
    rows = [
        {
            "input": f"{truth(place)} {place}",
            "label": "cat",
            "answer": None,
            "confidence": 0.5,
            "probabilities": {"cat": 0.6, "dog": 0.05 if place % 3 else 0.85, "cow": 0.0},
        }
        for place in range(N)
    ]
    path = write_rows(tmp_path / "p.jsonl", rows)
    words = (path, "--budget", "30", "--out", tmp_path / "out", "--json", "--ask")
    found = json_of(run(*words, by_command(tmp_path)))
    assert list(found["shares"]) == ["cat", "dog", "cow"]
    assert found["shares"]["dog"]["plain_labels"] > 60
    assert found["shares"]["cow"]["estimate"] == 0.0
    none = json_of(
        run(
            path,
            "--budget",
            "30",
            "--out",
            tmp_path / "x",
            "--json",
            "--ask",
            by_command(tmp_path, "print('-')"),
        )
    )
    assert {one["estimate"] for one in none["shares"].values()} == {0.0}


def test_two_predictions_are_compared(tmp_path: Path) -> None:
    """Only rows for which both differ are asked about; with all of them the difference is exact."""
    words = (
        predictions(tmp_path),
        "--against",
        predictions(tmp_path, "q.jsonl", 42),
        "--ask",
        by_command(tmp_path),
    )
    out = tmp_path / "out"
    some = done(run(*words, "--budget", "10", "--out", out))
    assert "both predict the same for all rows but 20" in some.stdout
    found = json_of(run(*words, "--budget", "60", "--out", out, "--json"))
    assert found["labels_used"] == found["rows_apart"] == 20
    assert found["difference"]["lower"] == found["difference"]["upper"] == pytest.approx(20 / 120)
    assert len((tmp_path / "asked.txt").read_text().splitlines()) == 20


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("0,dog 0,cat,cow", "'cow'"),
        ("900,dog 900,cat,cat", "not among the rows"),
        ("0,dog 0,cat,cat\n0,dog 0,cat,dog", "twice"),
        ("0,another text,cat,cat", "another one"),
    ],
)
def test_wrong_answers_are_named(tmp_path: Path, line: str, named: str) -> None:
    """Unknown labels and rows, repeated rows and those of another file are refused with their line."""
    answers = tmp_path / "answers.csv"
    answers.write_text(f"index,text,label,answer\n{line}\n")
    path = predictions(tmp_path, probabilities={"cat": 0.9, "dog": 0.1})
    error = refusal(run(path, "--budget", "90", "--ask", answers, "--out", tmp_path / "out"))
    assert named in error
    assert "answers.csv" in error


def test_what_cannot_be_estimated_is_said(tmp_path: Path) -> None:
    """Budgets beyond the rows, rows without labels and predictions of other rows are refused before any question."""
    path, ask = predictions(tmp_path), by_command(tmp_path)
    rest = ("--ask", ask, "--out", tmp_path / "out")
    assert "from 2 to the 120 rows" in refusal(run(path, "--budget", "121", *rest))
    assert "from 2 to the 120 rows" in refusal(run(path, "--budget", "1", *rest))
    empty = predictions(tmp_path, "empty.jsonl", label=None)
    assert "label them first" in refusal(run(empty, "--budget", "9", *rest))
    fewer = write_rows(tmp_path / "fewer.jsonl", [{"input": "x", "label": "cat", "answer": None}])
    assert "1 of them with the same index" in refusal(run(path, "--budget", "9", "--against", fewer, *rest))
    others = predictions(tmp_path, "others.jsonl", 42, input="another text")
    assert "another one" in refusal(run(path, "--budget", "9", "--against", others, *rest))
    assert not (tmp_path / "asked.txt").exists()


def test_a_larger_model_answers_under_the_prompt_of_the_run(tmp_path: Path) -> None:
    """Of a directory of label another model is asked about the drawn rows alone; its labels are the truth."""
    server = DecisionServer(0.8, 0.2)
    try:
        folder, task = tmp_path / "labelled", tmp_path / "task.toml"
        texts = write_rows(tmp_path / "texts.jsonl", [{"input": f"text {n}"} for n in range(60)])
        model = f'{{ name = "systemone/small", api_base = "{server.root}" }}'
        task.write_text(f'name = "pets"\nlabels = ["cat", "dog"]\nprompt = "Which pet?"\nmodel = {model}\n')
        done(command("label")(task, texts, "--out", folder))
        server.asked.clear()
        server.probabilities = (0.2, 0.8)
        words = ("--budget", "20", "--ask", "model:systemone/large", "--out")
        found = json_of(run(folder, *words, tmp_path / "out", "--json"))
        assert {body["model"] for body in server.asked} == {"large"}
        assert len(server.asked) == 20
        accuracy = found["accuracy"]
        assert accuracy["estimate"] < 0.1
        assert found["agreement_with"] == "systemone/large"
        shown = done(run(folder, *words, tmp_path / "out")).stdout
        assert "60 rows; 20 labels of systemone/large used" in shown
        assert "\nagreement " in shown
        assert "accuracy" not in shown
        assert f"Files in {tmp_path / 'out'}: estimate.json, answers.csv\n" in shown
        other = write_rows(
            tmp_path / "q.jsonl",
            [{"input": f"text {n}", "label": "dog", "answer": None, "confidence": 0.9} for n in range(60)],
        )
        apart = done(run(folder, *words, tmp_path / "apart", "--against", other)).stdout
        assert "agreement more than the other" in apart
        assert "accuracy" not in apart
        error = refusal(run(predictions(tmp_path), *words, tmp_path / "other"))
        assert "directory of calibrant label" in error
    finally:
        server.stop()


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A file where the estimate's directory is to be is refused in a sentence, and stays as it is."""
    taken = tmp_path / "taken"
    taken.write_text("mine")
    words = (predictions(tmp_path), "--budget", "30", "--ask", tmp_path / "answers.csv")
    assert "expected a directory for the run, got a file" in refusal(run(*words, "--out", taken))
    assert taken.read_text() == "mine"
