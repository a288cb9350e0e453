"""Router state in a SQL database."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from sqlalchemy.exc import OperationalError, SQLAlchemyError

from calibrant.core._errors import StateError
from calibrant.store._location import Location
from calibrant.store._router_records import Change, as_record, as_text, changed, check_name, parse
from calibrant.store._router_table import RouterRow, RouterTable

_LOG = logging.getLogger("calibrant")


class SqlRouterState:
    """A `calibrant.core.RouterState` in a SQL database; see `open_router_state`.

    A returned update is durable against a kill of any process. A lock serialises threads. A database that
    cannot be opened is retried with every call.
    """

    def __init__(self, place: str | os.PathLike[str], *, scope: str, busy_timeout: float) -> None:
        text = os.fspath(place)
        old = Location.parse(text) if "://" not in text and text.lower().endswith(".json") else None
        self._json = None if old is None else old.path
        self._place = Location.parse(text if self._json is None else f"{self._json}.sqlite")
        self.location = str(self._place)
        self._scope = scope
        self._table = RouterTable(self._place, busy_timeout=busy_timeout, json_file=self._json)
        self._open = False
        self._lock = threading.RLock()  # held while a connection is in use
        _OPEN.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r}, scope={self._scope!r})"

    def read(self, strategy: str) -> dict[str, Any] | None:
        """Return a strategy's record; see `RouterState`."""
        if not self._may_exist():
            return None
        with self._locked_table("read") as table:
            text = table.read(self._scope, strategy)
        try:
            return None if text is None else as_record(parse(text))
        except ValueError as error:
            raise StateError(
                f"{self.location}: expected a record of the strategy {strategy}, got: {error}: it is damaged, and "
                "is set aside with the next update."
            ) from error

    def update(self, strategy: str, change: Change) -> dict[str, Any]:
        """Replace a strategy's record in one transaction; see `RouterState`."""
        check_name(strategy, what="a strategy", longest=64)
        with self._locked_table("written") as table, table.locked(self._scope, strategy) as row:
            record = changed(
                lambda: _record(row), change, set_aside=lambda reason: self._set_aside(row, strategy, reason)
            )
            row.write(as_text(record, location=self.location))
        return record

    def reset(self, strategy: str | None = None) -> list[str]:
        """Delete a strategy's record, or all of the scope; see `RouterState`."""
        if not self._may_exist():
            return []
        with self._locked_table("written") as table:
            return table.delete(self._scope, strategy)

    def strategies(self) -> list[str]:
        """Return the strategies with a record; see `RouterState`."""
        if not self._may_exist():
            return []
        with self._locked_table("read") as table:
            return table.strategies(self._scope)

    def scopes(self) -> list[str]:
        """Return all scopes with a record; see `RouterState`."""
        if not self._may_exist():
            return []
        with self._locked_table("read") as table:
            return table.scopes()

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._table.close()

    def _may_exist(self) -> bool:
        """Return whether a database file may exist: reading must not create one."""
        files = [path for path in (self._place.path, self._json) if path is not None]
        return not files or any(map(os.path.lexists, files))

    def _set_aside(self, row: RouterRow, strategy: str, reason: str) -> None:
        row.set_aside(reason)
        _LOG.warning(
            "%s: the record of the strategy %s (scope %s) cannot be used and was set aside in the table "
            "calibrant_router_set_aside; it begins anew: %s",
            self.location,
            strategy,
            self._scope,
            reason,
        )

    @contextlib.contextmanager
    def _locked_table(self, what: str) -> Iterator[RouterTable]:
        """Lock the table for one thread; it opens on first use."""
        try:
            with self._lock:
                if not self._open:
                    self._table.open()
                    self._open = True
                yield self._table
        except SQLAlchemyError as error:
            if not isinstance(error, OperationalError):
                raise StateError(self._table.unusable(error)) from None
            raise StateError(self._trouble(what, self._place.reason(error))) from None
        except OSError as error:  # the file's folder
            raise StateError(self._trouble(what, str(error))) from None

    def _trouble(self, what: str, reason: str) -> str:
        return (
            f"{self.location}: the router state cannot be {what} ({reason}): end what locks it, make room, make it "
            "writable or check the server."
        )


def _record(row: RouterRow) -> dict[str, Any] | None:
    text = row.read()
    return None if text is None else as_record(parse(text))


_OPEN: weakref.WeakSet[SqlRouterState] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for state in list(_OPEN):
        state._lock = threading.RLock()  # noqa: SLF001 (this module's; another thread may have held it)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
