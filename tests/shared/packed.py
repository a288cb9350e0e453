"""A bundle whose run asked a loopback server that is gone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from calibrant import Classifier, Task
from calibrant.assembly import Bundle, export
from calibrant.evaluation import BatchEvaluator, Dataset
from calibrant.testing import FaultServer

TASK = """\
name = "animals"
labels = ["cat", "dog"]
field = "category"
prompt = "Which animal?"
[data]
test = "test.jsonl"
[model]
name = "openai/animal"
api_base = "{base}"
"""


def packed(folder: Path, rows: Sequence[Mapping[str, str]]) -> Bundle:
    """Evaluate a task of two labels on rows, in `folder`, and return its bundle, ``folder/bundle``."""
    with FaultServer(["cat", "dog"]) as server:
        (folder / "task.toml").write_text(TASK.format(base=server.api_base))
        (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = Task.from_file(folder / "task.toml", splits=())
        classifier = Classifier.from_task(task)
        BatchEvaluator(classifier).evaluate(
            Dataset(source=task.sources["test"], labels=task.labels), out=folder / "run"
        )
        classifier.close()
    return export(folder / "run", folder / "bundle", task=task)
