"""A SQLite file of routers on a disk that has no room."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibrant.core import StateError
from calibrant.store._router_open import open_router_state


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run(  # noqa: S603 (no input)
        [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if not made or made.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run([str(shutil.which("umount")), "--lazy", str(folder)], check=True)  # noqa: S603 (no input)


def fill_up(folder: Path) -> Path:
    """Take all the room there is."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return filler


def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    """The old record stands, and nothing half-written stays; with room again it goes on."""
    large = {"version": 1, "values": [0.1] * 30_000}
    state = open_router_state(small_disk / "router.db")
    state.update("bandit", lambda _: large)
    filler = fill_up(small_disk)
    before = sorted(file.name for file in small_disk.iterdir())
    for _ in range(3):
        with pytest.raises(StateError, match="make room"):
            state.update("bandit", lambda _: {"version": 1, "values": [0.2] * 60_000})
        assert state.read("bandit") == large
        assert sorted(file.name for file in small_disk.iterdir()) == before
    filler.unlink()
    state.update("bandit", lambda record: {**(record or {}), "n": 1})
    assert state.read("bandit") == {**large, "n": 1}
    state.close()


def test_a_limit_on_files_loses_nothing(tmp_path: Path) -> None:
    """A write that ends in the middle, wherever no file system can be mounted, too."""
    code = """
import resource, signal, sys
from calibrant.core import StateError
from calibrant.store._router_open import open_router_state
state = open_router_state(sys.argv[1])
state.update("ema", lambda _: {"n": 1})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
for _ in range(3):
    try:
        state.update("ema", lambda _: {"values": [0] * 200_000})
    except StateError as error:
        print("refused", "cannot be written" in str(error))
    assert state.read("ema") == {"n": 1}
print(state.update("ema", lambda record: {"n": record["n"] + 1}))
"""
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", code, str(tmp_path / "router.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "refused True\n" * 3 + "{'n': 2}\n"
