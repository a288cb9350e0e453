"""Plain tables: columns of text, the first to the left, numbers as wide as they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrant.core import Interval

__all__ = ["aligned", "number", "with_interval"]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line a row, columns two spaces apart; a line break in a cell becomes a space."""
    cells = [[" ".join(cell.splitlines()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def number(value: float | None, form: str = ".3f") -> str:
    """Return a number as text, a dash where it is not known."""
    return "-" if value is None else format(value, form)


def with_interval(found: Interval | None, form: str = ".3f") -> str:
    """Return an estimate and its interval, a dash where it is not known."""
    if found is None:
        return "-"
    return f"{found.estimate:{form}} ({found.lower:{form}} to {found.upper:{form}})"
