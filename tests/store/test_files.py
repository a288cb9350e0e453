"""Tests of SQLite files: permissions, damage, locks and full disks."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from calibrant.core import StateError
from calibrant.store import PredictionCache, _cache
from stores import Open, Rows, damage, fill, put, set_version

NOBODY = 65534


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock for writing, like another program."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_files_are_private(path: Path, open_cache: Open, rows: Rows) -> None:
    """Only the owner can read the database and SQLite's files beside it."""
    before = os.umask(0)
    try:
        fill(open_cache(path), rows(10))
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"cache.db": 0o600, "cache.db-wal": 0o600, "cache.db-shm": 0o600}


@pytest.mark.parametrize("content", [b"no database at all\n" * 100, b"\x00" * 5000, b"a short note\n"])
def test_foreign_files_are_left_alone(path: Path, content: bytes) -> None:
    """A file that is no database raises StateError with a remedy, and stays as it is."""
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StateError) as caught:
        PredictionCache(path)
    assert str(caught.value).startswith(f"{path}: expected a database for predictions, got: ")
    assert "file is not a database" in str(caught.value)
    assert "delete it" in str(caught.value)
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == ["cache.db"]


def test_truncated_files_are_errors(path: Path, open_cache: Open, rows: Rows) -> None:
    """A truncated file raises StateError when opened or read, and stays as it is."""
    with open_cache(path) as cache:
        fill(cache, rows(500))
    os.truncate(path, 4096)
    content = path.read_bytes()
    with pytest.raises(StateError, match=r"cache\.db: .*malformed.*delete it"):
        open_cache(path).get_many(list(rows(500)))
    assert path.read_bytes() == content


def test_damage_inside_is_an_error(path: Path, open_cache: Open, rows: Rows) -> None:
    """A damaged record raises StateError when read."""
    with open_cache(path) as cache:
        fill(cache, rows(500))
    damage(path, pages=8)
    with pytest.raises(StateError, match=r"cache\.db: .*malformed.*delete it"):
        open_cache(path).get_many(list(rows(500)))


def test_folders_are_errors(tmp_path: Path) -> None:
    """A folder, and a path inside a file, raise StateError."""
    with pytest.raises(StateError, match=r"cannot be created or written .*folder"):
        PredictionCache(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"cannot be created or written .*name another file"):
        PredictionCache(tmp_path / "file" / "cache.db")


