"""Keeps a table of predictions below a size."""

from __future__ import annotations

from typing import Protocol

_GOAL = 0.9  # of the cap is left after evicting: one eviction makes room for many writes
_STEP = 0.05  # of the cap may be written between two counts


class Sized(Protocol):
    """A table that knows its size and can shrink."""

    def total_bytes(self) -> int:
        """Return the bytes of all rows."""
        ...

    def delete_oldest(self, wanted: int) -> int:
        """Delete a batch of the oldest rows, `wanted` bytes and one row at most; return the bytes freed."""
        ...


class SizeCap:
    """Evicts the oldest rows of a table that grew beyond `max_bytes`.

    The table is counted after every twentieth of the cap that this process wrote, and whenever
    its own sum passes the cap, so several processes exceed it by a twentieth each at most.

    Parameters
    ----------
    table : Sized
        Table whose size is bounded.
    max_bytes : int
        The cap.
    """

    def __init__(self, table: Sized, max_bytes: int) -> None:
        self._table = table
        self._max_bytes = max_bytes
        self._total: int | None = None  # at the last count
        self._written = 0  # since then

    def wrote(self, count: int) -> None:
        """Add `count` bytes written; evict when the size is due for a check."""
        self._written += count
        if (
            self._total is not None
            and self._written < self._max_bytes * _STEP
            and self._total + self._written <= self._max_bytes
        ):
            return
        total = self._table.total_bytes()
        if total > self._max_bytes:
            total -= self._evict(total - int(self._max_bytes * _GOAL))
        self._total, self._written = total, 0

    def _evict(self, wanted: int) -> int:
        freed = 0
        while freed < wanted:
            step = self._table.delete_oldest(wanted - freed)
            if step == 0:
                break
            freed += step
        return freed
