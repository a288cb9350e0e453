"""Tests of a bundle's folder: it is written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import ConfigurationError, StateError
from calibrant.tuned import Tuned
from packed import packed

ROWS = [{"input": f"{n} a {'cat' if n % 3 else 'dog'}", "answer": "cat"} for n in range(6)]


@pytest.fixture
def tuned(tmp_path: Path) -> Tuned:
    """Return what is read from the directory of a run."""
    packed(tmp_path, ROWS)
    return Tuned.from_run(tmp_path / "run", task=tmp_path / "task.toml")


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
def test_a_private_umask_makes_a_private_bundle(tuned: Tuned, tmp_path: Path) -> None:
    """Under a private umask, the folder of a bundle is 700 and its files are 600."""
    tuned.save(tmp_path / "mine")
    assert modes(tmp_path / "mine") == {0o700, 0o600}


@pytest.mark.parametrize(("function", "moment"), [("fsync", 0), ("fsync", 7), ("fstat", 0)])
def test_an_interrupted_export_leaves_nothing(
    tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, moment: int
) -> None:
    """An interrupt while the first or the last of eight files is written, or during the final check, leaves no file."""
    calls: list[int] = []
    whole = getattr(os, function)

    def interrupted(descriptor: int) -> Any:
        calls.append(descriptor)
        if len(calls) == moment + 1:
            raise KeyboardInterrupt
        return whole(descriptor)

    monkeypatch.setattr(os, function, interrupted)
    before = set(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        tuned.save(tmp_path / "new")
    assert set(tmp_path.iterdir()) == before


def test_a_folder_filled_meanwhile_is_kept(
    tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file added during the export raises StateError and stays."""
    place = tmp_path / "place"
    place.mkdir()

    def filled(_: int) -> None:
        (place / "notes.txt").write_text("mine")

    monkeypatch.setattr(os, "fsync", filled)
    with pytest.raises(StateError, match="place: cannot be written"):
        tuned.save(place)
    assert [path.name for path in place.iterdir()] == ["notes.txt"]
    assert not list(tmp_path.glob(".place*"))


@pytest.mark.parametrize("place", ["x" * 5000, "a\x00b", "task.toml/x"])
def test_impossible_destinations_are_refused(tuned: Tuned, tmp_path: Path, place: str) -> None:
    """Names that are too long, hold a null character or lie in a file raise our errors."""
    with pytest.raises((ConfigurationError, StateError), match=r"choose another (place|folder)"):
        tuned.save(tmp_path / place)


def test_an_impossible_run_is_refused(tmp_path: Path) -> None:
    """A path that is too long raises StateError."""
    with pytest.raises(StateError, match="cannot be read"):
        Tuned.from_run("x" * 5000).save(tmp_path / "new")
