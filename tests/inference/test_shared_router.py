"""Tests of routers that share learned state between processes."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.core import ConfigurationError, StateError
from calibrant.inference import SharedRouter, _shared_router
from calibrant.routing import (
    BanditRouter,
    EMARouter,
    Observation,
    ProviderStanding,
    Router,
    RouterTraits,
    RoutingRequest,
    ThompsonRouter,
)
from calibrant.store import RouterState


class AveragingRouter:
    """Router that counts calls and averages latencies in order; the quickest provider comes first."""

    strategy = "ema"
    traits = RouterTraits()

    def __init__(self, providers: tuple[str, ...] = ("a", "b")) -> None:
        self.providers = providers
        self.restore(None)

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        del request
        return sorted(self.providers, key=lambda name: self.values[name][1])

    def record(self, observation: Observation) -> None:
        if observation.provider not in self.values:
            raise ConfigurationError(f"Expected one of {self.providers}, got {observation.provider!r}.")
        count, mean = self.values[observation.provider]
        self.values[observation.provider] = [count + 1, 0.9 * mean + 0.1 * observation.latency_seconds]

    def snapshot(self) -> dict[str, Any]:
        return {"version": 1, "values": copy.deepcopy(self.values)}

    def restore(self, snapshot: Mapping[str, Any] | None) -> None:
        stored = {} if snapshot is None else snapshot.get("values")
        if not isinstance(stored, dict):
            raise StateError(f"expected values, got {stored!r}")
        self.values: dict[str, list[Any]] = {
            name: list(stored.get(name, [0, 0.0])) for name in self.providers
        }

    def standings(self) -> tuple[ProviderStanding, ...]:
        return tuple(
            ProviderStanding(provider=name, observations=count, values={"latency": mean})
            for name, (count, mean) in self.values.items()
        )


class MemoryState:
    """State in memory that can fail or wait, and records its updates."""

    location = "memory"

    def __init__(self) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        self.error: Exception | None = None
        self.updates = 0
        self.inside = threading.Event()
        self.proceed = threading.Event()
        self.proceed.set()
        self.closed = 0
        self._turn = threading.Lock()

    def read(self, strategy: str) -> dict[str, Any] | None:
        if self.error is not None:
            raise self.error
        return copy.deepcopy(self.records.get(strategy))

    def update(
        self, strategy: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    ) -> dict[str, Any]:
        with self._turn:
            self.inside.set()
            assert self.proceed.wait(20)
            if self.error is not None:
                raise self.error
            new = change(copy.deepcopy(self.records.get(strategy)))
            self.updates += 1
            self.records[strategy] = copy.deepcopy(dict(new))
            return dict(new)

    def reset(self, strategy: str | None = None) -> list[str]:
        del strategy
        names = sorted(self.records)
        self.records.clear()
        return names

    def strategies(self) -> list[str]:
        return sorted(self.records)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def share() -> Iterator[Callable[..., SharedRouter]]:
    """Return a function that shares routers, which are closed at the end."""
    opened: list[SharedRouter] = []

    def share_one(state: RouterState, router: Router | None = None, **options: Any) -> SharedRouter:
        opened.append(SharedRouter(router or AveragingRouter(), state, **options))
        return opened[-1]

    yield share_one
    for shared in opened:
        shared.close()


Share = Callable[..., SharedRouter]


def execute(path: Path, statement: str) -> list[Any]:
    """Execute a statement in the SQLite file beside the state."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement).fetchall()


NEVER = {"flush_seconds": 3600.0}  # but by flush and close


def seen(provider: str = "a", latency: float = 1.0, **options: Any) -> Observation:
    """Return the observation of a successful call."""
    return Observation(provider=provider, success=True, latency_seconds=latency, **options)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings logged so far."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, at most 20 seconds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_shared_router_is_a_router(share: Share) -> None:
    """A shared router has the strategy, providers and standings of the wrapped one."""
    router = AveragingRouter()
    shared = share(MemoryState(), router)
    assert isinstance(shared, Router)
    assert (shared.strategy, shared.providers, shared.router) == ("ema", ("a", "b"), router)
    shared.record(seen("a"))
    assert shared.order() == ["b", "a"]
    assert shared.snapshot() == router.snapshot()
    assert [standing.observations for standing in shared.standings()] == [1, 0]
    assert "memory" in repr(shared)


