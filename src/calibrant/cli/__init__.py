"""The command line: wiring only, nothing imports it."""

from calibrant.cli._app import app, main

__all__ = ["app", "main"]
