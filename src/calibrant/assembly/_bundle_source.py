"""Bundles read from a folder, which holds a bundle or a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from calibrant.assembly._bundle import Bundle, read_bundle
from calibrant.assembly._bundle_export import export
from calibrant.assembly._bundle_files import MANIFEST as BUNDLE
from calibrant.core._errors import StateError
from calibrant.runs._directory import BATCH, MANIFEST, PREDICTIONS, RESULT

_MOST_NAMES = 5  # in a message


@contextmanager
def bundle_of(path: Path) -> Iterator[Bundle]:
    """Yield the bundle in a folder, or the bundle that the run in a folder would be exported as.

    The latter is written to a temporary folder, which is removed when the block ends: open and close its classifier
    inside the block.

    Parameters
    ----------
    path : Path
        The bundle, or directory of `calibrant optimize`, `evaluate`, `batch` or `cascade run`.

    Raises
    ------
    StateError
        The folder holds neither, or what it holds is damaged, unfinished, or labels of rows without answers.
    """
    if (path / BUNDLE).exists():
        yield read_bundle(path)
        return
    if not any((path / name).exists() for name in (MANIFEST, RESULT, BATCH, PREDICTIONS)):
        inside = sorted({found.parent for found in path.glob(f"*/{RESULT}")} | set(path.glob("*.toml")))
        names = ", ".join(map(str, inside[:_MOST_NAMES]))
        remedy = f"name what is in it: {names}" if inside else "check the path"
        raise StateError(
            f"{path}: expected a task file, a bundle or the directory of a run, got a directory with neither: {remedy}."
        )
    with tempfile.TemporaryDirectory(prefix="calibrant-") as folder:
        yield replace(export(path, Path(folder) / "bundle"), path=path)
