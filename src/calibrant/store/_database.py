"""Tables in a database shared with other processes, its location with credentials hidden, and background writes."""

from __future__ import annotations

import abc
import atexit
import contextlib
import itertools
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, Pool

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._installation import install_command
from calibrant.core._reported import one_line

_HIDDEN = "[redacted]"
_SQLITE = "sqlite"
_POSTGRESQL = "postgresql"
_SMALLEST = 512  # bytes of a SQLite file
_LOCK = 0x63616C69  # key of the advisory lock in PostgreSQL; arbitrary
# One row per table, so that tables in one database migrate independently.
_VERSIONS = sa.Table(
    "calibrant_versions",
    sa.MetaData(),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)
_OPEN: weakref.WeakSet[Database] = weakref.WeakSet()
_LOG = logging.getLogger("calibrant")
_SHORTEST_RETRY, _LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts after a failed write
_WRITERS: weakref.WeakSet[WriteBehind] = weakref.WeakSet()


@dataclass(frozen=True, kw_only=True)
class Location:
    """Location of a database, with messages that hide its credentials.

    Attributes
    ----------
    url : URL
        With credentials; never shown.
    path : Path or None
        The file of a SQLite database; None for a server.
    """

    url: URL = field(repr=False)
    path: Path | None

    @classmethod
    def parse(cls, place: str | os.PathLike[str]) -> Location:
        """Read a SQLAlchemy URL, or the path of a SQLite file.

        Raises
        ------
        ConfigurationError
            The URL cannot be read, or names a database in memory.
        """
        text = os.fspath(place)
        if "://" not in text:
            path = Path(text).expanduser().absolute()  # the process may change its working directory
            return cls(url=URL.create(_SQLITE, database=str(path)), path=path)
        try:
            url = make_url(text)
        except (SQLAlchemyError, ValueError):
            # The text is not repeated: it may hold a password.
            raise ConfigurationError(
                "Expected a database URL such as sqlite:///cache.db or postgresql://USER:PASSWORD@HOST/NAME, "
                "got one that cannot be read: check the port, and write special characters of the "
                "password as %XX."
            ) from None
        if url.drivername == _POSTGRESQL:
            url = url.set(drivername="postgresql+psycopg")
        if url.get_backend_name() != _SQLITE:
            return cls(url=url, path=None)
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise ConfigurationError(
                "Expected a SQLite file such as sqlite:///cache.db, got a database in memory or a "
                "file: URI: name a file that other processes can open, too."
            )
        path = Path(url.database).absolute()
        return cls(url=url.set(database=str(path)), path=path)

    def __str__(self) -> str:
        """Return the database's name without user, password and options."""
        if self.path is not None:
            return str(self.path)
        shown = URL.create(
            self.url.drivername, host=self.url.host, port=self.url.port, database=self.url.database
        )
        return shown.render_as_string()

    @property
    def is_postgresql(self) -> bool:
        """True if the server is PostgreSQL."""
        return self.url.get_backend_name() == _POSTGRESQL

    def reason(self, error: BaseException) -> str:
        """Return the message of `error` in one line, without SQL, its parameters and credentials."""
        message = str(getattr(error, "orig", None) or error)
        for value in self._secrets():
            message = message.replace(value, _HIDDEN)
        return one_line(message) or type(error).__name__

    def _secrets(self) -> list[str]:
        if self.path is not None:
            return []
        options = itertools.chain.from_iterable(self.url.normalized_query.values())
        secrets = [str(value) for value in (self.url.password, *options) if value]
        return sorted(secrets, key=len, reverse=True)  # one may be part of another

    def make_file(self, *, holds: str) -> None:
        """Create a missing SQLite file, empty, with its folders; only the owner may read it.

        Raises
        ------
        StateError
            The file system does not allow it.
        """
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise IsADirectoryError(f"{self.path} is a folder")
            # An existing file keeps its permissions: its owner may have opened it to a group.
            # SQLite gives the files it puts beside it the same ones.
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                size = os.fstat(handle).st_size
            finally:
                os.close(handle)
        except OSError as error:
            raise StateError(
                f"{self.path}: cannot be created or written ({error.strerror or error}): "
                "make its folder writable or name another file."
            ) from error
        if 0 < size < _SMALLEST:  # SQLite would take it for a new one and overwrite it
            raise StateError(self.damaged("file is not a database", holds=holds))

    def file_identity(self) -> tuple[int, int] | None:
        """Return device and inode of the file, which change when it is replaced; None without a file."""
        try:
            status = None
            if self.path is not None:
                status = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            status = None
        if status is None:
            return None
        return status.st_dev, status.st_ino

    def damaged(self, reason: str, *, holds: str) -> str:
        """Return the error for a file that is not a database, with a remedy."""
        return (
            f"{self}: expected a database for {holds}, got: {reason}: it is damaged or no SQLite "
            "database, and was left as it is: delete it (and the files -wal and -shm beside it) or "
            "name another file."
        )