def test_observations_count_at_once(share: Share) -> None:
    """An observation changes the order at once, and the thread stores it without a flush."""
    state = MemoryState()
    shared = share(state, flush_seconds=0.0)
    shared.record(seen("a"))
    assert shared.order() == ["b", "a"]
    wait_until(lambda: state.records)
    assert state.records["ema"]["values"]["a"] == [1, 0.1]
    shared.record(seen("b", 5.0))
    wait_until(lambda: state.records["ema"]["values"]["b"][0] == 1)


MAKERS: dict[str, Callable[[], Router]] = {
    "ema": lambda: EMARouter(providers=["a", "b"], alpha=0.3),
    "thompson": lambda: ThompsonRouter(providers=["a", "b"], decay=0.9, rng=np.random.default_rng(3)),
    "bandit": lambda: BanditRouter(providers=["a", "b"], dim=8, decay_factor=0.9),
}


def outcomes(count: int, seed: int = 5) -> list[Observation]:
    """Return observations of every kind."""
    rng = np.random.default_rng(seed)
    kinds = [{"success": True}, {"success": False}, {"success": False, "rate_limited": True}]
    return [
        Observation(
            provider="ab"[int(rng.integers(2))],
            latency_seconds=float(rng.exponential()),
            quality=float(rng.random()),
            cost=float(rng.random()),
            penalty=float(rng.random()),
            context=rng.normal(size=8),
            **kinds[int(rng.integers(3))],  # type: ignore[arg-type]
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("kind", MAKERS)
def test_shared_strategies_equal_single_ones(share: Share, tmp_path: Path, kind: str) -> None:
    """A shared strategy learns the same as a single one; a later process starts with it."""
    alone, state = MAKERS[kind](), RouterState(tmp_path / "router.db")
    shared = share(state, MAKERS[kind](), flush_seconds=0.0)
    for number, observation in enumerate(outcomes(200)):
        alone.record(observation)
        shared.record(observation)
        assert shared.order() == alone.order()
        if number % 37 == 0:
            shared.flush()
    shared.flush()
    assert state.read(kind) == alone.snapshot() == shared.snapshot()
    assert share(state, MAKERS[kind](), **NEVER).snapshot() == alone.snapshot()
    state.close()


@pytest.mark.parametrize("kind", MAKERS)
def test_processes_learn_in_write_order(share: Share, tmp_path: Path, kind: str) -> None:
    """Two routers learn what one router would in the order of the writes."""
    alone, state = MAKERS[kind](), RouterState(tmp_path / "router.db")
    pair = [share(state, MAKERS[kind](), **NEVER) for _ in range(2)]
    for number in range(10):
        told = [outcomes(7, seed=2 * number + side) for side in range(2)]
        for observations in zip(*told, strict=True):
            for side, observation in enumerate(observations):
                pair[side].record(observation)
        for side in range(2):
            pair[side].flush()
            for observation in told[side]:
                alone.record(observation)
        assert pair[1].snapshot() == alone.snapshot() == state.read(kind)
    pair[0].record(outcomes(1)[0])
    pair[0].flush()
    alone.record(outcomes(1)[0])
    assert pair[0].snapshot() == alone.snapshot()


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    "record",
    [
        {"version": 1, "strategy": "ema", "providers": 5},
        {"version": 1, "dim": 8, "providers": {"a": {"alpha": None}}},
        {"version": "1"},
        {"version": 3, "strategy": "ema", "providers": {}},
    ],
)
def test_unusable_record_stays_until_its_reset(
    share: Share, tmp_path: Path, kind: str, record: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A record that the strategy cannot use stays, with one warning, and requests go on; a reset helps."""
    state = RouterState(tmp_path / "router.db")
    state.update(kind, lambda _: record)
    shared = share(state, MAKERS[kind](), **NEVER)
    shared.record(outcomes(1)[0])
    with pytest.raises(StateError, match="1 observation could not be saved for now: Expected"):
        shared.flush()
    assert sorted(shared.order()) == ["a", "b"]
    assert state.read(kind) == record
    assert len(warnings(caplog)) == 1
    state.reset(kind)
    shared.flush()
    assert state.read(kind) == shared.snapshot()
    assert sum(standing.observations for standing in shared.standings()) == 1


def test_routers_learn_from_each_other(share: Share) -> None:
    """Each router continues from all stored observations and its own new ones."""
    state = MemoryState()
    first, second = share(state, **NEVER), share(state, **NEVER)
    for _ in range(3):
        first.record(seen("a", 2.0))
        second.record(seen("b", 1.0))
    first.flush()
    assert [standing.observations for standing in first.standings()] == [3, 0]
    second.flush()
    assert [standing.observations for standing in second.standings()] == [3, 3]
    second.record(seen("b"))
    first.record(seen("a"))
    first.flush()
    assert [standing.observations for standing in first.standings()] == [4, 3]
    second.flush()
    assert [standing.observations for standing in second.standings()] == [4, 4]
    assert state.records["ema"] == second.snapshot()


def test_observations_during_a_write_are_kept(share: Share) -> None:
    """Observations during a write count at once and are stored with the next write."""
    state = MemoryState()
    shared, other = share(state, flush_seconds=0.0), share(state, **NEVER)
    other.record(seen("b"))
    other.flush()
    state.inside.clear()
    state.proceed.clear()
    shared.record(seen("a", 1.0))
    assert state.inside.wait(10)
    shared.record(seen("a", 3.0))
    assert shared.order() == ["b", "a"]
    assert [standing.observations for standing in shared.standings()] == [2, 0]
    assert shared.snapshot()["values"]["b"] == [0, 0.0]
    state.proceed.set()
    shared.flush()
    expected = AveragingRouter()
    for observation in (seen("b"), seen("a", 1.0), seen("a", 3.0)):
        expected.record(observation)
    assert state.records["ema"] == shared.snapshot() == expected.snapshot()


def test_router_starts_from_the_stored_record(share: Share) -> None:
    """A new router starts with the stored record and writes nothing."""
    state = MemoryState()
    state.records["ema"] = {"version": 1, "values": {"a": [7, 3.0], "b": [2, 4.0], "gone": [1, 1.0]}}
    shared = share(state, AveragingRouter(("b", "a", "new")))
    assert [standing.observations for standing in shared.standings()] == [2, 7, 0]
    assert shared.order() == ["new", "a", "b"]
    assert state.updates == 0


def test_reset_elsewhere_is_followed(share: Share) -> None:
    """After a reset by another process only new observations count."""
    state = MemoryState()
    shared = share(state, **NEVER)
    shared.record(seen("a"))
    shared.flush()
    state.reset()
    shared.record(seen("b"))
    shared.flush()
    assert shared.snapshot()["values"] == {"a": [0, 0.0], "b": [1, 0.1]} == state.records["ema"]["values"]


def test_outage_logs_one_warning(share: Share, caplog: pytest.LogCaptureFixture) -> None:
    """Each outage logs one warning, and its observations are stored afterwards."""
    state = MemoryState()
    shared = share(state, flush_seconds=0.0)
    for outage in (1, 2):
        state.error = StateError("disk full") if outage == 1 else OSError("unforeseen")
        for _ in range(5):
            shared.record(seen("a"))
            assert shared.order() == ["b", "a"]
            with pytest.raises(
                StateError, match=r"observations? could not be saved for now: (disk|unforeseen)"
            ):
                shared.flush()
        wait_until(lambda outage=outage: len(warnings(caplog)) == outage)  # type: ignore[misc]
        assert "requests go on" in warnings(caplog)[-1]
        state.error = None
        wait_until(
            lambda outage=outage: (
                state.records.get("ema", {}).get("values", {}).get("a", [0])[0] == 5 * outage
            )
        )  # type: ignore[misc]
        wait_until(lambda: not shared._failing)
    assert len(warnings(caplog)) == 2


def test_unreadable_state_stops_nothing(share: Share, caplog: pytest.LogCaptureFixture) -> None:
    """A state that cannot be read at first logs one warning, and observations are stored later."""
    state = MemoryState()
    state.error = StateError("server gone")
    shared = share(state, **NEVER)
    shared.record(seen("a"))
    assert shared.order() == ["b", "a"]
    assert len(warnings(caplog)) == 1
    state.error = None
    shared.flush()
    assert state.records["ema"]["values"]["a"][0] == 1


def test_memory_is_bounded_during_an_outage(
    share: Share, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During an outage the oldest observations are dropped, and `close` logs their number."""
    monkeypatch.setattr(_shared_router, "_MAX_WAITING", 10)
    state = MemoryState()
    shared = share(state, **NEVER)
    for _ in range(30):  # while all is well, nothing is dropped
        shared.record(seen("a"))
    shared.flush()
    state.error = StateError("disk full")
    shared._write_queue()
    for number in range(25):
        shared.record(seen("b", float(number)))
    state.error = None
    shared.flush()
    expected = AveragingRouter()
    for observation in [seen("a")] * 30 + [seen("b", float(number)) for number in range(15, 25)]:
        expected.record(observation)
    assert state.records["ema"] == expected.snapshot() == shared.snapshot()
    shared.close()
    assert "15 observations of the router ema could not be saved and are lost" in warnings(caplog)[-1]


def test_close_logs_lost_observations(caplog: pytest.LogCaptureFixture) -> None:
    """`close` logs the number of lost observations and raises nothing; closing again does nothing."""
    state = MemoryState()
    with SharedRouter(AveragingRouter(), state, flush_seconds=3600) as shared:
        state.error = StateError("disk full")
        for _ in range(3):
            shared.record(seen("a"))
    assert "memory: 3 observations of the router ema" in warnings(caplog)[-1]
    count = len(warnings(caplog))
    shared.close()
    assert (len(warnings(caplog)), state.closed) == (count, 1)


def test_close_stores_observations(caplog: pytest.LogCaptureFixture) -> None:
    """`close` stores all observations, and later ones change only the order."""
    state = MemoryState()
    with SharedRouter(AveragingRouter(), state, flush_seconds=3600) as shared:
        for _ in range(3):
            shared.record(seen("a"))
    assert state.records["ema"]["values"]["a"][0] == 3
    shared.record(seen("a"))
    assert [standing.observations for standing in shared.standings()] == [4, 0]
    assert shared.order() == ["b", "a"]
    assert (state.closed, warnings(caplog)) == (1, [])


def test_failed_writes_keep_the_order(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    """Observations are stored in blocks of ten; a stored block is not stored again after a failure."""
    monkeypatch.setattr(_shared_router, "_BLOCK", 10)
    state = MemoryState()
    shared = share(state, **NEVER)
    expected = AveragingRouter()
    for number in range(35):
        shared.record(seen("a", float(number)))
        expected.record(seen("a", float(number)))
    update = state.update

    def failing(strategy: str, change: Any) -> dict[str, Any]:
        if state.updates == 2:
            raise StateError("disk full")
        return update(strategy, change)

    monkeypatch.setattr(state, "update", failing)
    with pytest.raises(StateError, match="15 observations could not be saved"):
        shared.flush()
    monkeypatch.setattr(state, "update", update)
    for _ in range(2):  # the second flush has nothing to store
        shared.flush()
        assert state.updates == 4
        assert state.records["ema"] == shared.snapshot() == expected.snapshot()


def test_order_learns_from_others(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that only orders learns from other processes without writing."""
    monkeypatch.setattr(_shared_router, "_REFRESH", 0.0)
    state = MemoryState()
    asking, recording = share(state, flush_seconds=0.0), share(state, **NEVER)
    recording.record(seen("a"))
    recording.flush()
    wait_until(lambda: asking.order() == ["b", "a"])
    assert state.updates == 1


def test_refused_observation_is_not_stored(share: Share) -> None:
    """An observation of an unknown provider raises ConfigurationError and is not stored."""
    state = MemoryState()
    shared = share(state, **NEVER)
    with pytest.raises(ConfigurationError, match="got 'c'"):
        shared.record(seen("c"))
    shared.record(seen("a"))
    shared.flush()
    assert state.records["ema"]["values"] == {"a": [1, 0.1], "b": [0, 0.0]}


def test_restore_replaces_the_shared_state(share: Share) -> None:
    """`restore` replaces the state of all routers; a bad snapshot or a failed write changes nothing."""
    state = MemoryState()
    first, second = share(state, **NEVER), share(state, **NEVER)
    first.record(seen("a"))
    with pytest.raises(StateError, match="expected values"):
        first.restore({"values": 5})
    assert [standing.observations for standing in first.standings()] == [1, 0]
    first.restore({"version": 1, "values": {"b": [9, 2.0]}})
    second.record(seen("b"))
    second.flush()
    assert [standing.observations for standing in second.standings()] == [0, 10]
    state.error = StateError("disk full")
    with pytest.raises(StateError, match="disk full"):
        first.restore(None)
    assert [standing.observations for standing in first.standings()] == [0, 9]
    state.error = None
    first.restore(None)
    first.flush()
    assert state.records["ema"]["values"] == {"a": [0, 0.0], "b": [0, 0.0]} == first.snapshot()["values"]


def test_threads_share_a_router(share: Share, tmp_path: Path) -> None:
    """Eight threads share a router, and no observation is lost."""
    state = RouterState(tmp_path / "router.db")
    shared = share(state, flush_seconds=0.001)
    context = np.ones(64)

    def work(_: int) -> None:
        for _ in range(300):
            shared.order(RoutingRequest(embedding=context))
            shared.record(seen("a", context=context))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    shared.flush()
    assert [standing.observations for standing in shared.standings()] == [2400, 0]
    assert (state.read("ema") or {})["values"]["a"][0] == 2400


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 3601])
def test_flush_seconds_out_of_range_are_refused(seconds: float) -> None:
    """`flush_seconds` out of range raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected flush_seconds in"):
        SharedRouter(AveragingRouter(), MemoryState(), flush_seconds=seconds)


HEAD = """
import os, signal, sys
from calibrant.inference import SharedRouter
from calibrant.routing import Observation
from calibrant.store import RouterState

class Counting:
    strategy, providers = "thompson", ("a",)
    n = 0
    def order(self, request=None): return ["a"]
    def record(self, observation): self.n += 1
    def snapshot(self): return {"n": self.n}
    def restore(self, snapshot): self.n = 0 if snapshot is None else snapshot["n"]
    def standings(self): return ()

shared = SharedRouter(Counting(), RouterState(sys.argv[1]), flush_seconds=float(sys.argv[2]))
def record(count):
    for _ in range(count):
        shared.record(Observation(provider="a", success=True, latency_seconds=0.1))
"""


def run(code: str, place: Path, flush_seconds: float) -> int:
    """Run `code` in another interpreter, and return its exit status."""
    return subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", HEAD + code, str(place), str(flush_seconds)],
        timeout=60,
        check=False,
    ).returncode


def counted(place: Path) -> int:
    """Return the number of stored observations."""
    state = RouterState(place)
    record = state.read("thompson")
    state.close()
    return 0 if record is None else int(record["n"])


@pytest.mark.parametrize(
    "end",
    [
        "",
        pytest.param("raise SystemExit(0)", marks=pytest.mark.slow),
        pytest.param("os.kill(os.getpid(), signal.SIGINT)", marks=pytest.mark.slow),
    ],
)
def test_ending_process_stores_observations(tmp_path: Path, end: str) -> None:
    """A process that ends without `close` stores its observations."""
    run(f"record(300)\n{end}", tmp_path / "router.db", 3600)
    assert counted(tmp_path / "router.db") == 300


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_stores_each_observation_once(tmp_path: Path) -> None:
    """Parent and children of a fork store each observation once."""
    code = """
record(100)
shared.flush()
record(10)
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        record(1000)
        shared.close()
        os._exit(0)
    children.append(child)
    record(100)
shared.flush()
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
record(1)
shared.close()
assert shared.snapshot()["n"] == 3411, shared.snapshot()
os._exit(7)
"""
    assert run(code, tmp_path / "router.db", 0.001) == 7
    assert counted(tmp_path / "router.db") == 3411


def test_kill_loses_only_unwritten_observations(tmp_path: Path) -> None:
    """A killed process loses only what was not yet written."""
    code = "record(50)\nshared.flush()\nrecord(5)\nos.kill(os.getpid(), signal.SIGKILL)"
    assert run(code, tmp_path / "router.db", 3600) == -signal.SIGKILL
    assert counted(tmp_path / "router.db") == 50


def test_damaged_record_stops_nothing(share: Share, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After damage to its record a router logs one warning, and after a reset stores what it had not stored."""
    path = tmp_path / "router.db"
    state = RouterState(path)
    shared = share(state, **NEVER)
    shared.record(seen("a"))
    shared.flush()
    execute(path, "UPDATE calibrant_router_state SET record = '{'")
    shared.record(seen("b"))
    shared._write_queue()
    assert "delete it with `calibrant router reset`" in warnings(caplog)[0]
    assert shared.order() == ["a", "b"]
    state.reset()
    shared.flush()
    assert shared.snapshot()["values"] == {"a": [0, 0.0], "b": [1, 0.1]}
    assert len(warnings(caplog)) == 1


def test_changed_providers_keep_the_others(share: Share, tmp_path: Path) -> None:
    """Removed providers are forgotten, new ones begin, and the others keep their state."""
    state = RouterState(tmp_path / "router.db")
    with SharedRouter(ThompsonRouter(providers=["a", "b"]), state) as old:
        old.record(seen("a"))
        old.record(seen("b"))
    shared = share(state, ThompsonRouter(providers=["b", "c"]), **NEVER)
    shared.record(seen("c"))
    shared.flush()
    stored = (state.read("thompson") or {})["providers"]
    assert {name: values["alpha"] for name, values in stored.items()} == {"b": 2.0, "c": 2.0}
