"""Tests of processes that share a cache, are killed, or end without closing it."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from calibrant.store import PredictionCache
from processes import processes
from stores import Open

HEAD = """
import os, sys, time
from calibrant.core import Prediction
from calibrant.store import PredictionCache
cache = PredictionCache(sys.argv[1])
def put(numbers):
    for number in numbers:
        cache.put(f"key-{number}", Prediction(label="x", text=str(number)))
"""


def program(code: str, path: Path) -> list[str]:
    """Return the command that runs `code` in another interpreter."""
    return [sys.executable, "-c", HEAD + code, str(path)]


def texts(cache: PredictionCache, count: int) -> list[str]:
    """Return the stored texts of rows 0 to `count`, in order."""
    keys = [f"key-{number}" for number in range(count)]
    found = cache.get_many(keys)
    return [found[key].text for key in keys if key in found]


def assert_sound(path: Path) -> None:
    """Assert that SQLite's own check finds no damage."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_processes_write_at_once(path: Path, open_cache: Open) -> None:
    """Processes that write into a new file at once save every row."""
    code = """
print("open", flush=True)
sys.stdin.readline()
first = int(sys.stdin.readline())
for start in range(first, first + 2000, 100):
    put(range(start, start + 100))
    cache.flush()
cache.close()
"""
    with processes() as begin:
        started = [begin(*program(code, path), stdin=PIPE)[0] for _ in range(3)]
        for number, process in enumerate(started):
            assert process.stdin is not None
            process.stdin.write(f"go\n{1000 * number}\n")
            process.stdin.flush()
        assert [process.wait(60) for process in started] == [0, 0, 0]
    assert texts(open_cache(path), 4000) == [str(number) for number in range(4000)]
    assert_sound(path)


def test_kills_lose_no_flushed_rows(path: Path, open_cache: Open) -> None:
    """A kill while writing loses no flushed row, and the file is not damaged."""
    code = """
put(range(1000))
cache.flush()
print("flushed", flush=True)
put(range(1000, 100_000_000))
"""
    for _ in range(3):
        with processes() as begin:
            process, line = begin(*program(code, path))
            assert line == "flushed\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
            process.send_signal(signal.SIGKILL)
            assert process.wait(10) == -signal.SIGKILL
        cache = open_cache(path)
        assert texts(cache, 1000) == [str(number) for number in range(1000)]
        assert_sound(path)
        cache.close()


def test_kills_lose_only_the_last_moment(path: Path, open_cache: Open) -> None:
    """Rows are saved soon after they were put, without a flush, and a kill does not lose them."""
    code = """
put(range(500))
reader = PredictionCache(sys.argv[1])
keys = [f"key-{number}" for number in range(500)]
while len(reader.get_many(keys)) < 500:
    time.sleep(0.01)
print("put", flush=True)
sys.stdin.readline()
"""
    with processes() as begin:
        assert begin(*program(code, path), stdin=PIPE)[1] == "put\n"
    assert texts(open_cache(path), 500) == [str(number) for number in range(500)]


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "os.kill(os.getpid(), 2)"])
def test_ending_processes_save_their_rows(path: Path, open_cache: Open, end: str) -> None:
    """A process saves its rows when it ends without closing, by an exception or by Ctrl-C."""
    with processes() as begin:
        begin(*program(f"put(range(3000))\n{end}", path))[0].wait(30)
    assert texts(open_cache(path), 3000) == [str(number) for number in range(3000)]