class _ForkGate:
    """Lock that delays a fork while a connection is in use.

    SQLite would attribute the locks of an inherited connection to the child.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition(threading.Lock())
        self.users: Counter[int] = Counter()  # connections in use, by thread
        self.forking = 0  # threads that fork, or wait until they may


_GATE = _ForkGate()


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Delay forks of other threads until the block ends."""
    gate = _GATE
    thread = threading.get_ident()
    with gate.condition:
        while gate.forking and thread not in gate.users:
            gate.condition.wait()
        gate.users[thread] += 1
    try:
        yield
    finally:
        with gate.condition:
            gate.users[thread] -= 1
            if not gate.users[thread]:
                del gate.users[thread]
                gate.condition.notify_all()


class Database:
    """Connection to a database, with one table, created where it is missing.

    Methods of tables raise the errors of SQLAlchemy; only opening translates them. Connections are kept, but closed
    before a fork, which waits until none is in use.

    Parameters
    ----------
    location : Location
        The database; a missing SQLite file is created.
    busy_timeout : float
        Seconds to wait for locks of other processes.
    create : bool, default True
        True to create a missing file or table; False to raise.
    recreate : bool, default True
        True to recreate a SQLite file that is removed or replaced later.

    Attributes
    ----------
    name : str
        Name of the table.
    version : int
        Version of its schema.
    holds : str
        Noun for its content in messages.
    metadata : MetaData
        The tables to create.
    pool : type of Pool or None
        Connection pool; None for SQLAlchemy's default.
    location : str
        The file, or the server and the database, without user, password and options.

    Raises
    ------
    ConfigurationError
        The driver is missing or asynchronous, or the timeout is out of range.
    StateError
        The database cannot be opened, is missing or damaged, or of another schema version.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    holds: ClassVar[str]
    metadata: ClassVar[sa.MetaData]
    pool: ClassVar[type[Pool] | None] = None

    def __init__(
        self, location: Location, *, busy_timeout: float, create: bool = True, recreate: bool = True
    ) -> None:
        if not 0 <= busy_timeout <= 3600:
            raise ConfigurationError(f"Expected busy_timeout in [0, 3600] seconds, got {busy_timeout!r}.")
        self._location = location
        self.location = str(location)
        self._may_create = create
        self._may_recreate = recreate
        self._busy_timeout = busy_timeout
        self._engine = self._connect()
        self._thread_lock = threading.RLock()
        self._file: tuple[int, ...] | None = ()  # neither a file's identity nor a server's: not opened yet
        with _GATE.condition:
            _OPEN.add(self)

    def open(self) -> None:
        """Open the database and create a missing table.

        Raises
        ------
        StateError
            See the class.
        """
        try:
            self._open()
        except (SQLAlchemyError, StateError) as error:
            self._engine.dispose()
            if isinstance(error, StateError):
                raise
            raise StateError(self.unusable(error)) from None

    def close(self) -> None:
        """Close idle connections; new ones open on demand."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """Yield a connection for reading."""
        with in_use(), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Yield a connection in a transaction; commit on success, roll back on error."""
        with in_use(), self._engine.begin() as connection:
            yield connection

    def _connect(self) -> sa.Engine:
        url = self._location.url
        options = {}
        if self._location.path is not None:
            options["timeout"] = self._busy_timeout
        elif self._location.is_postgresql and "connect_timeout" not in url.query:
            options["connect_timeout"] = 10
        try:
            if url.get_dialect().is_async:
                raise ConfigurationError(
                    f"{self._location}: expected a synchronous driver, got {url.get_driver_name()}: "
                    "use sqlite:/// or postgresql+psycopg://."
                )
            engine = sa.create_engine(
                url,
                connect_args=options,
                hide_parameters=True,
                poolclass=self.pool,
                pool_pre_ping=self._location.path is None,  # a server may have been restarted
            )
        except (SQLAlchemyError, ImportError) as error:
            raise ConfigurationError(
                f"{self._location}: expected a database whose driver is installed, got: "
                f"{self._location.reason(error)}: for PostgreSQL `{install_command('postgres')}`, for "
                "SQLite nothing."
            ) from None
        sa.event.listen(engine, "connect", self._on_connect)
        return engine

    def _on_connect(self, connection: Any, _entry: ConnectionPoolEntry) -> None:  # noqa: ANN401 (DBAPI)
        if self._location.path is not None:
            # In WAL mode a kill loses nothing that was committed, without waiting for the disk.
            connection.execute("PRAGMA synchronous=NORMAL")
        elif self._location.is_postgresql:
            with connection.cursor() as cursor:
                cursor.execute(f"SET lock_timeout = {max(1, int(self._busy_timeout * 1000))}")
            connection.commit()

    def _prepare(self) -> None:
        if self._location.path is not None:
            self._use_wal()
        with self._reading() as connection:
            if self._found_version(connection) == self.version:
                return
        if not self._may_create:
            raise StateError(self._missing())
        with self._writing() as connection:
            if self._found_version(connection) == self.version:
                return
            self.metadata.create_all(connection)
            _VERSIONS.create(connection, checkfirst=True)
            connection.execute(sa.insert(_VERSIONS).values(name=self.name, version=self.version))

    @contextlib.contextmanager
    def _writing(self, lock: int = _LOCK) -> Iterator[sa.Connection]:
        """Open a write transaction, exclusive in SQLite, and in PostgreSQL per advisory `lock`."""
        with self._transaction() as connection:
            if self._location.path is not None:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            elif self._location.is_postgresql:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(lock)))
            yield connection

    @contextlib.contextmanager
    def _ready(self, what: str) -> Iterator[None]:
        """Open or reopen the database for one thread at a time; raise StateError if `what` fails."""
        try:
            with self._thread_lock:
                self._recover_file()
            yield
        except (SQLAlchemyError, OSError) as error:  # OSError: of the file's folder
            if isinstance(error, SQLAlchemyError) and not isinstance(error, OperationalError):
                raise StateError(self.unusable(error)) from None
            raise StateError(
                f"{self.location}: the {self.holds} cannot be {what} ({self._location.reason(error)}): end what locks "
                "it, make room, make it writable or check the server, and try again."
            ) from None

    def _missing(self) -> str:
        return f"{self._location}: holds no {self.holds}: check the name, or record some first."

    def _open(self) -> None:
        if not self._may_create and self._location.path is not None and not self._location.path.exists():
            raise StateError(self._missing())
        self._location.make_file(holds=self.holds)
        self._prepare()
        self._file = self._location.file_identity()

    def _use_wal(self) -> None:
        """Switch SQLite to write-ahead logging, so that readers and a writer run concurrently."""
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                with self._reading() as connection:
                    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            except OperationalError as error:
                code = getattr(error.orig, "sqlite_errorcode", 0)
                is_locked = code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}  # the rest is detail
                if not is_locked or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def _found_version(self, connection: sa.Connection) -> int | None:
        """Return the schema version of the existing table, or None; raise StateError for another one."""
        if not sa.inspect(connection).has_table(_VERSIONS.name):
            return None
        found = connection.scalar(sa.select(_VERSIONS.c.version).where(_VERSIONS.c.name == self.name))
        if found not in {None, self.version}:
            raise StateError(
                f"{self._location}: expected {self.holds} of schema version {self.version}, got {found}: use the "
                "calibrant that wrote it, or name another database."
            )
        return found

    def _recover_file(self) -> bool:
        """Open the database if it is not open; reopen it if its file was deleted or replaced.

        Writes into a deleted file would seem to succeed.

        Returns
        -------
        bool
            False if the file is gone and must not be recreated.
        """
        if self._location.file_identity() != self._file:
            if not self._may_recreate:
                return False
            self._engine.dispose()
            self._open()
        return True

    def unusable(self, error: SQLAlchemyError) -> str:
        """Return the error for an unusable database, with the reason and a remedy."""
        reason = self._location.reason(error)
        if self._location.path is None:
            remedy = "check the URL, that the server runs, and that the user may create tables"
        elif isinstance(error, OperationalError):
            remedy = "make it and its folder writable, end what locks it, or name another file"
        else:
            return self._location.damaged(reason, holds=self.holds)
        return f"{self._location}: expected a database for {self.holds}, got: {reason}: {remedy}."


