"""The table of predictions: SQL for SQLite and PostgreSQL, and plain SQL for the rest."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from calibrant.store._database import Database
from calibrant.store._location import Location

_LOG = logging.getLogger("calibrant")

_NAME = "calibrant_predictions"

_METADATA = sa.MetaData()
_PREDICTIONS = sa.Table(
    _NAME,
    _METADATA,
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("record", sa.Text, nullable=False),
    sa.Column("bytes", sa.Integer, nullable=False),
    sa.Column("written", sa.BigInteger, nullable=False),  # microseconds since 1970
    # A covering index for the sum of bytes and for the oldest rows.
    sa.Index("calibrant_predictions_written", "written", "bytes"),
)

_READ_BLOCK = 500  # keys per statement; old SQLite takes 999 parameters
_WRITE_BLOCK = 128  # rows per statement, a power of two; times four parameters
_GOAL = 0.9  # of the cap is left after an eviction: one makes room for many writes
# Neither can occur unescaped in JSON.
_UNIT, _RECORD = "\x1f", "\x1e"


class PredictionTable(Database):
    """Records of predictions under their keys, with their size and the time they were written.

    Methods raise the errors of SQLAlchemy; only opening translates them.

    Parameters
    ----------
    location : Location
        The database; a missing SQLite file is created.
    busy_timeout : float
        Seconds to wait for locks of other processes.
    recreate : bool, default True
        True to recreate a SQLite file that is removed or replaced later; otherwise it then seems empty.

    Raises
    ------
    ConfigurationError
        The driver is missing or asynchronous.
    StateError
        The database cannot be opened, is damaged, or was written by a newer version.
    """

    name = _NAME
    version = 1
    holds = "predictions"

    def __init__(self, location: Location, *, busy_timeout: float, recreate: bool = True) -> None:
        super().__init__(location, busy_timeout=busy_timeout, recreate=recreate)
        self.open()
        self._mark = {"sqlite": "?", "postgresql": "%s"}.get(self._engine.dialect.name)

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the stored records by key; missing keys are left out."""
        found: dict[str, str] = {}
        if not self._may_recreate and not self._recover_file():
            return found
        with self._reading() as connection:
            for start in range(0, len(keys), _READ_BLOCK):
                found.update(self._read_block(connection, keys[start : start + _READ_BLOCK]))
        return found

    def write(self, records: Iterable[tuple[str, str]]) -> int:
        """Upsert records of different keys in one transaction; return their bytes.

        Bytes are those of the keys and records; 0 where the file is gone and is not made anew.
        """
        if not self._recover_file():
            return 0
        now = time.time_ns() // 1_000
        # Sorted: two processes that write the same keys wait for each other instead of deadlocking.
        rows = [(key, record, len(key) + len(record), now) for key, record in sorted(records)]
        with self._transaction() as connection:
            if self._mark is None:
                _replace(connection, rows)
            else:
                _upsert(connection, rows, mark=self._mark)
        return sum(row[2] for row in rows)

    def total_bytes(self) -> int:
        """Return the bytes of all keys and records, read from the index alone."""
        with self._reading() as connection:
            return int(connection.scalar(sa.select(sa.func.sum(_PREDICTIONS.c.bytes))) or 0)

    def evict(self, max_bytes: int) -> int:
        """Delete the rows written first from a table larger than `max_bytes`, down to 90 % of it.

        Returns
        -------
        int
            The bytes left.
        """
        total = self.total_bytes()
        if total > max_bytes:
            goal = int(max_bytes * _GOAL)
            while total > goal and (freed := self._delete_oldest(total - goal)):
                total -= freed
        return total

    def _delete_oldest(self, wanted: int) -> int:
        """Delete a batch of the oldest rows until `wanted` bytes are free; return the bytes freed."""
        oldest = (
            sa.select(_PREDICTIONS.c.key, _PREDICTIONS.c.bytes)
            .order_by(_PREDICTIONS.c.written, _PREDICTIONS.c.bytes)
            .limit(_READ_BLOCK)
        )
        # Read first: a SQLite transaction that begins by reading may not be allowed to write later.
        with self._reading() as connection:
            rows = connection.execute(oldest).all()
        doomed: list[str] = []
        freed = 0
        for key, size in rows:
            if freed >= wanted:
                break
            doomed.append(key)
            freed += size
        if doomed:
            with self._transaction() as connection:
                connection.execute(sa.delete(_PREDICTIONS).where(_PREDICTIONS.c.key.in_(sorted(doomed))))
        return freed

    def _create(self, connection: sa.Connection, found: int | None) -> None:
        """Create the tables; rows of an older version are dropped."""
        if found is not None or sa.inspect(connection).has_table(_NAME):
            _LOG.warning(
                "The stored predictions are of an older version and are dropped: they are asked again."
            )
        _PREDICTIONS.drop(connection, checkfirst=True)
        _METADATA.create_all(connection)

    def _read_block(self, connection: sa.Connection, keys: Sequence[str]) -> dict[str, str]:
        columns = _PREDICTIONS.c
        if self._location.path is None:
            rows = connection.execute(sa.select(columns.key, columns.record).where(columns.key.in_(keys)))
            return {key: record for key, record in rows}  # noqa: C416 (rows, not pairs)
        # Python's driver releases the interpreter lock for every row and may wait 5 ms to get it back
        # while another thread computes: the block travels as one row.
        joined = sa.func.group_concat(columns.key + _UNIT + columns.record, _RECORD)
        text = connection.scalar(sa.select(joined).where(columns.key.in_(keys)))
        found = (row.partition(_UNIT) for row in (text or "").split(_RECORD))
        return {key: record for key, unit, record in found if unit}


def _blocks(rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Cut `rows` into powers of two, so that few different statements are prepared."""
    start = 0
    while start < len(rows):
        size = min(_WRITE_BLOCK, 1 << ((len(rows) - start).bit_length() - 1))
        yield rows[start : start + size]
        start += size


def _upsert(connection: sa.Connection, rows: Sequence[tuple[Any, ...]], *, mark: str) -> None:
    """Write `rows`, many per statement: Python's driver releases the interpreter lock for each."""
    values = f"({', '.join([mark] * len(_PREDICTIONS.c))})"
    for block in _blocks(rows):
        statement = (
            f"INSERT INTO {_NAME} (key, record, bytes, written) "  # noqa: S608 (our own names)
            f"VALUES {', '.join([values] * len(block))} ON CONFLICT (key) DO UPDATE SET "
            "record = excluded.record, bytes = excluded.bytes, written = excluded.written"
        )
        connection.exec_driver_sql(statement, tuple(itertools.chain.from_iterable(block)))


def _replace(connection: sa.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Write `rows` in SQL that every database supports."""
    names = _PREDICTIONS.c.keys()
    for start in range(0, len(rows), _READ_BLOCK):
        block = [dict(zip(names, row, strict=True)) for row in rows[start : start + _READ_BLOCK]]
        keys = [row["key"] for row in block]
        connection.execute(sa.delete(_PREDICTIONS).where(_PREDICTIONS.c.key.in_(keys)))
        connection.execute(sa.insert(_PREDICTIONS), block)
