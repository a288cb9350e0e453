"""Rows, a classifier and files shared by the tests of several workers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibrant.core import DataSource, LabelSet, Limits
from calibrant.distributed import Cluster, evaluate
from calibrant.evaluation import Dataset, EvaluationResult
from calibrant.inference import Classifier, RetryPolicy
from fault_server import FaultServer

LABELS = ["cat", "dog"]
PASSING = {"latency_seconds"}
CLUSTER = Cluster(workers=2, block_rows=8)
LIMITS = Limits(concurrency=8)


def animals(folder: Path, rows: int = 60) -> Dataset:
    """Return so many rows; the true label of every fifth is wrong."""
    path = folder / "animals.jsonl"
    found = [
        {"input": f"number {n} is a {LABELS[n % 2]}", "answer": LABELS[n % 2 if n % 5 else 0]}
        for n in range(rows)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return Dataset(source=DataSource(path=path), labels=LabelSet.of(LABELS))


def opens(url: str, seen: Path | None = None, **options: Any) -> Callable[..., Classifier]:
    """Return what opens a classifier on the server; a function of a function, which travels with its code.

    Workers leave their process ids as names of files in `seen`.
    """
    driver = os.getpid()

    def opening(*, limits: Limits) -> Classifier:
        if seen is not None and os.getpid() != driver:
            (seen / str(os.getpid())).touch()
        return Classifier(
            model="openai/any",
            labels=["cat", "dog"],
            field="category",
            options={"api_base": url, "api_key": "none", **options},
            limits=limits,
            retry=RetryPolicy(attempts=1),
        )

    return opening


def lines(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of ``predictions.jsonl`` without the fields that differ from run to run."""
    found = [json.loads(line) for line in (directory / "predictions.jsonl").read_bytes().splitlines()]
    return [{name: row[name] for name in row if name not in PASSING} for row in found]


def written(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of the blocks on disk."""
    blocks = sorted((directory / "shards").glob("*.jsonl"))
    return [json.loads(line) for block in blocks for line in block.read_text().splitlines()]


def run(
    rows: Dataset, server: FaultServer, out: Path, *, seen: Path | None = None, **options: Any
) -> EvaluationResult:
    """Evaluate on two workers with four calls in flight each."""
    model = options.pop("model", {})
    options = {"cluster": CLUSTER, "limits": LIMITS, **options}
    return evaluate(rows, opening=opens(server.api_base, seen, **model), out=out, **options)
