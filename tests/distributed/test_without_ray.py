"""Tests of the parts of `calibrant.distributed` without a cluster: shares, blocks, errors."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import in_process
from animals import LABELS, animals, lines, run
from calibrant.core import CalibrantError, ConfigurationError, DataSource, LabelSet, Limits, StateError
from calibrant.distributed import Cluster, evaluate
from calibrant.evaluation import Dataset
from calibrant.inference import Classifier
from calibrant.testing import FakeClient
from fault_server import FaultServer


def opening(*, limits: Limits) -> Classifier:
    """Open a classifier over a fake."""
    return Classifier(model=FakeClient(LABELS, {}, default="cat"), labels=LABELS, limits=limits)


def refused(folder: Path, match: str, *, limits: Limits | None = None, **options: Any) -> None:
    """Evaluate on a cluster, and check that the error has this message."""
    rows, cluster = animals(folder), Cluster(**options)
    with pytest.raises(ConfigurationError, match=match):
        evaluate(rows, opening=opening, out=folder / "out", cluster=cluster, limits=limits)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_never_add_up_to_more_than_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Shares of calls in flight are rounded down; rates and budgets stay whole."""
    in_process.install(monkeypatch)
    whole = Limits(concurrency=10, requests_per_minute=100, max_cost=2, run_seconds=5, call_seconds=3)
    shares: list[Limits] = []

    def noted(*, limits: Limits) -> Classifier:
        shares.append(limits)
        return opening(limits=limits)

    cluster = Cluster(workers=workers, block_rows=1)
    evaluate(animals(tmp_path, rows=8), opening=noted, out=tmp_path / "out", cluster=cluster, limits=whole)
    for own in shares:
        assert 10 - workers < (own.concurrency or 0) * workers <= 10
        assert own == replace(whole, concurrency=own.concurrency, run_seconds=None)


def test_a_worker_without_a_call_in_flight_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More workers than calls in flight raise ConfigurationError."""
    in_process.install(monkeypatch)
    limits = Limits(concurrency=2)
    refused(tmp_path, "each of 3 workers, got a concurrency of 2", limits=limits, workers=3)


@pytest.mark.parametrize("settings", [{"workers": 0}, {"block_rows": 0}, {"workers": True}, {"workers": 1.5}])
def test_a_cluster_has_workers_and_blocks_have_rows(settings: dict[str, Any]) -> None:
    """A number of workers or rows below 1 raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"integer of at least 1"):
        Cluster(**settings)


def test_blocks_come_back_in_the_order_of_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are joined in the input's order, a repeated row replaces the old one, a missing one is asked again."""
    in_process.install(monkeypatch)
    texts = [f"row\r {n}\u2028 is a cat" for n in range(5)]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"input": text, "answer": "cat"}) + "\n" for text in texts))
    dataset = Dataset(source=DataSource(path=rows), labels=LabelSet(LABELS))
    cluster, out = Cluster(workers=2, block_rows=2), tmp_path / "out"

    down = True

    def faults(_number: int, body: Any) -> str | None:
        text = body["messages"][-1]["content"]
        return "503" if down and " 1" in text else "slow_drip:0.05" if " 0" in text else None

    with FaultServer(LABELS, faults=faults) as server:
        first = run(dataset, server, out, cluster=cluster, limits=Limits(concurrency=4, max_requests=4))
        assert (first.metrics.rows, first.metrics.complete) == (4, False)
        block = out / "shards" / "000000000.jsonl"
        block.write_bytes(block.read_bytes().partition(b"\n")[2])
        down = False
        run(dataset, server, out, cluster=cluster)
        assert sum(server.counts.values()) == 7
    assert [(row["input"], row["outcome"]) for row in lines(out)] == [(text, "ok") for text in texts]


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """Return the server of a run of 60 rows that ended after 20 of them, in blocks of eight."""
    in_process.install(monkeypatch)
    with FaultServer(LABELS) as server:
        limits = Limits(concurrency=8, max_requests=20)
        run(animals(tmp_path), server, tmp_path / "out", limits=limits)
        yield server


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[0][:20], "delete the file"),
        (lambda _: b"[]\n", "delete the file"),
        (lambda rows: rows[0] * 2, "a row twice"),
        (lambda rows: rows[1] + rows[0], "out of order"),
        (lambda rows: rows[9], "row 10 was evaluated on another text"),
        (lambda rows: rows[0].replace(b"number", b"numbed"), "row 1 was evaluated on another text"),
    ],
)
def test_a_damaged_block_is_refused(stopped: FaultServer, tmp_path: Path, change: Any, message: str) -> None:
    """A damaged block raises StateError with its file."""
    blocks = sorted((tmp_path / "out" / "shards").iterdir())
    rows = [line for block in blocks for line in block.read_bytes().splitlines(keepends=True)]
    blocks[0].write_bytes(change(rows))
    with pytest.raises(StateError, match=f"000000000.jsonl.*{message}"):
        run(animals(tmp_path), stopped, tmp_path / "out")


