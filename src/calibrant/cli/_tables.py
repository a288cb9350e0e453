"""Output of commands: lines, tables, JSON, numbers as text, and runs logged to a tracking server."""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant.core._errors import CalibrantError, ConfigurationError
from calibrant.core._files import json_text
from calibrant.core._prediction import Interval, Usage
from calibrant.metrics._remarks import dollars

_UNLIMITED = 100_000  # characters of a line that goes to a file
_SERVICES: Final = ("mlflow",)


def print_output(record: Mapping[str, Any] | Sequence[Any], lines: Iterable[str], *, as_json: bool) -> None:
    """Print a record as JSON on one line, or else lines of text, and flush."""
    text = json_text(record) if as_json else "\n".join(_fitted(lines))
    if text:
        sys.stdout.write(f"{text}\n")
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
        texts = [" ".join(cell.splitlines()) for cell in row]
        table.add_row(*map(Text, texts))
    width = _UNLIMITED
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def vectors_text(vectors: Usage) -> str:
    """Return the tokens and the cost of vectors of texts."""
    price = "no price is known"
    if vectors.cost is not None:
        price = dollars(vectors.cost)
    return f"{vectors.prompt_tokens:,} tokens of vectors of texts ({price})"


def number(value: float | None, form: str = ".3f") -> str:
    """Format a number; a dash for None."""
    if value is None:
        return "-"
    return format(value, form)


def with_interval(found: Interval | None, form: str = ".3f") -> str:
    """Format an estimate with its interval; a dash for None."""
    if found is None:
        return "-"
    return f"{found.estimate:{form}} ({found.lower:{form}} to {found.upper:{form}})"


def check_tracking(service: str | None) -> None:
    """Refuse a service that is unknown or not installed, before anything is paid for; None is no service."""
    if service is None:
        return
    if service not in _SERVICES:
        raise ConfigurationError(f"Expected --track mlflow, got {service!r:.80}: no other service is known.")
    if find_spec("mlflow") is None:
        from calibrant.core._installation import install_command

        raise ConfigurationError(f"--track mlflow needs the extra mlflow: {install_command('mlflow')}.")


def track(service: str | None, *directories: Path) -> None:
    """Log finished runs to a service; a server that fails costs a sentence, as the run is in its directory."""
    if service is None:
        return
    from calibrant.mlflow import log_run

    for directory in directories:
        try:
            run = log_run(directory)
        except CalibrantError as error:
            say(f"warning: {error} Send it later: calibrant report {directory} --track mlflow")
        else:
            say(f"MLflow has the run {directory.resolve().name}: {run}")
