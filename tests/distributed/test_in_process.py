"""Tests of `calibrant.distributed.evaluate` with threads in place of Ray: files, budgets, faults."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import in_process
from animals import CLUSTER, LABELS, LIMITS, animals, lines, opens, run, written
from calibrant.core import CalibrantError, ConfigurationError, Limits, ProviderError, StateError, Stop
from calibrant.distributed import Cluster, evaluate
from calibrant.inference import Classifier
from calibrant.store import PredictionCache
from calibrant.testing import FakeClient
from fault_server import FaultServer
from in_process import LocalRay

PRICES = {"input_cost_per_token": 0.01, "output_cost_per_token": 0.0}


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> LocalRay:
    """Replace Ray's cluster by threads, which look often for the end of the run."""
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))
    return in_process.install(monkeypatch)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """Return a server that answers every request."""
    with FaultServer(LABELS) as running:
        yield running


def when_renamed(monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path], None], *, folder: str) -> None:
    """Have something happen before a file takes its place in a folder of this name."""
    replace = Path.replace

    def renamed(file: Path, target: Path) -> Path:
        if target.parent.name == folder:
            happens(target)
        return replace(file, target)

    monkeypatch.setattr(Path, "replace", renamed)


def test_unjoined_blocks_are_joined_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that could not be joined are joined by a rerun without a call."""

    def faults(number: int, _body: Any) -> str | None:
        return "503" if number == 3 else None

    def full(target: Path) -> None:
        if target.name == "predictions.jsonl":
            raise OSError(errno.ENOSPC, "full")

    rows, out = animals(tmp_path), tmp_path / "out"
    with FaultServer(LABELS, faults=faults) as server:
        run(rows, server, out)
        (out / "predictions.parquet").touch()
        with monkeypatch.context() as patched:
            when_renamed(patched, full, folder="out")
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
    asked, tried = list(rows), list[int]()

    def full(target: Path) -> None:
        tried.append(int(target.stem))
        if len(tried) == 3:
            while not any(row.input in server.counts for row in asked[24:]):
                time.sleep(0.005)  # until the next block, which is out, has begun: else nothing of it is kept
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        when_renamed(patched, full, folder="shards")
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


@pytest.mark.parametrize(("fault", "budget"), [(None, 20), ("401", None)])
def test_a_fault_stops_workers(tmp_path: Path, fault: str | None, budget: int | None) -> None:
    """A budget stops new rows only, and those that were lent are finished; a fault stops these, too."""

    def faults(_number: int, body: Any) -> str | None:
        row = int(body["messages"][-1]["content"].split()[1])
        # The second block becomes slow once the price of its rows is known, and several are lent at a time.
        return "slow_drip:0.1" if row > 30 else fault

    limits, cluster = Limits(concurrency=2, max_requests=budget), Cluster(block_rows=30)
    with FaultServer(LABELS, faults=faults) as server, contextlib.suppress(ProviderError):
        run(animals(tmp_path), server, tmp_path / "out", cluster=cluster, limits=limits)
    slow = {text for text in server.counts if int(text.split()[1]) >= 30}
    assert len(server.counts) == budget if budget else len(slow) < 20


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


class Deadly(FakeClient):
    """A model that kills its worker, as often as `deaths` says, when it is asked about row 18."""

    def __init__(self, threads: LocalRay, deaths: int) -> None:
        super().__init__(LABELS, lambda text: text.split()[-1])
        self.threads, self.deaths = threads, deaths

    async def complete(self, request: Any) -> object:
        if "number 18 " in request.messages[-1]["content"] and self.deaths:
            self.deaths -= 1
            self.threads.die()
        return await super().complete(request)


ALONE = Cluster(workers=1, block_rows=8)


@pytest.mark.parametrize("deaths", [4, 5])
def test_a_block_is_given_up_after_five_deaths(threads: LocalRay, tmp_path: Path, deaths: int) -> None:
    """A block that killed five workers raises StateError with its rows; four deaths are allowed."""
    model, rows, out = Deadly(threads, deaths=deaths), animals(tmp_path), tmp_path / "out"

    def opening(*, limits: Limits) -> Any:
        return Classifier(model=model, labels=LABELS, field="category", limits=limits)

    def evaluated() -> Any:
        return evaluate(rows, opening=opening, out=out, cluster=ALONE, limits=LIMITS)

    if deaths == 4:
        assert evaluated().metrics.outcomes["ok"] == 60
    else:
        with pytest.raises(StateError, match=r"^5 workers died .* the rows 16 to 23 \(counted from 0\)"):
            evaluated()
        assert {row["index"] for row in written(out)} == {*range(16)}
    assert model.deaths == 0


@pytest.mark.parametrize(("deaths", "refused"), [([5, 5], False), ([5, 6], True)])
def test_workers_that_die_opening_are_given_up(
    threads: LocalRay, tmp_path: Path, deaths: list[int], *, refused: bool
) -> None:
    """Too many deaths while opening are an error, and a worker that opens resets their count."""
    left, opened = [0, *deaths], list[Any]()

    def opening(*, limits: Limits) -> Any:
        model = Deadly(threads, deaths=len(opened) == 1)
        if left[len(opened)]:
            left[len(opened)] -= 1
            threads.die()
        opened.append(Classifier(model=model, labels=LABELS, field="category", limits=limits))
        return opened[-1]

    def evaluated() -> Any:
        rows, out = animals(tmp_path), tmp_path / "out"
        return evaluate(rows, opening=opening, out=out, cluster=ALONE, limits=LIMITS)

    if refused:
        with pytest.raises(StateError, match="while they opened the classifier"):
            evaluated()
    else:
        assert evaluated().metrics.outcomes["ok"] == 60
    assert not any(left)


def test_a_closed_run_reads_no_more_blocks(server: FaultServer, tmp_path: Path, threads: LocalRay) -> None:
    """After a budget is used up, no more blocks are handed to workers."""
    cluster, limits = Cluster(block_rows=2), Limits(concurrency=4, max_requests=4)
    run(animals(tmp_path), server, tmp_path / "out", cluster=cluster, limits=limits)
    assert threads.blocks < 15  # of 30


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

    def vanish(_: Path) -> None:
        if out.exists():
            out.rename(moved)

    with monkeypatch.context() as patched:
        when_renamed(patched, vanish, folder="shards")
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
