"""Helpers of the tests of databases."""

from __future__ import annotations

from collections.abc import Callable

from calibrant.core import Prediction
from calibrant.store import PredictionCache

Open = Callable[..., PredictionCache]
Rows = Callable[..., dict[str, Prediction]]


def fill(cache: PredictionCache, predictions: dict[str, Prediction]) -> None:
    """Put all predictions and wait until they are saved."""
    for key, prediction in predictions.items():
        cache.put(key, prediction)
    cache.flush()
