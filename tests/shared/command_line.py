"""Helpers that run the command line, in this process and in others."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from calibrant.cli import app
from calibrant.testing import Answer


def knows(text: str, _prompt: str) -> Answer:
    """Answer cat to "meow", and dog to everything else."""
    return ("cat", 0.9) if "meow" in text else ("dog", 0.8)


def animals(count: int, start: int = 0) -> list[dict[str, str]]:
    """Return rows of which `knows` gets three in four right."""
    return [
        {"input": f"{n} {'meow' if n % 2 else 'woof'}", "answer": "cat" if n % 2 or n % 4 == 0 else "dog"}
        for n in range(start, start + count)
    ]


def spelled(number: int) -> str:
    """Return a number as a word of its own: texts that differ in digits alone are near-duplicates."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def unlike_animals(count: int, start: int = 0) -> list[dict[str, str]]:
    """Return the rows of `animals`, none of them a near-duplicate of another."""
    rows = animals(count, start)
    return [{**row, "input": f"{row['input']} {spelled(n)}"} for n, row in enumerate(rows, start)]


def command(*words: str) -> Callable[..., Result]:
    """Return a function that runs a command in this process."""
    return lambda *arguments: CliRunner().invoke(app, [*words, *map(str, arguments)])


def done(result: Result) -> Result:
    """Return the result of a command that ended with exit code 0."""
    assert result.exit_code == 0, result.output
    return result


def json_of(result: Result) -> Any:
    """Return the JSON on the one line that a command printed."""
    assert done(result).stdout.count("\n") == 1
    return json.loads(result.stdout)


def refusal(result: Result) -> str:
    """Return the error of a command that ended with exit code 2, on one line, and printed nothing."""
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("error: "), result.stderr
    assert result.stderr.count("\n") == 1
    return result.stderr


def prediction_rows(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of ``predictions.jsonl``."""
    return [json.loads(line) for line in (directory / "predictions.jsonl").read_text().splitlines()]


def lasting_rows(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of ``predictions.jsonl`` without the fields that depend on the moment."""
    passing = {"attempts", "latency_seconds", "cost"}
    return [{name: row[name] for name in row if name not in passing} for row in prediction_rows(directory)]


def recorded_rows(correct: Iterable[Any], confidence: Iterable[float]) -> list[dict[str, Any]]:
    """Return rows of a run that are right as given; None is a row that failed."""
    return [
        {
            "index": row,
            "input": f"text {row}",
            "answer": "cat",
            "label": None if right is None else "cat" if right else "dog",
            "confidence": None if right is None else float(sure),
            "correct": None if right is None else bool(right),
            "outcome": "error" if right is None else "ok",
            "reason": "" if right is not None else "no route",
            "probabilities": None,
            "label_mass": None,
            "unresolved_mass": None,
            "space": None,
            "model": "fake",
            "attempts": 1,
            "latency_seconds": None,
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "cost": None,
        }
        for row, (right, sure) in enumerate(zip(correct, confidence, strict=False))
    ]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows to a ``.jsonl`` file, or to the directory of a run."""
    file = path if path.suffix == ".jsonl" else path / "predictions.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@contextlib.contextmanager
def process(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a program as a process, and end the process in any case."""
    with subprocess.Popen(  # noqa: S603 (our own code)
        [sys.executable, "-u", "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_for(condition: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    """Wait until a condition holds while a process runs."""
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end, "it never came so far"
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.005)
