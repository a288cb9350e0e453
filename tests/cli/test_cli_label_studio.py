"""Tests of Label Studio tasks as the file of a person's answers: what is written, what is read, what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from command_line import command, done, json_of, refusal, write_rows

certify = command("certify")
estimate = command("estimate")

TARGET = ("--target", "0.9", "--budget", "80")


def predictions(tmp_path: Path, n: int = 120) -> Path:
    """Write predictions of cats, of which the surest half are; the labels need escapes in XML."""
    rows = [
        {
            "input": f"{'sure' if place < n // 2 else 'odd'} text <{place}>",
            "label": "cat & co",
            "answer": None,
            "confidence": 0.9 if place < n // 2 else 0.6,
            "probabilities": {"cat & co": 0.9, 'a "dog"': 0.1},
        }
        for place in range(n)
    ]
    return write_rows(tmp_path / "p.jsonl", rows)


def annotation(*labels: str, cancelled: bool = False) -> dict[str, Any]:
    """Return an annotation as an export has it."""
    choice = {
        "from_name": "label",
        "to_name": "text",
        "type": "choices",
        "value": {"choices": list(labels)},
    }
    return {"id": 7, "completed_by": 3, "was_cancelled": cancelled, "result": [choice] if labels else []}


def annotate(path: Path) -> int:
    """Export the tasks with a true label for each that waits; return how many waited."""
    tasks = json.loads(path.read_text())
    waiting = [task for task in tasks if not task.get("annotations")]
    for task in waiting:
        task["id"] = 1000 + task["data"]["index"]
        task["annotations"] = [
            annotation("cat & co" if task["data"]["text"].startswith("sure") else 'a "dog"')
        ]
    path.write_text(json.dumps(tasks))
    return len(waiting)


def test_rows_are_tasks_with_the_prediction_of_the_model(tmp_path: Path) -> None:
    """A task has text, index and prediction; the labelling config beside it has the labels and a dash."""
    tasks = tmp_path / "tasks.json"
    first = done(certify(predictions(tmp_path), *TARGET, "--ask", tasks, "--out", tmp_path / "out")).stdout
    assert f"20 rows wait in {tasks}: import it into a Label Studio project" in first
    written = json.loads(tasks.read_text())
    assert len(written) == 20
    for task in written:
        index = task["data"]["index"]
        score = 0.9 if index < 60 else 0.6
        assert task["data"]["text"].endswith(f"text <{index}>")
        (prediction,) = task["predictions"]
        (choice,) = prediction["result"]
        assert (prediction["score"], choice["score"]) == (score, score)
        assert choice["value"] == {"choices": ["cat & co"]}
    config = ET.fromstring((tmp_path / "tasks.xml").read_text())  # noqa: S314 (written just now)
    assert [choice.get("value") for choice in config.iter("Choice")] == ["cat & co", 'a "dog"', "-"]
    (choices,) = config.iter("Choices")
    assert (choices.get("name"), choices.get("toName")) == ("label", "text")


def test_an_export_goes_on_to_the_same_promise_as_a_csv_file(tmp_path: Path) -> None:
    """Rounds of annotations lead to what a command leads to, and nothing of an export is lost."""
    tasks, out = tmp_path / "tasks.json", tmp_path / "out"
    words = (predictions(tmp_path), *TARGET, "--out", out, "--json")
    json_of(certify(*words, "--ask", tasks))
    while annotate(tasks):
        exported = json.loads(tasks.read_text())
        found = json_of(certify(*words, "--ask", tasks))
        assert json.loads(tasks.read_text())[: len(exported)] == exported
    script = tmp_path / "person.py"
    script.write_text("print('cat & co' if input().startswith('sure') else 'a \"dog\"')\n")
    assert found["certified"]
    asked = json_of(certify(*words, "--ask", f"{sys.executable} {script}"))
    assert found.pop("labels_given") >= asked.pop("labels_given"), "a file has a round of rows at a time"
    assert found == asked


def test_estimates_read_an_export(tmp_path: Path) -> None:
    """All rows wait as tasks; annotated ones count."""
    tasks = tmp_path / "tasks.json"
    words = (predictions(tmp_path), "--budget", "30", "--ask", tasks, "--out", tmp_path / "out")
    assert f"30 rows wait in {tasks}: import" in done(estimate(*words)).stdout
    assert annotate(tasks) == 30
    assert json_of(estimate(*words, "--json"))["labels_used"] == 30


def given(tmp_path: Path, *tasks: Any) -> tuple[Any, ...]:
    """Write an export, and return the words of a command that reads it."""
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(tasks))
    return predictions(tmp_path), *TARGET, "--ask", path, "--out", tmp_path / "out"


def task(*annotations: dict[str, Any], index: Any = 0, text: str = "sure text <0>") -> dict[str, Any]:
    """Return an exported task."""
    return {"id": 5, "data": {"text": text, "index": index}, "annotations": list(annotations)}


@pytest.mark.parametrize(
    ("tasks", "answered"),
    [
        ([task(annotation("cat & co", cancelled=True))], 0),
        ([task(annotation())], 0),
        ([task()], 0),
        ([task(annotation("cat & co"), annotation("cat & co"))], 1),
        ([task(annotation('a "dog"', cancelled=True), annotation("cat & co"))], 1),
        ([task(), task(annotation("cat & co")), task()], 1),
        ([task(annotation("-"))], 1),
    ],
)
def test_cancelled_and_empty_annotations_are_no_answer(
    tmp_path: Path, tasks: list[Any], answered: int
) -> None:
    """Annotations that agree are one answer, also of a task that was imported again."""
    certify_words = given(tmp_path, *tasks)
    done(certify(*certify_words))
    decided = (tmp_path / "out" / "decisions.csv").read_text()
    assert decided.count("answered") == answered


@pytest.mark.parametrize(
    ("tasks", "named"),
    [
        ([task(annotation("cat & co"), annotation('a "dog"'))], "with index 0: settle it"),
        ([task(annotation("cat & co")), task(annotation("-"))], "with index 0: settle it"),
        ([task(annotation("cow"))], "'cow' for the row with index 0"),
        ([task(annotation("cat & co", "-"))], "one choice under the name 'label'"),
        ([task({"result": [{"from_name": "mood", "value": {"choices": ["cat & co"]}}]})], "one choice under"),
        ([task({"result": [{"from_name": "label", "value": "cat & co"}]})], "one choice under the name"),
        ([task(index=900)], "not among the rows"),
        ([task(index=None)], "not among the rows"),
        ([task(text="another text")], "another one"),
        ([task(), task(text="another text")], "twice"),
        ([{"text": "sure text <0>", "index": 0, "label": "cat & co"}], "in the format JSON"),
    ],
)
def test_what_is_no_answer_to_these_rows_is_refused(tmp_path: Path, tasks: list[Any], named: str) -> None:
    """Disagreement, labels and rows that are unknown, and other projects are named; the export stays as it is."""
    words = given(tmp_path, *tasks)
    before = (tmp_path / "tasks.json").read_text()
    error = refusal(certify(*words))
    assert named in error
    assert "tasks.json" in error
    assert (tmp_path / "tasks.json").read_text() == before


def test_a_file_without_tasks_is_refused(tmp_path: Path) -> None:
    """A file that is no list of JSON stays as it is."""
    words = given(tmp_path)
    for text in ('{"a": 1}', "[", "[3]"):
        (tmp_path / "tasks.json").write_text(text)
        assert "tasks of a Label Studio project" in refusal(certify(*words))
        assert (tmp_path / "tasks.json").read_text() == text


def test_a_command_may_end_in_a_file(tmp_path: Path) -> None:
    """A command whose last word is a JSON file is a command."""
    script = tmp_path / "person.py"
    script.write_text("print('cat & co')\n")
    words = (predictions(tmp_path), *TARGET, "--out", tmp_path / "out")
    assert json_of(certify(*words, "--ask", f"{sys.executable} {script} known.json", "--json"))["certified"]
