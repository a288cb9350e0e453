"""Scores of evaluators in a SQL database, by account, evaluator and profile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.store._score_records import Scope, ScopeSummary, Score

if TYPE_CHECKING:
    from calibrant.store._score_table import ScoreTable


class ScoreStore:
    """Store of scores that several processes may write at once; each method commits before it returns.

    Parameters
    ----------
    url : str or path
        A SQLAlchemy URL, or the path of a SQLite file. Tested with SQLite and PostgreSQL. Credentials
        in it are never shown.
    busy_timeout : float, default 5.0
        Seconds to wait for the locks of other processes.
    create : bool, default True
        True to create a missing file or table; False to raise.

    Attributes
    ----------
    location : str
        The file, or the server and the database, without user, password and options.

    Raises
    ------
    ConfigurationError
        The URL cannot be read, names a database in memory or one whose driver is missing, or the
        timeout is out of range.
    StateError
        The database cannot be opened, is missing or damaged, or was written by another version.
    """

    def __init__(
        self, url: str | os.PathLike[str], *, busy_timeout: float = 5.0, create: bool = True
    ) -> None:
        from calibrant.store._location import Location  # noqa: PLC0415 (loads sqlalchemy)
        from calibrant.store._score_table import ScoreTable  # noqa: PLC0415 (loads sqlalchemy)

        if not 0 <= busy_timeout <= 3600:
            raise ConfigurationError(f"Expected busy_timeout in [0, 3600] seconds, got {busy_timeout!r}.")
        self._place = Location.parse(url)
        self.location = str(self._place)
        self._table: ScoreTable = ScoreTable(self._place, busy_timeout=busy_timeout, create=create)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    def add(self, scope: Scope, scores: Sequence[Score], *, run_id: str | None = None) -> None:
        """Append scores, all or none; scores of a run replace its earlier ones.

        Raises
        ------
        StateError
            The database cannot be written; nothing was recorded.
        """
        if scores or run_id is not None:
            with self._translated("written, nothing was recorded"):
                self._table.add(scope, scores, run_id=run_id)

    def latest(self, scope: Scope, *, limit: int, without_run: str | None = None) -> list[Score]:
        """Return the latest `limit` scores, newest first, without those of one run.

        Raises
        ------
        StateError
            The database cannot be read.
        """
        with self._translated("read"):
            return self._table.latest(scope, limit=limit, without_run=without_run)

    def scopes(self, *, account_id: str | None = None) -> list[ScopeSummary]:
        """Return a summary of every scope, of one account or of all.

        Raises
        ------
        StateError
            The database cannot be read.
        """
        with self._translated("read"):
            return self._table.scopes(account_id=account_id)

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        from sqlalchemy.exc import OperationalError, SQLAlchemyError  # noqa: PLC0415 (heavy)

        try:
            yield
        except SQLAlchemyError as error:
            if not isinstance(error, OperationalError):
                raise StateError(self._table.unusable(error)) from None
            raise StateError(
                f"{self.location}: the evaluation history cannot be {what} ({self._place.reason(error)}): "
                "end what locks it, make room or check the server, and try again."
            ) from None
