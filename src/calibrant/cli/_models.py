"""``calibrant models``: the models that can be named."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from calibrant.cli._tables import print_output
from calibrant.clients._weights import local_models, name_forms

if TYPE_CHECKING:
    from calibrant.cli._commands import Models

_EMBEDDED = "embedded, no key needed"


def models(options: Models) -> None:
    """Print the embedded models with their state, then the other forms of names."""
    known, forms = local_models(), name_forms()
    records = [
        {**asdict(model), "path": str(model.path or ""), "pattern": False, "description": _EMBEDDED}
        for model in known
    ]
    patterns = [
        {"name": form.name, "pattern": True, "description": form.description, "needs": form.needs}
        for form in forms
    ]
    # Plain lines, never wrapped: the commands are there to be copied.
    lines: list[str] = []
    for model in known:
        state = f"ready: {model.path}" if model.installed else f"missing, run: {model.install_command}"
        lines += [model.name, f"    {_EMBEDDED}", f"    {state}"]
    for form in forms:
        state = f"needs: {form.needs}" if form.needs else f"ready: {form.ready}"
        lines += [form.name, f"    {form.description}", f"    {state}"]
    print_output(records + patterns, lines, as_json=options.as_json)
