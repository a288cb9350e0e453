"""Output of commands: lines, tables, JSON, and numbers as text."""

from __future__ import annotations

import io
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant.metrics._remarks import dollars

if TYPE_CHECKING:
    from calibrant.core._prediction import Interval, Usage

_UNLIMITED = 100_000  # characters of a line that goes to a file


def print_output(record: Mapping[str, Any] | Sequence[Any], lines: Iterable[str], *, as_json: bool) -> None:
    """Print a record as JSON on one line, or else lines of text, and flush."""
    text = json.dumps(record, ensure_ascii=False) if as_json else "\n".join(_fitted(lines))
    sys.stdout.write(text + "\n" if text else "")
    sys.stdout.flush()


def _fitted(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines that fit a terminal: it would break them inside words."""
    if not sys.stdout.isatty():
        yield from lines
        return
    width = shutil.get_terminal_size().columns
    for line in lines:
        if len(line) <= width:
            yield line
        else:
            yield from textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)


def say(line: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, columns two spaces apart; on a terminal, cells wrap to its width."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(Text(" ".join(cell.splitlines())) for cell in row))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNLIMITED
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def vectors_text(vectors: Usage) -> str:
    """Return the tokens and the cost of vectors of texts."""
    price = "no price is known" if vectors.cost is None else dollars(vectors.cost)
    return f"{vectors.prompt_tokens:,} tokens of vectors of texts ({price})"


def number(value: float | None, form: str = ".3f") -> str:
    """Format a number; a dash for None."""
    return "-" if value is None else format(value, form)


def with_interval(found: Interval | None, form: str = ".3f") -> str:
    """Format an estimate with its interval; a dash for None."""
    if found is None:
        return "-"
    return f"{found.estimate:{form}} ({found.lower:{form}} to {found.upper:{form}})"
