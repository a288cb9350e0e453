"""Tests of `optimize` and classification on the embedded model, on a few rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from calibrant.core import LogprobSpace, Outcome, Task
from calibrant.inference import Classifier
from calibrant.optimization import optimize
from embedded import EMBEDDED

pytestmark = EMBEDDED

TASK = Path(__file__).parents[2] / "examples" / "transactions" / "task.toml"


def small_task() -> Task:
    """Return the example with few rows, which have all labels."""
    task = Task.from_file(TASK)
    return replace(task, train=task.train[:16], validation=task.validation[:6], test=task.test[:4])


def test_optimize_leaves_a_finished_run_directory(tmp_path: Path) -> None:
    """A search writes all files, and a second start asks the model nothing."""
    task = small_task()
    result = optimize(task, max_metric_calls=24, minibatch_size=3, out=tmp_path / "run")
    assert result.model == "local/smollm2-135m"
    assert result.seed_prompt.rows == 4
    assert result.completions > 0
    assert result.completions_without_logprobs == 0
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "result.json",
        "best_prompt.txt",
        "predictions.jsonl",
        "journal.jsonl",
        "run.json",
    }
    rows = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == ["seed"] * 4 + ["best"] * 4 + ["final"] * 4
    assert all(row["label"] in task.labels for row in rows)
    journal = (tmp_path / "run" / "journal.jsonl").read_bytes()
    again = optimize(task, max_metric_calls=24, minibatch_size=3, out=tmp_path / "run")
    assert again.best_prompt == result.best_prompt
    assert (tmp_path / "run" / "journal.jsonl").read_bytes() == journal


@pytest.mark.smoke
def test_predictions_are_reproducible_and_scored_exactly() -> None:
    """Two classifiers give the same predictions for the same texts."""
    task = small_task()
    texts = [example.input for example in task.test[:4]]
    found = []
    for _ in range(2):
        classifier = Classifier.from_task(task)
        found.append(classifier.classify_many(texts))
        classifier.close()
    first, second = found
    assert all(prediction.outcome is Outcome.OK for prediction in first)
    assert [p.label for p in first] == [p.label for p in second]
    assert [p.confidence for p in first] == [p.confidence for p in second]
    assert all(p.distribution is not None and p.distribution.space is LogprobSpace.EXACT for p in first)


def test_text_longer_than_the_context_is_one_rows_error() -> None:
    """A text longer than the context is UNPARSED with n_ctx in its reason; the next row is OK."""
    task = small_task()
    classifier = Classifier.from_task(task)
    long, short = classifier.classify_many(["word " * 6000, "Shell petrol"])
    classifier.close()
    assert long.outcome is Outcome.UNPARSED
    assert "n_ctx" in long.reason
    assert short.outcome is Outcome.OK
