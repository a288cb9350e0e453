"""From errors to exit codes: 0 done, 1 failed, 2 bad usage or input, 3 a gate did not hold."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec

import typer

_P = ParamSpec("_P")

FAILED = 1
BAD_INPUT = 2
GATE_FAILED = 3
INTERRUPTED = 130


def reports_errors(command: Callable[_P, None]) -> Callable[_P, None]:
    """Print calibrant's own errors on one line and exit with their code; others keep their trace."""

    @functools.wraps(command)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> None:
        logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
        try:
            _exit_on_error(lambda: command(*args, **kwargs))
        except KeyboardInterrupt:
            kept = "" if kwargs.get("out") is None else ": run the same command again to go on"
            typer.echo(f"interrupted{kept}.", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return wrapped


def _exit_on_error(command: Callable[[], None]) -> None:
    from calibrant.core._errors import CalibrantError, ConfigurationError, DataError, StateError

    try:
        command()
    except (ConfigurationError, DataError, StateError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    except CalibrantError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from error
