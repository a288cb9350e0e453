"""A run becomes a bundle, and the bundle predicts what the run predicted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import calibrant
from calibrant.assembly import read_bundle
from calibrant.cli import app
from calibrant.testing import FaultServer

WriteTask = Callable[..., Path]

PASSING = {"attempts", "latency_seconds"}
KEY = "sk-0123456789abcdef"
MODEL = """
[model]
name = "openai/animal"
api_base = "{base}"
options = {{ api_key = "{key}", seed = 3 }}
"""


def run(*arguments: object) -> Result:
    """Run the command line in this process."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.stderr
    return result


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """Return a server that wants a key."""
    with FaultServer(["cat", "dog"], api_key=KEY) as found:
        yield found


ROWS = [
    {"input": f"{number} {'a cat' if number % 3 else 'who knows'}", "answer": "cat"} for number in range(40)
]


@pytest.fixture
def task(write_task: WriteTask, server: FaultServer) -> Path:
    """Return a task that asks the server."""
    return write_task(extra=MODEL.format(base=server.api_base, key=KEY), test=ROWS)


def lines(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of a run without what depends on the moment."""
    rows = [json.loads(line) for line in (directory / "predictions.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in row if name not in PASSING} for row in rows]


FRESH = """
import json, sys
import calibrant
from calibrant.core import Example
from calibrant.evaluation import row_record
folder, options, rows = json.loads(sys.stdin.read())
classifier = calibrant.load(folder, options=options)
texts = [row["input"] for row in rows]
for number, (row, found) in enumerate(zip(rows, classifier.classify_many(texts))):
    print(json.dumps(row_record(number, Example(input=row["input"], answer=row["answer"]), found)))
classifier.close()
"""


def fresh(
    folder: Path, rows: list[dict[str, Any]], options: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return what a fresh process makes of the rows."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH],
        input=json.dumps([str(folder), options, rows]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [
        {name: value for name, value in json.loads(line).items() if name not in PASSING}
        for line in done.stdout.splitlines()
    ]


def test_a_fresh_process_predicts_what_the_run_predicted(task: Path, tmp_path: Path) -> None:
    """Labels, distributions and confidences, bit for bit."""
    run("evaluate", task, "--out", tmp_path / "run", "--no-cache")
    run("export", tmp_path / "run", "--out", tmp_path / "bundle")
    assert fresh(tmp_path / "bundle", ROWS, {"api_key": KEY}) == lines(tmp_path / "run")
