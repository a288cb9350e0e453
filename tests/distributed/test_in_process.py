"""Tests of `calibrant.distributed.evaluate` with threads in place of Ray: files, budgets, faults."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import in_process
from animals import CLUSTER, LABELS, LIMITS, animals, lines, opens, run, written
from calibrant.core import CalibrantError, ConfigurationError, Limits, ProviderError, StateError, Stop
from calibrant.distributed import Cluster, _ray, evaluate
from calibrant.distributed._ledger import Ledger
from calibrant.runs._shards import Shards
from calibrant.store import PredictionCache
from fault_server import FaultServer

PRICES = {"input_cost_per_token": 0.01, "output_cost_per_token": 0.0}


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Ray's cluster by threads."""
    in_process.install(monkeypatch)
    monkeypatch.setattr(_ray, "_LOOK_SECONDS", 0.01)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """Return a server that answers every request."""
    with FaultServer(LABELS) as running:
        yield running


def test_unjoined_blocks_are_joined_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that could not be joined are joined by a rerun without a call."""

    def faults(number: int, _body: Any) -> str | None:
        return "503" if number == 3 else None

    def full(*_: object) -> None:
        raise StateError("full")

    rows, out = animals(tmp_path), tmp_path / "out"
    with FaultServer(LABELS, faults=faults) as server:
        run(rows, server, out)
        (out / "predictions.parquet").touch()
        with monkeypatch.context() as patched:
            patched.setattr(Shards, "join", full)
            with pytest.raises(StateError, match="full"):
                run(rows, server, out)
        assert not (out / "predictions.jsonl").exists()
        assert not (out / "predictions.parquet").exists()
        asked = sum(server.counts.values())
        result = run(rows, server, out)
        assert sum(server.counts.values()) == asked == 61
    assert result.metrics.outcomes["ok"] == 60
    assert [row["outcome"] for row in lines(out)] == ["ok"] * 60


def test_a_finished_run_has_its_rows_once(tmp_path: Path) -> None:
    """Leftover block files beside a finished run are ignored and removed."""
    rows, out = animals(tmp_path), tmp_path / "out"
    with FaultServer(LABELS, faults=["503"]) as server:
        run(rows, server, out)
        for number in (0, 7):  # the one that failed is asked again, then none
            assert not list(out.glob("*shards*"))
            for left in ("shards", ".shards.old"):
                (out / left).mkdir()
                (out / left / f"00000000{number}.jsonl").write_text("half a l")
            assert run(rows, server, out).metrics.outcomes["ok"] == 60
        assert sum(server.counts.values()) == 61
    assert not list(out.glob("*shards*"))


def test_an_input_may_grow(server: FaultServer, tmp_path: Path) -> None:
    """Further rows of a longer input are asked, and earlier rows are not asked again."""
    out = tmp_path / "out"
    for count in (56, 60, 61):
        result = run(animals(tmp_path, count), server, out)
        assert (result.metrics.complete, len(lines(out))) == (True, count)
    assert set(server.counts.values()) == {1}
    assert [row["index"] for row in lines(out)] == list(range(61))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found[:-20], "expected the rows of a block"),
        (lambda found: found.replace(b"number 5 ", b"number 6 "), "row 6 was evaluated on another text"),
        (lambda found: found + found.splitlines(keepends=True)[-1], "beyond the end of the input"),
    ],
)
def test_an_unfit_file_is_refused(server: FaultServer, tmp_path: Path, change: Any, message: str) -> None:
    """A changed predictions.jsonl raises StateError; the file stays, and no call is made."""
    rows, out = animals(tmp_path), tmp_path / "out"
    run(rows, server, out)
    file = out / "predictions.jsonl"
    file.write_bytes(changed := change(file.read_bytes()))
    with pytest.raises(StateError, match=message):
        run(rows, server, out)
    assert file.read_bytes() == changed
    assert sum(server.counts.values()) == 60


@pytest.mark.parametrize(
    ("limits", "most"), [({"max_requests": 20}, 20), ({"max_tokens": 200}, None), ({"max_cost": 2}, None)]
)
def test_budgets_end_a_run_and_keep_rows(
    server: FaultServer, tmp_path: Path, limits: dict[str, Any], most: int | None
) -> None:
    """A budget stops the run with its reason; reruns finish it, and each row is paid for once."""
    rows, out = animals(tmp_path), tmp_path / "out"
    (name,) = limits
    sessions = 0
    while True:
        before = len(server.counts)
        result = run(rows, server, out, limits=Limits(concurrency=8, **limits), model=PRICES)
        sessions += 1
        if result.metrics.complete:
            break
        assert f"The budget {name} of {limits[name]} " in result.metrics.stopped
        assert len(written(out)) == len(server.counts)
        assert most is None or len(server.counts) - before == most
    assert sessions >= 2
    assert (set(server.counts.values()), result.metrics.stopped) == ({1}, "")


def test_a_worker_whose_server_is_down_ends_the_run(tmp_path: Path) -> None:
    """A hundred failures in a row raise ProviderError, and rows of the other worker are kept."""
    rows, out = animals(tmp_path, 400), tmp_path / "out"
    with FaultServer(LABELS) as up, FaultServer(LABELS, faults={"503": 1.0}) as down:
        addresses = iter((up.api_base, up.api_base, down.api_base))  # the first one is the driver's

        def opening(*, limits: Limits) -> Any:
            return opens(next(addresses))(limits=limits)

        with pytest.raises(ProviderError, match=r"The last 1[0-9]{2} rows of a worker all failed.*503"):
            evaluate(rows, opening=opening, out=out, cluster=Cluster(block_rows=8), limits=LIMITS)
        assert sum(down.counts.values()) < 120
    found = written(out)
    assert sum(row["outcome"] == "ok" for row in found) == sum(up.counts.values()) > 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert (metrics["complete"], metrics["rows"]) == (False, len(found))


def test_a_deadline_ends_the_run(tmp_path: Path) -> None:
    """A deadline stops the run with its reason, and answered rows are kept."""
    rows, out = animals(tmp_path, 400), tmp_path / "out"
    limits = Limits(concurrency=2, run_seconds=0.1)
    with FaultServer(LABELS, latency=0.02) as server:
        result = run(rows, server, out, cluster=Cluster(block_rows=200), limits=limits)
        assert len(written(out)) == sum(server.counts.values()) < 400
    assert result.metrics.stopped == "The deadline of 0.1 seconds has passed"


def test_rates_of_all_workers_are_kept(tmp_path: Path) -> None:
    """All workers together keep a rate limit, so the server refuses no request."""
    with FaultServer(LABELS, requests_per_second=100) as server:
        limits = Limits(concurrency=8, requests_per_minute=100 * 60 * 0.9)
        result = run(animals(tmp_path, 150), server, tmp_path / "out", limits=limits)
        assert sum(server.counts.values()) == 150
    assert result.metrics.outcomes["ok"] == 150


def test_a_cache_holds_what_was_answered(server: FaultServer, tmp_path: Path) -> None:
    """A cache answers a second directory without a call."""
    rows, cache = animals(tmp_path), str(tmp_path / "cache.sqlite")
    run(rows, server, tmp_path / "first", cache=cache)
    again = run(rows, server, tmp_path / "second", cache=cache)
    assert sum(server.counts.values()) == 60
    assert (again.metrics.rows_from_cache, again.metrics.calls) == (60, 0)


def test_a_full_cache_fails(server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be saved raises StateError, and the rows are kept."""

    def full(_cache: PredictionCache) -> None:
        raise StateError("cache.sqlite: not saved")

    monkeypatch.setattr(PredictionCache, "flush", full)
    rows, out = animals(tmp_path), tmp_path / "out"
    with pytest.raises(StateError, match="not saved"):
        run(rows, server, out, cache=str(tmp_path / "cache.sqlite"))
    assert len(written(out)) == len(server.counts) > 0


