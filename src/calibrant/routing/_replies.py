"""Helpers for prompts to judges and triage models, and for reading their replies."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

_THOUGHT: Final = "</think>"
# Marks of chat templates: engines that know them by their text would see a new turn begin.
_MARK = re.compile(r"<(?=\||/?s>|(?:start|end)_of_turn>)|\[(?=/?INST\])")


def fence(texts: Mapping[str, str]) -> str:
    """Return a word that occurs in none of `texts`.

    It follows from all of them together, so that equal requests stay equal, and nobody can write a text
    that holds its own fence.
    """
    sizes = ",".join(str(len(text)) for text in texts.values())
    source = "\0".join((sizes, *texts.values())).encode("utf-8", "surrogatepass")
    while True:
        source = hashlib.sha256(source).digest()
        word = source.hex()[:16]
        if not any(word in text for text in texts.values()):
            return word


def fenced(texts: Mapping[str, str], word: str) -> str:
    """Return `texts`, each between a line with BEGIN and one with END, its name and the fence."""
    parts = (
        f"BEGIN {name} {word}\n{_MARK.sub(lambda mark: mark[0] + ' ', text)}\nEND {name} {word}"
        for name, text in texts.items()
    )
    return "\n\n".join(parts)


def without_thinking(text: str) -> str:
    """Return the reply after a model's thinking block, stripped; empty if that block never ends."""
    if _THOUGHT in text:
        text = text.rpartition(_THOUGHT)[2]
    body = text.strip()
    return "" if body.startswith("<think>") else body


def json_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that `text` is, or that its first ``{`` and last ``}`` enclose.

    None if there is none, or if a key is repeated with another value.
    """
    begin, end = text.find("{"), text.rfind("}") + 1
    if begin < 0:
        return None
    try:
        found = json.loads(text[begin:end], object_pairs_hook=_unambiguous, strict=False)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found and found[key] != value:
            raise ValueError(key)
        found[key] = value
    return found
