"""Helpers for the tests of databases."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from calibrant.core import Prediction
from calibrant.store import PredictionCache

Open = Callable[..., PredictionCache]
Rows = Callable[..., dict[str, Prediction]]


def put(cache: PredictionCache, predictions: dict[str, Prediction]) -> None:
    """Put all predictions."""
    for key, prediction in predictions.items():
        cache.put(key, prediction)


def fill(cache: PredictionCache, predictions: dict[str, Prediction]) -> None:
    """Put all predictions and wait until they are saved."""
    put(cache, predictions)
    cache.flush()


def at_once(*jobs: Callable[[], object]) -> None:
    """Run every job in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def damage(path: Path, *, pages: int) -> None:
    """Overwrite a file with noise behind its first pages."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(pages * 4096)
        file.write(os.urandom(size - pages * 4096))


def set_version(url: str, version: int, *, of: str) -> None:
    """Change the schema version of a table."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        statement = sa.text("UPDATE calibrant_versions SET version = :version WHERE name = :of")
        connection.execute(statement, {"version": version, "of": of})
    engine.dispose()
