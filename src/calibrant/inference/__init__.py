"""From a prompt and a model to predictions: clients by name, the concurrent engine, the classifier."""

from calibrant.clients import RetryPolicy
from calibrant.inference._classifier import Classifier
from calibrant.inference._exact import ExactScoring
from calibrant.inference._loop import run_sync
from calibrant.inference._methods import Decoding, Method
from calibrant.inference._models import ModelLike, open_client
from calibrant.inference._reader import AnswerReader
from calibrant.inference._runner import Query, Runner
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

__all__ = [
    "AnswerReader",
    "Classifier",
    "Decoding",
    "ExactScoring",
    "Examination",
    "Finding",
    "Method",
    "ModelLike",
    "Query",
    "RetryPolicy",
    "Runner",
    "Thresholds",
    "Verdict",
    "aexamine",
    "examine",
    "load_examination",
    "open_client",
    "run_sync",
    "save_examination",
]
