"""The JSON file of routers: replaced as a whole, no link followed, nothing of others' lost."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import StateError
from calibrant.store import open_router_state

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the file may be, in folders that are not there yet."""
    return tmp_path / "my" / "state" / "router.json"


def count(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Add one."""
    return {"n": (0 if record is None else record["n"]) + 1}


def names(folder: Path) -> list[str]:
    """Return what is in a folder."""
    return sorted(file.name for file in folder.iterdir())


def test_one_file_holds_all_strategies(path: Path) -> None:
    """Under one version, readable for people and other programs."""
    state = open_router_state(path)
    state.update("ema", count)
    state.update("thompson", count)
    open_router_state(path, scope="other").update("ema", count)
    assert json.loads(path.read_text()) == {
        "kind": "router state",
        "version": 1,
        "scopes": {"default": {"ema": {"n": 1}, "thompson": {"n": 1}}, "other": {"ema": {"n": 1}}},
    }
    assert names(path.parent) == ["router.json", "router.json.lock"]


def test_files_and_their_folder_are_for_the_owner(path: Path) -> None:
    """Whatever the mask of the process; a file that others could read is made so, too."""
    before = os.umask(0)
    try:
        open_router_state(path).update("ema", count)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        path.chmod(0o644)
        open_router_state(path).update("ema", count)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"3",
        b'{"kind": "router state", "version": 1, "scopes": {"default": {"ema": {"n"',
        b'{"kind": "router state", "version": 1}',
        b'{"kind": "router state", "version": 1, "scopes": []}',
        b'{"kind": "router state", "version": 1, "scopes": {"default": []}}',
        b'{"kind": "router state", "version": 1, "scopes": {"default": {"ema": {"n": NaN}}}}',
        b'{"kind": "router state", "version": true, "scopes": {}}',
        b'{"kind": "router state", "version": "1", "scopes": {}}',
        b'{"kind": "router state", "version": 0, "scopes": {}}',
        b"\xff\xfe\x00",
        b"\x00" * 4096,
    ],
)
def test_a_damaged_file_is_set_aside(path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Byte by byte, never over an earlier one, with one warning each time."""
    path.parent.mkdir(parents=True)
    (path.parent / "router.json.corrupt-1").write_text("earlier")
    (path.parent / "router.json.corrupt-3").symlink_to("nowhere")
    state = open_router_state(path)
    for number in (2, 4):
        path.write_bytes(content)
        for use in (lambda: state.read("ema"), state.strategies):
            with pytest.raises(StateError, match=r"router\.json: damaged"):
                use()
        caplog.clear()
        assert state.update("ema", count) == {"n": 1}
        assert [f"corrupt-{number}" in record.getMessage() for record in caplog.records] == [True]
        assert (path.parent / f"router.json.corrupt-{number}").read_bytes() == content
        assert state.update("ema", count) == {"n": 2}
    assert (path.parent / "router.json.corrupt-1").read_text() == "earlier"
    path.write_bytes(content)
    assert state.reset() == []
    assert state.strategies() == []


@pytest.mark.parametrize("content", [b"{}", b'{"name": "my-app", "version": 1}', b'{"kind": "POMDP"}'])
def test_a_sound_file_of_something_else_is_left_alone(path: Path, content: bytes) -> None:
    """A slip in its name must not cost anybody a file."""
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    state = open_router_state(path)
    for use in (lambda: state.update("ema", count), lambda: state.read("ema"), state.reset):
        with pytest.raises(StateError, match=r"expected a router state, got .*left as it is"):
            use()  # type: ignore[no-untyped-call]
    assert path.read_bytes() == content
    assert names(path.parent) == ["router.json", "router.json.lock"]


@pytest.mark.parametrize("target", ["there.json", "missing.json"])
def test_a_symbolic_link_is_refused(path: Path, target: str) -> None:
    """As the file and as the lock, whether it points to something or not."""
    path.parent.mkdir(parents=True)
    (path.parent / "there.json").write_text("precious")
    state = open_router_state(path)
    path.symlink_to(target)
    for use in (lambda: state.update("ema", count), lambda: state.read("ema"), state.reset, state.strategies):
        with pytest.raises(StateError, match=r"router\.json: expected a file, got a symbolic link"):
            use()  # type: ignore[no-untyped-call]
    assert path.is_symlink()
    path.unlink()
    lock = path.parent / "router.json.lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to(target)
    with pytest.raises(StateError, match=r"router\.json\.lock: expected a file, got a symbolic link"):
        state.update("ema", count)
    assert names(path.parent) == ["router.json.lock", "there.json"]
    assert (path.parent / "there.json").read_text() == "precious"


@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused(path: Path) -> None:
    """A pipe would make the reader wait for ever."""
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    state = open_router_state(path)
    for use in (lambda: state.update("ema", count), lambda: state.read("ema")):
        with pytest.raises(StateError, match="expected a file, got something else"):
            use()  # type: ignore[no-untyped-call]


def test_temporary_names_cannot_be_foreseen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write has another one, in the same folder, for the owner only."""
    seen: list[tuple[str, int]] = []
    replace = Path.replace

    def watch(self: Path, target: Path) -> Path:
        seen.append((self.name, stat.S_IMODE(self.stat().st_mode)))
        assert self.parent == Path(target).parent
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watch)
    state = open_router_state(path)
    for _ in range(5):
        state.update("ema", count)
    assert len({name for name, _ in seen}) == 5
    assert {mode for _, mode in seen} == {0o600}


def test_what_killed_writers_left_is_removed(path: Path) -> None:
    """And nothing that only looks like it."""
    path.parent.mkdir(parents=True)
    others = [
        ".router.json.backup",
        ".router.json.my-original.tmp",
        ".other.json.abcdefgh.tmp",
        "router.json.abcdefgh.tmp",
    ]
    for name in [".router.json.abc_ef12.tmp", ".router.json.zzzzzzzz.tmp", *others]:
        (path.parent / name).write_text("half")
    open_router_state(path).update("ema", count)
    assert names(path.parent) == sorted([*others, "router.json", "router.json.lock"])


def test_a_deleted_lock_keeps_nobody_out_for_ever(path: Path) -> None:
    """Who waited for the old one takes the new one; one at a time all the same."""
    state = open_router_state(path, busy_timeout=0.05)
    state.update("ema", count)
    lock = path.parent / "router.json.lock"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StateError, match=r"other processes held router\.json\.lock for 0.05 s"):
            state.update("ema", count)
        lock.unlink()
        assert state.update("ema", count) == {"n": 2}
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StateError, match="end what locks it"):
            state.reset()


def test_a_lock_deleted_while_it_is_taken_is_not_taken_for_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would lock the new one."""
    state = open_router_state(path)
    lock = path.parent / "router.json.lock"
    locked: list[int] = []
    flock = fcntl.flock

    def deleting(handle: int, operation: int) -> None:
        if not locked:
            lock.unlink()
        locked.append(os.fstat(handle).st_nlink)
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", deleting)
    state.update("ema", count)
    assert locked == [0, 1, 1]  # the deleted one, the new one, and its release


def test_half_a_copy_is_no_copy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be set aside stays where it is."""
    path.parent.mkdir(parents=True)
    path.write_text("{")
    fsync = os.fsync

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateError, match=r"cannot be set aside \(No space left"):
        open_router_state(path).update("ema", count)
    assert names(path.parent) == ["router.json", "router.json.lock"]
    assert path.read_text() == "{"
    monkeypatch.setattr(os, "fsync", fsync)
    assert open_router_state(path).update("ema", count) == {"n": 1}


def test_the_lock_is_free_though_a_child_inherited_it(path: Path) -> None:
    """A fork in the middle of a write must not lock everybody out while the child lives."""
    code = """
import os, sys
from calibrant.store import open_router_state
state = open_router_state(sys.argv[1], busy_timeout=0.0)
reading, writing = os.pipe()
def forking(_):
    if os.fork() == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    return {"n": 1}
state.update("ema", forking)
print(state.update("ema", lambda record: {"n": record["n"] + 1}))
"""
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "{'n': 2}\n"


def test_a_folder_that_is_not_ours_is_an_error(tmp_path: Path) -> None:
    """What is there can be read all the same."""
    del tmp_path  # cannot be entered by others
    folder = Path(tempfile.mkdtemp())
    path = folder / "router.json"
    state = open_router_state(path)
    state.update("ema", count)
    path.chmod(0o644)
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:  # may write anywhere
        os.seteuid(NOBODY)
    try:
        assert state.read("ema") == {"n": 1}
        for place in (path, folder / "new.json", folder / "new" / "new.json"):
            with pytest.raises(StateError, match=r"cannot be locked \(Permission denied\).*writable"):
                open_router_state(place).update("ema", count)
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


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


@pytest.mark.parametrize("name", ["router.json", "router.db"])
def test_a_full_disk_loses_nothing(small_disk: Path, name: str) -> None:
    """The old record stands, and nothing half-written stays; with room again it goes on."""
    large = {"version": 1, "values": [0.1] * 30_000}
    state = open_router_state(small_disk / name)
    state.update("bandit", lambda _: large)
    filler = fill_up(small_disk)
    before = names(small_disk)
    for _ in range(3):
        with pytest.raises(StateError, match="make room"):
            state.update("bandit", lambda _: {"version": 1, "values": [0.2] * 60_000})
        assert state.read("bandit") == large
        assert names(small_disk) == before
    filler.unlink()
    state.update("bandit", lambda record: {**(record or {}), "n": 1})
    assert state.read("bandit") == {**large, "n": 1}
    state.close()


@pytest.mark.parametrize("name", ["router.json", "router.db"])
def test_a_limit_on_files_loses_nothing(tmp_path: Path, name: str) -> None:
    """A write that ends in the middle, wherever no file system can be mounted, too."""
    code = """
import resource, signal, sys
from calibrant.core import StateError
from calibrant.store import open_router_state
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
        [sys.executable, "-c", code, str(tmp_path / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "refused True\n" * 3 + "{'n': 2}\n"
    assert not [file for file in names(tmp_path) if file.endswith(".tmp")]
