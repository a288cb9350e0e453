"""Router state in a SQL database."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import sqlalchemy as sa

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.store._database import Database
from calibrant.store._location import Location

_LOG = logging.getLogger("calibrant")

_METADATA = sa.MetaData()
_STATE = sa.Table(
    "calibrant_router_state",
    _METADATA,
    sa.Column("scope", sa.String(255), primary_key=True),
    sa.Column("strategy", sa.String(64), primary_key=True),
    sa.Column("record", sa.Text, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),  # number of writes
    sa.Column("updated", sa.BigInteger, nullable=False),  # milliseconds since 1970
)
_SET_ASIDE = sa.Table(
    "calibrant_router_set_aside",
    _METADATA,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("scope", sa.String(255), nullable=False),
    sa.Column("strategy", sa.String(64), nullable=False),
    sa.Column("record", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("set_aside", sa.BigInteger, nullable=False),  # milliseconds since 1970
)
# The JSON file of earlier versions.
_JSON_KIND = "router state"
_JSON_VERSION = 1

_Change: TypeAlias = Callable[[Mapping[str, Any] | None], Mapping[str, Any]]


class RouterState(Database):
    """Persistent state of routers: one JSON record per strategy, shared between processes.

    A returned update is durable against a kill of any process. A lock serialises threads. The database is opened
    by the first use, and every use tries again where that failed.

    Parameters
    ----------
    place : str or path
        The path of a SQLite file, or a SQLAlchemy URL. Tested with SQLite and PostgreSQL. Credentials in it are
        never shown. A missing file and its folder are made with the first update; only the owner may read the
        file. A path ``NAME.json`` stands for the SQLite file ``NAME.json.sqlite``: where an earlier version left
        a JSON file of that name, the SQLite file begins with what it holds, and it is not read again.
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
        old = Location.parse(text) if "://" not in text and text.lower().endswith(".json") else None
        self._json_file = None if old is None else old.path
        location = Location.parse(text if old is None else f"{old}.sqlite")
        super().__init__(location, busy_timeout=busy_timeout)

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
        with self._ready("read"), self._reading() as connection:
            text = self._text(connection, strategy)
        return None if text is None else self._parsed(text, strategy)

    def update(self, strategy: str, change: _Change) -> dict[str, Any]:
        """Replace a strategy's record by the result of `change`, in one transaction, and return it.

        A record that is damaged, or that `change` refuses with a `StateError`, is set aside with a
        warning, and `change` is called with None.

        Parameters
        ----------
        strategy : str
            The strategy.
        change : callable
            Takes the record as it is now, or None, and returns the new one.

        Raises
        ------
        StateError
            The state cannot be written; the old record is kept.
        """
        _checked_name(strategy, what="a strategy", longest=64)
        # An advisory lock per record: a row that does not exist yet cannot be locked.
        key = hashlib.sha256(f"{self.name}\0{self._scope}\0{strategy}".encode()).digest()
        with self._ready("written"), self._writing(int.from_bytes(key[:8], signed=True)) as connection:
            record = self._changed(connection, strategy, change)
            self._upsert(connection, strategy, record)
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
        where = self._where(strategy)
        with self._ready("written"), self._writing() as connection:
            deleted = connection.scalars(sa.select(_STATE.c.strategy).where(*where)).all()
            connection.execute(sa.delete(_STATE).where(*where))
        return sorted(deleted)

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

    def close(self) -> None:
        """Close all connections."""
        with self._thread_lock:
            super().close()

    @contextlib.contextmanager
    def _ready(self, what: str) -> Iterator[None]:
        """Open or reopen the database for one thread until the block ends."""
        with self._thread_lock, super()._ready(what):
            yield

    def _names(self, query: sa.Select[tuple[Any]]) -> list[str]:
        if not self._may_exist():
            return []
        with self._ready("read"), self._reading() as connection:
            return sorted(connection.scalars(query))

    def _may_exist(self) -> bool:
        """Return True if a database file may exist: reading must not create one."""
        files = [path for path in (self._location.path, self._json_file) if path is not None]
        return not files or any(map(os.path.lexists, files))

    def _where(self, strategy: str | None = None) -> list[sa.ColumnElement[bool]]:
        """Return the SQL conditions for a strategy's record, or for all records of the scope."""
        whole = [_STATE.c.scope == self._scope]
        return whole if strategy is None else [*whole, _STATE.c.strategy == strategy]

    def _text(self, connection: sa.Connection, strategy: str, *, lock: bool = False) -> str | bytes | None:
        """Return a record's text, or None if it is missing; `lock` keeps its row from being deleted."""
        # A damaged file may hold invalid UTF-8, which only reads as bytes.
        in_file = self._location.path is not None
        column = sa.cast(_STATE.c.record, sa.LargeBinary) if in_file else _STATE.c.record
        query = sa.select(column).where(*self._where(strategy))
        text: str | bytes | None = connection.scalar(query.with_for_update() if lock else query)
        return text

    def _parsed(self, text: str | bytes, strategy: str) -> dict[str, Any]:
        try:
            return _json_object(_parse(text))
        except ValueError as error:
            raise StateError(
                f"{self.location}: expected a record of the strategy {strategy}, got: {error}: it is damaged, and "
                "is set aside with the next update."
            ) from error

    def _changed(self, connection: sa.Connection, strategy: str, change: _Change) -> dict[str, Any]:
        """Return the result of `change`, which gets None if the record is missing, damaged or refused."""
        text = self._text(connection, strategy, lock=True)
        if text is not None:
            try:
                return dict(change(self._parsed(text, strategy)))
            except StateError as error:
                self._set_aside(connection, strategy, str(error))
        return dict(change(None))

    def _upsert(self, connection: sa.Connection, strategy: str, record: Mapping[str, Any]) -> None:
        try:
            text = json.dumps(
                record, allow_nan=False, separators=(",", ":")
            )  # ASCII, which every database takes
        except (TypeError, ValueError, RecursionError) as error:
            raise StateError(
                f"{self.location}: expected JSON values with finite numbers, got: {error}; what was stored before "
                "stands."
            ) from error
        now = {"record": text, "updated": _now()}
        newer = sa.update(_STATE).where(*self._where(strategy)).values(**now, revision=_STATE.c.revision + 1)
        if not connection.execute(newer).rowcount:
            connection.execute(
                sa.insert(_STATE).values(scope=self._scope, strategy=strategy, **now, revision=1)
            )

    def _set_aside(self, connection: sa.Connection, strategy: str, reason: str) -> None:
        """Copy a record that cannot be used into another table."""
        columns = (_STATE.c.scope, _STATE.c.strategy, _STATE.c.record)
        copied = sa.select(*columns, sa.literal(reason), sa.literal(_now(), sa.BigInteger))
        names = ["scope", "strategy", "record", "reason", "set_aside"]
        connection.execute(sa.insert(_SET_ASIDE).from_select(names, copied.where(*self._where(strategy))))
        _LOG.warning(
            "%s: the record of the strategy %s (scope %s) cannot be used and was set aside in the table "
            "calibrant_router_set_aside; it begins anew: %s",
            self.location,
            strategy,
            self._scope,
            reason,
        )

    def _create(self, connection: sa.Connection) -> None:
        super()._create(connection)
        # In the transaction that creates the tables, so that the file is imported once.
        rows = [] if self._json_file is None else _json_rows(self._json_file)
        if rows:
            now = _now()
            connection.execute(sa.insert(_STATE), [{**row, "revision": 1, "updated": now} for row in rows])
            _LOG.warning(
                "%s: what routers had learnt was taken over into %s; this file is not read any more.",
                self._json_file,
                self.location,
            )


