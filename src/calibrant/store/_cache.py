"""Cache of finished predictions in a SQL database."""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._prediction import Outcome, Prediction, prediction_from_record, prediction_to_record
from calibrant.core._reported import counted
from calibrant.store._database import Database, Location, WriteBehind

_LOG = logging.getLogger("calibrant")

# A transaction begins after this many seconds or predictions, whichever comes first: the most a kill can lose.
_PAUSE = 0.03
_ENOUGH = 64
_TRANSACTION = 2048  # rows; larger ones would keep other processes waiting
_MAX_WAITING = 50_000  # rows kept in memory while the database cannot be written
_MAX_KEY = 255
_STEP = 0.05  # of the cap may be written between two counts of the table

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
# `json.dumps` makes an encoder for every call.
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
# Neither can occur unescaped in JSON.
_UNIT, _RECORD = "\x1f", "\x1e"


class PredictionCache(WriteBehind):
    """A `calibrant.core.Journal` in a database that several processes may use at once.

    `put` only queues the prediction; a background thread commits the queue every 20 ms, in one
    transaction. A killed process loses at most the predictions put since the last commit. While the
    database cannot be written (disk full, locked, server gone), the cache warns once through logging,
    keeps and serves up to 50,000 predictions in memory, and retries; `flush` and `close` raise if some
    stay unsaved. While it cannot be read, predictions count as missing.

    Close it, or use it as a context manager; a program's exit closes it too, except in children of
    multiprocessing. After a fork the child opens its own connections; the parent writes the predictions
    that were pending.

    Parameters
    ----------
    url : str or path, default "sqlite:///predictions.db"
        A SQLAlchemy URL, or the path of a SQLite file. A new file and its missing folders are
        created; only its owner may read the file. Tested with SQLite and PostgreSQL. Credentials
        in it are never shown.
    max_bytes : int, optional
        Most bytes of keys and records to keep; beyond it the predictions written first are
        removed, down to 90 % of it. Reading does not make a prediction younger. Each process
        may exceed it by 5 % for a moment. A SQLite file is about a third larger than its records and
        does not shrink, but uses freed space again. Default: no cap.
    busy_timeout : float, default 5.0
        Seconds to wait for the locks of other processes.
    recreate : bool, default True
        Recreate a SQLite file that is removed or replaced while in use. With False, the cache stays empty
        from then on and keeps nothing.

    Attributes
    ----------
    location : str
        The file, or the server and the database, without user, password and options.

    Raises
    ------
    ConfigurationError
        The URL cannot be read, names a database in memory or one whose driver is missing, or an
        option is out of range.
    StateError
        The database cannot be opened, is damaged, or of another schema version.

    Examples
    --------
    >>> import tempfile
    >>> from calibrant.core import Prediction
    >>> from calibrant.store import PredictionCache
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with PredictionCache(f"{folder}/predictions.db") as cache:
    ...         cache.put("first", Prediction(label="Food", confidence=0.9))
    ...     with PredictionCache(f"{folder}/predictions.db") as cache:
    ...         cache.get_many(["first", "second"])["first"].confidence
    0.9
    """

    thread_name = "calibrant-cache"

    def __init__(
        self,
        url: str | os.PathLike[str] = "sqlite:///predictions.db",
        *,
        max_bytes: int | None = None,
        busy_timeout: float = 5.0,
        recreate: bool = True,
    ) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise ConfigurationError(
                f"Expected max_bytes of at least 1, or None for no cap, got {max_bytes!r}."
            )
        self._place = Location.parse(url)
        self.location = str(self._place)
        self._table = _PredictionTable(self._place, busy_timeout=busy_timeout, recreate=recreate)
        self._max_bytes = max_bytes
        self._counted_bytes: int | None = None  # in the table, at the last count
        self._written_bytes = 0  # since then
        super().__init__(pause=_PAUSE)

    def _reset(self) -> None:
        super()._reset()
        self._pending: dict[str, Prediction] = {}
        self._writing: dict[str, Prediction] = {}
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    def get_many(self, keys: Sequence[str]) -> dict[str, Prediction]:
        """Return the stored predictions of `keys`; missing keys are left out.

        Raises
        ------
        StateError
            The database is damaged, or the cache is closed.
        """
        with self._lock:
            self._check_open()
            found: dict[str, Prediction] = {}
            for key in keys:
                queued = self._pending.get(key) or self._writing.get(key)
                if queued is not None:
                    found[key] = queued
        missing = [key for key in keys if key not in found]
        if missing:
            for key, record in self._read(missing).items():
                prediction = self._decoded_record(record)
                if prediction is not None:
                    found[key] = prediction
        return found

    def put(self, key: str, prediction: Prediction) -> None:
        """Store `prediction` under `key`; reads see it at once, the database soon after.

        A prediction whose outcome is ``error`` is not stored: a transport error may be gone next time.

        Raises
        ------
        ConfigurationError
            The key is not 1 to 255 printable ASCII characters.
        StateError
            The cache is closed.
        """
        if prediction.outcome is Outcome.ERROR:
            return
        # What every database can store: a batch must not fail for one key.
        if not (0 < len(key) <= _MAX_KEY and key.isascii() and key.isprintable()):
            raise ConfigurationError(
                f"Expected a key of 1 to {_MAX_KEY} printable ASCII characters, got {key!r:.300}."
            )
        with self._lock:
            self._check_open()
            if self._failing and len(self._pending) >= _MAX_WAITING:
                self._dropped += 1
                return
            self._pending[key] = prediction
            hurry = len(self._pending) >= _ENOUGH and not self._failing
        self._wake_up(hurry=hurry)

    def flush(self) -> None:
        """Wait until everything put so far is committed.

        Raises
        ------
        StateError
            Something could not be saved; it stays in memory and is tried again.
        """
        try:
            self._write_pending()
        except Exception as error:  # noqa: BLE001 (of any driver, or the file system)
            raise StateError(self._unsaved(error)) from None
        if self._dropped:
            raise StateError(self._unsaved(None))

    def close(self) -> None:
        """Flush and close the connections; closing again does nothing.

        Raises
        ------
        StateError
            Something could not be saved.
        """
        if not self._stop():
            return
        try:
            self.flush()
        finally:
            self._table.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StateError(f"{self.location}: the cache is closed: open it again.")

    def _write_queue(self) -> bool:
        try:
            self._write_pending()
        except Exception as error:  # noqa: BLE001 (any error: the run goes on and the write is retried)
            self._warn_once("write", f"Predictions cannot be saved for now: {self._place.reason(error)}")
            return False
        return True

    def _write_pending(self) -> None:
        """Write all pending predictions; after a failure they are pending again."""
        with self._write_lock:
            with self._lock:
                self._writing = self._pending
                self._pending = {}
            rows = list(self._writing.items())
            done = 0
            try:
                while done < len(rows):
                    self._write(rows[done : done + _TRANSACTION])
                    done += _TRANSACTION
            finally:
                with self._lock:
                    self._failing = done < len(rows)
                    if self._failing:
                        self._pending = dict(rows[done:]) | self._pending  # newer ones win
                    self._writing = {}

    def _write(self, rows: Sequence[tuple[str, Prediction]]) -> None:
        records = (self._encoded_record(*row) for row in rows)
        size = self._table.write(record for record in records if record is not None)
        if size and self._max_bytes is not None:
            try:
                self._limit_size(size, self._max_bytes)
            except Exception as error:  # noqa: BLE001 (the rows are saved)
                self._warn_once("evict", f"Old predictions cannot be removed: {self._place.reason(error)}")

    def _limit_size(self, size: int, max_bytes: int) -> None:
        """Delete old rows if the table's size is due for a check.

        The table is counted after every twentieth of the cap that this process wrote, and whenever its own sum
        passes the cap, so several processes exceed it by a twentieth each at most.
        """
        self._written_bytes += size
        total = None
        if self._counted_bytes is not None:
            total = self._counted_bytes + self._written_bytes
        if total is None or total > max_bytes or self._written_bytes >= max_bytes * _STEP:
            self._counted_bytes = self._table.evict(max_bytes)
            self._written_bytes = 0

    def _encoded_record(self, key: str, prediction: Prediction) -> tuple[str, str] | None:
        try:
            # ASCII: any database takes it, halves of characters included.
            return key, _ENCODE(prediction_to_record(prediction))
        except (TypeError, ValueError, AttributeError) as error:
            self._warn_once("encode", f"A prediction that is no JSON is not saved: {error}")
            self._dropped += 1
            return None

    def _decoded_record(self, record: str) -> Prediction | None:
        try:
            return prediction_from_record(json.loads(record))
        except (ValueError, StateError) as error:
            self._warn_once("decode", f"A stored prediction cannot be read and is asked again: {error}")
            return None

    def _read(self, keys: Sequence[str]) -> dict[str, str]:
        try:
            return self._table.read(keys)
        except SQLAlchemyError as error:
            if isinstance(error, DatabaseError) and not isinstance(error, OperationalError):
                raise StateError(self._table.unusable(error)) from None
            self._warn_once("read", f"Stored predictions cannot be read for now: {self._place.reason(error)}")
            return {}

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _LOG.warning("%s: %s", self.location, message)

    def _unsaved(self, error: Exception | None) -> str:
        count = len(self._pending) + self._dropped
        reason = "see the warnings logged before"
        if error is not None:
            reason = self._place.reason(error)
        they = "it" if count == 1 else "they"
        return (
            f"{self.location}: {counted(count, 'prediction')} could not be saved ({reason}): {they} will be asked "
            "again. Make room, or end what locks the database, and run again."
        )


