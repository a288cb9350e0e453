"""The user's databases of finished predictions and of evaluators' scores."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibrant.core._errors import StateError
from calibrant.core._files import user_path

if TYPE_CHECKING:
    from calibrant.store._cache import PredictionCache

_LOG = logging.getLogger("calibrant")

MAX_BYTES: Final = 4 * 1024**3


def default_cache() -> str:
    """Return the URL or file of the user's cache.

    ``$CALIBRANT_CACHE`` (a SQLAlchemy URL or a file), or else ``predictions.sqlite`` in ``$CALIBRANT_HOME``,
    or else in ``calibrant`` in the user's cache folder (``$XDG_CACHE_HOME``, ``~/.cache``).
    """
    return os.environ.get("CALIBRANT_CACHE") or str(user_path("predictions.sqlite", "cache"))


def default_history() -> str:
    """Return the URL or file of the user's history.

    ``$CALIBRANT_HISTORY`` (a SQLAlchemy URL or a file), or else ``history.sqlite`` in ``$CALIBRANT_HOME``,
    or else in ``calibrant`` in the user's folder for state (``$XDG_STATE_HOME``, ``~/.local/state``).
    """
    return os.environ.get("CALIBRANT_HISTORY") or str(user_path("history.sqlite", "state"))


@contextlib.contextmanager
def open_cache(
    place: str | Path, *, max_bytes: int | None = MAX_BYTES, recreate: bool = True
) -> Iterator[PredictionCache]:
    """Open a cache for the block; a failed save at its end is only a warning.

    Parameters
    ----------
    place : str or path
        A SQLAlchemy URL, or a SQLite file.
    max_bytes : int, optional
        Most bytes to keep; the oldest predictions go first. 4 GiB by default; None for no cap.
    recreate : bool, default True
        Make a SQLite file anew that is removed while it is in use.

    Raises
    ------
    ConfigurationError, StateError
        As `calibrant.store.PredictionCache`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant import Classifier
    >>> from calibrant.testing import FakeClient
    >>> from calibrant.evaluation import open_cache
    >>> fake = FakeClient(["cat", "dog"], {"purrs": "cat"})
    >>> with open_cache(Path(tempfile.mkdtemp()) / "predictions.sqlite") as cache:
    ...     classifier = Classifier(model=fake, labels=["cat", "dog"], field="category", journal=cache)
    ...     labels = [classifier.classify("purrs").label for _ in range(2)]
    >>> labels, len(fake.requests)  # the second answer comes from the cache
    (['cat', 'cat'], 1)
    """
    from calibrant.store._cache import PredictionCache  # noqa: PLC0415 (loads sqlalchemy)

    cache = PredictionCache(place, max_bytes=max_bytes, recreate=recreate)
    try:
        yield cache
    finally:
        try:
            cache.close()
        except StateError as error:
            _LOG.warning("%s", error)
