"""Evaluations that several workers share, on Ray Data; needs the extra ``ray``."""

from calibrant.distributed._evaluate import evaluate
from calibrant.distributed._settings import Cluster
from calibrant.distributed._evaluate import Cluster, Opening, evaluate

__all__ = ["Cluster", "evaluate"]