def test_blocks_beyond_the_input_are_refused(stopped: FaultServer, tmp_path: Path) -> None:
    """Blocks beyond the end of the input raise StateError."""
    with pytest.raises(StateError, match="beyond the end of the input"):
        run(animals(tmp_path, rows=8), stopped, tmp_path / "out")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing Ray raises ConfigurationError with the install command, and makes no directory."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    rows = Dataset(source=DataSource(path=tmp_path / "none.jsonl"), labels=LabelSet.of(LABELS))
    with pytest.raises(ConfigurationError, match=r"pip install .*\[ray\]"):
        evaluate(rows, opening=opening, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_cluster_of_another_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with another Python raises an error with Ray's reason and the remedy."""
    other_python = "Version mismatch: The cluster was started with:\n    Python: 3.9.1"
    not_connected(monkeypatch, other_python)
    refused(tmp_path, r"Ray cluster at there .*Python: 3\.9\.1.*the same versions", address="there")


@pytest.mark.parametrize("named", ["option", "environment"])
def test_a_foreign_cluster_is_refused(tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of Ray's client raises an error with the remedy, by option or environment."""
    not_connected(monkeypatch)
    if named == "environment":
        monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    address = "ray://head:10001" if named == "option" else None
    refused(tmp_path, r"a part of, such as auto.*got 'ray://head:10001'.*ray job submit", address=address)


def not_connected(monkeypatch: pytest.MonkeyPatch, message: str = "far enough") -> dict[str, Any]:
    """Have Ray refuse to start with a message, and return the arguments that it will get."""
    asked: dict[str, Any] = {}

    def init(**options: Any) -> None:
        asked.update(options)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise RuntimeError(message)

    monkeypatch.setattr(in_process.install(monkeypatch), "init", init)
    return asked


@pytest.mark.parametrize(
    ("address", "variable", "expected"),
    [(None, None, "local"), (None, "", "local"), (None, "auto", "auto"), ("LISTENING", "auto", "LISTENING")],
)
def test_the_cluster_is_named_or_local(
    address: str | None, variable: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray gets the named address or "local", and SIGTERM's handler is restored."""
    asked = not_connected(monkeypatch)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    listening = socket.create_server(("127.0.0.1", 0))
    name = f"127.0.0.1:{listening.getsockname()[1]}"
    address, expected = (name if found == "LISTENING" else found for found in (address, expected))
    own = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        before = signal.getsignal(signal.SIGTERM)
        refused(tmp_path, "far enough", address=address, workers=3)
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, own)
        listening.close()
    assert asked["address"] == expected
    assert asked.get("num_cpus") == (3 if expected == "local" else None)


def test_an_address_where_nobody_is_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address without a listener raises an error before Ray is asked."""
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        asked = not_connected(monkeypatch)
        refused(tmp_path, rf"Ray cluster at {address}, found nobody there", address=address)
    assert not asked


@pytest.mark.parametrize(
    ("cache", "file"),
    [("rows.sqlite", True), ("sqlite:///rows.db", True), ("postgresql://u:p@127.0.0.1:1/rows", False)],
)
def test_a_cache_in_a_file_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str, *, file: bool
) -> None:
    """Several machines share a cache on a server, whose error is raised here, and none in a file."""
    monkeypatch.chdir(tmp_path)  # where the file is made
    in_process.install(monkeypatch).machines = 2
    with pytest.raises(CalibrantError) as caught:
        evaluate(animals(tmp_path), opening=opening, out=tmp_path / "out", cache=cache)
    assert ("a cache that 2 machines can share, got a SQLite file" in str(caught.value)) is file
