"""Tests of atomic file writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from calibrant.core._files import atomic_bytes_writer, write_atomically


def test_text_is_written_unchanged(tmp_path: Path) -> None:
    """Text is written in UTF-8, and line feeds stay as they are."""
    path = tmp_path / "result.json"
    write_atomically(path, "café\n\u2028\n")
    assert path.read_bytes() == "café\n\u2028\n".encode()
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["result.json"]  # noqa: PTH208 (names only)


def test_bytes_appear_at_the_end(tmp_path: Path) -> None:
    """The file appears when the block ends; a failure keeps the old file, and no temporary one."""
    path = tmp_path / "rows.parquet"
    with atomic_bytes_writer(path) as file:
        file.write(b"\x00\xff")
        assert not path.exists()
    assert path.read_bytes() == b"\x00\xff"
    with pytest.raises(OSError, match="full"), atomic_bytes_writer(path) as file:
        raise OSError("full")
    assert path.read_bytes() == b"\x00\xff"
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("umask", "mode", "given"),
    [(0o022, {}, 0o644), (0o077, {}, 0o600), (0o002, {}, 0o664), (0o022, {"mode": 0o600}, 0o600)],
)
def test_permissions_follow_the_umask(tmp_path: Path, umask: int, mode: dict[str, int], given: int) -> None:
    """The file has the wanted mode without the umask's bits, also where another file is replaced."""
    path = tmp_path / "result.json"
    path.touch(0o666)
    before = os.umask(umask)
    try:
        write_atomically(path, "text", **mode)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == given


def test_unwritable_text_keeps_the_old_file(tmp_path: Path) -> None:
    """Text with half a surrogate pair raises UnicodeEncodeError, and the old file stays."""
    path = tmp_path / "result.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "x" * 100_000 + "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failures_keep_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A full disk raises OSError at any step, and only the old file is left."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "result.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full) if step == "fsync" else monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while writing leaves no temporary file."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "result.json", "new")
    assert list(tmp_path.iterdir()) == []
