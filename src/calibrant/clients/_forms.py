"""Forms of model names, and the missing requirements of each in this environment."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

from calibrant.clients._endpoint import resolve_endpoint
from calibrant.core._errors import ConfigurationError
from calibrant.core._installation import install_command

_KEY = "_API_KEY"
_OPENAI_KEY = "OPENAI_API_KEY"


@dataclass(frozen=True, kw_only=True)
class NameForm:
    """Form of model names.

    Attributes
    ----------
    name : str
        The form, with its variable part in capitals: ``openai/NAME``.
    description : str
        The kind of model.
    needs : str
        The missing requirement; empty if there is none.
    ready : str
        The fulfilled requirements, shown where none is missing.
    """

    name: str
    description: str
    needs: str
    ready: str


def name_forms() -> list[NameForm]:
    """Return the forms of names besides those of `local_models`, without loading a model or calling a server."""
    has_engine = importlib.util.find_spec("xllamacpp") is not None
    keys = sorted(name for name, value in os.environ.items() if name.endswith(_KEY) and value.strip())
    others = [name for name in keys if name != _OPENAI_KEY]
    return [
        NameForm(
            name="llamacpp:PATH.gguf",
            description="any GGUF file, embedded",
            needs="" if has_engine else install_command("local"),
            ready="the engine is installed",
        ),
        NameForm(
            name="openai/NAME",
            description="OpenAI, or an OpenAI-compatible server",
            needs=""
            if _has_openai()
            else f"{_OPENAI_KEY} in the environment, or api_base under [model] in the task file",
            ready="the environment names a key or a server; others need api_base under [model] in the task file",
        ),
        NameForm(
            name="PROVIDER/NAME",
            description="any provider litellm knows",
            needs="" if others else f"the provider's key in the environment, such as ANTHROPIC{_KEY}",
            ready=f"in the environment: {', '.join(others)}; another provider needs its own key",
        ),
    ]


def _has_openai() -> bool:
    """Return whether the environment names a key for OpenAI, or another server."""
    try:
        resolve_endpoint("openai/NAME")
    except ConfigurationError:
        return False
    return True
