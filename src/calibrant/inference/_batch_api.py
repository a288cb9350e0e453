"""The one function that turns a model's name into its provider's batch interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrant.clients._batch_api import BatchApi, RemoteBatch
from calibrant.clients._retry import RetryPolicy
from calibrant.clients._service import JsonService

__all__ = ["BatchApi", "JsonService", "RemoteBatch", "open_batch_api"]


def open_batch_api(
    model: str, *, options: Mapping[str, Any] | None = None, retry: RetryPolicy | None = None
) -> BatchApi:
    """Return the batch interface of the provider of `model`.

    Parameters
    ----------
    model : str
        ``openai/NAME``, or any name with the option ``api_base``.
    options : mapping, optional
        Those of the model; ``api_base``, ``api_key`` and ``timeout`` are used here.
    retry : RetryPolicy, optional
        How passing faults are retried.

    Raises
    ------
    ConfigurationError
        There is no such interface for this model.
    """
    given = options or {}
    found = {name: given[name] for name in ("api_base", "api_key", "timeout") if name in given}
    return BatchApi(model, retry=retry, **found)
