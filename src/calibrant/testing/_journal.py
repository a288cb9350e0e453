"""An in-memory journal."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.core._prediction import Prediction


class MemoryJournal(dict[str, Prediction]):
    """A `calibrant.core.Journal` in memory: a dict from key to prediction.

    Attributes
    ----------
    reads : int
        Calls of `get_many`.

    Examples
    --------
    >>> journal = MemoryJournal()
    >>> journal.put("key", Prediction(label="Food"))
    >>> journal.get_many(["key", "other"])["key"].label
    'Food'
    """

    reads = 0

    def get_many(self, keys: Sequence[str]) -> dict[str, Prediction]:
        """Return the stored predictions of these keys."""
        self.reads += 1
        return {key: self[key] for key in keys if key in self}

    def put(self, key: str, prediction: Prediction) -> None:
        """Store a prediction; an older one is replaced."""
        self[key] = prediction
