"""Tests of the examples with structured labels, run by the embedded model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrant.cli import app
from calibrant.core import HierarchicalLabels, OrdinalLabels, Task
from embedded import IS_MISSING

EXAMPLES = Path(__file__).parents[2] / "examples"
RATINGS = EXAMPLES / "ratings" / "task.toml"
LEVELS = EXAMPLES / "transactions" / "hierarchical.toml"


def test_ratings_are_on_a_scale_and_every_split_has_all_of_them_equally_often() -> None:
    """The ratings are ordinal; every split has each rating equally often, and no text twice."""
    task = Task.from_file(RATINGS)
    assert isinstance(task.labels, OrdinalLabels)
    splits = {"train": (task.train, 5), "validation": (task.validation, 3), "test": (task.test, 4)}
    for rows, each in splits.values():
        assert Counter(row.answer for row in rows) == dict.fromkeys(task.labels, each)
    texts = [row.input for rows, _ in splits.values() for row in rows]
    assert len({text.casefold() for text in texts}) == len(texts) == 60


def test_the_tree_has_the_rows_and_the_labels_of_the_example_beside_it() -> None:
    """The tree's example has rows, labels and prompt of the plain example, as a hierarchy."""
    task, plain = Task.from_file(LEVELS), Task.from_file(LEVELS.with_name("task.toml"))
    assert task.labels == HierarchicalLabels(plain.labels.labels)
    assert (task.train, task.validation, task.test) == (plain.train, plain.validation, plain.test)
    assert (task.prompt, task.field, task.model) == (plain.prompt, plain.field, plain.model)


@pytest.mark.real_model
@IS_MISSING
@pytest.mark.parametrize(("file", "kind"), [(RATINGS, "ordinal"), (LEVELS, "hierarchical")])
def test_the_embedded_model_evaluates_them(tmp_path: Path, file: Path, kind: str) -> None:
    """The embedded model evaluates some rows, and the credit is at least the accuracy."""
    options = ["--split", "test", "--max-rows", "8", "--no-cache", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["evaluate", str(file), *options])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert found["structure"]["kind"] == kind
    assert found["structure"]["credit"]["estimate"] >= found["accuracy"]["estimate"]
