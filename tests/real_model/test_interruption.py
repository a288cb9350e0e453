"""Tests of Ctrl-C while the embedded engine computes, in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from calibrant.inference import Classifier
from embedded import EMBEDDED

pytestmark = EMBEDDED

TASK = """
name = "support"
labels = ["billing", "account", "shipping", "other"]
field = "category"
prompt = "Sort the message of a customer."

[data]
test = "test.jsonl"
"""
LONG = "please look at it again, and tell me where it is. " * 60
COMMAND = (sys.executable, "-c", "from calibrant.cli._app import main; main()", "evaluate")


def test_an_evaluation_ends_although_a_call_goes_on(tmp_path: Path) -> None:
    """Ctrl-C exits with 130 and keeps the answered rows, and the same command continues."""
    texts = ["My parcel has not come."] * 3 + [f"Message {n}: {LONG}" for n in range(3)]
    rows = [json.dumps({"input": f"{n} {text}", "answer": "shipping"}) for n, text in enumerate(texts)]
    (tmp_path / "test.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "task.toml").write_text(TASK)
    out = tmp_path / "out"
    command = (*COMMAND, str(tmp_path / "task.toml"), "--out", str(out), "--no-cache", "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:  # noqa: S603
        try:
            assert running.stderr is not None
            while not (out / "predictions.jsonl").exists() or not answered(out):
                assert running.poll() is None, running.stderr.read()
                running.stderr.readline()
            running.send_signal(signal.SIGINT)
            _, stderr = running.communicate(timeout=120)
        finally:
            running.kill()
    assert running.returncode == 130, stderr
    kept = answered(out)
    assert "the rows under way are given up; what was answered is kept" in stderr
    saved = re.search(r"(\d) of 6 rows are saved", stderr)
    assert saved is not None, stderr
    assert len(kept) <= int(saved[1]) < 6  # with those that wait for a row before them
    assert json.loads((out / "metrics.json").read_text())["stopped"] == "interrupted"
    ended = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert json.loads(ended.stdout)["rows"] == 6
    assert answered(out)[: len(kept)] == kept


def answered(out: Path) -> list[dict[str, Any]]:
    """Return the rows of ``predictions.jsonl``."""
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


def test_no_row_starves() -> None:
    """With six rows in flight, rows end in the order of their begin."""
    ended: list[int] = []
    texts = [f"{n}: my parcel has not come." for n in range(12)]
    with Classifier(
        model="local/smollm2-135m", labels=["billing", "shipping"], field="topic", concurrency=6
    ) as classifier:
        classifier.classify_many(texts, on_prediction=lambda index, _: ended.append(index))
    assert ended == sorted(ended)
