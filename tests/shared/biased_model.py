"""A model that knows the animal and prefers cats, and a task for this model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from calibrant.cli import app
from calibrant.testing import FakeClient

LABELS = ["cat", "dog"]
BUDGET = ("--max-metric-calls", 120, "--minibatch-size", 6)


def place(text: str) -> int:
    """Return the position of the true label, which no word of the text tells."""
    return hashlib.sha256(text.encode()).digest()[0] % 2


def biased(text: str) -> dict[str, float]:
    """Answer with a distribution that depends on the animal and prefers cats."""
    cat = 0.6 if place(text) else 0.9
    return {"cat": cat, "dog": 1.0 - cat}


def rows(split: str, count: int) -> list[dict[str, str]]:
    """Return rows of both labels."""
    return [{"input": f"{split} {n}", "answer": LABELS[place(f"{split} {n}")]} for n in range(count)]


def run(*arguments: object) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, list(map(str, arguments)))


def biased_task(write_task: Callable[..., Path], use_model: Callable[..., Any]) -> Path:
    """Return the file of a task whose model prefers cats."""
    use_model(lambda name, **_: FakeClient(LABELS, biased, name=name))
    return write_task(train=rows("train", 40), validation=rows("validation", 30), test=rows("test", 30))


def search(task: Path, out: Path) -> Path:
    """Run a search into a directory, and return the directory."""
    done = run("optimize", task, "--out", out, *BUDGET)
    assert done.exit_code == 0, done.output
    return out
