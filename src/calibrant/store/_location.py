"""Locations of databases: URLs with credentials hidden, and files that only their owner may read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from calibrant.core._errors import ConfigurationError, StateError

_HIDDEN = "[redacted]"
_SQLITE = "sqlite"
_POSTGRESQL = "postgresql"
_SMALLEST = 512  # bytes of a SQLite file


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
        return " ".join(message.split()) or type(error).__name__

    def _secrets(self) -> list[str]:
        if self.path is not None:
            return []
        options = [
            v for value in self.url.query.values() for v in ([value] if isinstance(value, str) else value)
        ]
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
            status = self.path.stat() if self.path is not None else None
        except (FileNotFoundError, NotADirectoryError):
            status = None
        return None if status is None else (status.st_dev, status.st_ino)

    def damaged(self, reason: str, *, holds: str) -> str:
        """Return the error for a file that is not a database, with a remedy."""
        return (
            f"{self}: expected a database for {holds}, got: {reason}: it is damaged or no SQLite "
            "database, and was left as it is: delete it (and the files -wal and -shm beside it) or "
            "name another file."
        )
