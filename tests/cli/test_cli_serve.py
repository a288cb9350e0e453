"""Tests of ``calibrant serve``: its address, its answers, and its end on a signal."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from calibrant.testing import fake_response
from command_line import command, done, json_of, unlike_animals
from fault_server import FaultServer
from packed import packed
from processes import processes

COMMAND = [sys.executable, "-c", "from calibrant.cli._app import main; main()", "serve"]
PATH = "/v1/classify"
SECONDS = 60
Start = Callable[..., tuple["subprocess.Popen[str]", dict[str, str]]]


@pytest.fixture(scope="module")
def model() -> Iterator[FaultServer]:
    """Return a model whose answers are slow."""
    with FaultServer(["cat", "dog"], latency=0.15) as running:
        yield running


@pytest.fixture(scope="module")
def folder(model: FaultServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of the model."""
    own = tmp_path_factory.mktemp("bundle")
    rows = [{"input": f"{n} a {'cat' if n % 3 else 'dog'}", "answer": "cat"} for n in range(30)]
    packed(own, rows, server=model)
    return own / "bundle"


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Return a function that starts the command and returns its process with what it printed."""
    with processes() as begin:

        def run(*options: str) -> Any:
            command = [*COMMAND, str(folder), "--port", "0", "--json", *options]
            process, line = begin(*command, stderr=subprocess.PIPE)
            return process, json.loads(line)

        yield run


def ask(url: str, text: str, **headers: str) -> tuple[int, Any]:
    """Return status and JSON."""
    with contextlib.closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=SECONDS)) as line:
        line.request(
            "POST", PATH, json.dumps({"text": text}), {"Content-Type": "application/json", **headers}
        )
        response = line.getresponse()
        return response.status, json.load(response)


def taken(url: str) -> float:
    """Return the number of texts that are waiting or answered."""
    with contextlib.closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=SECONDS)) as line:
        line.request("GET", "/metrics")
        told = line.getresponse().read().decode().splitlines()
    counted = ("calibrant_rows_in_flight ", "calibrant_rows_total{")
    return sum(float(own.rpartition(" ")[2]) for own in told if own.startswith(counted))


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
@pytest.mark.parametrize("notice", ["0", pytest.param("0.2", marks=pytest.mark.slow)])
def test_accepted_requests_are_answered(start: Start, number: signal.Signals, notice: str) -> None:
    """Requests accepted before a signal are answered, and the log holds no text."""
    process, ready = start("--notice", notice, "--max-concurrency", "4")
    assert ready["name"] == "animals"
    found: list[tuple[int, Any]] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(ask(ready["url"], f"{number} {notice} {n} dog")))
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    while taken(ready["url"]) < 12:
        threading.Event().wait(0.01)
    process.send_signal(number)
    for thread in threads:
        thread.join(SECONDS)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert [status for status, _ in found] == [200] * 12
    assert {body["results"][0]["label"] for _, body in found} == {"dog"}
    logged = [json.loads(line) for line in err.splitlines()]
    assert [line["status"] for line in logged if line["event"] == "request"] == [200] * 12
    assert "dog" not in err


def test_a_body_that_still_comes_when_a_signal_does_is_waited_for(start: Start) -> None:
    """A request whose body comes after the signal is answered, and then the process ends."""
    process, ready = start("--notice", "0")
    address = ("127.0.0.1", int(ready["url"].rpartition(":")[2]))
    body = b'{"text": "late dog"}'
    with socket.create_connection(address, timeout=SECONDS) as line:
        line.sendall(
            b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        assert line.recv(4096).startswith(b"HTTP/1.1 100")  # so it has been taken
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ConnectionError):
            while True:
                socket.create_connection(address, timeout=SECONDS).close()
                threading.Event().wait(0.01)
        line.sendall(body)
        found = b"".join(iter(lambda: line.recv(4096), b""))
    assert found.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in found
    assert b'"label":"dog"' in found
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0


def test_a_key_comes_from_the_environment(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is read from the named variable, and is never printed."""
    monkeypatch.setenv("SERVICE_KEY", "sk-service-1")
    process, ready = start("--api-key-env", "SERVICE_KEY", "--notice", "0")
    assert ask(ready["url"], "a cat")[0] == 401
    assert ask(ready["url"], "a cat", Authorization="Bearer sk-service-1")[0] == 200
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=SECONDS)
    assert "sk-service-1" not in out + err


def test_answers_enter_the_history_of_the_runs(start: Start, folder: Path, tmp_path: Path) -> None:
    """Served answers join the confidences that `evaluate --history` recorded."""
    history = str(tmp_path / "history.sqlite")
    scope = ("--history", history, "--account", "acme")
    task, out = folder.parent / "task.toml", tmp_path / "run"
    json_of(command("evaluate")(task, "--out", out, "--no-cache", "--json", *scope))
    process, ready = start("--notice", "0", *scope)
    for text in ("a cat", "a dog", "another cat"):
        assert ask(ready["url"], text)[0] == 200
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)
    listed = json_of(command("history", "list")("--history", history, "--json"))
    found = {row["evaluator_id"]: row["scores"] for row in listed}
    assert found == {"animals": 30, "animals/confidence": 33}


def test_answers_of_an_unmeasured_version_are_accepted_on_request(tmp_path: Path) -> None:
    """Once the model behind a certificate moved, its answers are for review; --accept-drift accepts them."""
    version = "any-2026-01"

    def answer(*_: str) -> dict[str, Any]:
        return fake_response("cat", ["cat", "dog"], {"cat": 0.9, "dog": 0.1}) | {"model": version}

    decisions = {}
    with FaultServer(["cat", "dog"], answer) as server, processes() as begin:
        packed(tmp_path, [row | {"answer": "cat"} for row in unlike_animals(60)], server=server)
        done(command("calibrate")(tmp_path / "run", "--target-accuracy", 0.8, "--out", tmp_path / "run"))
        export = (tmp_path / "run", "--task", tmp_path / "task.toml", "--out", tmp_path / "certified")
        done(command("export")(*export))
        version = "any-2026-09"
        for option in ((), ("--accept-drift",)):
            command_line = [*COMMAND, str(tmp_path / "certified"), "--port", "0", "--json", "--notice", "0"]
            process, line = begin(*command_line, *option, stderr=subprocess.PIPE)
            _, reply = ask(json.loads(line)["url"], "a cat")
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=SECONDS)
            decisions[option] = reply["results"][0]["decision"]
            assert "any-2026-09 answered, but any-2026-01 the labelled rows" in err
    assert decisions == {(): "review", ("--accept-drift",): "accepted"}


@pytest.mark.parametrize("name", ["serve", "mcp"])
@pytest.mark.parametrize("option", ["--accept-drift", "--accept-suggested"])
def test_a_task_file_accepts_nothing(folder: Path, name: str, option: str) -> None:
    """Options on what is accepted are refused with a task file, which has no thresholds."""
    result = command(name)(folder.parent / "task.toml", option)
    assert result.exit_code == 2
    assert "with a bundle or a run, got a task file" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["--max-rows", "1"], "most_rows"),
        (["--history", "."], "is a folder"),
        (["--max-concurrency", "0"], "concurrency"),
        (["--deadline", "0"], "deadline_seconds"),
        (["--option", "x"], "KEY=VALUE"),
        (["--host", "256.0.0.1"], "address to listen at"),
    ],
)
def test_bad_settings_end_it_at_once(folder: Path, options: list[str], told: str) -> None:
    """Bad settings exit with 2, and nothing is printed to standard output."""
    result = command("serve")(folder, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr
