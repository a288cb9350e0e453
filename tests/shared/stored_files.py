"""Helpers that run commands on the artefacts in ``stored``, and read their files as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from calibrant.cli._app import app


def run(*arguments: object) -> Result:
    """Run a command that must succeed."""
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    return result


def rows(directory: Path, **wanted: Any) -> list[dict[str, Any]]:
    """Return the rows of a run without the fields that differ from run to run."""
    text = (directory / "predictions.jsonl").read_text(encoding="utf-8")
    found = [json.loads(line) for line in text.splitlines()]
    names = ("input", "answer", "label", "confidence")
    return [
        {name: row[name] for name in names}
        for row in found
        if all(row[name] == value for name, value in wanted.items())
    ]


def content(path: Path) -> Any:
    """Return the JSON value in a file."""
    return json.loads(path.read_text(encoding="utf-8"))
