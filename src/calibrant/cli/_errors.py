"""From errors to exit codes: 0 done, 1 failed, 2 bad usage or input, 3 a gate did not hold."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import ParamSpec

import typer

_P = ParamSpec("_P")

FAILED = 1
BAD_INPUT = 2
GATE_FAILED = 3
INTERRUPTED = 130


def reports_errors(command: Callable[_P, None]) -> Callable[_P, None]:
    """Run a command in `exits_on_error`."""

    @functools.wraps(command)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> None:
        with exits_on_error(is_resumable=kwargs.get("out") is not None):
            command(*args, **kwargs)

    return wrapped


@contextlib.contextmanager
def exits_on_error(*, is_resumable: bool = False) -> Iterator[None]:
    """Print calibrant's own errors on one line and exit with their code; others keep their trace."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        from calibrant.core._errors import CalibrantError, ConfigurationError, DataError, StateError

        try:
            yield
        except CalibrantError as error:
            typer.echo(f"error: {error}", err=True)
            is_bad_input = isinstance(error, ConfigurationError | DataError | StateError)
            raise typer.Exit(BAD_INPUT if is_bad_input else FAILED) from error
    except KeyboardInterrupt:
        kept = ": run the same command again to go on" if is_resumable else ""
        typer.echo(f"interrupted{kept}.", err=True)
        raise typer.Exit(INTERRUPTED) from None
