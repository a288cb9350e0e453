"""Scores of evaluators in a SQL database, by account, evaluator and profile."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from calibrant.store._database import Database, Location
from calibrant.store._scores import Scope, ScopeSummary, Score

_METADATA = sa.MetaData()
_SCORES = sa.Table(
    "calibrant_scores",
    _METADATA,
    # Tells later from earlier; the clocks of several machines would not.
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("account_id", sa.String(255), nullable=False),
    sa.Column("evaluator_id", sa.String(255), nullable=False),
    sa.Column("profile_name", sa.String(255), nullable=False),
    sa.Column("score_raw", sa.Double, nullable=False),
    sa.Column("passed", sa.Boolean),
    sa.Column("family", sa.String(64)),
    sa.Column("run_id", sa.String(255)),  # none for single results
    sa.Column("recorded", sa.BigInteger, nullable=False),  # milliseconds since 1970
    sa.Index("calibrant_scores_scope", "account_id", "evaluator_id", "profile_name", "id"),
)


class ScoreStore(Database):
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

    name = _SCORES.name
    version = 1
    holds = "evaluation history"
    metadata = _METADATA
    # Rarely used, so a connection for each call: it survives forks and restarts of a server.
    pool = NullPool

    def __init__(
        self, url: str | os.PathLike[str], *, busy_timeout: float = 5.0, create: bool = True
    ) -> None:
        super().__init__(Location.parse(url), busy_timeout=busy_timeout, create=create)
        self.open()

    def add(self, scope: Scope, scores: Sequence[Score], *, run_id: str | None = None) -> None:
        """Append scores, all or none; scores of a run replace its earlier ones.

        Raises
        ------
        StateError
            The database cannot be written; nothing was recorded.
        """
        shared = {**scope.columns(), "run_id": run_id, "recorded": time.time_ns() // 1_000_000}
        rows = [shared | asdict(score) for score in scores]
        if not rows and run_id is None:
            return
        # Only replacing needs the lock: single results are appended side by side.
        begin = self._transaction if run_id is None else self._writing
        with self._ready("written, nothing was recorded"), begin() as connection:
            if run_id is not None:
                connection.execute(sa.delete(_SCORES).where(*_within(scope), _SCORES.c.run_id == run_id))
            if rows:
                connection.execute(sa.insert(_SCORES), rows)

    def latest(self, scope: Scope, *, limit: int, without_run: str | None = None) -> list[Score]:
        """Return the latest `limit` scores, newest first, without those of one run.

        Raises
        ------
        StateError
            The database cannot be read.
        """
        columns = _SCORES.c
        query = (
            sa.select(columns.score_raw, columns.passed, columns.family)
            .where(*_within(scope))
            .order_by(columns.id.desc())
            .limit(limit)
        )
        if without_run is not None:
            query = query.where(columns.run_id.is_distinct_from(without_run))
        return [
            Score(score_raw=score, passed=passed, family=family)
            for score, passed, family in self._rows(query)
        ]

    def scopes(self, *, account_id: str | None = None) -> list[ScopeSummary]:
        """Return a summary of every scope, of one account or of all, sorted by names.

        Raises
        ------
        StateError
            The database cannot be read.
        """
        columns = _SCORES.c
        names = (columns.account_id, columns.evaluator_id, columns.profile_name)
        mean = sa.func.avg(columns.score_raw)
        latest = sa.func.max(columns.recorded)
        query = sa.select(*names, sa.func.count(), mean, latest).group_by(*names).order_by(*names)
        if account_id is not None:
            query = query.where(columns.account_id == account_id)
        return [
            ScopeSummary(
                scope=Scope(account_id=account, evaluator_id=evaluator, profile_name=profile),
                scores=int(count),
                mean=float(average),
                latest_seconds=int(milliseconds) / 1000,
            )
            for account, evaluator, profile, count, average, milliseconds in self._rows(query)
        ]

    def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        with self._ready("read"), self._reading() as connection:
            return connection.execute(query).all()


def _within(scope: Scope) -> list[sa.ColumnElement[bool]]:
    return [_SCORES.c[name] == value for name, value in scope.columns().items()]
