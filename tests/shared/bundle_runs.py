"""Commands that make runs, and a reader of bundles in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from calibrant.cli import app

PASSING = {"source", "attempts", "latency_seconds"}
FRESH = """
import json, sys
import calibrant
from calibrant.core import Example
from calibrant.runs._rows import row_record
folder, options, rows = json.loads(sys.stdin.read())
with calibrant.load(folder, options=options) as classifier:
    texts = [row["input"] for row in rows]
    for number, (row, found) in enumerate(zip(rows, classifier.classify_many(texts))):
        print(json.dumps(row_record(number, Example(input=row["input"], answer=row["answer"]), found)))
"""


def run(*arguments: object, code: int = 0) -> Result:
    """Run a command in this process, and check its exit code."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result


def lasting(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without the fields that differ from run to run."""
    return {name: value for name, value in row.items() if name not in PASSING}


def fresh(
    folder: Path, rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the rows that a fresh process writes with a bundle."""
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", FRESH],
        input=json.dumps([str(folder), options, rows]),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [lasting(json.loads(line)) for line in done.stdout.splitlines()]
