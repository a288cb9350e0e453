"""Command-line program: its commands, groups of commands and global options."""

from __future__ import annotations

from typing import Annotated

import typer

from calibrant.cli._commands import HELP, app
from calibrant.cli._groups import GROUPS

__all__ = ["app", "main"]

for group in GROUPS:
    app.add_typer(group)


def _print_version(wanted: bool) -> None:
    if wanted:
        import calibrant

        typer.echo(f"calibrant {calibrant.__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options of the program itself."""


def main() -> None:
    """Run the command line.

    Examples
    --------
    >>> import contextlib
    >>> from unittest.mock import patch
    >>> from calibrant.cli import main
    >>> with patch("sys.argv", ["calibrant", "--version"]), contextlib.suppress(SystemExit):
    ...     main()  # doctest: +ELLIPSIS
    calibrant ...
    """
    app()
