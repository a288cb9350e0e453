"""Inference: clients by name, the concurrent row engine and the classifier."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.clients._calls import RetryPolicy
    from calibrant.inference._abilities import ModelAbilities
    from calibrant.inference._classifier import Classifier
    from calibrant.inference._demonstrations import DemonstrationIndex
    from calibrant.inference._embeddings import open_embedder
    from calibrant.inference._models import open_client
    from calibrant.inference.doctor._examine import examine
    from calibrant.inference.routed._client import RoutedClient
    from calibrant.inference.routed._provider import Provider
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "calibrant.clients._calls": "RetryPolicy",
            "._abilities": "ModelAbilities",
            "._classifier": "Classifier",
            "._demonstrations": "DemonstrationIndex",
            "._embeddings": "open_embedder",
            "._models": "open_client",
            ".doctor._examine": "examine",
            ".routed._client": "RoutedClient",
            ".routed._provider": "Provider",
        },
    )

__all__ = [
    "Classifier",
    "DemonstrationIndex",
    "ModelAbilities",
    "Provider",
    "RetryPolicy",
    "RoutedClient",
    "examine",
    "open_client",
    "open_embedder",
]