def test_a_full_disk_ends_runs(server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk raises StateError; other blocks are kept, and a rerun finishes the run."""
    rows, out = animals(tmp_path), tmp_path / "out"
    asked, add, tried = list(rows), Shards.add, []

    def full(shards: Shards, number: int, found: bytes) -> None:
        tried.append(number)
        if len(tried) == 3:
            while not any(row.input in server.counts for row in asked[24:]):
                time.sleep(0.005)  # until the next block, which is out, has begun: else nothing of it is kept
            raise StateError("cannot be written (No space left on device)")
        add(shards, number, found)

    with monkeypatch.context() as patched:
        patched.setattr(Shards, "add", full)
        with pytest.raises(StateError, match="No space left"):
            run(rows, server, out)
    assert {row["index"] // 8 for row in written(out)} == {*tried} - {tried[2]}
    assert 4 <= len(tried) < 8
    assert run(rows, server, out).metrics.complete
    assert [row["input"] for row in lines(out)] == [row.input for row in asked]


def test_blocks_of_another_size_are_another_run(server: FaultServer, tmp_path: Path) -> None:
    """Another block size raises StateError for a directory that has rows."""
    rows, out = animals(tmp_path), tmp_path / "out"
    run(rows, server, out)
    with pytest.raises(StateError, match="differs in engine"):
        run(rows, server, out, cluster=Cluster(block_rows=9))


def test_a_worker_with_settings_that_are_refused_says_so(tmp_path: Path) -> None:
    """A classifier that cannot be opened raises its own error in the driver."""

    def opening(*, limits: Limits) -> Any:
        raise ConfigurationError(f"no {limits.concurrency}")

    with pytest.raises(ConfigurationError, match="no 4"):
        evaluate(animals(tmp_path), opening=opening, out=tmp_path / "out", limits=LIMITS)


def test_a_fault_stops_workers(server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget closes the ledger for new rows only; a fault also stops the rows that were lent."""
    told: list[tuple[str, bool]] = []

    def record(ledger: Ledger, reason: str, *, at_once: bool) -> None:
        told.append((reason, at_once))
        close(ledger, reason, at_once=at_once)

    close = Ledger.close
    monkeypatch.setattr(Ledger, "close", record)
    run(animals(tmp_path), server, tmp_path / "budget", limits=Limits(concurrency=8, max_requests=20))
    with FaultServer(LABELS, faults={"401": 1.0}) as refusing, pytest.raises(ProviderError):
        run(animals(tmp_path), refusing, tmp_path / "fault")
    budget, fault = (found for found in told if found[0] != "over")
    assert ("max_requests" in budget[0], budget[1]) == (True, False)
    assert ("401" in fault[0], fault[1]) == (True, True)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            ConfigurationError("Expected MY_KEY to be set."),
            ConfigurationError,
            "^Expected MY_KEY to be set.$",
        ),
        (StateError("bundle: gone"), StateError, "^bundle: gone$"),
        (ImportError("no module x"), StateError, r"^A worker failed: ImportError\('no module x'\)\.$"),
    ],
)
def test_a_worker_that_cannot_open_its_classifier_says_so(
    server: FaultServer, tmp_path: Path, error: Exception, kind: type[Exception], message: str
) -> None:
    """A worker that cannot open its classifier raises that error after one try for each worker."""
    opened: list[int] = []

    def opening(*, limits: Limits) -> Any:
        opened.append(1)
        if len(opened) > 1:
            raise error
        return opens(server.api_base)(limits=limits)

    with pytest.raises(kind, match=message):
        evaluate(animals(tmp_path), opening=opening, out=tmp_path / "out", cluster=CLUSTER, limits=LIMITS)
    assert len(opened) == 3
    assert not server.counts


