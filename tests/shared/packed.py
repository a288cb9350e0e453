"""A bundle whose run called a loopback server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from calibrant.core import Task
from calibrant.evaluation import BatchEvaluator, Dataset
from calibrant.inference import Classifier
from calibrant.tuned import Tuned
from fault_server import FaultServer

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


def packed(folder: Path, rows: Sequence[Mapping[str, str]], *, server: FaultServer | None = None) -> Tuned:
    """Evaluate a task of two labels on rows, in `folder`, and return its bundle, ``folder/bundle``.

    Without `server` the run calls one that is stopped afterwards.
    """
    if server is None:
        with FaultServer(["cat", "dog"]) as passing:
            return packed(folder, rows, server=passing)
    (folder / "task.toml").write_text(TASK.format(base=server.api_base))
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Task.from_file(folder / "task.toml", splits=())
    with contextlib.closing(Classifier.from_task(task)) as classifier:
        BatchEvaluator(classifier).evaluate(
            Dataset(source=task.sources["test"], labels=task.labels), out=folder / "run"
        )
    return Tuned.from_run(folder / "run", task=task).save(folder / "bundle")