class _PredictionTable(Database):
    """Table of predictions by key, with their size and the time they were written.

    Methods raise the errors of SQLAlchemy; only opening translates them.
    """

    name = _NAME
    version = 1
    holds = "predictions"
    metadata = _METADATA

    def __init__(self, location: Location, *, busy_timeout: float, recreate: bool) -> None:
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
        """Return the total size of keys and records, in bytes, from the index alone."""
        with self._reading() as connection:
            total = connection.scalar(sa.select(sa.func.sum(_PREDICTIONS.c.bytes)))
            return int(total or 0)

    def evict(self, max_bytes: int) -> int:
        """Delete the oldest rows of a table larger than `max_bytes`, down to 90 % of that size.

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
    """Yield `rows` in blocks of powers of two, so that few different statements are prepared."""
    start = 0
    while start < len(rows):
        size = min(_WRITE_BLOCK, 1 << ((len(rows) - start).bit_length() - 1))
        yield rows[start : start + size]
        start += size


def _upsert(connection: sa.Connection, rows: Sequence[tuple[Any, ...]], *, mark: str) -> None:
    """Insert or update `rows`, many per statement.

    Python's driver releases the interpreter lock for each statement.
    """
    values = f"({', '.join([mark] * len(_PREDICTIONS.c))})"
    for block in _blocks(rows):
        statement = (
            f"INSERT INTO {_NAME} (key, record, bytes, written) "  # noqa: S608 (our own names)
            f"VALUES {', '.join([values] * len(block))} ON CONFLICT (key) DO UPDATE SET "
            "record = excluded.record, bytes = excluded.bytes, written = excluded.written"
        )
        connection.exec_driver_sql(statement, tuple(itertools.chain.from_iterable(block)))


def _replace(connection: sa.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Delete and insert `rows`, in SQL that every database supports."""
    names = _PREDICTIONS.c.keys()
    for start in range(0, len(rows), _READ_BLOCK):
        block = [dict(zip(names, row, strict=True)) for row in rows[start : start + _READ_BLOCK]]
        keys = [row["key"] for row in block]
        connection.execute(sa.delete(_PREDICTIONS).where(_PREDICTIONS.c.key.in_(keys)))
        connection.execute(sa.insert(_PREDICTIONS), block)
