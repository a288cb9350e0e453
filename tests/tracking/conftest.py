"""Servers of other projects, and calibrant beside them, as processes on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fault_server import FaultServer
from tracking_servers import PROGRAMS, QUIET

Run = Callable[..., str]
Serve = Callable[..., str]

COMMAND = "from calibrant.cli import main; main()"
SECONDS = 240
TASK = """
name = "animals"
labels = ["cat", "dog"]
field = "category"
prompt = "Which animal?"
[data]
train = "train.jsonl"
validation = "validation.jsonl"
test = "test.jsonl"
[model]
name = "openai/any"
api_base = "{}"
[model.options]
api_key = "none"
"""


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Return a function that starts a server's program and returns its address, once a path of it answers."""
    with contextlib.ExitStack() as stack:

        def start(name: str, *words: object, port: int, ready: str, **environment: object) -> str:
            folder = tmp_path_factory.mktemp(name)
            output = stack.enter_context((folder / "output.txt").open("w"))
            process = subprocess.Popen(  # noqa: S603 (programs of the environment)
                [PROGRAMS / name, *map(str, words)],
                stdout=output,
                stderr=output,
                cwd=folder,
                env={
                    **os.environ,
                    **QUIET,
                    **{key: str(value) for key, value in environment.items()},
                    "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
                },
                start_new_session=True,
            )
            stack.callback(_end, process)
            address = f"http://127.0.0.1:{port}"
            _wait(address + ready, process, folder / "output.txt")
            return address

        yield start


def _wait(address: str, process: subprocess.Popen[bytes], output: Path) -> None:
    end = time.monotonic() + SECONDS
    while True:
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < end, output.read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):  # noqa: S310 (on loopback)
            return
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server with its workers."""
    os.killpg(process.pid, 9)
    process.wait()


@pytest.fixture(scope="session")
def run() -> Run:
    """Return a function that runs a command of calibrant beside the servers' libraries, and returns its output."""

    def command(*words: object, python: str = COMMAND, **environment: object) -> str:
        done = subprocess.run(  # noqa: S603 (our own code)
            [PROGRAMS / "python", "-c", python, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
            env={**os.environ, **{key: str(value) for key, value in environment.items()}},
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return command


@pytest.fixture(scope="session")
def model() -> Iterator[FaultServer]:
    """Return a model's server that answers cat or dog by the text."""
    with FaultServer(
        ["cat", "dog"], lambda text, _prompt: ("dog" if "woof" in text else "cat", 0.9)
    ) as server:
        yield server


@pytest.fixture
def task(tmp_path: Path, model: FaultServer) -> Path:
    """Return a task file with 20 rows a split, two of them labelled otherwise than the model answers."""
    animals = [("woof", "dog") if number % 2 else ("meow", "cat") for number in range(20)]
    for split in ("train", "validation", "test"):
        rows = [
            {"input": f"{split} {sound} {number}", "answer": "cat" if number < 4 else label}
            for number, (sound, label) in enumerate(animals)
        ]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "task.toml"
    path.write_text(TASK.format(model.api_base))
    return path
