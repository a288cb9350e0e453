"""The reflection model of a run: remembered, checked, and stopped when it cannot be reached."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from calibrant.core import ProviderError

if TYPE_CHECKING:
    from calibrant.optimization._journal import JsonlStore

__all__ = ["Reflection", "model_name", "open_reflection"]

MAX_FAILURES = 3


class Reflection:
    """A reflection model whose finished answers are not paid for twice.

    GEPA swallows what a reflection model raises and goes on sampling; after three failures
    in a row `error` is set, which `should_stop` turns into the end of the search.

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
        self._failures = 0
        self.error: ProviderError | None = None

    @property
    def total_cost(self) -> float:
        """US dollars spent so far, where the model reports them."""
        return float(getattr(self._model, "total_cost", 0.0))

    def __call__(self, prompt: Any) -> str:  # noqa: ANN401  (text or chat messages)
        """Return the model's answer to `prompt`."""
        key = hashlib.sha256(f"{self._name}\n{prompt!r}".encode()).hexdigest()
        stored = self._store.get(key)
        if stored is not None:
            return str(stored)
        try:
            text = self._model(prompt)
        except Exception as error:
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                self.error = ProviderError(
                    f"the reflection model failed {self._failures} times in a row, last: {error}",
                    provider=self._name,
                    hint="Check its name and key, or use proposer='exemplar', which needs none.",
                )
            raise
        self._failures = 0
        self._store.put(key, text)
        return text

    def should_stop(self, state: object) -> bool:  # noqa: ARG002  (GEPA's stopper signature)
        """Whether the search should end because the model cannot be reached."""
        return self.error is not None


def open_reflection(model: str | Callable[[str], str], store: JsonlStore) -> Reflection:
    """Return the reflection model for a litellm name or a function."""
    name = model_name(model)
    if not isinstance(model, str):
        return Reflection(model, name=name, store=store)
    from gepa.lm import LM  # noqa: PLC0415  (loads litellm)

    return Reflection(LM(model), name=name, store=store)


def model_name(model: object) -> str:
    """Return how a model is called, whatever it is."""
    if isinstance(model, str):
        return model
    return str(getattr(model, "name", None) or getattr(model, "__qualname__", type(model).__qualname__))
