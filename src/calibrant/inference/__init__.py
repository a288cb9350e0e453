"""From a prompt and a model to predictions: clients by name, the concurrent engine, the classifier."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.clients import JsonService, RetryPolicy
    from calibrant.core import Limits, OnPrediction, Pace, Query, Stop
    from calibrant.inference._batch_api import BatchApi, RemoteBatch, open_batch_api
    from calibrant.inference._calls import Calls
    from calibrant.inference._chain import FieldChain
    from calibrant.inference._choice import Scoring
    from calibrant.inference._classifier import Classifier, as_classifier
    from calibrant.inference._demonstration_format import Demonstration, DemonstrationFormat, one_line
    from calibrant.inference._demonstrations import DemonstrationIndex, Retrieval
    from calibrant.inference._embeddings import (
        CachedEmbedder,
        CallableEmbedder,
        Embedder,
        EmbedderLike,
        HashingEmbedder,
        LiteLLMEmbedder,
        Model2VecEmbedder,
        open_embedder,
        open_embedding_model,
    )
    from calibrant.inference._exact import ExactScoring
    from calibrant.inference._heads import apply_head, head_of, opened_head
    from calibrant.inference._limits import Bucket, Gate, default_concurrency, is_in_process, rate_limit_waits
    from calibrant.inference._loop import run_sync
    from calibrant.inference._methods import Decoding, Method, Tolerance
    from calibrant.inference._models import ModelLike, call_options, open_client
    from calibrant.inference._predictor import BasePredictor, ask, ask_async
    from calibrant.inference._prompted import QueryKeys
    from calibrant.inference._reader import AnswerReader
    from calibrant.inference._runner import RowModel, Runner
    from calibrant.inference._sampling import Sampling
    from calibrant.inference._several import Answers, ask_together
    from calibrant.inference._shared_router import SharedRouter
    from calibrant.inference._withheld import may_be_withheld, without_secrets
    from calibrant.inference.doctor import (
        Examination,
        Finding,
        Thresholds,
        Verdict,
        aexamine,
        examine,
        load_examination,
        save_examination,
    )
    from calibrant.inference.routed import HelperStats, Provider, ProviderStats, RoutedClient
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "calibrant.clients": "JsonService RetryPolicy",
            "calibrant.core": "Limits OnPrediction Pace Query Stop",
            "._batch_api": "BatchApi RemoteBatch open_batch_api",
            "._calls": "Calls",
            "._chain": "FieldChain",
            "._choice": "Scoring",
            "._classifier": "Classifier as_classifier",
            "._demonstration_format": "Demonstration DemonstrationFormat one_line",
            "._demonstrations": "DemonstrationIndex Retrieval",
            "._embeddings": (
                "CachedEmbedder CallableEmbedder Embedder EmbedderLike HashingEmbedder LiteLLMEmbedder "
                "Model2VecEmbedder open_embedder open_embedding_model"
            ),
            "._exact": "ExactScoring",
            "._heads": "apply_head head_of opened_head",
            "._limits": "Bucket Gate default_concurrency is_in_process rate_limit_waits",
            "._loop": "run_sync",
            "._methods": "Decoding Method Tolerance",
            "._models": "ModelLike call_options open_client",
            "._predictor": "BasePredictor ask ask_async",
            "._prompted": "QueryKeys",
            "._reader": "AnswerReader",
            "._runner": "RowModel Runner",
            "._sampling": "Sampling",
            "._several": "Answers ask_together",
            "._shared_router": "SharedRouter",
            "._withheld": "may_be_withheld without_secrets",
            ".doctor": (
                "Examination Finding Thresholds Verdict aexamine examine load_examination save_examination"
            ),
            ".routed": "HelperStats Provider ProviderStats RoutedClient",
        },
    )

__all__ = [
    "AnswerReader",
    "Answers",
    "BasePredictor",
    "BatchApi",
    "Bucket",
    "CachedEmbedder",
    "CallableEmbedder",
    "Calls",
    "Classifier",
    "Decoding",
    "Demonstration",
    "DemonstrationFormat",
    "DemonstrationIndex",
    "Embedder",
    "EmbedderLike",
    "ExactScoring",
    "Examination",
    "FieldChain",
    "Finding",
    "Gate",
    "HashingEmbedder",
    "HelperStats",
    "JsonService",
    "Limits",
    "LiteLLMEmbedder",
    "Method",
    "Model2VecEmbedder",
    "ModelLike",
    "OnPrediction",
    "Pace",
    "Provider",
    "ProviderStats",
    "Query",
    "QueryKeys",
    "RemoteBatch",
    "Retrieval",
    "RetryPolicy",
    "RoutedClient",
    "RowModel",
    "Runner",
    "Sampling",
    "Scoring",
    "SharedRouter",
    "Stop",
    "Thresholds",
    "Tolerance",
    "Verdict",
    "aexamine",
    "apply_head",
    "as_classifier",
    "ask",
    "ask_async",
    "ask_together",
    "call_options",
    "default_concurrency",
    "examine",
    "head_of",
    "is_in_process",
    "load_examination",
    "may_be_withheld",
    "one_line",
    "open_batch_api",
    "open_client",
    "open_embedder",
    "open_embedding_model",
    "opened_head",
    "rate_limit_waits",
    "run_sync",
    "save_examination",
    "without_secrets",
]
