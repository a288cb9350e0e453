"""The reflection model of a run: its answers are remembered."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from calibrant.core._completion import CompletionRequest
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.inference._limits import is_in_process
from calibrant.inference._loop import run_sync
from calibrant.inference._methods import ModelCalls
from calibrant.inference._models import call_options, open_client
from calibrant.optimization._guard import Guard

if TYPE_CHECKING:
    from calibrant.core._completion import Client
    from calibrant.runs._journal import JsonlStore

_SMALL_PROMPT: Final = "Answer with the word yes."


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


class _NamedModel:
    """A model opened by its name as a function ``prompt -> text``.

    Parameters
    ----------
    model : str
        As for `calibrant.inference.open_client`.
    options : mapping
        The same.
    """

    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        self._client: Client = open_client(model, options=options)
        self._calls = ModelCalls()
        # Prompts shall differ: the provider's own temperature. An engine in this process stays reproducible.
        own: dict[str, Any] = {} if is_in_process(self._client) else {"temperature": None}
        self._options = {**own, **call_options(options)}

    @property
    def total_cost(self) -> float:
        """US dollars spent so far, where the model reports them."""
        return self._calls.gate.cost

    def __call__(self, prompt: Any) -> str:  # noqa: ANN401  (text or chat messages)
        """Return the model's answer."""
        messages = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)
        request = CompletionRequest(messages=messages, top_logprobs=0, options=self._options)
        completion, _ = run_sync(self._calls.complete(self._client, request))
        if not completion.text.strip():
            raise ProviderError(
                f"Expected text, got {completion.refusal or 'an empty answer'!r}.", provider=self._client.name
            )
        return completion.text

    def close(self) -> None:
        """Close the client."""
        self._client.close()


@contextlib.contextmanager
def open_reflection(
    model: str | Callable[[str], str] | None, store: JsonlStore, *, options: Mapping[str, Any] | None = None
) -> Iterator[Reflection | None]:
    """Return the reflection model for a name, which is tried with one small call, or for a function.

    A function is not tried: it may count its calls, or cost what nobody expects.

    Parameters
    ----------
    model : str, callable or None
        None for a search without one.
    store : JsonlStore
        Where finished answers are kept.
    options : mapping, optional
        Options of a model given by its name.

    Raises
    ------
    ConfigurationError
        The model cannot be opened.
    ProviderError
        The model cannot be asked.
    """
    if model is None or not isinstance(model, str):
        yield None if model is None else Reflection(model, name=name_of(model), store=store)
        return
    named = _NamedModel(model, options or {})
    try:
        named(_SMALL_PROMPT)
        yield Reflection(named, name=model, store=store)
    finally:
        named.close()


def check_names(*functions: object) -> None:
    """Refuse functions without a name of their own, under which a run directory could keep what they paid for.

    Raises
    ------
    ConfigurationError
        One is a lambda.
    """
    for function in functions:
        if "<lambda>" in name_of(function):
            raise ConfigurationError(
                f"Expected a function with a name of its own when out is given, got {name_of(function)}: what a run "
                "has paid for is kept under the names of its models and proposer."
            )


def name_of(thing: object) -> str:
    """Return the name of a model or proposer, or the place where it is defined."""
    if isinstance(thing, str):
        return thing
    name = getattr(thing, "name", None)
    if isinstance(name, str):
        return name
    owner = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{owner.__module__}.{owner.__qualname__}"
