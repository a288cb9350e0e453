"""Tests of processes that fork while they hold SQLite connections."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import Prediction
from calibrant.store import PredictionCache, RouterState, _database
from calibrant.store._database import in_use

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def carried(*stores: Any) -> list[int]:
    """Return the number of open connections of each object."""
    return [getattr(store, "_table", store)._engine.pool.checkedin() for store in stores]


def forked(work: Any) -> int:
    """Return the exit code of a child that does some work."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_children_inherit_no_connection(url: str) -> None:
    """After a fork parent and child use the object without an inherited connection."""
    cache, state = PredictionCache(url, busy_timeout=30), RouterState(url, busy_timeout=30)
    cache.put("key", Prediction(label="x"))
    cache.flush()
    state.update("ema", lambda _: {"n": 1})
    assert min(carried(cache, state)) > 0

    def work() -> None:
        assert carried(cache, state) == [0, 0]
        assert list(cache.get_many(["key"])) == ["key"]
        cache.put("other", Prediction(label="y"))
        cache.close()
        assert state.update("ema", lambda record: {"n": record["n"] + 1})["n"] == 2

    assert forked(work) == 0
    assert sorted(cache.get_many(["key", "other"])) == ["key", "other"]
    assert state.read("ema") == {"n": 2}
    cache.close()
    state.close()


def test_forks_wait_for_connections_in_use() -> None:
    """A fork waits for connections in use; new ones work on both sides."""
    begun, ended = threading.Event(), threading.Event()

    def use() -> None:
        with in_use():
            begun.set()
            while not _database._GATE.forking:
                time.sleep(0.001)
            with in_use():  # who has begun may end
                ended.set()

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    begun.wait()

    def work() -> None:
        assert ended.is_set()
        with in_use():
            pass

    assert forked(work) == 0
    with in_use():
        pass
    thread.join()


def test_users_of_connections_may_fork() -> None:
    """A thread that uses a connection can fork."""

    def work() -> None:
        with in_use():
            pass

    with in_use():
        assert forked(work) == 0


STORM = """
import os, sys, threading
from calibrant.core import Prediction
from calibrant.store import PredictionCache
cache = PredictionCache(sys.argv[1], busy_timeout=30)
failed = []
def work(name):
    try:
        for number in range(60):
            cache.put(f"{name}-{number}", Prediction(label="x"))
            cache.flush()
            cache.get_many([f"{name}-{number}"])
    except BaseException as error:
        failed.append(error)
def fork(name):
    for number in range(10):
        child = os.fork()
        if child == 0:
            work(f"{name}-{number}")
            os._exit(len(failed))
        if os.waitpid(child, 0)[1]:
            failed.append(number)
threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(2)]
threads += [threading.Thread(target=fork, args=(f"f{n}",)) for n in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
cache.close()
print(len(failed), file=sys.stdout)
"""


def test_threads_fork_and_write_at_once(path: Path, open_cache: Any) -> None:
    """Threads that fork and write at once finish, and every row is saved."""
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", STORM, str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
    names = ["w0", "w1", *(f"f{fork}-{number}" for fork in range(2) for number in range(10))]
    keys = [f"{name}-{number}" for name in names for number in range(60)]
    assert len(open_cache(path).get_many(keys)) == len(keys)
