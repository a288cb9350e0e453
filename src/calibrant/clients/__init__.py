"""Clients of models behind one interface: one request in, one response out, every failure a `ProviderError`."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.clients._batch_api import BatchApi, RemoteBatch
    from calibrant.clients._callable import CallableClient
    from calibrant.clients._constraint import (
        Constraint,
        LabelArray,
        SchemaChoice,
        SchemaChoices,
        array_for,
        choices_for,
        constraint_for,
    )
    from calibrant.clients._litellm import LiteLLMClient, LiteLLMEmbedder, embedding_matrix
    from calibrant.clients._llamacpp import LlamaCppClient
    from calibrant.clients._openai_chat import OpenAIChatClient
    from calibrant.clients._openai_compatible import OpenAICompatibleClient
    from calibrant.clients._prices import needs_litellm
    from calibrant.clients._rates import RateState, rate_state
    from calibrant.clients._redact import (
        digest_of,
        hidden_in_address,
        identifying_address,
        is_digest,
        is_harmless,
        name_inside,
        public_address,
        redact,
        secret_texts,
    )
    from calibrant.clients._retry import RetryPolicy, with_retries
    from calibrant.clients._service import JsonService
    from calibrant.clients._weights import LocalModel, NameForm, local_models, name_forms
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._batch_api": "BatchApi RemoteBatch",
            "._callable": "CallableClient",
            "._constraint": "SchemaChoice SchemaChoices Constraint LabelArray array_for choices_for constraint_for",
            "._litellm": "LiteLLMClient LiteLLMEmbedder embedding_matrix",
            "._llamacpp": "LlamaCppClient",
            "._openai_chat": "OpenAIChatClient",
            "._openai_compatible": "OpenAICompatibleClient",
            "._prices": "needs_litellm",
            "._rates": "RateState rate_state",
            "._redact": (
                "digest_of hidden_in_address identifying_address is_digest is_harmless name_inside "
                "public_address redact secret_texts"
            ),
            "._retry": "RetryPolicy with_retries",
            "._service": "JsonService",
            "._weights": "LocalModel NameForm local_models name_forms",
        },
    )

__all__ = [
    "BatchApi",
    "CallableClient",
    "Constraint",
    "JsonService",
    "LabelArray",
    "LiteLLMClient",
    "LiteLLMEmbedder",
    "LlamaCppClient",
    "LocalModel",
    "NameForm",
    "OpenAIChatClient",
    "OpenAICompatibleClient",
    "RateState",
    "RemoteBatch",
    "RetryPolicy",
    "SchemaChoice",
    "SchemaChoices",
    "array_for",
    "choices_for",
    "constraint_for",
    "digest_of",
    "embedding_matrix",
    "hidden_in_address",
    "identifying_address",
    "is_digest",
    "is_harmless",
    "local_models",
    "name_forms",
    "name_inside",
    "needs_litellm",
    "public_address",
    "rate_state",
    "redact",
    "secret_texts",
    "with_retries",
]
