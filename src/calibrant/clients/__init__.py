"""Whoever answers, behind one seam: one request in, one response out, every failure a `ProviderError`."""

from calibrant.clients._batch_api import BatchApi, RemoteBatch
from calibrant.clients._callable import CallableClient
from calibrant.clients._constraint import Constraint, constraint_for
from calibrant.clients._litellm import LiteLLMClient
from calibrant.clients._llamacpp import LlamaCppClient
from calibrant.clients._openai_compatible import OpenAICompatibleClient
from calibrant.clients._redact import redact
from calibrant.clients._retry import RetryPolicy, with_retries
from calibrant.clients._weights import LocalModel, local_models

__all__ = [
    "BatchApi",
    "CallableClient",
    "Constraint",
    "LiteLLMClient",
    "LlamaCppClient",
    "LocalModel",
    "OpenAICompatibleClient",
    "RemoteBatch",
    "RetryPolicy",
    "constraint_for",
    "local_models",
    "redact",
    "with_retries",
]
