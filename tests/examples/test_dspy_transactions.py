"""Tests of the DSPy script, run as a process against a server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fault_server import FaultServer

pytest.importorskip("dspy", reason="the extra dspy is not installed")

SCRIPT = Path(__file__).parents[2] / "examples" / "dspy_transactions.py"

WriteTask = Callable[..., Path]


def run(path: Path, out: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    """Run the script and wait for its end."""
    command = [sys.executable, str(SCRIPT), "--task", str(path), "--out", str(out), *extra]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)  # noqa: S603


def test_it_finds_a_better_prompt_and_saves_it(write_task: WriteTask, tmp_path: Path) -> None:
    """The search finds a better prompt, prints both scores and saves the program."""

    def answers(text: str, prompt: str) -> tuple[str, float]:
        truth = "cat" if "meow" in text else "dog"
        return (truth, 0.999) if '"cat"' in prompt and '"dog"' in prompt else ("dog", 0.8)

    out = tmp_path / "program.json"
    with FaultServer(["cat", "dog"], answers) as server:
        path = write_task(extra=model_at(server))
        done = run(path, out, "--max-metric-calls", "40")
    assert done.returncode == 0, done.stderr
    assert "after; saved to" in done.stdout
    before, after = map(float, done.stdout.rpartition("test score ")[2].split(" ")[0:3:2])
    assert before < after == 100.0
    saved = json.loads(out.read_text())["predict"]["signature"]["instructions"]
    assert saved.startswith("Which animal?")
    assert saved in done.stdout
    assert '{"category": "cat"}' in saved


def test_a_refused_key_ends_it_with_an_error(write_task: WriteTask, tmp_path: Path) -> None:
    """A refused key exits with 1 and an error, and no program is saved."""
    with FaultServer(["cat", "dog"], api_key="right") as server:
        done = run(write_task(extra=model_at(server)), tmp_path / "program.json")
    assert done.returncode == 1
    assert "error: openai/fake" in done.stderr
    assert not (tmp_path / "program.json").exists()


def model_at(server: FaultServer) -> str:
    """Return the task's section for a model at a server."""
    return f'[model]\nname = "openai/fake"\napi_base = "{server.api_base}"\noptions = {{api_key = "k"}}\n'
