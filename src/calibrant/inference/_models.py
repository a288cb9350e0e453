"""The one function that turns a model's name into a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from calibrant.clients import CallableClient, LiteLLMClient, LlamaCppClient
from calibrant.core import Client, ConfigurationError, LogprobSpace

__all__ = ["DEFAULT_CONCURRENCY", "ModelLike", "call_options", "open_client"]

ModelLike: TypeAlias = str | Client | Callable[[list[dict[str, str]]], object]
"""A model's name, a client, or a callable ``messages -> response``."""

DEFAULT_CONCURRENCY = 10
ENGINE_SETTINGS = ("n_ctx", "n_parallel", "n_threads")
_LOCAL = "local/"
_GGUF = "llamacpp:"


def open_client(
    model: ModelLike,
    *,
    space: LogprobSpace | str | None = None,
    concurrency: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Client:
    """Return a client for `model`.

    Parameters
    ----------
    model : str, Client or callable
        ``local/smollm2-135m`` (embedded), ``llamacpp:PATH.gguf``, any litellm model name,
        a callable ``messages -> response``, or a client, which is returned unchanged.
    space : str, optional
        What the log-probabilities are probabilities of, where the default is wrong:
        ``raw`` for embedded engines, ``masked`` for everything else.
    concurrency : int, optional
        Calls of a callable that run at the same time.
    options : mapping, optional
        Handed to the provider (``api_base``, ``timeout``, ``temperature``, ...); for embedded engines
        ``n_ctx``, ``n_parallel`` and ``n_threads`` too.

    Raises
    ------
    ConfigurationError
        The name is empty, an option is out of range, or an engine it needs is not installed.
    """
    options = dict(options or {})
    if concurrency is not None and concurrency < 1:
        raise ConfigurationError(f"Expected concurrency of at least 1, got {concurrency}.")
    if isinstance(model, Client):
        return model
    if callable(model):
        return CallableClient(
            model, space=space or LogprobSpace.MASKED, max_workers=concurrency or DEFAULT_CONCURRENCY
        )
    if not isinstance(model, str) or not model.strip():
        raise ConfigurationError(f"Expected a model's name, a client or a callable, got {model!r}.")
    settings = {name: options.pop(name) for name in ENGINE_SETTINGS if name in options}
    if model.startswith(_GGUF):
        return LlamaCppClient(model.removeprefix(_GGUF), name=model, **settings)
    if model.startswith(_LOCAL):
        return LlamaCppClient.local(model, **settings)
    return LiteLLMClient(model, space=space or LogprobSpace.MASKED, **options)


def call_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that go with every call: all but the embedded engine's settings."""
    return {name: value for name, value in (options or {}).items() if name not in ENGINE_SETTINGS}
