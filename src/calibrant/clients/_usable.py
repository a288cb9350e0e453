"""Models that this machine could use now: embedded, on local servers, or with a key in the environment."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from calibrant.clients._weights import local_models

SERVERS: Final = {"Ollama": 11434, "llama.cpp": 8080}
"""Ports of local servers."""

_TIMEOUT_SECONDS: Final = 0.3
_MOST_BYTES: Final = 1_000_000
_MOST_MODELS: Final = 20  # of a server
_MOST_CHARACTERS: Final = 200  # of a name
_MODELS_BY_KEY: Final = {
    "OPENAI_API_KEY": "openai/gpt-4.1-mini",
    "ANTHROPIC_API_KEY": "anthropic/claude-haiku-4-5",
    "GEMINI_API_KEY": "gemini/gemini-2.5-flash",
    "MISTRAL_API_KEY": "mistral/mistral-small-latest",
    "GROQ_API_KEY": "groq/llama-3.3-70b-versatile",
    "DEEPSEEK_API_KEY": "deepseek/deepseek-chat",
}


@dataclass(frozen=True, kw_only=True)
class UsableModel:
    """Model that could be asked now.

    Attributes
    ----------
    name : str
        Its name for calibrant.
    api_base : str or None
        Address of its server, if that is a local one.
    where : str
        Reason, in words: it is embedded, its server answers, or its key is set.
    """

    name: str
    api_base: str | None = None
    where: str


def usable_models(ports: Mapping[str, int] = SERVERS) -> list[UsableModel]:
    """Return the models that could be asked now; keys are looked for, and not used.

    Parameters
    ----------
    ports : mapping of str to int
        Ports of local servers by name; each has 0.3 seconds to answer.
    """
    found = [UsableModel(name=model.name, where="embedded") for model in local_models() if model.installed]
    for server, port in ports.items():
        base = f"http://127.0.0.1:{port}/v1"
        found += [
            UsableModel(name=f"openai/{name}", api_base=base, where=f"{server} at {base}")
            for name in _listed_models(port)[:_MOST_MODELS]
        ]
    for key, name in _MODELS_BY_KEY.items():
        if os.environ.get(key, "").strip():
            found.append(UsableModel(name=name, where=f"{key} is set"))
    return found


def _listed_models(port: int) -> list[str]:
    """Return the models that a server on this machine lists; empty if none answers in time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/v1/models")
        reply = connection.getresponse()
        listed: Any = json.loads(reply.read(_MOST_BYTES)) if reply.status == 200 else {}
        names = [entry["id"] for entry in listed.get("data") or []]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError):
        return []
    finally:
        connection.close()
    texts = [name for name in names if isinstance(name, str) and "embed" not in name]
    return [name for name in texts if name and name.isprintable() and len(name) <= _MOST_CHARACTERS]
