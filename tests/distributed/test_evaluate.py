"""Tests of `calibrant.distributed.evaluate` on Ray, also when workers are killed."""

from __future__ import annotations

import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.data
from typer.testing import CliRunner

from animals import LABELS, LIMITS, animals, lines, opens, run, written
from calibrant.cli import app
from calibrant.core import ConfigurationError, Limits, StateError, Stop
from calibrant.distributed import Cluster, evaluate
from calibrant.evaluation import BatchEvaluator
from fault_server import FaultServer

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of its own settings
    pytest.mark.timeout(300),  # a busy machine takes half a minute to start a worker
]


@pytest.fixture(scope="module", autouse=True)
def small_cluster() -> Iterator[None]:
    """Start Ray once, on the loopback interface, with two CPUs."""
    # A short name: sockets lie in it. Ray's own folder would grow by a session each time.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                address="local",
                num_cpus=2,
                object_store_memory=100 * 2**20,
                include_dashboard=False,
                log_to_driver=False,
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
            )
        yield
        ray.shutdown()


def test_workers_give_the_rows_of_one_machine(tmp_path: Path) -> None:
    """Ray's rows and metrics equal those of one machine; a rerun asks only the row that failed."""
    rows = animals(tmp_path)
    down = True

    def faults(_number: int, body: Any) -> str | None:
        text = body["messages"][-1]["content"]
        return "503" if down and "number 7 " in text else "refusal" if "number 9 " in text else None

    with FaultServer(LABELS, faults=faults) as server:
        here = opens(server.api_base)(limits=LIMITS)
        local = BatchEvaluator(here, concurrency=8).evaluate(rows, out=tmp_path / "local")
        here.close()
        result = run(rows, server, tmp_path / "ray")
        found = lines(tmp_path / "ray")
        asked, down = sum(server.counts.values()), False
        second = run(rows, server, tmp_path / "ray")
        assert sum(server.counts.values()) == asked + 1
    assert found == lines(tmp_path / "local")
    assert [row["index"] for row in found] == list(range(60))
    assert result.metrics.complete
    assert (result.metrics.outcomes["error"], result.metrics.outcomes["refusal"]) == (1, 1)
    assert replace(result.metrics, seconds=0.0) == replace(local.metrics, seconds=0.0)
    assert (second.metrics.session_rows, second.metrics.outcomes["ok"]) == (1, 59)
    again = lines(tmp_path / "ray")
    assert again[7]["outcome"] == "ok"
    assert [*again[:7], found[7], *again[8:]] == found


def test_a_killed_worker_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    """After a worker is killed, every row is there once, answered by another worker."""
    rows = animals(tmp_path)
    seen = tmp_path / "workers"
    seen.mkdir()
    killed: list[int] = []

    def faults(number: int, _body: Any) -> None:
        workers = [int(path.name) for path in seen.iterdir()]
        if number >= 20 and workers and not killed:
            killed.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    with FaultServer(LABELS, faults=faults) as server:
        limits = replace(LIMITS, max_requests=1000)
        result = run(rows, server, tmp_path / "ray", seen=seen, limits=limits)
    assert killed
    assert len(list(seen.iterdir())) > 2
    found = lines(tmp_path / "ray")
    assert [row["index"] for row in found] == list(range(60))
    assert [row["input"] for row in found] == [row.input for row in rows]
    assert {row["outcome"] for row in found} == {"ok"}
    assert result.metrics.rows == result.metrics.answered == 60


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("opening", "died again and again while they opened"),
        ("answering", "5 workers died while they answered the rows 8 to 15 "),
    ],
)
def test_what_kills_every_worker_ends_the_run(tmp_path: Path, when: str, message: str) -> None:
    """A fault that kills every worker raises StateError, and finished blocks are kept."""
    driver = os.getpid()

    def faults(_number: int, body: Any) -> None:
        if "number 9 " in body["messages"][-1]["content"]:
            os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)

    with FaultServer(LABELS, faults=faults) as server:
        opened = opens(server.api_base)

        def opening(*, limits: Limits) -> Any:
            if os.getpid() != driver:
                (tmp_path / "worker").write_text(str(os.getpid()))
                if when == "opening":
                    os._exit(1)
            return opened(limits=limits)

        with pytest.raises(StateError, match=message):
            evaluate(
                animals(tmp_path, rows=24),
                opening=opening,
                out=tmp_path / "ray",
                cluster=Cluster(workers=1, block_rows=8),
                limits=Limits(concurrency=1),
            )
    kept = [row["index"] for row in written(tmp_path / "ray")]
    first, last = list(range(8)), list(range(16, 24))
    assert kept in ([[]] if when == "opening" else [first, first + last])  # the last block may be under way


