"""``calibrant models``: what can be named, and what is missing for it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from calibrant.clients import local_models
from calibrant.core import install_command

__all__ = ["run_models"]

EMBEDDED = "embedded, no key needed"
_PATTERNS = (
    ("llamacpp:PATH.gguf", "any GGUF file, embedded", ""),  # as the embedded model, without its weights
    ("openai/NAME", "an OpenAI-compatible server", "api_base under [model] in the task file"),
    ("PROVIDER/NAME", "any provider litellm knows", "the provider's key in the environment"),
)


def run_models(*, as_json: bool) -> None:
    """Print the embedded models with their state, then the other forms of names."""
    known = local_models()
    if as_json:
        records = [
            {**asdict(model), "path": str(model.path or ""), "pattern": False, "description": EMBEDDED}
            for model in known
        ]
        patterns = [
            {"name": name, "pattern": True, "description": what, "needs": needs}
            for name, what, needs in _patterns()
        ]
        sys.stdout.write(json.dumps(records + patterns) + "\n")
        return
    # Plain lines, never wrapped: the commands are there to be copied.
    for model in known:
        state = f"ready: {model.path}" if model.installed else f"missing, run: {model.install_command}"
        _write(model.name, EMBEDDED, state)
    for name, what, needs in _patterns():
        _write(name, what, f"needs: {needs}")


def _patterns() -> list[tuple[str, str, str]]:
    """Return form, meaning and need of the other names."""
    return [(name, what, needs or install_command("local")) for name, what, needs in _PATTERNS]


def _write(name: str, what: str, state: str) -> None:
    sys.stdout.write(f"{name}\n    {what}\n    {state}\n")