def test_a_block_is_given_up_after_five_deaths(server: FaultServer, tmp_path: Path) -> None:
    """A block that killed five workers raises StateError with its rows; four deaths are allowed."""
    book = in_process.LocalBook(LIMITS, 2)
    rows = [(index, row.input, row.answer, None, None, None) for index, row in enumerate(animals(tmp_path))][
        16:24
    ]

    def answered(number: int, *, deaths: int) -> _ray.Answered:
        for _ in range(deaths):
            book.ask(Ledger.begin, f"block {number}")
        return _ray.Worker(opens(server.api_base), LIMITS, 2, None, book).answer(number, rows)

    given_up = answered(2, deaths=5)
    assert given_up.lines == b""
    with pytest.raises(StateError, match=r"^5 workers died .* the rows 16 to 23 \(counted from 0\)"):
        raise given_up.raised() or AssertionError
    assert not server.counts
    for _ in range(2):
        borne = answered(3, deaths=4)
        assert (borne.error, len(borne.lines.splitlines())) == ("", 8)
    book.ask(Ledger.close, "over", at_once=True)


def test_workers_that_die_opening_are_given_up(server: FaultServer) -> None:
    """Too many deaths while opening are an error, and a worker that opens resets their count."""
    book = in_process.LocalBook(LIMITS, 2)
    opened: list[int] = []

    def opening(*, limits: Limits) -> Any:
        opened.append(1)
        return opens(server.api_base)(limits=limits)

    def worker() -> _ray.Worker:
        return _ray.Worker(opening, LIMITS, 2, None, book)

    rows = [(0, "number 0 is a cat", "cat", None, None, None)]
    for _ in range(6):
        book.ask(Ledger.begin, "opening")
    assert not worker().answer(0, rows).error
    for _ in range(7):
        book.ask(Ledger.begin, "opening")
    assert "while they opened the classifier" in worker().answer(0, rows).error
    assert len(opened) == 1
    book.ask(Ledger.close, "over", at_once=True)


