"""Tests of router state in SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from calibrant.core import ConfigurationError, StateError
from calibrant.store import RouterState
from stores import at_once

Open = Callable[..., RouterState]


@pytest.fixture
def open_state() -> Iterator[Open]:
    """Return a function that opens states, and close them at the end."""
    opened: list[RouterState] = []

    def open_one(place: str | Path, **options: Any) -> RouterState:
        opened.append(RouterState(place, **options))
        return opened[-1]

    yield open_one
    for state in opened:
        state.close()


def count(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the record with its count raised by one."""
    return {"version": 1, "n": (0 if record is None else record["n"]) + 1}


def engine(place: str) -> sa.Engine:
    """Return a new engine for the database."""
    return sa.create_engine(
        place if "://" in place else f"sqlite:///{place}",
        poolclass=sa.pool.NullPool,
        isolation_level="AUTOCOMMIT",
    )


def plant(place: str, strategy: str, text: str) -> None:
    """Replace a stored record by a text."""
    with engine(place).connect() as connection:
        connection.execute(
            sa.text("UPDATE calibrant_router_state SET record = :text WHERE strategy = :strategy"),
            {"text": text, "strategy": strategy},
        )


def test_updates_replace_records(place: str, open_state: Open) -> None:
    """An update is read by states that were opened before and after."""
    state, other = open_state(place), open_state(place)
    assert state.location in repr(state)
    assert "://" in state.location or state.location == place
    assert state.read("thompson") is None
    assert state.strategies() == []
    assert state.update("thompson", count) == {"version": 1, "n": 1}
    assert other.update("thompson", count) == {"version": 1, "n": 2}
    assert other.update("ema", lambda _: {"text": 'é\ud800\0"', "numbers": [0.1, -5e-324, 2**70]})
    assert state.read("thompson") == {"version": 1, "n": 2}
    assert open_state(place).read("ema") == {"text": 'é\ud800\0"', "numbers": [0.1, -5e-324, 2**70]}
    assert state.strategies() == ["ema", "thompson"]


def test_reading_makes_nothing(place: str, open_state: Open) -> None:
    """Reading and resetting make no file and no folder."""
    state = open_state(place)
    assert (state.read("ema"), state.strategies(), state.reset(), state.reset("ema")) == (None, [], [], [])
    if "://" not in place:
        assert not Path(place).parent.exists()


def test_reset_deletes_one_or_all_records(place: str, open_state: Open) -> None:
    """A reset returns the deleted names, and keeps the records of other scopes."""
    state, other = (open_state(place, scope=name) for name in ("one", "the other \u00e9"))
    for strategy in ("thompson", "ema", "bandit"):
        state.update(strategy, count)
    other.update("ema", lambda _: {"n": 7})
    assert state.scopes() == ["one", "the other \u00e9"]
    assert state.reset("ema") == ["ema"]
    assert state.reset("ema") == []
    assert state.strategies() == ["bandit", "thompson"]
    assert state.reset() == ["bandit", "thompson"]
    assert (state.strategies(), other.read("ema")) == ([], {"n": 7})
    assert state.update("ema", count)["n"] == 1


def test_failed_changes_keep_the_record(place: str, open_state: Open) -> None:
    """A change that raises an error keeps the record and leaves no lock."""
    state = open_state(place, busy_timeout=0.1)
    state.update("ema", count)

    def fail(record: Mapping[str, Any] | None) -> dict[str, Any]:
        raise ConfigurationError(f"expected nothing, got {record}")

    with pytest.raises(ConfigurationError, match=r"got .'version': 1"):
        state.update("ema", fail)
    assert state.read("ema") == {"version": 1, "n": 1}
    assert state.update("ema", count)["n"] == 2


@pytest.mark.parametrize("value", [float("nan"), {1}])
def test_non_json_updates_are_errors(place: str, value: Any, open_state: Open) -> None:
    """Values that are no JSON, and infinite numbers, raise an error, and the record stays."""
    state = open_state(place)
    state.update("ema", count)
    with pytest.raises((TypeError, ValueError), match="JSON"):
        state.update("ema", lambda _: {"value": [value]})
    assert state.read("ema") == {"version": 1, "n": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ('{"n": 1', "delimiter"),
        ("[" * 100_000, "recursion"),
        ("[1]", "an object, got list"),
    ],
)
def test_damaged_records_are_errors(place: str, text: str, reason: str, open_state: Open) -> None:
    """A damaged record raises StateError when read and updated, until it is reset; others are not touched."""
    state = open_state(place)
    for strategy in ("ema", "bandit"):
        state.update(strategy, count)
    plant(place, "ema", text)
    for use in (lambda: state.read("ema"), lambda: state.update("ema", count)):
        with pytest.raises(StateError, match=f"ema .* is damaged .*{reason}.*: delete it with"):
            use()
    assert state.update("bandit", count)["n"] == 2
    assert state.reset("ema") == ["ema"]
    assert state.update("ema", count)["n"] == 1


