"""From a prompt and a model to predictions: clients by name, the concurrent engine, the classifier."""

from calibrant.inference._classifier import Classifier
from calibrant.inference._engine import Engine, Query
from calibrant.inference._loop import run_sync
from calibrant.inference._models import ModelLike, open_client
from calibrant.inference._reader import AnswerReader

__all__ = ["AnswerReader", "Classifier", "Engine", "ModelLike", "Query", "open_client", "run_sync"]
