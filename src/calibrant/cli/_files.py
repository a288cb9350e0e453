"""Files that commands are given."""

from __future__ import annotations

from pathlib import Path

from calibrant.core import DataError

__all__ = ["read_prompt"]


def read_prompt(path: Path) -> str:
    """Return the text of a prompt file.

    Raises
    ------
    DataError
        It is missing, or not UTF-8.
    """
    if not path.is_file():
        raise DataError("no such prompt file.", path=path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        msg = f"expected UTF-8 text, got the byte 0x{error.object[error.start]:02x}: save the file as UTF-8."
        raise DataError(msg, path=path, line=line) from error
