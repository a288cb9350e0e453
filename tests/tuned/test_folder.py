"""Tests of a bundle's folder: it is written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibrant.core import ConfigurationError, StateError, Task
from calibrant.tuned import Tuned, _folder
from calibrant.tuned._task_record import record_run
from packed import packed

ROWS = [{"input": f"{n} a {'cat' if n % 3 else 'dog'}", "answer": "cat"} for n in range(6)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the directory of a run."""
    packed(tmp_path, ROWS)
    record_run(tmp_path / "run", [(Task.from_file(tmp_path / "task.toml", splits=()), None)])
    return tmp_path / "run"


@pytest.fixture
def _private() -> Iterator[None]:
    """Make files for their owner alone."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def modes(folder: Path) -> set[int]:
    """Return what the folder and its files allow."""
    return {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX")
@pytest.mark.usefixtures("_private")
def test_a_private_umask_makes_a_private_bundle(run: Path, tmp_path: Path) -> None:
    """Under a private umask, the folder of a bundle is 700 and its files are 600."""
    Tuned.from_run(run).save(tmp_path / "mine")
    assert modes(tmp_path / "mine") == {0o700, 0o600}


@pytest.mark.parametrize("moment", [0, 7, 8])
def test_an_interrupted_export_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """An interrupt before a file or during the final check leaves no new file."""
    written = []
    whole = _folder._write

    def write(path: Path, data: bytes) -> None:
        if len(written) == moment:
            raise KeyboardInterrupt
        written.append(path)
        whole(path, data)

    monkeypatch.setattr(_folder, "_write", write)
    before = set(tmp_path.iterdir())
    if moment == 8:  # manifest and seven files are written by then
        with monkeypatch.context() as patched:
            patched.setattr("calibrant.tuned._folder.read", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                Tuned.from_run(run).save(tmp_path / "new")
    else:
        with pytest.raises(KeyboardInterrupt):
            Tuned.from_run(run).save(tmp_path / "new")
    assert set(tmp_path.iterdir()) == before


def _interrupted(_: Path) -> None:
    raise KeyboardInterrupt


def test_a_folder_filled_meanwhile_is_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file added during the export raises StateError and stays."""
    place = tmp_path / "place"
    place.mkdir()

    def filled(_: Path) -> None:
        (place / "notes.txt").write_text("mine")

    monkeypatch.setattr("calibrant.tuned._folder.read", filled)
    with pytest.raises(StateError, match="place: cannot be written"):
        Tuned.from_run(run).save(place)
    assert [path.name for path in place.iterdir()] == ["notes.txt"]
    assert not list(tmp_path.glob(".place*"))


@pytest.mark.parametrize("place", ["x" * 5000, "a\x00b", "task.toml/x"])
def test_impossible_destinations_are_refused(run: Path, tmp_path: Path, place: str) -> None:
    """Names that are too long, hold a null character or lie in a file raise our errors."""
    with pytest.raises((ConfigurationError, StateError), match=r"choose another (place|folder)"):
        Tuned.from_run(run).save(tmp_path / place)


def test_an_impossible_run_is_refused(tmp_path: Path) -> None:
    """A path that is too long raises StateError."""
    with pytest.raises(StateError, match="cannot be read"):
        Tuned.from_run("x" * 5000).save(tmp_path / "new")
