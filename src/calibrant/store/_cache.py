"""Finished predictions in a SQL database, so that no call is paid for twice."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._records import prediction_from_record, prediction_to_record
from calibrant.store._write_behind import WriteBehind

if TYPE_CHECKING:
    from calibrant.store._table import PredictionTable


_LOG = logging.getLogger("calibrant")

# A transaction begins after this many seconds or predictions, whichever comes first: the most a kill can lose.
_PAUSE = 0.03
_ENOUGH = 64
_TRANSACTION = 2048  # rows; larger ones would keep other processes waiting
_MAX_WAITING = 50_000  # rows kept in memory while the database cannot be written
_MAX_KEY = 255
_STEP = 0.05  # of the cap may be written between two counts of the table


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
        The database cannot be opened, is damaged, or was written by a newer version. Predictions
        of an older version are dropped, with a warning.

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
        from calibrant.store._location import Location  # noqa: PLC0415 (loads sqlalchemy)
        from calibrant.store._table import PredictionTable  # noqa: PLC0415 (loads sqlalchemy)

        if max_bytes is not None and max_bytes < 1:
            raise ConfigurationError(
                f"Expected max_bytes of at least 1, or None for no cap, got {max_bytes!r}."
            )
        self._place = Location.parse(url)
        self.location = str(self._place)
        self._table: PredictionTable = PredictionTable(
            self._place, busy_timeout=busy_timeout, recreate=recreate
        )
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
            found = {
                key: prediction
                for key in keys
                if (prediction := self._pending.get(key) or self._writing.get(key)) is not None
            }
        missing = [key for key in keys if key not in found]
        if missing:
            for key, record in self._read(missing).items():
                prediction = self._decoded_record(record)
                if prediction is not None:
                    found[key] = prediction
        return found

    def put(self, key: str, prediction: Prediction) -> None:
        """Upsert `prediction` under `key`; reads see it at once, the database soon after.

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
                self._writing, self._pending = self._pending, {}
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
        size = self._table.write(record for row in rows if (record := self._encoded_record(*row)) is not None)
        if size and self._max_bytes is not None:
            try:
                self._limit_size(size, self._max_bytes)
            except Exception as error:  # noqa: BLE001 (the rows are saved)
                self._warn_once("evict", f"Old predictions cannot be removed: {self._place.reason(error)}")

    def _limit_size(self, size: int, max_bytes: int) -> None:
        """Evict old rows when the size is due for a check.

        The table is counted after every twentieth of the cap that this process wrote, and whenever its own sum
        passes the cap, so several processes exceed it by a twentieth each at most.
        """
        self._written_bytes += size
        total = None if self._counted_bytes is None else self._counted_bytes + self._written_bytes
        if total is None or total > max_bytes or self._written_bytes >= max_bytes * _STEP:
            self._counted_bytes, self._written_bytes = self._table.evict(max_bytes), 0

    def _encoded_record(self, key: str, prediction: Prediction) -> tuple[str, str] | None:
        try:
            # ASCII: any database takes it, halves of characters included.
            return key, json.dumps(prediction_to_record(prediction), separators=(",", ":"))
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
        from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError  # noqa: PLC0415 (heavy)

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
        reason = "see the warnings logged before" if error is None else self._place.reason(error)
        return (
            f"{self.location}: {count} predictions could not be saved ({reason}): they will be asked "
            "again. Make room, or end what locks the database, and run again."
        )
