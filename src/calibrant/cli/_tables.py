"""Plain tables: columns of text, the first to the left, numbers as wide as they need."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrant.core._prediction import Interval


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line a row, columns two spaces apart; a line break in a cell becomes a space."""
    cells = [[" ".join(cell.splitlines()) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def fitted(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return `aligned` lines; on a terminal, columns that do not fit go below, behind the first column."""
    if not sys.stdout.isatty():
        return aligned(rows)
    room = shutil.get_terminal_size().columns
    return [line for part in _parts(rows, room) for line in aligned(part)]


def _parts(rows: Sequence[Sequence[str]], room: int) -> Iterator[list[list[str]]]:
    """Yield the columns of a table in tables of at most `room` characters, each with the first column."""
    first, *others = ([row[place] for row in rows] for place in range(len(rows[0])))
    part = [first]
    for column in others:
        if len(part) > 1 and max(map(len, aligned([*zip(*part, column, strict=True)]))) > room:
            yield [list(row) for row in zip(*part, strict=True)]
            part = [first]
        part.append(column)
    yield [list(row) for row in zip(*part, strict=True)]


def dollars(cost: float | None) -> str:
    """Return US dollars as text: four digits after the point, two that count where that is nothing; a dash for None."""
    if cost is None:
        return "-"
    return f"${cost:.4f}" if cost >= 1e-4 else f"${Decimal(f'{cost:.1e}').normalize():f}"


def number(value: float | None, form: str = ".3f") -> str:
    """Return a number as text, a dash where it is not known."""
    return "-" if value is None else format(value, form)


def with_interval(found: Interval | None, form: str = ".3f") -> str:
    """Return an estimate and its interval, a dash where it is not known."""
    if found is None:
        return "-"
    return f"{found.estimate:{form}} ({found.lower:{form}} to {found.upper:{form}})"