def _before_fork() -> None:
    # Wait for other threads to leave the database, then close idle connections: the child must inherit none.
    _GATE.condition.acquire()
    _GATE.forking += 1
    this_thread = {threading.get_ident()}
    while not _GATE.users.keys() <= this_thread:
        _GATE.condition.wait()
    for database in list(_OPEN):
        database._engine.dispose()  # noqa: SLF001 (this module's; `close` may take a lock that waits for the gate)


def _after_fork_in_parent() -> None:
    _GATE.forking -= 1
    _GATE.condition.notify_all()
    _GATE.condition.release()


def _after_fork_in_child() -> None:
    _GATE.forking = 0  # threads that waited to fork do not exist in the child
    for database in list(_OPEN):
        database._thread_lock = threading.RLock()  # noqa: SLF001 (another thread may have held it)
    _GATE.condition.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )


class WriteBehind(abc.ABC):
    """Object that writes queued data in a background thread, so that callers need not wait.

    The program's exit closes it, except in children of multiprocessing. A forked child starts with an empty
    queue: the parent writes the data that were queued.

    Parameters
    ----------
    pause : float
        Seconds between the first queued item and its write.

    Attributes
    ----------
    thread_name : str
        Name of the thread.
    rest : float
        Pause after a write, as a multiple of its duration: other processes want their turn, too.
    """

    thread_name: ClassVar[str]
    rest: ClassVar[float] = 0.0

    def __init__(self, *, pause: float) -> None:
        self._pause = pause
        self._closed = False
        self._reset()
        _WRITERS.add(self)

    def _reset(self) -> None:
        """Create new locks, queue and thread, as a forked child may not share its parent's."""
        self._lock = threading.Lock()  # held for moments only, never during a write
        self._write_lock = threading.Lock()  # held while reading and writing the database
        self._failing = False
        self._dropped = 0
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None

    @abc.abstractmethod
    def _write_queue(self) -> bool:
        """Write the queue and log problems; return False to be called again soon."""

    @abc.abstractmethod
    def close(self) -> None:
        """Write the queue, end the thread and free the database; closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.close()
        except StateError as error:
            if kind is None:
                raise
            _LOG.warning("%s", error)  # the error under way matters more

    def _wake_up(self, *, hurry: bool = False) -> None:
        """Tell the thread to write the queue, after the pause or at once."""
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run, name=self.thread_name, daemon=True)
                    self._thread.start()
        if not self._wake.is_set():
            self._wake.set()
        if hurry:
            self._hurry.set()

    def _stop(self) -> bool:
        """End the thread after one more write; return False if that was done before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
        self._wake.set()
        self._hurry.set()
        if self._thread is not None:
            self._thread.join()
        _WRITERS.discard(self)
        return True

    def _run(self) -> None:
        pause = self._pause
        while not self._closed:
            self._wake.wait()
            self._hurry.wait(pause)
            self._wake.clear()
            self._hurry.clear()
            start = time.monotonic()
            if self._write_queue():
                pause = self.rest * (time.monotonic() - start)
            else:
                pause = 2 * max(pause, _SHORTEST_RETRY)
                self._wake.set()
            pause = max(self._pause, min(pause, _LONGEST_PAUSE))


def _reset_writers() -> None:
    for writer in list(_WRITERS):
        writer._reset()  # noqa: SLF001 (this module's)


def _close_all() -> None:
    for writer in list(_WRITERS):
        try:
            writer.close()
        except StateError as error:
            _LOG.warning("%s", error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_writers)
atexit.register(_close_all)
