"""Tests of the fault server as a process of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import serve_faults
from processes import processes

COMMAND = [sys.executable, serve_faults.__file__, "--labels", "Food", "Rent"]
Spawn = Callable[..., tuple["subprocess.Popen[str]", dict[str, Any]]]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Return a function that starts the process and returns it with the line it printed."""
    with processes() as begin:

        def start(*options: str, stdin: int = subprocess.PIPE) -> Any:
            process, line = begin(*COMMAND, *options, stdin=stdin)
            return process, json.loads(line)

        yield start


def ask(api_base: str, text: str) -> int:
    """Return the status of one request."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    try:
        with urllib.request.urlopen(f"{api_base}/chat/completions", body, timeout=20) as found:  # noqa: S310
            status: int = found.status
    except urllib.error.HTTPError as error:
        with error:
            status = error.code
    return status


def stats(api_base: str) -> Any:
    """Return the server's counts."""
    with urllib.request.urlopen(f"{api_base.removesuffix('/v1')}/stats", timeout=20) as found:  # noqa: S310
        return json.load(found)


def test_faults_follow_shares_and_seed(spawn: Spawn) -> None:
    """The same seed gives the same statuses in another process."""
    options = ["--fault", "500=0.3", "--fault", "rate_limit:0.1=0.2", "--seed", "5"]
    found = []
    for _ in range(2):
        process, line = spawn(*options)
        assert (line["pid"], line["api_base"]) == (process.pid, f"http://127.0.0.1:{line['port']}/v1")
        found.append([ask(line["api_base"], f"row {number}") for number in range(30)])
    assert found[0] == found[1]
    assert set(found[0]) == {200, 429, 500}
    counted = stats(line["api_base"])
    assert counted["faults"] == {"500": found[0].count(500), "rate_limit": found[0].count(429)}
    assert (counted["requests"], counted["texts"], counted["healthy"]) == (30, 30, found[0].count(200))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(spawn: Spawn, number: signal.Signals) -> None:
    """A signal ends the process with code 0 even while a request hangs."""
    process, line = spawn("--fault", "hang=1", stdin=subprocess.DEVNULL)
    data = b'{"model": "m", "messages": [{"role": "user", "content": "a"}]}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", line["port"]), timeout=20) as hanging:
        hanging.sendall(head.encode() + data)
        deadline = time.monotonic() + 60
        while not stats(line["api_base"])["in_flight"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(10) == 0


def test_it_ends_when_its_input_closes(spawn: Spawn) -> None:
    """The process ends when its standard input closes."""
    process, line = spawn()
    assert ask(line["api_base"], "a") == 200
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(10) == 0


def test_it_ends_when_its_parent_is_killed() -> None:
    """The process ends with its parent, without a pipe to it."""
    starter = (
        "import subprocess, sys, time\n"
        f"server = subprocess.Popen({COMMAND!r}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)\n"
        "sys.stdout.write(server.stdout.readline().decode()); sys.stdout.flush(); time.sleep(60)\n"
    )
    parent = subprocess.Popen(  # noqa: S603 (our own code)
        [sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    line = json.loads(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            stats(line["api_base"])
        except OSError:
            break
        time.sleep(0.05)
    else:
        os.kill(line["pid"], signal.SIGKILL)
        pytest.fail("The server outlived its parent.")


def test_ends_after_an_early_parent_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends if its parent ended right after the first line."""
    line = io.StringIO()
    ends = threading.Timer(10, os.kill, (os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(sys, "stdout", line)
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(os, "getppid", lambda: 1 if line.getvalue() else 4711)
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ends.start()
    try:
        assert serve_faults.main(["--labels", "Food", "Rent"]) == 0
        assert ends.is_alive()
    finally:
        ends.cancel()
        for number, handler in kept.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fault", "500"], "KIND=SHARE"),
        (["--fault", "oops=0.1"], "'oops'"),
        (["--fault", "500=2"], "Shares"),
        (["--latency", "-1"], "latency"),
    ],
)
def test_wrong_options_are_a_usage_error(options: list[str], message: str) -> None:
    """Wrong options exit with code 2 and without a traceback."""
    done = subprocess.run(  # noqa: S603 (our own code)
        [*COMMAND, *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
