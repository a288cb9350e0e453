"""Tests of the examples with real rows: they are as they were drawn, and the test rows are in no split."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from calibrant import Task

EXAMPLES = Path(__file__).parents[2] / "examples"
# Rows are never changed: the figures of README and of the benchmarks are about these.
DIGESTS = {
    "banking/labelled.jsonl": "4710d9768b3a33b4b0be66b061bf21e85da235f5206ce4a2b2daf41e5873af7c",
    "banking/test.jsonl": "d6f5df51f5e91f6fffda5b7038dc2e5d213d3ed15df063350d4cb459dff615b9",
    "requests/labelled.jsonl": "f18a9b61e8377fde6e98fa9cf416716dc77e9be7b7919a426b2cb9b5b692811c",
    "requests/test.jsonl": "d5ce741f1023ffd7486e559ee4c316ac6d94bab38fde9471e9e7f6903230bd57",
}


def rows_of(name: str) -> list[dict[str, str]]:
    """Return the rows of a file."""
    lines = (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", DIGESTS)
def test_rows_are_as_they_were_drawn(name: str) -> None:
    """The file of rows is the one that was drawn before anything was measured."""
    assert hashlib.sha256((EXAMPLES / name).read_bytes()).hexdigest() == DIGESTS[name]


@pytest.mark.parametrize("name", ["banking", "requests"])
def test_labels_have_equal_numbers_of_rows(name: str) -> None:
    """Every label of the task has 15 labelled rows and 40 test rows, and no text occurs in both."""
    task = Task.from_file(EXAMPLES / name / "task.toml")
    labelled, test = rows_of(f"{name}/labelled.jsonl"), rows_of(f"{name}/test.jsonl")
    assert Counter(row["answer"] for row in labelled) == dict.fromkeys(task.labels.labels, 15)
    assert Counter(row["answer"] for row in test) == dict.fromkeys(task.labels.labels, 40)
    assert not {row["input"] for row in labelled} & {row["input"] for row in test}


@pytest.mark.parametrize("name", ["banking", "requests"])
def test_rows_that_judge_are_in_no_split(name: str) -> None:
    """The task file divides the labelled rows into three parts, and names no other file."""
    task = Task.from_file(EXAMPLES / name / "task.toml")
    split_texts = [row.input for rows in (task.train, task.validation, task.test) for row in rows]
    assert sorted(split_texts) == sorted(row["input"] for row in rows_of(f"{name}/labelled.jsonl"))
    assert min(len(task.train), len(task.validation), len(task.test)) >= 20


@pytest.mark.parametrize("name", ["banking", "requests"])
def test_notices_name_source_and_licence(name: str) -> None:
    """The notice beside the rows names source, licence and changes."""
    notice = (EXAMPLES / name / "NOTICE").read_text(encoding="utf-8")
    for word in ("https://github.com/", "commit ", "Creative Commons Attribution", "Changes:", "20261123"):
        assert word in notice
