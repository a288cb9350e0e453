"""Inference: clients by name, the concurrent row engine and the classifier."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.clients._calls import RetryPolicy
    from calibrant.inference._abilities import AnswerForm, KnownAbilities, ModelAbilities
    from calibrant.inference._base import BasePredictor
    from calibrant.inference._classifier import Classifier
    from calibrant.inference._demonstrations import Demonstration, DemonstrationIndex
    from calibrant.inference._embeddings import CachedEmbedder, Embedder, open_embedder
    from calibrant.inference._examinations import Examination, Finding, FindingVerdict, Thresholds
    from calibrant.inference._models import open_client
    from calibrant.inference._shared_router import SharedRouter
    from calibrant.inference._text_vectors import open_embedding_model
    from calibrant.inference.doctor._examine import examine
    from calibrant.inference.routed._assess import HelperStats
    from calibrant.inference.routed._client import RoutedClient
    from calibrant.inference.routed._provider import Provider, ProviderStats
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "AnswerForm",
    "BasePredictor",
    "CachedEmbedder",
    "Classifier",
    "Demonstration",
    "DemonstrationIndex",
    "Embedder",
    "Examination",
    "Finding",
    "FindingVerdict",
    "HelperStats",
    "KnownAbilities",
    "ModelAbilities",
    "Provider",
    "ProviderStats",
    "RetryPolicy",
    "RoutedClient",
    "SharedRouter",
    "Thresholds",
    "examine",
    "open_client",
    "open_embedder",
    "open_embedding_model",
]
