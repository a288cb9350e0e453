"""Tests of the parts of `calibrant.distributed` without a cluster: shares, blocks, errors."""

from __future__ import annotations

import re
import signal
import socket
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import (
    ConfigurationError,
    DataSource,
    Example,
    LabelSet,
    Limits,
    Outcome,
    Prediction,
    StateError,
)
from calibrant.core._installation import install_command
from calibrant.distributed import Cluster, evaluate
from calibrant.distributed import _ray as seam
from calibrant.distributed._evaluate import is_file, share
from calibrant.evaluation import Dataset
from calibrant.evaluation._metrics import Tally
from calibrant.inference import Classifier
from calibrant.runs._rows import row_line
from calibrant.runs._shards import Shards
from calibrant.testing import FakeClient

LABELS = ["cat", "dog"]
ROWS = [Example(input=f"row\r {n}\u2028", answer="cat") for n in range(5)]


def refused(match: str, **options: Any) -> None:
    """Connect to a cluster, and check that the error has this message."""
    with pytest.raises(ConfigurationError, match=match), seam.connected(Cluster(**options)):
        pass


def line(index: int, outcome: Outcome = Outcome.OK) -> bytes:
    """Return the line of a row."""
    label = "cat" if outcome is Outcome.OK else None
    return row_line(index, ROWS[index], Prediction(label=label, outcome=outcome))


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    """Return block files of two rows each."""
    return Shards(tmp_path / "shards", 2)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_never_add_up_to_more_than_the_limits(workers: int) -> None:
    """Shares of calls in flight are rounded down; rates and budgets stay whole."""
    whole = Limits(concurrency=10, requests_per_minute=100, max_cost=2, run_seconds=5, call_seconds=3)
    own = share(whole, workers)
    assert 10 - workers < own.concurrency * workers <= 10
    assert own == replace(whole, concurrency=own.concurrency, run_seconds=None)


def test_a_worker_without_a_call_in_flight_is_refused() -> None:
    """More workers than calls in flight raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="each of 3 workers, got a concurrency of 2"):
        share(Limits(concurrency=2), 3)


@pytest.mark.parametrize("settings", [{"workers": 0}, {"block_rows": 0}, {"workers": True}, {"workers": 1.5}])
def test_a_cluster_has_workers_and_blocks_have_rows(settings: dict[str, Any]) -> None:
    """A number of workers or rows below 1 raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"integer of at least 1"):
        Cluster(**settings)


def test_blocks_come_back_in_the_order_of_the_input(shards: Shards, tmp_path: Path) -> None:
    """Blocks are joined in the input's order, and a repeated row replaces the old one."""
    shards.add(2, line(4))
    shards.add(0, line(0) + line(1, Outcome.ERROR))
    shards.add(1, line(3))
    found = shards.recover(ROWS, Tally(LabelSet.of(LABELS)).add)
    assert found == {0: {0}, 1: {3}, 2: range(4, 5)}
    shards.add(0, line(1))
    shards.add(1, line(2))
    found = shards.recover(ROWS, Tally(LabelSet.of(LABELS)).add)
    assert found == {0: range(2), 1: range(2, 4), 2: range(4, 5)}
    shards.join(tmp_path / "all.jsonl")
    assert (tmp_path / "all.jsonl").read_bytes() == b"".join(line(index) for index in range(5))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (line(0)[:20], "delete the file"),
        (b"[]\n", "delete the file"),
        (line(0) + line(0), "a row twice"),
        (line(1) + line(0), "out of order"),
        (line(3), "row 4 was evaluated on another text"),
        (line(0).replace(b"row", b"raw"), "row 1 was evaluated on another text"),
    ],
)
def test_a_damaged_block_is_refused(shards: Shards, tmp_path: Path, content: bytes, message: str) -> None:
    """A damaged block raises StateError with its file."""
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "000000000.jsonl").write_bytes(content)
    with pytest.raises(StateError, match=f"000000000.jsonl.*{message}"):
        shards.recover(ROWS, Tally(LabelSet.of(LABELS)).add)


def test_blocks_beyond_the_input_are_refused(shards: Shards) -> None:
    """Blocks beyond the end of the input raise StateError."""
    shards.add(2, line(4))
    with pytest.raises(StateError, match="beyond the end of the input"):
        shards.recover(ROWS[:4], Tally(LabelSet.of(LABELS)).add)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing Ray raises ConfigurationError with the install command, and makes no directory."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    rows = Dataset(source=DataSource(path=tmp_path / "none.jsonl"), labels=LabelSet.of(LABELS))
    opening = partial(Classifier, model=FakeClient(LABELS, {}), labels=LABELS)
    with pytest.raises(ConfigurationError, match=re.escape(install_command("ray"))):
        evaluate(rows, opening=opening, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_cluster_of_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with another Python raises an error with Ray's reason and the remedy."""
    other_python = "Version mismatch: The cluster was started with:\n    Python: 3.9.1"
    monkeypatch.setattr(seam, "require_ray", lambda: NotConnected({}, other_python))
    refused(r"Ray cluster at there .*Python: 3\.9\.1.*the same versions", address="there")


@pytest.mark.parametrize("named", ["option", "environment"])
def test_a_foreign_cluster_is_refused(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of Ray's client raises an error with the remedy, by option or environment."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if named == "environment":
        monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    monkeypatch.setattr(seam, "require_ray", lambda: NotConnected({}))
    address = "ray://head:10001" if named == "option" else None
    refused(r"a part of, such as auto.*got 'ray://head:10001'.*ray job submit", address=address)


class NotConnected:
    """Ray before it is initialised; `init` records its arguments and raises an error."""

    def __init__(self, asked: dict[str, Any], message: str = "far enough") -> None:
        self.asked, self.message = asked, message

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        self.asked |= options
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise RuntimeError(self.message)


@pytest.mark.parametrize(
    ("address", "variable", "expected"),
    [(None, None, "local"), (None, "", "local"), (None, "auto", "auto"), ("LISTENING", "auto", "LISTENING")],
)
def test_the_cluster_is_named_or_local(
    address: str | None, variable: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray gets the named address or "local", and SIGTERM's handler is restored."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    listening = socket.create_server(("127.0.0.1", 0))
    name = f"127.0.0.1:{listening.getsockname()[1]}"
    address, expected = (name if found == "LISTENING" else found for found in (address, expected))
    asked: dict[str, Any] = {}
    monkeypatch.setattr(seam, "require_ray", lambda: NotConnected(asked))
    own = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        before = signal.getsignal(signal.SIGTERM)
        refused("far enough", address=address, workers=3)
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, own)
        listening.close()
    assert asked["address"] == expected
    assert asked.get("num_cpus") == (3 if expected == "local" else None)


def test_an_address_where_nobody_is_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address without a listener raises an error before Ray is asked."""
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        asked: dict[str, Any] = {}
        monkeypatch.setattr(seam, "require_ray", lambda: NotConnected(asked))
        refused(rf"Ray cluster at {address}, found nobody there", address=address)
    assert not asked


@pytest.mark.parametrize(
    ("cache", "file"),
    [("rows.sqlite", True), ("sqlite:///rows.db", True), ("postgresql://u:p@host/rows", False)],
)
def test_a_cache_in_a_file_is_known(cache: str, *, file: bool) -> None:
    """A cache is recognised as a file or as a server."""
    assert is_file(cache) is file
