"""``calibrant models``: the available models, and the missing requirements of each."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from calibrant.clients._weights import local_models, name_forms

EMBEDDED = "embedded, no key needed"


def run_models(*, as_json: bool) -> None:
    """Print the embedded models with their state, then the other forms of names."""
    known, forms = local_models(), name_forms()
    if as_json:
        records = [
            {**asdict(model), "path": str(model.path or ""), "pattern": False, "description": EMBEDDED}
            for model in known
        ]
        patterns = [
            {"name": form.name, "pattern": True, "description": form.description, "needs": form.needs}
            for form in forms
        ]
        sys.stdout.write(json.dumps(records + patterns) + "\n")
        return
    # Plain lines, never wrapped: the commands are there to be copied.
    for model in known:
        state = f"ready: {model.path}" if model.installed else f"missing, run: {model.install_command}"
        _write(model.name, EMBEDDED, state)
    for form in forms:
        _write(form.name, form.description, f"needs: {form.needs}" if form.needs else f"ready: {form.ready}")


def _write(name: str, what: str, state: str) -> None:
    sys.stdout.write(f"{name}\n    {what}\n    {state}\n")
