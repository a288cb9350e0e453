"""Tests of shared router state under kills, full disks and missing servers."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from calibrant.store import RouterState

NOBODY = 65534

HEAD = """
import json, logging, os, random, signal, sqlite3, sys, time
import sqlalchemy.dialects.sqlite
from calibrant.core import StateError
from calibrant.inference import SharedRouter
from calibrant.routing import Observation
from calibrant.store import RouterState

class Counting:
    strategy = "thompson"
    def __init__(self, *providers):
        self.providers = providers
        self.restore(None)
    def order(self, request=None): return list(self.providers)
    def record(self, observation): self.counts[observation.provider] += 1
    def snapshot(self): return {"version": 1, "counts": dict(self.counts)}
    def restore(self, snapshot):
        stored = {} if snapshot is None else snapshot["counts"]
        self.counts = {name: stored.get(name, 0) for name in self.providers}
    def standings(self): return ()

def record(shared, provider, count):
    for _ in range(count):
        shared.order()
        shared.record(Observation(provider=provider, success=True, latency_seconds=0.1))

def in_children(jobs):
    children = []
    for job in jobs:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                job()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * len(children)
"""


def run(code: str, *arguments: str, timeout: float = 110, **options: Any) -> str:
    """Run `code` in another interpreter within a time limit, and return its output."""
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", HEAD + code, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout,
        check=True,
        **options,
    )
    return done.stdout


def stored(place: str, **options: Any) -> dict[str, int]:
    """Return the stored counts by provider."""
    state = RouterState(place, **options)
    record = state.read("thompson")
    state.close()
    assert record is not None
    return dict(record["counts"])


def test_eight_processes_lose_nothing(place: str) -> None:
    """Eight processes that write at once lose no observation."""
    run(
        """
def work(number):
    shared = SharedRouter(Counting("a", "b"), RouterState(sys.argv[1], busy_timeout=60), flush_seconds=0.001)
    for _ in range(20):
        record(shared, "a", 30)
        record(shared, "b", 20)
        shared.flush()
    shared.close()
in_children([lambda number=number: work(number) for number in range(8)])
""",
        place,
    )
    assert stored(place) == {"a": 4800, "b": 3200}


KILLS = """
place, kills = sys.argv[1], int(sys.argv[2])
def step(record):
    n = 0 if record is None else record["n"] + 1
    return {"n": n, "copies": [n] * 5000}
def work(pipe):
    state = RouterState(place, busy_timeout=60)
    while True:
        os.write(pipe, state.update("bandit", step)["n"].to_bytes(8, "big"))
state = RouterState(place, busy_timeout=60)
highest, progress, rng, longest = -1, 0, random.Random(5), 0.0
for number in range(kills):
    began, told = time.monotonic(), b""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        work(writing)
    os.close(writing)
    if number:
        time.sleep(rng.uniform(0, longest))
    else:  # see how long the first updates take
        told = os.read(reading, 8) + os.read(reading, 8)
        longest = min(2 * (time.monotonic() - began), 1.0)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    told += os.read(reading, 1 << 16)
    os.close(reading)
    progress += len(told) > 0
    highest = max(highest, int.from_bytes(told[-8:], "big") if told else -1)
    record = state.read("bandit")
    if record is None:
        assert highest == -1
        continue
    assert highest <= record["n"] <= highest + 1, (highest, record["n"])
    assert record["copies"] == [record["n"]] * 5000
    highest = record["n"]
after = state.update("bandit", step)["n"]
assert after == highest + 1
assert progress > kills / 8, progress
print("sound")
"""


def damage_after_kills(place: str, kills: int) -> list[object]:
    """Kill writers, and return what a check of the file's integrity finds."""
    # Up to half a second a kill where the first updates are slow, and a connection to the database.
    assert run(KILLS, place, str(kills), timeout=80 + 2 * kills) == "sound\n"
    state = RouterState(place)
    assert state.update("bandit", lambda record: record or {}) == state.read("bandit")
    state.close()
    if place.endswith(".db"):
        with contextlib.closing(sqlite3.connect(place)) as connection:
            return [row for row in connection.execute("PRAGMA integrity_check") if row != ("ok",)]
    return []


