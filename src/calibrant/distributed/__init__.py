"""Evaluations that several workers share, on Ray Data; needs the extra ``ray``."""

from calibrant.distributed._evaluate import Cluster, evaluate

__all__ = ["Cluster", "evaluate"]
