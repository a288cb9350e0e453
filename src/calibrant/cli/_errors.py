"""Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 a required result was missed."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Iterator

import typer

FAILED = 1
BAD_INPUT = 2
GATE_FAILED = 3
INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def exits_on_error(*, is_resumable: bool = False) -> Iterator[None]:
    """Print calibrant's errors on one line and exit with a code; other errors keep their traceback."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        from calibrant.core._errors import CalibrantError, ConfigurationError, DataError, StateError

        try:
            yield
        except CalibrantError as error:
            typer.echo(f"error: {error}", err=True)
            is_bad_input = isinstance(error, ConfigurationError | DataError | StateError)
            raise typer.Exit(BAD_INPUT if is_bad_input else FAILED) from error
    except BrokenPipeError:  # the reader of the output is gone, as `head` goes
        discard_output()
    except OSError as error:
        if error.errno not in _FULL:
            raise
        discard_output()
        typer.echo(
            f"error: expected room for the output, got: {error.strerror}: make room, and run the same command again.",
            err=True,
        )
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt:
        kept = ": run the same command again to go on" if is_resumable else ""
        typer.echo(f"interrupted{kept}.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def discard_output() -> None:
    """Discard buffered output, which the interpreter would fail to flush at exit."""
    with contextlib.suppress(OSError, ValueError):  # standard output may be no real file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
