"""Table of router state: SQL for any database."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from calibrant.core._errors import StateError
from calibrant.store._database import Database
from calibrant.store._location import Location
from calibrant.store._router_json import read_json_state

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


class RouterTable(Database):
    """One record for every scope and strategy; see `Database` for the other parameters.

    Parameters
    ----------
    json_file : Path or None
        A JSON file of an earlier version, imported into a new table.
    """

    name = _STATE.name
    version = 1
    holds = "router state"

    def __init__(self, location: Location, *, busy_timeout: float, json_file: Path | None = None) -> None:
        self._json_file = json_file
        # Opened lazily: a database that is down now may be up at first use.
        super().__init__(location, busy_timeout=busy_timeout, at_once=False)

    def read(self, scope: str, strategy: str) -> str | bytes | None:
        """Return a record, or None if it is missing."""
        self._recover_file()
        with self._reading() as connection:
            return self._row(connection, scope, strategy).read(keep=False)

    @contextlib.contextmanager
    def locked(self, scope: str, strategy: str) -> Iterator[RouterRow]:
        """Lock one row for update; commit on success, roll back on error."""
        self._recover_file()
        key = hashlib.sha256(f"{self.name}\0{scope}\0{strategy}".encode()).digest()
        # An advisory lock per record: a row that does not exist yet cannot be locked.
        with self._writing(int.from_bytes(key[:8], signed=True)) as connection:
            yield self._row(connection, scope, strategy)

    def delete(self, scope: str, strategy: str | None) -> list[str]:
        """Delete one record or all of a scope; return the strategies that had one, sorted."""
        self._recover_file()
        conditions = [_STATE.c.scope == scope]
        if strategy is not None:
            conditions.append(_STATE.c.strategy == strategy)
        with self._writing() as connection:
            deleted = connection.scalars(sa.select(_STATE.c.strategy).where(*conditions)).all()
            connection.execute(sa.delete(_STATE).where(*conditions))
        return sorted(deleted)

    def strategies(self, scope: str) -> list[str]:
        """Return the strategies with a record, sorted."""
        self._recover_file()
        with self._reading() as connection:
            return sorted(connection.scalars(sa.select(_STATE.c.strategy).where(_STATE.c.scope == scope)))

    def scopes(self) -> list[str]:
        """Return the scopes with a record, sorted."""
        self._recover_file()
        with self._engine.connect() as connection:
            return sorted(connection.scalars(sa.select(_STATE.c.scope).distinct()))

    def _row(self, connection: sa.Connection, scope: str, strategy: str) -> RouterRow:
        return RouterRow(connection, scope=scope, strategy=strategy, in_file=self._location.path is not None)

    def _create(self, connection: sa.Connection, found: int | None) -> None:
        if found is not None:
            raise StateError(
                f"{self._location}: expected router state of schema version {self.version}, got {found}: use the "
                "calibrant that wrote it, or name another database."
            )
        _METADATA.create_all(connection)
        if self._json_file is not None:
            self._import(connection, self._json_file)

    def _import(self, connection: sa.Connection, path: Path) -> None:
        """Import the entries of a JSON file, once, in the transaction that creates the table."""
        records = read_json_state(path)
        if records:
            now = _now()
            connection.execute(sa.insert(_STATE), [{**one, "revision": 1, "updated": now} for one in records])
            _LOG.warning(
                "%s: what routers had learnt was taken over into %s; this file is not read any more.",
                path,
                self._location,
            )


class RouterRow:
    """One record within a transaction."""

    def __init__(self, connection: sa.Connection, *, scope: str, strategy: str, in_file: bool) -> None:
        self._connection = connection
        self._key = {"scope": scope, "strategy": strategy}
        self._where = (_STATE.c.scope == scope, _STATE.c.strategy == strategy)
        self._in_file = in_file

    def read(self, *, keep: bool = True) -> str | bytes | None:
        """Return the record, or None if it is missing; `keep` locks its row against deletion."""
        # A damaged file may hold invalid UTF-8, which only reads as bytes.
        column = sa.cast(_STATE.c.record, sa.LargeBinary) if self._in_file else _STATE.c.record
        query = sa.select(column).where(*self._where)
        record: str | bytes | None = self._connection.scalar(query.with_for_update() if keep else query)
        return record

    def write(self, record: str) -> None:
        """Upsert the record."""
        now = {"record": record, "updated": _now()}
        newer = sa.update(_STATE).where(*self._where).values(**now, revision=_STATE.c.revision + 1)
        if not self._connection.execute(newer).rowcount:
            self._connection.execute(sa.insert(_STATE).values(**self._key, **now, revision=1))

    def set_aside(self, reason: str) -> None:
        """Copy the damaged record aside."""
        columns = _STATE.c
        copied = sa.select(
            columns.scope,
            columns.strategy,
            columns.record,
            sa.literal(reason),
            sa.literal(_now(), sa.BigInteger),
        ).where(*self._where)
        names = ["scope", "strategy", "record", "reason", "set_aside"]
        self._connection.execute(sa.insert(_SET_ASIDE).from_select(names, copied))


def _now() -> int:
    return time.time_ns() // 1_000_000
