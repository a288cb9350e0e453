"""Evaluations that several workers share, on Ray Data; needs the extra ``ray``."""

from calibrant.distributed._evaluate import evaluate
from calibrant.distributed._ray import Cluster

__all__ = ["Cluster", "evaluate"]
