"""What of `calibrant.distributed` needs no cluster: shares, blocks on disk, refusals."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from calibrant import Classifier, Example
from calibrant.core import ConfigurationError, DataSource, LabelSet, Outcome, Prediction, StateError
from calibrant.distributed import Cluster, evaluate
from calibrant.distributed import _ray as seam
from calibrant.distributed._settings import share
from calibrant.distributed._shards import Shards
from calibrant.evaluation import Dataset, Tally, row_line
from calibrant.inference import Limits
from calibrant.testing import FakeClient

LABELS = ["cat", "dog"]
ROWS = [Example(input=f"row\r {n}\u2028", answer="cat") for n in range(5)]


def line(index: int, outcome: Outcome = Outcome.OK) -> bytes:
    """Return the line of a row."""
    label = "cat" if outcome is Outcome.OK else None
    return row_line(index, ROWS[index], Prediction(label=label, outcome=outcome))


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    """Blocks of two rows."""
    return Shards(tmp_path / "shards", 2)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_never_add_up_to_more_than_the_limits(workers: int) -> None:
    """Calls in flight are rounded down."""
    whole = Limits(
        concurrency=10, requests_per_minute=100, tokens_per_minute=7000, run_seconds=5, call_seconds=3
    )
    own = share(whole, workers)
    assert 1 <= own.concurrency * workers <= 10
    assert own.requests_per_minute == pytest.approx(100 / workers)
    assert own.tokens_per_minute == pytest.approx(7000 / workers)
    assert (own.call_seconds, own.run_seconds) == (3, None)


@pytest.mark.parametrize("budget", ["max_requests", "max_tokens", "max_cost"])
def test_a_budget_nobody_could_keep_is_refused(budget: str) -> None:
    """It is named, with what to do."""
    with pytest.raises(ConfigurationError, match=f"no {budget} for several workers.*on one machine"):
        share(Limits(**{budget: 5}), 2)


def test_a_worker_without_a_call_in_flight_is_refused() -> None:
    """The limit is kept rather than rounded up."""
    with pytest.raises(ConfigurationError, match="each of 3 workers, got a concurrency of 2"):
        share(Limits(concurrency=2), 3)


@pytest.mark.parametrize("settings", [{"workers": 0}, {"block_rows": 0}, {"workers": True}, {"workers": 1.5}])
def test_a_cluster_has_workers_and_blocks_have_rows(settings: dict[str, Any]) -> None:
    """Whole numbers from 1."""
    with pytest.raises(ConfigurationError, match=r"integer of at least 1"):
        Cluster(**settings)


def test_blocks_come_back_in_the_order_of_the_input(shards: Shards, tmp_path: Path) -> None:
    """In whatever order they came; a row that is answered again takes its old place."""
    shards.add(2, line(4))
    shards.add(0, line(0) + line(1, Outcome.ERROR))
    shards.add(1, line(3))
    found = shards.recover(ROWS, Tally(LabelSet.of(LABELS)))
    assert (found.rows, found.done, found.kept) == (3, {2}, {0: {0}, 1: {3}})
    shards.add(0, line(1))
    shards.add(1, line(2))
    found = shards.recover(ROWS, Tally(LabelSet.of(LABELS)))
    assert (found.rows, found.done, found.kept) == (5, {0, 1, 2}, {})
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
def test_a_block_that_is_not_as_it_was_written_is_refused(
    shards: Shards, tmp_path: Path, content: bytes, message: str
) -> None:
    """By name, and before anything is asked."""
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "000000000.jsonl").write_bytes(content)
    with pytest.raises(StateError, match=f"000000000.jsonl.*{message}"):
        shards.recover(ROWS, Tally(LabelSet.of(LABELS)))


def test_blocks_beyond_the_input_are_refused(shards: Shards) -> None:
    """Their rows would be counted."""
    shards.add(2, line(4))
    with pytest.raises(StateError, match="beyond the end of the input"):
        shards.recover(ROWS[:4], Tally(LabelSet.of(LABELS)))


def test_a_missing_extra_is_named_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    rows = Dataset(source=DataSource(path=tmp_path / "none.jsonl"), labels=LabelSet.of(LABELS))
    opening = partial(Classifier, model=FakeClient(LABELS, {}), labels=LABELS)
    with pytest.raises(ConfigurationError, match=r'pip install "calibrant\[ray\]"'):
        evaluate(rows, opening=opening, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_cluster_of_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's reason is in the message, on one line, with what to do."""

    class OtherPython:
        def is_initialized(self) -> bool:
            return False

        def init(self, **_options: object) -> None:
            raise RuntimeError("Version mismatch: The cluster was started with:\n    Python: 3.9.1")

    monkeypatch.setattr(seam, "require_ray", OtherPython)
    with (
        pytest.raises(
            ConfigurationError, match=r"Ray cluster at there:1 .*Python: 3\.9\.1.*the same versions"
        ),
        seam.connected(Cluster(address="there:1")),
    ):
        pass
