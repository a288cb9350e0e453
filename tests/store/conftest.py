"""Fixtures for the tests of databases."""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.core import LabelDistribution, LogprobSpace, Prediction, Usage
from calibrant.store import PredictionCache

POSTGRES = "CALIBRANT_POSTGRES_URL"


def prediction(number: int, text: str) -> Prediction:
    """Return a prediction that differs for each row number."""
    probabilities = np.array([0.7 + number * 1e-9, 0.1, 0.1, 0.1])
    distribution = LabelDistribution(
        labels=("World", "Sports", "Business", "Sci/Tech"),
        logprobs=np.log(probabilities / probabilities.sum()),
        measured=np.array([True, True, True, False]),
        joint_logprob=-0.35 - number * 1e-9,
        label_mass=0.99,
        unresolved_mass=0.001,
        space=LogprobSpace.MASKED,
        emitted="World",
    )
    return Prediction(
        label="World",
        confidence=0.7,
        distribution=distribution,
        text=text,
        usage=Usage(prompt_tokens=number, completion_tokens=7, cost=0.001),
        model="model-1",
        latency_seconds=0.02,
    )


@pytest.fixture
def rows() -> Callable[..., dict[str, Prediction]]:
    """Return a function that makes `count` predictions under keys like the runner's."""

    def make(count: int, *, start: int = 0, text: str = '{"category": "World"}') -> dict[str, Prediction]:
        return {
            hashlib.sha256(str(number).encode()).hexdigest(): prediction(number, text)
            for number in range(start, start + count)
        }

    return make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a path for a SQLite file, in a folder that does not exist."""
    return tmp_path / "runs" / "cache.db"


@pytest.fixture
def postgresql() -> Iterator[str]:
    """Return the URL of an empty PostgreSQL database."""
    if POSTGRES not in os.environ:
        pytest.skip(f"{POSTGRES} names no server: run .ci/postgres make test-store")
    import sqlalchemy as sa  # noqa: PLC0415 (only here)

    server = sa.create_engine(os.environ[POSTGRES], isolation_level="AUTOCOMMIT")
    name = f"test_{uuid.uuid4().hex}"
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        yield server.url.set(database=name).render_as_string(hide_password=False)
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    server.dispose()


@pytest.fixture
def server(postgresql: str) -> Iterator[Any]:
    """Return a second connection to the same PostgreSQL database."""
    import sqlalchemy as sa  # noqa: PLC0415 (only here)

    engine = sa.create_engine(postgresql)
    yield engine
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    """Return the URL of a new SQLite file, or of an empty PostgreSQL database."""
    if request.param == "sqlite":
        return f"sqlite:///{path}"
    return str(request.getfixturevalue("postgresql"))


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a place for a router's state, in SQLite and PostgreSQL."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql"))
    return str(tmp_path / "state" / "router.db")


@pytest.fixture
def before_sql() -> Iterator[Callable[[Callable[[str], None]], None]]:
    """Return a function that has another one called with every SQL statement before it runs, until the test ends."""
    import sqlalchemy as sa  # noqa: PLC0415 (only here)

    with contextlib.ExitStack() as stack:

        def listen(called: Callable[[str], None]) -> None:
            def handle(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
                called(statement)

            sa.event.listen(sa.Engine, "before_cursor_execute", handle)
            stack.callback(sa.event.remove, sa.Engine, "before_cursor_execute", handle)

        yield listen


@pytest.fixture
def open_cache() -> Iterator[Callable[..., PredictionCache]]:
    """Return a function that opens caches, and close those still open at the end."""
    opened: list[PredictionCache] = []

    def open_one(url: str | Path, **options: Any) -> PredictionCache:
        opened.append(PredictionCache(url, **options))
        return opened[-1]

    yield open_one
    for cache in opened:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache, "flush", lambda: None)  # what cannot be saved was the test's subject
            cache.close()
