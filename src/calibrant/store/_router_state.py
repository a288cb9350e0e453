"""Router state in a SQL database."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import sqlalchemy as sa

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.store._database import Database, Location

_METADATA = sa.MetaData()
_STATE = sa.Table(
    "calibrant_router_state",
    _METADATA,
    sa.Column("scope", sa.String(255), primary_key=True),
    sa.Column("strategy", sa.String(64), primary_key=True),
    sa.Column("record", sa.Text, nullable=False),
)

_Change: TypeAlias = Callable[[Mapping[str, Any] | None], Mapping[str, Any]]


class RouterState(Database):
    """Persistent state of routers: one JSON record per strategy, shared between processes.

    A returned update is durable against a kill of any process. The database is opened by the first use, and every
    use tries again where that failed.

    Parameters
    ----------
    place : str or path
        The path of a SQLite file, or a SQLAlchemy URL. Tested with SQLite and PostgreSQL. Credentials in it are
        never shown. A missing file and its folder are made with the first update; only the owner may read the
        file.
    scope : str, default "default"
        Namespace of the records, for routers that share a place but not their providers. 1 to
        255 printable characters.
    busy_timeout : float, default 5.0
        Seconds in [0, 3600] to wait for the locks of other processes.

    Attributes
    ----------
    location : str
        The file or database, without credentials.

    Raises
    ------
    ConfigurationError
        The URL cannot be read, names a database in memory or one whose driver is missing, or an option is out
        of range.
    """

    name = _STATE.name
    version = 1
    holds = "router state"
    metadata = _METADATA

    def __init__(
        self, place: str | os.PathLike[str], *, scope: str = "default", busy_timeout: float = 5.0
    ) -> None:
        text = os.fspath(place)
        if not isinstance(text, str) or not text or "\0" in text:
            raise ConfigurationError(
                f"Expected the path of a file or the URL of a database, got {text!r:.80}."
            )
        self._scope = _checked_name(scope, what="a scope", longest=255)
        super().__init__(Location.parse(text), busy_timeout=busy_timeout)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r}, scope={self._scope!r})"

    def read(self, strategy: str) -> dict[str, Any] | None:
        """Return a strategy's record; None if there is none.

        Raises
        ------
        StateError
            The state cannot be read, or is damaged.
        """
        if not self._may_exist():
            return None
        query = sa.select(_STATE.c.record).where(*self._where(strategy))
        with self._ready("read"), self._reading() as connection:
            text = connection.scalar(query)
        return self._parsed(text, strategy)

    def update(self, strategy: str, change: _Change) -> dict[str, Any]:
        """Replace a strategy's record by the result of `change`, in one transaction, and return it.

        Parameters
        ----------
        strategy : str
            The strategy.
        change : callable
            Takes the record as it is now, or None, and returns the new one: JSON values. Where it raises an error,
            the record stays.

        Raises
        ------
        StateError
            The old record is damaged, or the state cannot be written; the old record stays.
        """
        _checked_name(strategy, what="a strategy", longest=64)
        # An advisory lock per record: a row that does not exist yet cannot be locked.
        lock = zlib.crc32(f"{self._scope}\0{strategy}".encode())
        where = self._where(strategy)
        with self._ready("written"), self._writing(lock) as connection:
            # A reset, which takes another lock, waits for the row.
            query = sa.select(_STATE.c.record).where(*where).with_for_update()
            old = self._parsed(connection.scalar(query), strategy)
            record = dict(change(old))
            text = json.dumps(record, allow_nan=False, separators=(",", ":"))
            replaced = connection.execute(sa.update(_STATE).where(*where).values(record=text))
            if not replaced.rowcount:
                row = {"scope": self._scope, "strategy": strategy, "record": text}
                connection.execute(sa.insert(_STATE).values(row))
        return record

    def reset(self, strategy: str | None = None) -> list[str]:
        """Delete the record of one strategy or of all; return the strategies that had one.

        Raises
        ------
        StateError
            The state cannot be written.
        """
        if not self._may_exist():
            return []
        delete = sa.delete(_STATE).where(*self._where(strategy)).returning(_STATE.c.strategy)
        with self._ready("written"), self._writing() as connection:
            return sorted(connection.scalars(delete))

    def strategies(self) -> list[str]:
        """Return the strategies with a record, sorted.

        Raises
        ------
        StateError
            The state cannot be read, or is damaged.
        """
        return self._names(sa.select(_STATE.c.strategy).where(*self._where()))

    def scopes(self) -> list[str]:
        """Return the scopes of all routers with a record in this database, sorted.

        Raises
        ------
        StateError
            The state cannot be read, or is damaged.
        """
        return self._names(sa.select(_STATE.c.scope).distinct())

    def _names(self, query: sa.Select[tuple[Any]]) -> list[str]:
        if not self._may_exist():
            return []
        with self._ready("read"), self._reading() as connection:
            return sorted(connection.scalars(query))

    def _may_exist(self) -> bool:
        """Return True if a database file may exist: reading must not create one."""
        path = self._location.path
        return path is None or os.path.lexists(path)

    def _where(self, strategy: str | None = None) -> list[sa.ColumnElement[bool]]:
        """Return the SQL conditions for a strategy's record, or for all records of the scope."""
        whole = [_STATE.c.scope == self._scope]
        if strategy is None:
            return whole
        return [*whole, _STATE.c.strategy == strategy]

    def _parsed(self, text: str | bytes | None, strategy: str) -> dict[str, Any] | None:
        """Return the record in a stored text; None where nothing is stored."""
        if text is None:
            return None
        try:
            record = json.loads(text)
            reason = f"expected an object, got {type(record).__name__}"
        except (ValueError, RecursionError) as error:
            record = None
            reason = str(error)
        if not isinstance(record, dict):
            raise StateError(
                f"{self.location}: the record of the strategy {strategy} (scope {self._scope}) is damaged ({reason}): "
                "delete it with `calibrant router reset`."
            )
        return record


def _checked_name(name: str, *, what: str, longest: int) -> str:
    """Return a checked name that every file and database can hold."""
    if not isinstance(name, str) or not 0 < len(name) <= longest or not name.isprintable():
        raise ConfigurationError(
            f"Expected {what} of 1 to {longest} printable characters, got {name!r:.300}."
        )
    return name
