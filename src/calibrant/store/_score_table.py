"""The table of scores: SQL for any database."""

from __future__ import annotations

import time
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from calibrant.core._errors import StateError
from calibrant.store._database import Database
from calibrant.store._score_records import Scope, ScopeSummary, Score

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


class ScoreTable(Database):
    """Scores in the order in which they were recorded; see `Database` for the parameters."""

    name = "calibrant_scores"
    version = 1
    holds = "evaluation history"
    # Rarely used, so a connection for each call: it survives forks and restarts of a server.
    pool = NullPool

    def add(self, scope: Scope, scores: Sequence[Score], *, run_id: str | None) -> None:
        """Append scores in one transaction; scores of a run replace its earlier ones."""
        self._recover_file()
        columns = _SCORES.c
        shared = {**scope.columns(), "run_id": run_id, "recorded": time.time_ns() // 1_000_000}
        rows = [
            {**shared, "score_raw": score.score_raw, "passed": score.passed, "family": score.family}
            for score in scores
        ]
        if run_id is None:
            with self._transaction() as connection:
                connection.execute(sa.insert(_SCORES), rows)
            return
        with self._writing() as connection:
            connection.execute(sa.delete(_SCORES).where(*_within(scope), columns.run_id == run_id))
            if rows:
                connection.execute(sa.insert(_SCORES), rows)

    def latest(self, scope: Scope, *, limit: int, without_run: str | None) -> list[Score]:
        """Return the latest scores, newest first, without those of one run."""
        self._recover_file()
        columns = _SCORES.c
        query = (
            sa.select(columns.score_raw, columns.passed, columns.family)
            .where(*_within(scope))
            .order_by(columns.id.desc())
            .limit(limit)
        )
        if without_run is not None:
            query = query.where(columns.run_id.is_distinct_from(without_run))
        with self._reading() as connection:
            return [
                Score(score_raw=score, passed=passed, family=family)
                for score, passed, family in connection.execute(query)
            ]

    def scopes(self, *, account_id: str | None) -> list[ScopeSummary]:
        """Return a summary of every scope, sorted by names."""
        self._recover_file()
        columns = _SCORES.c
        names = (columns.account_id, columns.evaluator_id, columns.profile_name)
        query = (
            sa.select(*names, sa.func.count(), sa.func.avg(columns.score_raw), sa.func.max(columns.recorded))
            .group_by(*names)
            .order_by(*names)
        )
        if account_id is not None:
            query = query.where(columns.account_id == account_id)
        with self._reading() as connection:
            return [
                ScopeSummary(
                    scope=Scope(account_id=account, evaluator_id=evaluator, profile_name=profile),
                    scores=int(count),
                    mean=float(mean),
                    latest_seconds=int(latest) / 1000,
                )
                for account, evaluator, profile, count, mean, latest in connection.execute(query)
            ]

    def _create(self, connection: sa.Connection, found: int | None) -> None:
        if found is not None:  # scores cannot be had again, so nothing is dropped
            raise StateError(
                f"{self._location}: expected evaluation history of schema version {self.version}, got "
                f"{found}: use the calibrant that wrote it, or name another database."
            )
        _METADATA.create_all(connection)


def _within(scope: Scope) -> list[sa.ColumnElement[bool]]:
    return [_SCORES.c[name] == value for name, value in scope.columns().items()]
