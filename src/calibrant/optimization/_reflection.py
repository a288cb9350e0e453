"""The reflection model of a run: its answers are remembered."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from calibrant.optimization._guard import Guard

if TYPE_CHECKING:
    from calibrant.optimization._journal import JsonlStore

__all__ = ["Reflection", "name_of", "open_reflection"]


class Reflection:
    """A reflection model whose finished answers are not paid for twice.

    Parameters
    ----------
    model : callable
        ``prompt -> text``.
    name : str
        The model's name, part of the key its answers are stored under.
    store : JsonlStore
        Where finished answers are kept.
    """

    def __init__(self, model: Callable[[Any], str], *, name: str, store: JsonlStore) -> None:
        self._model = model
        self._name = name
        self._store = store
        self.guard = Guard(
            model,
            name=f"reflection model {name}",
            hint="Check its name and key, or use proposer='exemplar', which needs none.",
        )

    @property
    def total_cost(self) -> float:
        """US dollars spent so far, where the model reports them."""
        return float(getattr(self._model, "total_cost", 0.0))

    def __call__(self, prompt: Any) -> str:  # noqa: ANN401  (text or chat messages)
        """Return the model's answer to `prompt`."""
        key = hashlib.sha256(f"{self._name}\n{prompt!r}".encode()).hexdigest()
        stored = self._store.get(key)
        if stored is None:
            stored = self.guard(prompt)
            self._store.put(key, stored)
        return str(stored)


def open_reflection(model: str | Callable[[str], str], store: JsonlStore) -> Reflection:
    """Return the reflection model for a litellm name or a function."""
    if not isinstance(model, str):
        return Reflection(model, name=name_of(model), store=store)
    from gepa.lm import LM  # noqa: PLC0415  (loads litellm)

    return Reflection(LM(model), name=model, store=store)


def name_of(thing: object) -> str:
    """Return what a model or proposer is called: its name, or where it is defined."""
    if isinstance(thing, str):
        return thing
    name = getattr(thing, "name", None)
    if isinstance(name, str):
        return name
    owner = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{owner.__module__}.{owner.__qualname__}"