def test_a_closed_run_reads_no_more_blocks(tmp_path: Path) -> None:
    """After the ledger is closed, the reader yields no more blocks."""
    rows = animals(tmp_path)
    book = in_process.LocalBook(Limits(), 2)
    reader = _ray.Reader(dataset=rows, labels=rows.labels, block_rows=8, book=book)
    tables = reader(None)
    assert next(tables)["block"].to_pylist() == [0]
    book.ask(Ledger.close, "enough", at_once=False)
    assert list(tables) == []


def test_progress_counts_rows_and_cost(server: FaultServer, tmp_path: Path) -> None:
    """Progress is reported after each block, with rows, rows left and cost."""
    seen: list[Any] = []
    run(animals(tmp_path), server, tmp_path / "out", model=PRICES, on_progress=seen.append)
    assert [now.rows for now in seen] == [8, 16, 24, 32, 40, 48, 56, 60]
    assert [now.remaining for now in seen][-2:] == [4, 0]
    assert seen[-1].cost == pytest.approx(sum(row["cost"] for row in lines(tmp_path / "out")))


def test_a_late_stop_leaves_a_finished_run(server: FaultServer, tmp_path: Path) -> None:
    """A stop after the last row leaves a complete run without a reason."""
    stop = Stop()
    late = {0: "too late"}
    result = run(
        animals(tmp_path),
        server,
        tmp_path / "out",
        stop=stop,
        on_progress=lambda now: stop.request(late.get(now.remaining or 0, "")),
    )
    assert stop.reason == "too late"
    assert (result.metrics.complete, result.metrics.stopped) == (True, "")


def test_a_stop_before_anything_is_asked_asks_nothing(server: FaultServer, tmp_path: Path) -> None:
    """A stop requested before the run is the run's reason."""
    stop = Stop()
    stop.request("changed my mind")
    result = run(animals(tmp_path), server, tmp_path / "out", stop=stop)
    assert result.metrics.stopped == "changed my mind"
    assert len(written(tmp_path / "out")) == sum(server.counts.values())


def test_a_moved_directory_ends_the_run(tmp_path: Path) -> None:
    """After the directory is moved, no block is written, and the run goes on from the new place."""
    rows, out, moved = animals(tmp_path), tmp_path / "out", tmp_path / "elsewhere"

    def faults(number: int, _body: Any) -> None:
        if number == 30:
            out.rename(moved)

    with FaultServer(LABELS, faults=faults) as server:
        with pytest.raises(CalibrantError, match="moved or removed during the run"):
            run(rows, server, out)
        assert not out.exists()
        asked, kept = sum(server.counts.values()), len(written(moved))
        assert run(rows, server, moved).metrics.complete
        assert sum(server.counts.values()) - asked == 60 - kept


def test_a_block_of_a_vanishing_directory_is_refused(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that vanishes while a block is written raises CalibrantError, too."""
    rows, out, moved = animals(tmp_path), tmp_path / "out", tmp_path / "elsewhere"
    add = Shards.add

    def vanish(shards: Shards, number: int, found: bytes) -> None:
        if out.exists():
            out.rename(moved)
        add(shards, number, found)

    with monkeypatch.context() as patched:
        patched.setattr(Shards, "add", vanish)
        with pytest.raises(CalibrantError, match="moved or removed during the run"):
            run(rows, server, out)
    assert not out.exists()
    assert run(rows, server, moved).metrics.complete


def test_a_finished_run_is_counted_again_without_a_call(server: FaultServer, tmp_path: Path) -> None:
    """A finished run is evaluated again without a call, and its files stay the same."""
    rows, out = animals(tmp_path), tmp_path / "out"
    first = run(rows, server, out)
    files = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    again = run(rows, server, out)
    assert sum(server.counts.values()) == 60
    assert again.metrics.accuracy == first.metrics.accuracy
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == files


def test_a_fault_ends_the_run_and_blocks_that_are_begun_are_kept(tmp_path: Path) -> None:
    """A key that rows are refused with raises ProviderError, and metrics.json holds its message."""
    with (
        FaultServer(LABELS, faults={"401": 1.0}) as server,
        pytest.raises(ProviderError, match="401") as raised,
    ):
        run(animals(tmp_path), server, tmp_path / "out")
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert (metrics["complete"], metrics["stopped"]) == (False, str(raised.value))


def test_a_run_without_prices_ends_before_a_budget_in_dollars(server: FaultServer, tmp_path: Path) -> None:
    """A budget in dollars stops a run without prices after at most two calls."""
    result = run(animals(tmp_path), server, tmp_path / "out", limits=Limits(concurrency=8, max_cost=1))
    assert "No price is known" in result.metrics.stopped
    assert sum(server.counts.values()) <= 2
