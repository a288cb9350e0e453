"""Command line of calibrant; no other package imports it."""

from calibrant.cli._app import app, main

__all__ = ["app", "main"]
