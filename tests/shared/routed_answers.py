"""Answers, providers and embedders that several tests of routed clients use."""

from __future__ import annotations

from typing import Any

from calibrant.core import Completion, CompletionRequest, ProviderError
from calibrant.inference import Provider
from calibrant.inference._embeddings import CachedEmbedder, CallableEmbedder
from calibrant.routing import Observation

LOOP = "the cat sat on " * 12
GOOD = "A cat purrs when it is content."
BETTER = "Cats purr, and so do some of their relatives."
DOWN = ProviderError("is down", provider="x", status=503, retryable=True)
REQUEST = CompletionRequest(
    messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "what purrs?"})
)
TOOLS = {"tools": [{"type": "function", "function": {"name": "look"}}]}


def providers(*clients: Any, **options: Any) -> list[Provider]:
    """Return providers a, b, c, ... of clients."""
    return [Provider(name, client, **options) for name, client in zip("abcdef", clients, strict=False)]


def text_of(response: Any) -> str:
    """Return an answer's text."""
    return response.text if isinstance(response, Completion) else response["choices"][0]["message"]["content"]


def vectors(table: dict[str, list[float]], **options: Any) -> CachedEmbedder:
    """Return an embedder that looks texts up; others make it fail."""
    return CachedEmbedder(CallableEmbedder(lambda texts: [table[text] for text in texts]), **options)


class Watched:
    """Keeps the observations that a router records."""

    def __init__(self, router: Any) -> None:
        self.seen: list[Observation] = []
        record = router.record

        def watched(observation: Observation) -> None:
            self.seen.append(observation)
            record(observation)

        router.record = watched
