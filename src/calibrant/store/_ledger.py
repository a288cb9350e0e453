"""Ledgers: what was asked of the same rows before, a JSON line each, in the user's folder and beside the rows."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from calibrant.core._errors import StateError
from calibrant.core._files import try_lock, user_path

_WAIT: Final = 0.01  # seconds


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Entries in one or two files, of which both are read and written, so that one may be lost.

    Attributes
    ----------
    files : tuple of Path
        JSON lines; a file need not exist.
    """

    files: tuple[Path, ...]

    @classmethod
    def named(cls, name: str, *, beside: Path | None = None) -> Self:
        """Return the ledger ``{name}.jsonl`` in the user's folder for caches, and in the folder `beside` if given."""
        folders = [] if beside is None else [beside]
        with contextlib.suppress(RuntimeError):  # the user has no home
            folders.append(user_path("", "cache"))
        return cls(files=tuple(folder / f"{name}.jsonl" for folder in folders))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the ledger during the block: others who want it wait, and then read what was added."""
        with contextlib.ExitStack() as stack:
            for file in self.files:
                with contextlib.suppress(OSError):  # what cannot be written is nobody's
                    file.parent.mkdir(parents=True, exist_ok=True)
                    opened = stack.enter_context(file.open("ab"))
                    while not try_lock(opened.fileno()):
                        time.sleep(_WAIT)
            yield

    def entries(self, rows: str | None = None) -> list[dict[str, Any]]:
        """Return the entries, of the rows with a fingerprint if one is given, the earliest first.

        Equal ones of two files are returned once.

        Raises
        ------
        StateError
            A file cannot be read, or a line is damaged.
        """
        found = dict[str, dict[str, Any]]()
        for file in self.files:
            for entry in _lines(file):
                if rows is None or entry["rows"] == rows:
                    found.setdefault(json.dumps(entry, sort_keys=True), entry)
        return list(found.values())

    def add(self, rows: str, entry: Mapping[str, Any]) -> None:
        """Append an entry on the rows with a fingerprint to every file.

        Raises
        ------
        StateError
            No file can be written.
        """
        line = json.dumps({"rows": rows, **entry}, ensure_ascii=False) + "\n"
        problems = [problem for file in self.files if (problem := _append(file, line)) is not None]
        if len(problems) == len(self.files):
            places = "; ".join(problems) or "there is no folder for it"
            raise StateError(
                f"Expected to write down that these rows were asked ({places}): make a folder writable, or name one "
                "with CALIBRANT_HOME."
            )


def _append(file: Path, line: str) -> str | None:
    """Append a line in one write; return the problem, or None."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"{file}: {error.strerror}"
    return None


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = file.read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise StateError(f"{file}: cannot be read ({error.strerror}): make it readable.") from error
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            is_entry = isinstance(entry, dict) and isinstance(entry.get("rows"), str)
        except ValueError:
            is_entry = False
        if not is_entry:
            raise StateError(
                f"{file}, line {number}: expected a JSON object with a fingerprint under rows, got {line[:60]!r}: "
                "restore the file, or delete the line, and what it said is no longer counted."
            )
        yield entry
