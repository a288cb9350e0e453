"""Inference: clients by name, the concurrent row engine and the classifier."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.clients._retry import RetryPolicy
    from calibrant.inference._abilities import ModelAbilities
    from calibrant.inference._classifier import Classifier
    from calibrant.inference._demonstrations import Demonstration, DemonstrationIndex
    from calibrant.inference._embeddings import CachedEmbedder, Embedder, open_embedder
    from calibrant.inference._models import open_client
    from calibrant.inference.doctor._examine import examine
    from calibrant.inference.doctor._records import Examination, Finding, FindingVerdict
    from calibrant.inference.routed._assess import HelperStats
    from calibrant.inference.routed._client import RoutedClient
    from calibrant.inference.routed._provider import Provider, ProviderStats
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._abilities": "ModelAbilities",
            "._classifier": "Classifier",
            "._demonstrations": "Demonstration DemonstrationIndex",
            "._embeddings": "CachedEmbedder Embedder open_embedder",
            "._models": "open_client",
            ".doctor._examine": "examine",
            ".doctor._records": "Examination Finding FindingVerdict",
            ".routed._assess": "HelperStats",
            ".routed._client": "RoutedClient",
            ".routed._provider": "Provider ProviderStats",
            "calibrant.clients._retry": "RetryPolicy",
        },
    )

__all__ = [
    "CachedEmbedder",
    "Classifier",
    "Demonstration",
    "DemonstrationIndex",
    "Embedder",
    "Examination",
    "Finding",
    "FindingVerdict",
    "HelperStats",
    "ModelAbilities",
    "Provider",
    "ProviderStats",
    "RetryPolicy",
    "RoutedClient",
    "examine",
    "open_client",
    "open_embedder",
]
