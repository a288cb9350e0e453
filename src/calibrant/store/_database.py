"""Base class of tables in a database shared with other processes."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, Pool

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._installation import install_command
from calibrant.store._forks import close_before_forks, in_use
from calibrant.store._location import Location

_LOCK = 0x63616C69  # key of the advisory lock in PostgreSQL; arbitrary

# One row per table, so that tables in one database migrate independently.
_VERSIONS = sa.Table(
    "calibrant_versions",
    sa.MetaData(),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)


class Database(abc.ABC):
    """Connection to a database, with one table created or migrated to this version.

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
    at_once : bool, default True
        True to open it here; False to let the caller call `open` first.
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
    pool : type of Pool or None
        Connection pool; None for SQLAlchemy's default.

    Raises
    ------
    ConfigurationError
        The driver is missing or asynchronous.
    StateError
        The database cannot be opened, is missing or damaged, or was written by a newer version.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    holds: ClassVar[str]
    pool: ClassVar[type[Pool] | None] = None

    def __init__(
        self,
        location: Location,
        *,
        busy_timeout: float,
        create: bool = True,
        at_once: bool = True,
        recreate: bool = True,
    ) -> None:
        self._location = location
        self._may_create = create
        self._may_recreate = recreate
        self._busy_timeout = busy_timeout
        self._engine = self._connect()
        close_before_forks(self)
        if at_once:
            self.open()

    def open(self) -> None:
        """Open the database and create a missing table.

        Raises
        ------
        StateError
            See the class.
        """
        try:
            self._open()
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise StateError(self.unusable(error)) from None
        except StateError:
            self._engine.dispose()
            raise

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
        url, options = self._location.url, {}
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
            found = self._found_version(connection)
            if found == self.version:
                return
            self._create(connection, found)
            _VERSIONS.create(connection, checkfirst=True)
            connection.execute(sa.delete(_VERSIONS).where(_VERSIONS.c.name == self.name))
            connection.execute(sa.insert(_VERSIONS).values(name=self.name, version=self.version))

    @contextlib.contextmanager
    def _writing(self, lock: int = _LOCK) -> Iterator[sa.Connection]:
        """Begin an exclusive transaction; in PostgreSQL, exclusive per advisory `lock`."""
        with self._transaction() as connection:
            if self._location.path is not None:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            elif self._location.is_postgresql:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(lock)))
            yield connection

    @abc.abstractmethod
    def _create(self, connection: sa.Connection, found: int | None) -> None:
        """Create the table, or migrate one of the older version `found`."""

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
                if "locked" not in str(error.orig) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def _found_version(self, connection: sa.Connection) -> int | None:
        """Return the version of the existing table, or None; raise for a version newer than ours."""
        if not sa.inspect(connection).has_table(_VERSIONS.name):
            return None
        found = connection.scalar(sa.select(_VERSIONS.c.version).where(_VERSIONS.c.name == self.name))
        if found is not None and found > self.version:
            raise StateError(
                f"{self._location}: expected {self.holds} of schema version {self.version} or older, got "
                f"{found}: install the newer calibrant that wrote it, or name another database."
            )
        return found

    def _recover_file(self) -> bool:
        """Reopen a deleted or replaced file: writes into the old one would seem to succeed.

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
