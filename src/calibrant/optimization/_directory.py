"""The run directory: whose run it holds, and whether it may go on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant.core._errors import CalibrantError, StateError
from calibrant.core._files import make_rescue_folder
from calibrant.runs._folder import Manifest, make_folder, rescue_if_lost
from calibrant.runs._journal import JsonlStore

JOURNAL = "journal.jsonl"
_VERSION = "search"  # a key of run.json
_CURRENT = 2


def open_directory(path: Path, fingerprint: dict[str, Any]) -> Path:
    """Make the run directory, or check that it holds an earlier part of this run."""
    make_folder(path)
    manifest = _manifest(path)
    # A key that only an earlier version wrote is not compared.
    is_part = manifest.check(
        fingerprint,
        has_rows=_paid(path),
        comparable=lambda record: {name: record.get(name) for name in fingerprint},
    )
    if not is_part:  # else run.json keeps the version that began the search
        manifest.write({**fingerprint, _VERSION: _CURRENT})
    return path


def is_current(path: Path) -> bool:
    """Return whether a run is not one of an earlier version, which searched otherwise and taught no head."""
    manifest = _manifest(path)
    return not manifest.path.exists() or not _paid(path) or manifest.read().get(_VERSION) == _CURRENT


@contextlib.contextmanager
def rescuing(
    directory: Path | None, fingerprint: Mapping[str, Any], stores: Sequence[JsonlStore], *, current: bool
) -> Iterator[None]:
    """Keep the entries of `stores` in another directory when theirs is moved or removed before the block ends.

    Parameters
    ----------
    directory : Path or None
        The run directory; None where there is none to lose.
    fingerprint : mapping
        What it was opened with.
    stores : sequence of JsonlStore
        Its journals, still open.
    current : bool
        `is_current` of it.

    Raises
    ------
    CalibrantError
        It was moved or removed; the message names the other directory, from which the same run goes on.
    """
    if directory is None:
        yield
        return
    with rescue_if_lost(
        lambda: all(store.in_place for store in stores),
        lambda: _rescued(directory, fingerprint, stores, current=current),
    ):
        yield


def _rescued(
    directory: Path, fingerprint: Mapping[str, Any], stores: Sequence[JsonlStore], *, current: bool
) -> CalibrantError:
    rescue, mark = make_rescue_folder(directory), {_VERSION: _CURRENT} if current else {}
    try:
        _manifest(rescue).write({**fingerprint, **mark})
        for store in stores:
            store.copy_to(rescue)
    except (OSError, StateError) as error:
        return StateError(
            f"{directory}: was moved or removed during the run, and its answers cannot be written to {rescue} "
            f"({error})."
        )
    return CalibrantError(
        f"{directory}: its files were moved or removed during the run: the answers so far are kept in {rescue}. Give "
        "that directory as the output of the same command to go on from there, at no cost."
    )


def _manifest(path: Path) -> Manifest:
    return Manifest(path, kind="a run")


def _paid(path: Path) -> bool:
    """Return True if the run got as far as a single prediction."""
    journal = path / JOURNAL
    return journal.exists() and journal.stat().st_size > 0