def _checked_name(name: str, *, what: str, longest: int) -> str:
    """Return a checked name that every file and database can hold."""
    if not isinstance(name, str) or not 0 < len(name) <= longest or not name.isprintable():
        raise ConfigurationError(
            f"Expected {what} of 1 to {longest} printable characters, got {name!r:.300}."
        )
    return name


def _json_rows(path: Path) -> list[dict[str, str]]:
    """Return the scope, strategy and record of each entry in a JSON file of earlier versions."""
    try:
        return _read_json(path) if path.is_file() else []
    except OSError as error:
        reason = f"the router state in it cannot be read ({error.strerror or error}): make it readable"
    except ValueError as error:
        reason = f"the router state in it is damaged ({error}): delete it"
    raise StateError(f"{path}: {reason}, or name another place; it was left as it is.")


def _read_json(path: Path) -> list[dict[str, str]]:
    whole = _json_object(_parse(path.read_bytes()))
    kind, version = whole.get("kind"), whole.get("version")
    if kind != _JSON_KIND:
        raise StateError(
            f"{path}: expected a {_JSON_KIND}, got {kind!r:.80}: choose another file; this one was left as it is."
        )
    if type(version) is not int or version < 1:
        raise ValueError(f"expected a version of at least 1, got {version!r:.80}")
    if version > _JSON_VERSION:
        raise StateError(
            f"{path}: expected version {_JSON_VERSION} of a {_JSON_KIND}, got {version}: install the newer calibrant "
            "that wrote it, or name another file; this one was left as it is."
        )
    return [
        {"scope": scope, "strategy": strategy, "record": json.dumps(record, separators=(",", ":"))}
        for scope, records in _json_object(whole.get("scopes")).items()
        for strategy, record in _json_object(records).items()
    ]


def _parse(text: str | bytes) -> object:
    """Return the JSON value in a text; raise ValueError for bad JSON and numbers that are not finite."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (TypeError, RecursionError) as error:  # a database may hold anything
        raise ValueError(str(error)) from None


def _json_object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")  # noqa: TRY004 (a wrong value)
    return value


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.40} is not a finite number")
    return number


def _now() -> int:
    return time.time_ns() // 1_000_000


open_router_state = RouterState
"""The former name of `RouterState`."""
