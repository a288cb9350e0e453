"""Tests of the batch script, run as a process against a server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fault_server import FaultServer

SCRIPT = Path(__file__).parents[2] / "examples" / "batch_evaluate.py"
LABELS = ["cat", "dog"]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return a function that starts the script on `rows` rows with a server as its model."""

    def begin(server: FaultServer, *extra: str, rows: int = 40) -> subprocess.Popen[str]:
        task = tmp_path / "task.toml"
        task.write_text(
            'name = "animals"\nlabels = ["cat", "dog"]\nfield = "category"\nprompt = "Which animal?"\n'
            f'[model]\nname = "openai/fake"\napi_base = "{server.api_base}"\noptions = {{api_key = "k"}}\n'
        )
        data = tmp_path / "rows.jsonl"
        if not data.exists():
            lines = [{"input": f"{n} cat", "answer": LABELS[n % 4 == 0]} for n in range(rows)]
            data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = [sys.executable, SCRIPT, data, "--task", task, "--out", tmp_path / "out", *extra]
        return subprocess.Popen(  # noqa: S603 (our own script)
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return begin


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit code and output."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_it_prints_progress_and_numbers_and_ends_with_zero(start: Start, tmp_path: Path) -> None:
    """The script prints progress and accuracy, and exits with 0."""
    with FaultServer(LABELS) as server:
        code, out, err = ended(start(server))
    assert code == 0, err
    assert "accuracy   0.750, 95 % interval 0.598 to 0.858" in out
    assert "40 of 40 rows, accuracy 0.750, 0 failed" in err
    assert len((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()) == 40


@pytest.mark.slow
def test_low_accuracy_and_bad_input_have_their_exit_codes(start: Start, tmp_path: Path) -> None:
    """Low accuracy exits with 3 without a call; a broken row exits with 2 and its line."""
    with FaultServer(LABELS) as server:
        assert ended(start(server))[0] == 0
        asked = len(server.requests)
        assert ended(start(server, "--min-accuracy", "0.8"))[0] == 3
        (tmp_path / "rows.jsonl").write_text('{"input": "a cat", "answer": "cat"}\n{"input": \n')
        code, _, err = ended(start(server))
    assert (code, len(server.requests)) == (2, asked)
    assert "rows.jsonl:2: expected one JSON object per line" in err


def test_what_was_interrupted_goes_on(start: Start, tmp_path: Path) -> None:
    """Ctrl-C exits with 130, and the second start asks only the other rows."""
    predictions = tmp_path / "out" / "predictions.jsonl"
    with FaultServer(LABELS, latency=0.1) as server:
        first = start(server, "--concurrency", "4", rows=100)
        deadline = time.monotonic() + 30
        while not (predictions.exists() and predictions.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        first.send_signal(signal.SIGINT)
        code, _, err = ended(first)
        assert code == 130, err
        assert "stopped (interrupted): start again to go on." in err
        assert 0 < len(predictions.read_text().splitlines()) < 100
        code, out, err = ended(start(server, "--concurrency", "32"))
        assert code == 0, err
        assert len(server.requests) == 100
    assert "rows       100, of which failed 0" in out
