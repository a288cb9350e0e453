"""Finished predictions in a SQL database, so that no call is paid for twice."""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._records import prediction_from_record, prediction_to_record
from calibrant.store._cap import SizeCap

if TYPE_CHECKING:
    from calibrant.store._table import PredictionTable

_LOG = logging.getLogger("calibrant")

# A transaction begins after this many seconds or predictions, whichever comes first: the most a kill can lose.
_PAUSE = 0.03
_ENOUGH = 64
_LONGEST_PAUSE = 2.0  # between attempts while the database cannot be written
_TRANSACTION = 2048  # rows; larger ones would keep other processes waiting
_MAX_WAITING = 50_000  # rows kept in memory while the database cannot be written
_MAX_KEY = 255


class PredictionCache:
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
    """

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
        if not 0 <= busy_timeout <= 3600:
            raise ConfigurationError(f"Expected busy_timeout in [0, 3600] seconds, got {busy_timeout!r}.")
        self._place = Location.parse(url)
        self.location = str(self._place)
        self._table: PredictionTable = PredictionTable(
            self._place, busy_timeout=busy_timeout, recreate=recreate
        )
        self._cap = None if max_bytes is None else SizeCap(self._table, max_bytes)
        self._closed = False
        self._reset()
        _OPEN.add(self)

    def _reset(self) -> None:
        """Reset the state: nothing pending and no writer thread."""
        self._lock = threading.Lock()  # never held during a write: `put` must not wait for the database
        self._write_lock = threading.Lock()  # held while writing
        self._pending: dict[str, Prediction] = {}
        self._writing: dict[str, Prediction] = {}
        self._failing = False
        self._dropped = 0
        self._warned: set[str] = set()
        self._wake = threading.Event()
        self._enough = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

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
                prediction = self._decoded(record)
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
            enough = len(self._pending) >= _ENOUGH
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="calibrant-cache", daemon=True)
                self._thread.start()
        if not self._wake.is_set():
            self._wake.set()
        if enough and not self._failing:
            self._enough.set()

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
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._closing = True
        self._wake.set()
        self._enough.set()
        if self._thread is not None:
            self._thread.join()
        _OPEN.discard(self)
        try:
            self.flush()
        finally:
            self._table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.close()
        except StateError as error:
            if kind is None:
                raise
            _LOG.warning("%s", error)  # the error under way matters more

    def _check_open(self) -> None:
        if self._closed:
            raise StateError(f"{self.location}: the cache is closed: open it again.")

    def _run(self) -> None:
        """Write pending predictions until the cache closes."""
        pause = _PAUSE
        while not self._closing:
            self._wake.wait()
            self._enough.wait(pause)
            self._wake.clear()
            self._enough.clear()
            try:
                self._write_pending()
                pause = _PAUSE
            except Exception as error:  # noqa: BLE001 (any error: the run goes on and the write is retried)
                self._warn_once("write", f"Predictions cannot be saved for now: {self._reason(error)}")
                pause = min(2 * pause, _LONGEST_PAUSE)
                self._wake.set()

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
        size = self._table.write(record for row in rows if (record := self._encoded(*row)) is not None)
        if size and self._cap is not None:
            try:
                self._cap.wrote(size)
            except Exception as error:  # noqa: BLE001 (the rows are saved)
                self._warn_once("evict", f"Old predictions cannot be removed: {self._reason(error)}")

    def _encoded(self, key: str, prediction: Prediction) -> tuple[str, str] | None:
        try:
            # ASCII: any database takes it, halves of characters included.
            return key, json.dumps(prediction_to_record(prediction), separators=(",", ":"))
        except (TypeError, ValueError, AttributeError) as error:
            self._warn_once("encode", f"A prediction that is no JSON is not saved: {error}")
            self._dropped += 1
            return None

    def _decoded(self, record: str) -> Prediction | None:
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
            self._warn_once("read", f"Stored predictions cannot be read for now: {self._reason(error)}")
            return {}

    def _reason(self, error: BaseException) -> str:
        return self._place.reason(error)

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _LOG.warning("%s: %s", self.location, message)

    def _unsaved(self, error: Exception | None) -> str:
        count = len(self._pending) + self._dropped
        reason = "see the warnings logged before" if error is None else self._reason(error)
        return (
            f"{self.location}: {count} predictions could not be saved ({reason}): they will be asked "
            "again. Make room, or end what locks the database, and run again."
        )


_OPEN: weakref.WeakSet[PredictionCache] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for cache in list(_OPEN):
        cache._reset()  # noqa: SLF001 (this module's)


def _close_all() -> None:
    for cache in list(_OPEN):
        try:
            cache.close()
        except StateError as error:
            _LOG.warning("%s", error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close_all)