def test_a_stopped_run_goes_on_within_its_limits(tmp_path: Path) -> None:
    """A stopped run continues within its rate and budget, and no row is paid for twice."""
    rows = animals(tmp_path)
    prices = {"input_cost_per_token": 0.01, "output_cost_per_token": 0.0}
    stop = Stop()
    with FaultServer(LABELS, latency=0.1, requests_per_second=40) as server:
        first = run(
            *(rows, server, tmp_path / "ray"),
            model=prices,
            limits=replace(LIMITS, requests_per_minute=40 * 60 * 0.9),
            stop=stop,
            on_progress=lambda _: stop.request("enough"),
        )
        assert (first.metrics.complete, first.metrics.stopped) == (False, "enough")
        assert not (tmp_path / "ray" / "predictions.jsonl").exists()
        kept = written(tmp_path / "ray")
        assert 0 < len(kept) == sum(server.counts.values()) < 60
        price = kept[0]["cost"]
        budget = 7 * price
        limits = Limits(concurrency=8, requests_per_minute=40 * 60 * 0.9, max_cost=budget)
        second = run(rows, server, tmp_path / "ray", limits=limits, model=prices)
        assert set(server.counts.values()) == {1}
    found = written(tmp_path / "ray")
    assert len(found) == len(server.counts) < 60
    assert {row["outcome"] for row in found} == {"ok"}
    assert second.metrics.stopped == f"The budget max_cost of {budget:,} US dollars is used up"
    paid = sum(row["cost"] for row in found) - sum(row["cost"] for row in kept)
    dearest = max(row["cost"] for row in found)
    assert abs(paid - budget) <= dearest + 1e-9


def test_too_many_workers_are_refused(tmp_path: Path) -> None:
    """More workers than CPUs raise ConfigurationError."""
    with (
        FaultServer(LABELS) as server,
        pytest.raises(ConfigurationError, match="CPU for each of 3 workers, got 2"),
    ):
        run(animals(tmp_path), server, tmp_path / "ray", cluster=Cluster(workers=3))


def test_the_command_evaluates_on_workers(tmp_path: Path, write_task: Callable[..., Path]) -> None:
    """`calibrant evaluate` and `label` with `--engine ray` write the rows and files of the local engine."""
    parquet = pytest.importorskip("pyarrow.parquet")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Say which animal it is.")
    with FaultServer(
        LABELS, lambda text, asked: "cat" if "meow" in text and "Say" in asked else "dog"
    ) as server:
        extra = f'[model]\nname = "openai/any"\napi_base = "{server.api_base}"\n[model.options]\napi_key = "none"\n'
        task = write_task(extra=extra)
        for engine in ("local", "ray"):
            arguments = ["evaluate", str(task), "--out", str(tmp_path / engine), "--prompt", str(prompt)]
            options = ["--engine", engine, "--parquet", "--no-cache", "--fail-under", "accuracy=1"]
            done = CliRunner().invoke(app, [*arguments, *options])
            assert done.exit_code == 0, done.output
        files = {path.name for path in (tmp_path / "ray").iterdir()}
        assert files == {path.name for path in (tmp_path / "local").iterdir()}  # `label` adds a look at drift
        data, labels = tmp_path / "test.jsonl", []
        for engine in ("local", "ray"):
            source, out = tmp_path / "local", tmp_path / f"label-{engine}"
            options = ["--out", str(out), "--engine", engine, "--no-cache"]
            done = CliRunner().invoke(app, ["label", str(source), str(data), *options])
            assert done.exit_code == 0, done.output
            labels.append((out / "labels.jsonl").read_bytes())
    assert labels[0] == labels[1]
    assert lines(tmp_path / "ray") == lines(tmp_path / "local")
    tables = [
        parquet.read_table(tmp_path / engine / "predictions.parquet").drop_columns("latency_seconds")
        for engine in ("local", "ray")
    ]
    assert tables[0] == tables[1]


def test_machines_with_another_version_of_calibrant_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of calibrant on a machine raises ConfigurationError before the run."""
    real = metadata.version("calibrant")
    monkeypatch.setattr(metadata, "version", lambda _: "0.0.7")
    with (
        FaultServer(LABELS) as server,
        pytest.raises(ConfigurationError, match=rf"calibrant 0\.0\.7 on every machine.*got {real} on "),
    ):
        run(animals(tmp_path), server, tmp_path / "ray")


def test_one_file_is_not_shared_by_two_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SQLite cache for two machines raises ConfigurationError."""
    nodes = ray.nodes() * 2
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    with (
        FaultServer(LABELS) as server,
        pytest.raises(ConfigurationError, match="cache that 2 machines can share, got a SQLite file"),
    ):
        run(animals(tmp_path), server, tmp_path / "ray", cache="rows.sqlite")
