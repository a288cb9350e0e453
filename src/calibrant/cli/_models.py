"""``calibrant models``: what can be named, and what is missing for it."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from calibrant.clients import local_models

__all__ = ["run_models"]

PATTERNS = (
    ("llamacpp:PATH.gguf", "any GGUF file, embedded", "pip install 'calibrant[local]'"),
    ("openai/NAME with api_base", "an OpenAI-compatible server", "api_base in the task's [model] options"),
    ("PROVIDER/NAME", "any provider litellm knows", "the provider's key in the environment"),
)


def run_models(*, as_json: bool) -> None:
    """Print the embedded models with their state, then the other forms of names."""
    known = local_models()
    if as_json:
        print(json.dumps([{**asdict(model), "path": str(model.path or "")} for model in known]))  # noqa: T201
        return
    table = Table()
    for column in ("name", "what", "state or what it needs"):
        table.add_column(column)
    for model in known:
        state = f"ready: {model.path}" if model.installed else model.install_command
        table.add_row(model.name, "embedded, no key needed", state)
    for row in PATTERNS:
        table.add_row(*row)
    Console().print(table)