def test_unwritable_folders_are_errors(rows: Rows) -> None:
    """A folder without write permission raises StateError, whether the file exists or not."""
    folder = Path(tempfile.mkdtemp())  # pytest's own cannot be entered by others
    with PredictionCache(folder / "old.db") as cache:
        fill(cache, rows(3))
    (folder / "old.db").chmod(0o444)
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:  # may write anywhere
        os.seteuid(NOBODY)
    try:
        for name in ("new.db", "old.db", "new/new.db"):
            with pytest.raises(StateError, match=r"cannot be created or written \(Permission denied\)"):
                PredictionCache(folder / name)
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def wait_for(happens: Callable[[], bool]) -> None:
    """Wait until something happens, which has no time of its own; fail after a minute."""
    deadline = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_locked_databases_stop_nothing(
    path: Path, open_cache: Open, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """A locked database logs one warning; reads work, flush raises StateError, and rows are saved later."""
    cache = open_cache(path, busy_timeout=0.02)
    before, after = rows(5), rows(20)
    fill(cache, before)
    with locked(path):
        put(cache, after)
        for _ in range(2):
            with pytest.raises(
                StateError, match=r"cache\.db: 20 predictions could not be saved \(database is locked\)"
            ):
                cache.flush()
        assert cache.get_many(list(after)) == after
        wait_for(lambda: "cannot be saved for now" in caplog.text)
        assert open_cache(path).get_many(list(after)) == before  # opening and reading need no lock
    cache.flush()
    assert open_cache(path).get_many(list(after)) == after
    assert caplog.text.count("Predictions cannot be saved for now: database is locked") == 1


def test_failed_writes_are_repeated(path: Path, open_cache: Open, rows: Rows) -> None:
    """Rows that could not be written are saved later without another call."""
    cache, other = open_cache(path, busy_timeout=0.0), open_cache(path)
    with locked(path):
        put(cache, rows(5))
        with pytest.raises(StateError, match="5 predictions could not be saved"):
            cache.flush()
    wait_for(lambda: other.get_many(list(rows(5))) == rows(5))


def test_waiting_rows_are_bounded(
    path: Path, open_cache: Open, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows beyond the limit of waiting rows are dropped and counted."""
    monkeypatch.setattr(_cache, "_MAX_WAITING", 10)
    cache = open_cache(path, busy_timeout=0.0)
    with locked(path):
        cache.put(*next(iter(rows(1).items())))
        with pytest.raises(StateError, match="1 prediction could not be saved"):
            cache.flush()
        put(cache, rows(30))
        with pytest.raises(StateError, match="30 predictions could not be saved"):
            cache.flush()
    with pytest.raises(StateError, match="20 predictions could not be saved"):
        cache.close()
    assert open_cache(path).get_many(list(rows(30))) == rows(10)


def test_full_disks_stop_nothing(
    path: Path, open_cache: Open, rows: Rows, request: pytest.FixtureRequest
) -> None:
    """On a full disk saved rows can be read, and the others are saved once there is room.

    How many rows are saved before the disk is full depends on how the writer batches them.
    """
    cache = open_cache(path)
    fill(cache, rows(20))
    pages = [40]

    def limit(connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={pages[0]}")

    sa.event.listen(sa.Pool, "checkout", limit)
    request.addfinalizer(lambda: sa.event.remove(sa.Pool, "checkout", limit))
    many = rows(1000)
    put(cache, many)
    with pytest.raises(StateError, match="database or disk is full"):
        cache.flush()
    assert cache.get_many(list(many)) == many
    saved = open_cache(path).get_many(list(many))
    assert rows(20).items() <= saved.items() < many.items()
    pages[0] = 100_000
    cache.flush()
    assert open_cache(path).get_many(list(many)) == many


def test_deleted_files_are_recreated(path: Path, open_cache: Open, rows: Rows) -> None:
    """A deleted file is created again, for the owner alone."""
    cache = open_cache(path)
    fill(cache, rows(5))
    shutil.rmtree(path.parent)
    fill(cache, rows(5, start=5))
    assert open_cache(path).get_many(list(rows(10))) == rows(5, start=5)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("replaced", [False, True])
def test_deleted_files_stay_gone_without_recreate(
    path: Path, open_cache: Open, rows: Rows, caplog: pytest.LogCaptureFixture, *, replaced: bool
) -> None:
    """With recreate=False a deleted file is not created again, and later rows are dropped."""
    cache = open_cache(path, recreate=False, max_bytes=10**6)
    fill(cache, rows(5))
    path.parent.rename(path.parent.with_name("elsewhere"))
    if replaced:
        path.parent.mkdir()
        path.write_bytes(b"")
    fill(cache, rows(5, start=5))
    assert cache.get_many(list(rows(10))) == {}
    cache.close()
    assert path.exists() is path.parent.exists() is replaced
    assert not replaced or [file.stat().st_size for file in path.parent.iterdir()] == [0]
    assert open_cache(path.parent.with_name("elsewhere") / path.name).get_many(list(rows(10))) == rows(5)
    assert not caplog.records


def test_replaced_files_are_used(path: Path, open_cache: Open, rows: Rows) -> None:
    """If another program replaced the file, both write into the new file."""
    cache = open_cache(path)
    fill(cache, rows(5))
    for file in path.parent.iterdir():
        file.unlink()
    other = open_cache(path)
    fill(other, rows(5, start=5))
    fill(cache, rows(5, start=10))
    assert open_cache(path).get_many(list(rows(15))) == rows(10, start=5)
    fill(other, rows(5, start=15))
    assert cache.get_many(list(rows(20))) == rows(15, start=5)


@pytest.mark.parametrize("url", ["cache.db", "sqlite:///cache.db", "~/cache.db"])
def test_relative_paths_stay_the_same_file(
    tmp_path: Path, open_cache: Open, rows: Rows, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Relative paths and ~ are resolved when the cache is opened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = open_cache(url)
    assert cache.location == str(tmp_path / "cache.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    fill(cache, rows(5))
    assert list(Path().iterdir()) == []
    assert open_cache(tmp_path / "cache.db").get_many(list(rows(5))) == rows(5)


@pytest.mark.parametrize("version", [0, 99])
def test_other_versions_are_errors(path: Path, open_cache: Open, rows: Rows, version: int) -> None:
    """Another schema version raises StateError with both versions, and the rows stay."""
    with open_cache(path) as cache:
        fill(cache, rows(5))
    set_version(f"sqlite:///{path}", version, of="calibrant_predictions")
    expected = rf"cache\.db: .*schema version 1, got {version}: use the calibrant that wrote it"
    with pytest.raises(StateError, match=expected):
        PredictionCache(path)
    set_version(f"sqlite:///{path}", 1, of="calibrant_predictions")
    assert open_cache(path).get_many(list(rows(5))) == rows(5)
