"""Store of the vectors that embedding models gave to texts, in a SQLite file."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from calibrant.core._prediction import SingleArray

_LOG = logging.getLogger("calibrant")
# Numbers grow with time: the lowest ones are the oldest.
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS numbered_vectors "
    "(number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, vector BLOB NOT NULL)"
)
_REMOVE_OLDEST: Final = (
    "DELETE FROM numbered_vectors WHERE number <= "
    "(SELECT min(number) + (max(number) - min(number)) / 10 FROM numbered_vectors)"
)
MAX_BYTES: Final = 1024**3
_SECONDS: Final = 5.0  # to wait for the lock of another process
_READ_BLOCK: Final = 500  # keys a statement; old SQLite takes 999 parameters
_TYPE: Final = np.dtype("<f4")


class VectorStore:
    """Vectors by key, in a file that several processes may use at once.

    Each call opens the file for itself, so threads and forks share nothing. A file that cannot be read or written
    costs a warning, and the vectors are computed again.

    Parameters
    ----------
    path : Path
        The SQLite file, which only its owner may read; a missing one is created with its folders.
    max_bytes : int, default 1 GiB
        Most bytes in use; beyond it those written first are removed, a tenth at a time. The file does not shrink,
        but uses freed space again.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from calibrant.store._vectors import VectorStore
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = VectorStore(Path(folder) / "vectors.sqlite")
    ...     store.put_many({"first": np.array([0.5, 2.0], dtype=np.float32)})
    ...     {key: vector.tolist() for key, vector in store.get_many(["first", "second"]).items()}
    {'first': [0.5, 2.0]}
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._has_warned = False

    def get_many(self, keys: Sequence[str]) -> dict[str, SingleArray]:
        """Return the stored vectors by key; missing keys are left out."""
        found: dict[str, SingleArray] = {}
        if not keys or not self._path.exists():
            return found
        try:
            with closing(self._connection()) as connection:
                for start in range(0, len(keys), _READ_BLOCK):
                    block = keys[start : start + _READ_BLOCK]
                    marks = ", ".join("?" * len(block))
                    query = f"SELECT key, vector FROM numbered_vectors WHERE key IN ({marks})"  # noqa: S608 (marks alone)
                    rows = connection.execute(query, block).fetchall()
                    found |= {key: np.frombuffer(vector, dtype=_TYPE) for key, vector in rows}
        except (sqlite3.Error, OSError, ValueError) as error:
            self._warn("read", error)
        return found

    def put_many(self, vectors: Mapping[str, SingleArray]) -> None:
        """Store vectors by key in one transaction."""
        rows = [(key, vector.astype(_TYPE).tobytes()) for key, vector in vectors.items()]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            with closing(self._connection()) as connection, connection:
                connection.execute(_TABLE)
                insert = "INSERT OR REPLACE INTO numbered_vectors (key, vector) VALUES (?, ?)"
                connection.executemany(insert, rows)
                while _used_bytes(connection) > self._max_bytes:
                    if not connection.execute(_REMOVE_OLDEST).rowcount:
                        break
        except (sqlite3.Error, OSError) as error:
            self._warn("saved", error)

    def _connection(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=_SECONDS)

    def _warn(self, what: str, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "%s: vectors of texts cannot be %s (%s): they are computed again.", self._path, what, error
            )


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size
