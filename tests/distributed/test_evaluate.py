"""`calibrant.distributed.evaluate`: the rows of one machine, whatever happens to the workers."""

from __future__ import annotations

import json
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calibrant import Classifier
from calibrant.cli import app
from calibrant.core import ConfigurationError, DataSource, LabelSet, ProviderError, StateError
from calibrant.distributed import Cluster, evaluate
from calibrant.distributed._shards import Shards
from calibrant.evaluation import BatchEvaluator, Dataset, EvaluationResult
from calibrant.inference import Limits, RetryPolicy, Stop
from calibrant.testing import FaultServer

ray = pytest.importorskip("ray", reason="needs the extra ray")
pytest.importorskip("ray.data", reason="needs the extra ray")

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, of its own settings

LABELS = ["cat", "dog"]
PASSING = {"latency_seconds"}
CLUSTER = Cluster(workers=2, block_rows=8)
LIMITS = Limits(concurrency=8)


@pytest.fixture(scope="module", autouse=True)
def small_cluster() -> Iterator[None]:
    """Start Ray once, on the loopback interface, with two CPUs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=100 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
    yield
    ray.shutdown()


@pytest.fixture
def animals(tmp_path: Path) -> Dataset:
    """Sixty rows; every fifth label is wrong."""
    path = tmp_path / "animals.jsonl"
    rows = [
        {"input": f"number {n} is a {LABELS[n % 2]}", "answer": LABELS[n % 2 if n % 5 else 0]}
        for n in range(60)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Dataset(source=DataSource(path=path), labels=LabelSet.of(LABELS))


def opens(url: str, seen: Path | None = None) -> Callable[..., Classifier]:
    """Return what opens a classifier on the server; a function of a function, which travels with its code.

    Workers leave their process ids as names of files in `seen`.
    """
    driver = os.getpid()

    def opening(*, limits: Limits) -> Classifier:
        if seen is not None and os.getpid() != driver:
            (seen / str(os.getpid())).touch()
        return Classifier(
            model="openai/any",
            labels=LABELS,
            field="category",
            options={"api_base": url, "api_key": "none"},
            limits=limits,
            retry=RetryPolicy(attempts=1),
        )

    return opening


def lines(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of ``predictions.jsonl`` without what depends on the moment."""
    found = [json.loads(line) for line in (directory / "predictions.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in row if name not in PASSING} for row in found]


def run(
    animals: Dataset, server: FaultServer, out: Path, *, seen: Path | None = None, **options: Any
) -> EvaluationResult:
    """Evaluate on the small cluster."""
    options = {"cluster": CLUSTER, "limits": LIMITS, **options}
    return evaluate(animals, opening=opens(server.api_base, seen), out=out, **options)


def test_rows_and_numbers_are_those_of_one_machine(animals: Dataset, tmp_path: Path) -> None:
    """Row by row, wrong answers, failures and refusals included."""

    def faults(_number: int, body: Any) -> str | None:
        text = body["messages"][-1]["content"]
        return "503" if "number 7 " in text else "refusal" if "number 9 " in text else None

    with FaultServer(LABELS, faults=faults) as server:
        here = opens(server.api_base)(limits=LIMITS)
        local = BatchEvaluator(here, concurrency=8).evaluate(animals, out=tmp_path / "local")
        here.close()
        result = run(animals, server, tmp_path / "ray")
    assert lines(tmp_path / "ray") == lines(tmp_path / "local")
    assert [row["index"] for row in lines(tmp_path / "ray")] == list(range(60))
    assert result.metrics.complete
    same = {"seconds": 0.0}
    assert replace(result.metrics, **same) == replace(local.metrics, **same)


def test_a_killed_worker_loses_and_duplicates_nothing(animals: Dataset, tmp_path: Path) -> None:
    """The rows of its block are answered by the one that takes its place; every row stands there once."""
    seen = tmp_path / "workers"
    seen.mkdir()
    killed: list[int] = []

    def faults(number: int, _body: Any) -> None:
        workers = [int(path.name) for path in seen.iterdir()]
        if number >= 20 and workers and not killed:
            killed.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    with FaultServer(LABELS, faults=faults) as server:
        result = run(animals, server, tmp_path / "ray", seen=seen)
    assert killed
    assert len(list(seen.iterdir())) > 2
    found = lines(tmp_path / "ray")
    assert [row["index"] for row in found] == list(range(60))
    assert [row["input"] for row in found] == [row.input for row in animals]
    assert {row["outcome"] for row in found} == {"ok"}
    assert result.metrics.rows == result.metrics.answered == 60


def test_a_stopped_run_goes_on_where_it_was(animals: Dataset, tmp_path: Path) -> None:
    """Rows on disk are not asked again, and the whole is what an undisturbed run gives."""
    stop = Stop()
    with FaultServer(LABELS) as server:
        first = run(
            animals, server, tmp_path / "ray", stop=stop, on_progress=lambda _: stop.request("enough")
        )
        assert (first.metrics.complete, first.metrics.stopped) == (False, "enough")
        assert not (tmp_path / "ray" / "predictions.jsonl").exists()
        shards = (tmp_path / "ray" / "shards").glob("*.jsonl")
        kept = [json.loads(line)["input"] for shard in shards for line in shard.read_text().splitlines()]
        assert 0 < len(kept) < 60
        second = run(animals, server, tmp_path / "ray")
        assert {server.counts[text] for text in kept} == {1}
        whole = run(animals, server, tmp_path / "whole")
        asked = sum(server.counts.values())
        again = run(animals, server, tmp_path / "ray")
        assert sum(server.counts.values()) == asked
    assert second.metrics.session_rows == 60 - len(kept)
    assert lines(tmp_path / "ray") == lines(tmp_path / "whole")
    assert again.metrics.accuracy == second.metrics.accuracy == whole.metrics.accuracy


def test_only_rows_that_failed_are_asked_again(animals: Dataset, tmp_path: Path) -> None:
    """A failure is data in the first run, and its row alone is asked in the second."""

    def faults(_number: int, body: Any) -> str | None:
        text = body["messages"][-1]["content"]
        return "503" if "number 7 " in text and not server.count(text) else None

    with FaultServer(LABELS, faults=faults) as server:
        first = run(animals, server, tmp_path / "ray")
        assert (first.metrics.complete, first.metrics.outcomes["error"]) == (True, 1)
        asked = sum(server.counts.values())
        second = run(animals, server, tmp_path / "ray")
        assert sum(server.counts.values()) == asked + 1
    assert (second.metrics.session_rows, second.metrics.outcomes["ok"]) == (1, 60)
    assert [row["outcome"] for row in lines(tmp_path / "ray")] == ["ok"] * 60


def test_a_run_that_ended_before_its_rows_were_put_in_order_has_them_in_order_the_next_time(
    animals: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no file of an earlier state stays."""

    def faults(number: int, _body: Any) -> str | None:
        return "503" if number == 3 else None

    def full(*_: object) -> None:
        raise StateError("full")

    with FaultServer(LABELS, faults=faults) as server:
        run(animals, server, tmp_path / "ray")
        with monkeypatch.context() as patched:
            patched.setattr(Shards, "join", full)
            with pytest.raises(StateError, match="full"):
                run(animals, server, tmp_path / "ray")
        asked = sum(server.counts.values())
        result = run(animals, server, tmp_path / "ray")
        assert sum(server.counts.values()) == asked == 61
    assert result.metrics.outcomes["ok"] == 60
    assert [row["outcome"] for row in lines(tmp_path / "ray")] == ["ok"] * 60


def test_a_fault_that_every_call_meets_is_raised_here(animals: Dataset, tmp_path: Path) -> None:
    """With the words it has on one machine; the directory says why the run ended."""
    with (
        FaultServer(LABELS, api_key="another") as server,
        pytest.raises(ProviderError, match="401") as raised,
    ):
        run(animals, server, tmp_path / "ray")
    metrics = json.loads((tmp_path / "ray" / "metrics.json").read_text())
    assert (metrics["complete"], metrics["stopped"]) == (False, str(raised.value))


def test_a_rate_is_kept_by_all_workers_together(animals: Dataset, tmp_path: Path) -> None:
    """A server that refuses whatever comes faster refuses nothing."""
    with FaultServer(LABELS, requests_per_second=40) as server:
        limits = Limits(concurrency=8, requests_per_minute=40 * 60 * 0.9)
        run(animals, server, tmp_path / "ray", limits=limits)
        assert sum(server.counts.values()) == 60
    assert {row["outcome"] for row in lines(tmp_path / "ray")} == {"ok"}


def test_more_workers_than_the_cluster_has_room_for_are_refused(animals: Dataset, tmp_path: Path) -> None:
    """They would be waited for without end."""
    with (
        FaultServer(LABELS) as server,
        pytest.raises(ConfigurationError, match="CPU for each of 3 workers, got 2"),
    ):
        run(animals, server, tmp_path / "ray", cluster=Cluster(workers=3))


def test_the_command_evaluates_on_workers(tmp_path: Path, write_task: Callable[..., Path]) -> None:
    """With another prompt, whose file no other machine has; what comes out is what the local engine leaves."""
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Say which animal it is.")
    with FaultServer(
        LABELS, lambda text, asked: "cat" if "meow" in text and "Say" in asked else "dog"
    ) as server:
        extra = f'[model]\nname = "openai/any"\napi_base = "{server.api_base}"\n[model.options]\napi_key = "none"\n'
        task = write_task(extra=extra)
        for engine in ("local", "ray"):
            arguments = ["evaluate", str(task), "--out", str(tmp_path / engine), "--prompt", str(prompt)]
            done = CliRunner().invoke(
                app, [*arguments, "--engine", engine, "--no-cache", "--fail-under", "accuracy=1"]
            )
            assert done.exit_code == 0, done.output
    assert lines(tmp_path / "ray") == lines(tmp_path / "local")
    files = {path.name for path in (tmp_path / "ray").iterdir()} - {"shards"}
    assert files == {path.name for path in (tmp_path / "local").iterdir()}
