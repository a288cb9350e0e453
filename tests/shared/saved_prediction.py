"""A prediction as it comes back from a file."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from calibrant.core import Prediction
from calibrant.store import PredictionCache


def saved_and_read(prediction: Prediction) -> Prediction:
    """Return a prediction that was written to a cache and read from another one on the same file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cache.db"
        with PredictionCache(path) as cache:
            cache.put("key", prediction)
        with PredictionCache(path) as cache:
            return cache.get_many(["key"])["key"]
