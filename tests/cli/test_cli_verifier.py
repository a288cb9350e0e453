"""Tests of ``calibrant verifier serve``: its address, its answers, and its end on a signal."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calibrant.cli import app
from fault_server import FaultServer
from processes import Begin, processes

COMMAND = [sys.executable, "-c", "from calibrant.cli._app import main; main()", "verifier", "serve"]
SECONDS = 60
QUESTION = {"question": "Who wrote it?", "answer": "Ann"}


def verdict(prompt: str) -> str:
    """Answer that the name Ann is right."""
    return "correct" if "Ann" in prompt.rsplit("The case to grade:", 1)[-1] else "incorrect"


@pytest.fixture
def model() -> Iterator[FaultServer]:
    """Return a server whose model grades."""
    with FaultServer(["correct", "incorrect"], verdict, field="verdict") as running:
        yield running


@pytest.fixture
def start(model: FaultServer) -> Iterator[Begin]:
    """Return a function that starts the command and returns its process with the line it printed."""
    known = ["--model", "openai/grader", "--api-base", model.api_base, "--option", 'api_key="sk-secret-9"']
    with processes() as begin:
        yield lambda *options: begin(*COMMAND, "--port", "0", *known, *options, stderr=subprocess.PIPE)


def ask(url: str, path: str = "/verify", body: Any = QUESTION) -> tuple[int, Any]:
    """Return status and JSON."""
    address = url.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(address, timeout=SECONDS)) as line:
        method = "POST" if path == "/verify" else "GET"
        line.request(method, path, json.dumps(body) if method == "POST" else None)
        response = line.getresponse()
        return response.status, json.load(response)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_told_to_stop(start: Begin, number: signal.Signals) -> None:
    """The server prints its loopback address, answers, and ends with exit code 0."""
    process, line = start("--json", "--samples", "3", "--threshold", "0.4")
    ready = json.loads(line)
    url = ready.pop("url")
    assert ready == {"model": "openai/grader", "num_samples": 3, "threshold": 0.4}
    assert url.startswith("http://127.0.0.1:")
    status, found = ask(url)
    assert status == 200
    assert (found["confidence"], found["should_escalate"], found["total_samples"]) == (1.0, False, 3)
    assert ask(url, body={**QUESTION, "answer": "Bob"})[1]["confidence"] == 0.0
    assert ask(url, "/health")[1] == {"status": "ok", **ready}
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_failing_model_is_logged_and_its_key_is_not(start: Begin, model: FaultServer) -> None:
    """A failing model gives status 503 and a log line without the key."""
    process, line = start()
    url = line.split(" at ")[1].split(";")[0]
    assert "Ctrl-C" in line
    model.stop()
    status, found = ask(url)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert (status, list(found)) == (503, ["error", "usage", "attempts"])
    assert "No verdict" in err
    assert "sk-secret-9" not in err + json.dumps(found)
    assert process.returncode == 0


def test_a_prompt_of_the_users_own_is_read(start: Begin, model: FaultServer, tmp_path: Path) -> None:
    """The prompt comes from a file, and --temperature goes to the model."""
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Grade {answer} to {question} by {context}.", encoding="utf-8")
    _, line = start("--json", "--prompt", str(prompt), "--samples", "1", "--temperature", "0.5")
    assert ask(json.loads(line)["url"])[0] == 200
    body = model.requests[-1].body
    assert body["messages"][-1]["content"] == 'Grade "Ann" to "Who wrote it?" by (none).'
    assert body["temperature"] == 0.5


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--samples", "0"], "k, the samples"),
        (["--temperature", "0"], "alike"),
        (["--threshold", "2"], "threshold"),
        (["--max-concurrency", "0"], "concurrency"),
        (["--prompt", "absent.txt"], "no such prompt file"),
        (["--option", "x"], "KEY=VALUE"),
        (["--option", "temperature=1"], "temperature of Verifier"),
        (["--host", "256.0.0.1"], "address to listen at"),
        (["--model", "local/none"], "local/"),
    ],
)
def test_bad_settings_end_it_at_once(options: list[str], told: str) -> None:
    """Bad settings exit with 2 and name the option."""
    known = ["--model", "openai/grader", "--api-base", "http://127.0.0.1:9/v1"]
    done = CliRunner().invoke(app, ["verifier", "serve", *known, *options])
    assert done.exit_code == 2, done.output
    assert told in done.output


def test_a_port_that_is_taken_is_named() -> None:
    """A taken port exits with 2 and the advice to take another port."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as line:
        port = str(line.getsockname()[1])
        options = ["--model", "openai/grader", "--api-base", "http://127.0.0.1:9/v1", "--port", port]
        done = CliRunner().invoke(app, ["verifier", "serve", *options])
    assert done.exit_code == 2
    assert f"port {port}" in done.output
    assert "Take another port" in done.output


def test_the_help_names_the_slots_of_a_prompt() -> None:
    """The help names every slot of a prompt, the paper's among them, and what they are filled with."""
    shown = CliRunner().invoke(app, ["verifier", "serve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    for slot in ("{question}", "{answer}", "{generated_answer}", "{context}", "JSON strings, in quotes"):
        assert slot in shown.output
