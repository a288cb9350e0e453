"""Options that several commands share."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
ApiBase = Annotated[str | None, typer.Option(help="Endpoint of an OpenAI-compatible server.")]
Context = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="What answers have to rest on, for a cascade that verifies them."),
]
ContextColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Column with a row's own context; --context is for the others."),
]
Options = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="An option of every call; may be given several times."),
]


def parse_option(text: str) -> tuple[str, Any]:
    """Return name and value of ``KEY=VALUE``; a value that is not JSON is text."""
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        from calibrant.core._errors import ConfigurationError  # the list of commands stays quick

        raise ConfigurationError(
            f"Expected --option KEY=VALUE, got {text!r}: write --option temperature=0.5."
        )
    try:
        return name.strip(), json.loads(value)
    except (ValueError, RecursionError):
        return name.strip(), value