def test_kills_damage_nothing(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """After kills no record is damaged, and no lock is held."""
    assert damage_after_kills(place, 12) == []
    assert caplog.records == []


GOES_ON = """
warned = []
class Listener(logging.Handler):
    def emit(self, record): warned.append(record.getMessage())
logging.getLogger("calibrant").addHandler(Listener(logging.WARNING))

def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

def go_on(shared):
    "Record for a while, in vain."
    for _ in range(20):
        record(shared, "a", 10)
        try:
            shared.flush()
        except StateError as error:
            assert "could not be saved" in str(error)
        else:
            raise AssertionError("it could be written")
    wait_until(lambda: warned)
    assert [("requests go on" in text) for text in warned] == [True], warned
    assert shared.router.counts["a"] == 200
"""


def test_full_disks_do_not_stop_requests(tmp_path: Path) -> None:
    """On a full disk requests go on with one warning, and everything is saved once there is room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = shutil.which("mount") and subprocess.run(  # noqa: S603
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)],  # noqa: S607
        capture_output=True,
        check=False,
    )
    if not made or made.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        output = run(
            GOES_ON
            + """
folder, place = sys.argv[1:]
RouterState(place).update("other", lambda _: {"large": "x" * 1000})
with open(folder + "/filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(b"x" * 1024)
    except OSError:
        pass
shared = SharedRouter(Counting("a"), RouterState(place), flush_seconds=0.001)
go_on(shared)
os.unlink(folder + "/filler")
shared.flush()
shared.close()
assert len(warned) == 1
print("fine")
""",
            str(folder),
            str(folder / "router.db"),
        )
        assert output == "fine\n"
        assert stored(str(folder / "router.db")) == {"a": 200}
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S603, S607


@pytest.mark.parametrize("kind", ["folder of others", pytest.param("inside a file", marks=pytest.mark.slow)])
def test_unwritable_places_do_not_stop_requests(kind: str) -> None:
    """With an unwritable place requests go on; two warnings are logged, one of the lost number."""
    folder = Path(tempfile.mkdtemp())  # pytest's own cannot be entered by others
    try:
        (folder / "file").touch()
        folder.chmod(0o555)
        place = folder / "router.db" if kind == "folder of others" else folder / "file" / "router.db"
        output = run(
            GOES_ON
            + f"""
if os.getuid() == 0:  # may write anywhere
    os.setgid({NOBODY})
    import calibrant.core._files, calibrant.store._router_state  # nobody may not read them
    os.setuid({NOBODY})
shared = SharedRouter(Counting("a"), RouterState(sys.argv[1]), flush_seconds=0.001)
go_on(shared)
shared.close()
print(len(warned), warned[-1])
""",
            str(place),
        )
        assert output.startswith("2 ")
        assert output.endswith("200 observations of the router thompson could not be saved and are lost.\n")
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_missing_servers_do_not_stop_requests() -> None:
    """One warning is logged during requests, without the password, and one more on closing."""
    output = run(
        GOES_ON
        + """
shared = SharedRouter(
    Counting("a"), RouterState("postgresql://bob:hunter2@127.0.0.1:1/db"), flush_seconds=0.001
)
go_on(shared)
assert "hunter2" not in warned[0]
shared.close()
print(len(warned))
"""
    )
    assert output == "2\n"


def test_clusters_share_a_place(place: str) -> None:
    """Scopes keep separate records, and processes of one scope share theirs."""
    run(
        """
def work(scope, *providers):
    shared = SharedRouter(
        Counting(*providers), RouterState(sys.argv[1], scope=scope, busy_timeout=60), flush_seconds=0.001
    )
    for _ in range(10):
        for provider in providers:
            record(shared, provider, 10)
        shared.flush()
    shared.close()
in_children(
    [lambda scope=scope: work(scope, *scope) for scope in ("ab", "bcd")  for _ in range(3)]
    + [lambda providers=providers: work("shared", *providers) for providers in ("ab", "bc") for _ in range(3)]
)
""",
        place,
    )
    assert stored(place, scope="ab") == {"a": 300, "b": 300}
    assert stored(place, scope="bcd") == {"b": 300, "c": 300, "d": 300}
    both = stored(place, scope="shared")
    assert both["b"] == 600
    assert set(both) in ({"a", "b"}, {"b", "c"})
