"""Tests of concurrent calls within the limit of open files."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from calibrant.core import CompletionRequest
from calibrant.inference import Classifier, RetryPolicy, open_client
from fault_server import FaultServer

LABELS = ["cat", "dog"]
RESERVED = 16  # files that are left for other things than calls
COMMAND = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from calibrant.cli._app import main
main()
"""


@pytest.fixture
def room_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that leaves room for so many sockets."""

    def limit(sockets: int) -> None:
        others = len(os.listdir("/dev/fd"))  # noqa: PTH208 (names only)
        found = (others + RESERVED + sockets, 1 << 20)
        monkeypatch.setattr(resource, "getrlimit", lambda _: found)

    return limit


def classifier(server: FaultServer) -> Classifier:
    """Return a classifier with one attempt."""
    return Classifier(
        model="openai/any",
        labels=LABELS,
        field="category",
        options={"api_base": server.api_base, "api_key": "none"},
        concurrency=40,
        retry=RetryPolicy(attempts=1),
    )


def test_concurrent_calls_fit_the_open_sockets(room_for: Callable[[int], None]) -> None:
    """Calls wait for a free socket, so a server that takes seven at a time rejects none."""
    texts = [f"{number} cat" for number in range(40)]
    with FaultServer(LABELS, latency=0.02, max_concurrency=7) as server:
        room_for(7)
        with closing(classifier(server)) as found:
            outcomes = {prediction.outcome.value for prediction in found.classify_many(texts)}
    assert outcomes == {"ok"}


def test_clients_share_what_may_be_open(room_for: Callable[[int], None]) -> None:
    """Two classifiers share the limit of open files, and every row is answered."""
    texts = [f"{number} cat" for number in range(40)]
    with FaultServer(LABELS, latency=0.02, max_concurrency=5) as server:
        room_for(10)
        with closing(classifier(server)) as found, closing(classifier(server)):
            outcomes = {prediction.outcome.value for prediction in found.classify_many(texts)}
    assert outcomes == {"ok"}


def test_64_open_files_suffice_for_256_calls(write_task: Callable[..., Path], tmp_path: Path) -> None:
    """With 64 open files, 256 concurrent calls with retries answer every row and warn once."""
    rows = [{"input": f"{number} cat", "answer": "cat"} for number in range(300)]
    with FaultServer(LABELS, latency=0.02, faults={"503": 0.1}) as server:
        model = f'[model]\nname = "openai/any"\napi_base = "{server.api_base}"\n[model.options]\napi_key = "none"\n'
        task = write_task(test=rows, extra=model)
        options = ("--out", str(tmp_path / "out"), "--no-cache", "--concurrency", "256")
        done = subprocess.run(  # noqa: S603 (our own code)
            [sys.executable, "-c", COMMAND, "evaluate", str(task), *options],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "ok 300, error 0" in done.stdout
    assert done.stderr.count("This process may open only 64 files (ulimit -n)") == 1


def test_closed_loops_are_released(room_for: Callable[[int], None]) -> None:
    """Of the event loops in which calls waited, only the last one may stay in memory."""
    loops = []
    with FaultServer(LABELS, latency=0.01, max_concurrency=1) as server:
        room_for(1)
        client = open_client("openai/any", options={"api_base": server.api_base, "api_key": "none"})
        request = CompletionRequest(messages=({"role": "user", "content": "a cat"},))

        async def crowd() -> None:
            loops.append(weakref.ref(asyncio.get_running_loop()))
            await asyncio.gather(*(client.complete(request) for _ in range(4)))

        for _ in range(5):
            asyncio.run(crowd())
        gc.collect()
        assert [loop() for loop in loops[:-1]] == [None] * 4
        client.close()