@pytest.mark.parametrize("value", ["CAST(x'fffe7b' AS TEXT)", "x'ff'", "12"])
def test_non_text_records_are_errors(tmp_path: Path, value: str, open_state: Open) -> None:
    """A record in SQLite that is no text raises StateError until it is reset."""
    state = open_state(tmp_path / "router.db")
    state.update("ema", count)
    with engine(str(tmp_path / "router.db")).connect() as connection:
        connection.exec_driver_sql(f"UPDATE calibrant_router_state SET record = {value}")  # noqa: S608 (ours)
    with pytest.raises(StateError, match=r"router\.db"):
        state.read("ema")
    assert state.reset() == ["ema"]
    assert state.update("ema", count) == {"version": 1, "n": 1}


def test_threads_share_a_state(place: str, open_state: Open) -> None:
    """Updates of several threads are all counted."""
    state = open_state(place, busy_timeout=60)

    def work() -> None:
        for _ in range(20):
            state.update("ema", count)

    at_once(*[work] * 8)
    assert state.read("ema") == {"version": 1, "n": 160}
    state.close()


@contextlib.contextmanager
def changing(open_state: Open, place: str) -> Any:
    """Hold an update of the strategy ema open during the block."""
    inside, leave = threading.Event(), threading.Event()

    def slow(record: Mapping[str, Any] | None) -> dict[str, Any]:
        inside.set()
        leave.wait(10)
        return count(record)

    thread = threading.Thread(target=lambda: open_state(place).update("ema", slow))
    thread.start()
    assert inside.wait(10)
    try:
        yield
    finally:
        leave.set()
        thread.join()


def test_long_waits_are_errors(place: str, open_state: Open) -> None:
    """An update that waits too long raises StateError; reading does not wait."""
    state = open_state(place, busy_timeout=0.05)
    state.update("ema", count)
    with changing(open_state, place):
        with pytest.raises(StateError, match="end what locks it"):
            state.update("ema", count)
        assert state.read("ema") == {"version": 1, "n": 1}
    assert state.update("ema", count)["n"] == 3


def test_server_locks_hold_one_record(postgresql: str, open_state: Open) -> None:
    """On a server a lock holds one record, also a record that does not exist."""
    with changing(open_state, postgresql):
        assert open_state(postgresql, busy_timeout=0.2).update("bandit", count)["n"] == 1
        other = open_state(postgresql, scope="other", busy_timeout=0.2)
        assert other.update("ema", count)["n"] == 1
        with pytest.raises(StateError, match="lock timeout"):
            open_state(postgresql, busy_timeout=0.05).update("ema", count)


def test_resets_wait_for_updates(place: str, open_state: Open) -> None:
    """A reset waits for an update under way, and deletes its record."""
    state = open_state(place, busy_timeout=10)
    state.update("ema", count)
    done: list[list[str]] = []
    with changing(open_state, place):
        thread = threading.Thread(target=lambda: done.append(state.reset("ema")))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    thread.join()
    assert done == [["ema"]]
    assert state.read("ema") is None


def test_unreachable_servers_show_no_secrets(open_state: Open) -> None:
    """An unreachable server raises StateError at each use, without user and password."""
    state = open_state("postgresql://bob:hunter2%40@127.0.0.1:1/db")
    for use in (lambda: state.update("ema", count), lambda: state.read("ema"), state.strategies, state.reset):
        with pytest.raises(StateError) as caught:
            use()  # type: ignore[no-untyped-call]
        assert "hunter2" not in str(caught.value)
        assert "bob" not in str(caught.value)
    state.close()


def test_impossible_paths_are_errors(tmp_path: Path, open_state: Open) -> None:
    """An impossible path raises StateError at each use."""
    (tmp_path / "file").touch()
    state = open_state(tmp_path / "file" / "router.db")
    for _ in range(2):
        with pytest.raises(StateError, match=r"file.router\.db: .*folder"):
            state.update("ema", count)
    (tmp_path / "router.db").mkdir()
    state = open_state(tmp_path / "router.db")
    for use in (lambda: state.update("ema", count), lambda: state.read("ema")):
        with pytest.raises(StateError):
            use()


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("", {}),
        ("a\0b.json", {}),
        ("sqlite://", {}),
        ("router.db", {"scope": "a\0b"}),
        ("router.json", {"busy_timeout": float("nan")}),
    ],
)
def test_bad_settings_are_errors(
    place: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong place or option raises ConfigurationError before anything is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"Expected|expected"):
        RouterState(place, **options)
    assert list(tmp_path.iterdir()) == []


def test_strategies_need_portable_names(place: str, open_state: Open) -> None:
    """A name that some database cannot hold raises ConfigurationError."""
    state = open_state(place)
    for name in ("", "x" * 65, "a\nb"):
        with pytest.raises(ConfigurationError, match="Expected a strategy of 1 to 64"):
            state.update(name, count)


def test_interrupted_writes_lose_nothing(tmp_path: Path) -> None:
    """A write above the limit of file sizes raises StateError, and the old record stays."""
    code = """
import resource, signal, sys
from calibrant.core import StateError
from calibrant.store import RouterState
state = RouterState(sys.argv[1])
state.update("ema", lambda _: {"n": 1})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
for _ in range(3):
    try:
        state.update("ema", lambda _: {"values": [0] * 200_000})
    except StateError as error:
        print("refused", "cannot be written" in str(error))
    assert state.read("ema") == {"n": 1}
print(state.update("ema", lambda record: {"n": record["n"] + 1}))
"""
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", code, str(tmp_path / "router.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "refused True\n" * 3 + "{'n': 2}\n"
