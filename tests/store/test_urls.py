"""Tests of database URLs and their credentials."""

from __future__ import annotations

import logging
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from calibrant.core import CalibrantError, ConfigurationError, StateError
from calibrant.store import PredictionCache
from stores import Open, Rows, at_once, fill, put

SECRETS = ("hunter2-9f3", "s3cr3t-option", "bob-the-user")


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        (
            "postgresql://bob-the-user:hunter2-9f3@127.0.0.1:1/db?sslpassword=s3cr3t-option",
            StateError,
            "refused",
        ),
        ("postgresql://bob-the-user:hunter2-9f3@127.0.0.1:port/db", ConfigurationError, "cannot be read"),
        ("postgresql://bob-the-user:hunter2-9f3@[::1/db", CalibrantError, "database"),
        ("bob-the-user:hunter2-9f3://", ConfigurationError, "cannot be read"),
        ("nosuch://bob-the-user:hunter2-9f3@127.0.0.1/db", ConfigurationError, "driver is installed"),
        (
            "postgresql+nosuch://bob-the-user:hunter2-9f3@127.0.0.1/db",
            ConfigurationError,
            "driver is installed",
        ),
        (
            "postgresql+asyncpg://bob-the-user:hunter2-9f3@127.0.0.1/db",
            ConfigurationError,
            "synchronous driver, got asyncpg",
        ),
        ("postgresql://127.0.0.1:1/db?user=bob-the-user&password=hunter2-9f3", StateError, "refused"),
        (
            "postgresql://127.0.0.1:1/db?password=hunter2-9f3&connect_timeout=s3cr3t-option",
            StateError,
            r"\[redacted\]",
        ),
    ],
)
def test_no_message_shows_credentials(
    url: str, error: type[Exception], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error, its causes and the log show no credentials."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(error, match=message) as caught:
        PredictionCache(url)
    said = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text
    # The test's own lines are shown in the traceback; the URL stands in none of them.
    assert [secret for secret in SECRETS if secret in said] == []


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_databases_in_memory_are_errors(url: str) -> None:
    """A database in memory raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="name a file"):
        PredictionCache(url)


def test_asynchronous_drivers_are_errors(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An asynchronous driver raises ConfigurationError."""
    monkeypatch.setattr(SQLiteDialect_pysqlite, "is_async", True)
    with pytest.raises(ConfigurationError, match="expected a synchronous driver, got pysqlite"):
        PredictionCache(path)


def test_caches_are_shown_by_place(path: Path, open_cache: Open, postgresql: str) -> None:
    """A cache's location is its file or server, without user, password and options."""
    assert repr(open_cache(path)) == f"PredictionCache('{path}')"
    url = sa.make_url(postgresql)
    cache = open_cache(f"{postgresql}?application_name=s3cr3t-option")
    assert cache.location == f"postgresql+psycopg://127.0.0.1:{url.port}/{url.database}"
    assert str(url.password) not in repr(vars(cache)) + repr(vars(cache._table)) + repr(cache._place)


def test_wrong_passwords_are_not_shown(postgresql: str) -> None:
    """After a refused login the error shows neither the wrong nor the right password."""
    url = sa.make_url(postgresql)
    wrong = url.set(password=SECRETS[0]).render_as_string(hide_password=False)
    with pytest.raises(StateError, match="password authentication failed") as caught:
        PredictionCache(wrong)
    said = "".join(traceback.format_exception(caught.value))
    assert SECRETS[0] not in said
    assert str(url.password) not in said


def test_locked_tables_stop_nothing(
    postgresql: str, server: sa.Engine, open_cache: Open, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """With a locked table reading and writing end after the timeout."""
    cache = open_cache(postgresql, busy_timeout=0.05)
    fill(cache, rows(5))
    with server.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE calibrant_predictions")
        assert cache.get_many(list(rows(5))) == {}
        put(cache, rows(5, start=5))
        with pytest.raises(StateError, match=r"5 predictions could not be saved .*lock timeout"):
            cache.flush()
    cache.flush()
    assert cache.get_many(list(rows(10))) == rows(10)
    assert caplog.text.count("cannot be read for now") == 1


def test_lost_connections_are_replaced(
    postgresql: str, server: sa.Engine, open_cache: Open, rows: Rows
) -> None:
    """A lost connection to the server is replaced."""
    cache = open_cache(postgresql)
    fill(cache, rows(5))
    with server.begin() as connection:
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
        connection.exec_driver_sql(ended + "AND pid <> pg_backend_pid()")
    assert cache.get_many(list(rows(5))) == rows(5)
    fill(cache, rows(5, start=5))
    assert open_cache(postgresql).get_many(list(rows(10))) == rows(10)


def test_concurrent_writers_do_not_deadlock(postgresql: str, rows: Rows) -> None:
    """Writers that open an empty database at once, and write in different orders, all finish."""
    predictions = rows(1500)
    problems: list[Any] = []

    def work(*, backwards: bool) -> None:
        try:
            with PredictionCache(postgresql) as cache:
                for _ in range(3):
                    fill(cache, dict(reversed(predictions.items())) if backwards else predictions)
        except Exception as error:  # noqa: BLE001 (shown below)
            problems.append(error)

    at_once(*(partial(work, backwards=bool(n % 2)) for n in range(4)))
    assert problems == []
    with PredictionCache(postgresql) as cache:
        assert cache.get_many(list(predictions)) == predictions
