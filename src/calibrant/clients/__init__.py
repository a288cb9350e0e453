"""Whoever answers, behind one seam: one request in, one response out, every failure a `ProviderError`."""

from calibrant.clients._callable import CallableClient
from calibrant.clients._litellm import LiteLLMClient
from calibrant.clients._llamacpp import LlamaCppClient
from calibrant.clients._retry import RetryPolicy, complete_with_retries
from calibrant.clients._weights import LocalModel, local_models

__all__ = [
    "CallableClient",
    "LiteLLMClient",
    "LlamaCppClient",
    "LocalModel",
    "RetryPolicy",
    "complete_with_retries",
    "local_models",
]
