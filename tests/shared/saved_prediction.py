"""A prediction as it comes back from a file."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from calibrant.core import Prediction
from calibrant.runs import JsonlStore, PredictionJournal
from calibrant.store import PredictionCache


def saved_and_read(prediction: Prediction) -> Prediction:
    """Return a prediction that was written to a cache and read from another one on the same file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cache.db"
        with PredictionCache(path) as cache:
            cache.put("key", prediction)
        with PredictionCache(path) as cache:
            return cache.get_many(["key"])["key"]


def to_record(prediction: Prediction) -> dict[str, Any]:
    """Return the record that a journal holds for a prediction."""
    store = JsonlStore(None)
    PredictionJournal(store).put("key", prediction)
    record: dict[str, Any] = store.get("key")
    return record


def from_record(record: Any) -> Prediction:
    """Return the prediction that a journal reads from a record."""
    store = JsonlStore(None)
    store.put("key", record)
    return PredictionJournal(store).get_many(["key"])["key"]
