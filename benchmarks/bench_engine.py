"""The evaluation engine beside a bare aiohttp loop and gepa's ConfidenceAdapter, on one loopback server.

    python benchmarks/bench_engine.py [--rows 4000] [--runs 5] [--only start speed cache faults kill memory]

The server is a process of its own: 20 ms latency, answers of 4 labels with log-probabilities. Calls are
64 at a time. All sides of a ratio run in turns, in one process, on texts nobody asked before; medians of
the runs are printed. What a side costs is the processor's time of this process for each row; how much faster
that makes it depends on the latency of the server, so rows per second are measured at three. The memory and
kill measurements run ``calibrant evaluate``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
LABELS = ("World", "Sports", "Business", "Sci/Tech")
SERVER = str(Path(__file__).parents[1] / "tests" / "shared" / "serve_faults.py")
COMMAND = str(Path(sys.executable).parent / "calibrant")
PROMPT = "Classify the news text."
CONCURRENCY = 64
LATENCY = 0.02
LATENCIES = (0.02, 0.3, 1.0)
FAULTS = {
    "500": 0.03,
    "rate_limit:0.05": 0.03,
    "reset_before_headers": 0.02,
    "reset_after_headers": 0.02,
    "truncated": 0.02,
    "no_logprobs": 0.02,
}
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
PARTS = ("start", "speed", "cache", "faults", "kill", "memory")


@contextmanager
def server(*, latency: float = LATENCY, faults: dict[str, float] | None = None) -> Iterator[str]:
    """Start a server process; yields its ``api_base``."""
    command = [sys.executable, SERVER, "--latency", str(latency), "--port", "0"]
    command += ["--labels", *LABELS]
    for kind, share in (faults or {}).items():
        command += ["--fault", f"{kind}={share}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101 (piped)
        try:
            yield json.loads(process.stdout.readline())["api_base"]
        finally:
            process.terminate()


def stats(api_base: str) -> dict[str, Any]:
    """Return what the server counted."""
    address = api_base.removesuffix("/v1") + "/stats"
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 (loopback)
        found: dict[str, Any] = json.load(answer)
    return found


def texts(count: int) -> list[str]:
    """Return so many texts nobody has asked before."""
    return [f"news {random.random()} of the day" for _ in range(count)]


def rows(count: int) -> list[dict[str, Any]]:
    """Return the same as rows of GEPA."""
    return [
        {"input": text, "answer": LABELS[number % 4], "additional_context": {}}
        for number, text in enumerate(texts(count))
    ]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What rows took.

    Attributes
    ----------
    rate : float
        Rows per second.
    processor : float
        Milliseconds of the processor a row, of this process.
    """

    rate: float
    processor: float


def cost(count: int, run: Callable[[], object]) -> Cost:
    """Return what `count` rows take."""
    start, used = time.perf_counter(), time.process_time()
    run()
    seconds, used = time.perf_counter() - start, time.process_time() - used
    return Cost(rate=count / seconds, processor=1000 * used / count)


async def bare(api_base: str, count: int, schema: dict[str, Any]) -> None:
    """Make the same calls with nothing around them, and parse the JSON."""
    import aiohttp

    waiting = iter(texts(count))
    url = f"{api_base}/chat/completions"

    async def work(session: aiohttp.ClientSession) -> None:
        for text in waiting:
            body = {
                "model": "fake",
                "messages": [{"role": "system", "content": PROMPT}, {"role": "user", "content": text}],
                "response_format": schema,
                "logprobs": True,
                "top_logprobs": 5,
                "temperature": 0,
            }
            async with session.post(url, json=body) as response:
                await response.json()

    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work(session))


def speed(count: int, runs: int) -> None:
    """Compare the adapter with gepa's and with the bare loop, at three latencies."""
    print(f"\nspeed: {CONCURRENCY} calls at a time, medians of {runs}")
    print(f"{'latency':>8} {'side':20} {'processor, ms a row':>20} {'rows/s':>8} {'calibrant is faster':>20}")
    for latency in LATENCIES:
        rows_asked = min(count, round(10 * CONCURRENCY / latency**0.5))
        with server(latency=latency) as api_base:
            found = _costs(api_base, rows_asked, runs)
        own = found["calibrant adapter"]
        for name, (processor, rate) in found.items():
            ratio = own[1] / rate
            print(f"{latency:7.2f}s {name:20} {processor:20.2f} {rate:8.0f} {ratio:19.2f}x", flush=True)


def _costs(api_base: str, count: int, runs: int) -> dict[str, tuple[float, float]]:
    """Return the median processor time and rate of every side."""
    from gepa.adapters.confidence_adapter import ConfidenceAdapter as ReferenceAdapter

    from calibrant.adapters import ConfidenceAdapter
    from calibrant.logprobs._fields import enum_schema

    schema = enum_schema(LABELS, "category")
    settings: dict[str, Any] = {
        "max_litellm_workers": CONCURRENCY,
        "litellm_batch_completion_kwargs": {"api_base": api_base, "api_key": "none"},
    }
    own = ConfidenceAdapter("openai/fake", "category", schema, **settings)
    answer_schema = schema["json_schema"]["schema"]
    peer = ReferenceAdapter("openai/fake", "category", schema, answer_schema, **settings)
    sides: dict[str, Callable[[], Cost]] = {
        "bare aiohttp loop": lambda: cost(count, lambda: asyncio.run(bare(api_base, count, schema))),
        "calibrant adapter": lambda: _evaluated(own, count),
        "gepa adapter": lambda: _evaluated(peer, count),
    }
    for side in sides.values():
        side()  # imports, connections
    found: dict[str, list[Cost]] = {name: [] for name in sides}
    for _ in range(runs):
        for name, side in sides.items():
            found[name].append(side())
    return {
        name: (
            statistics.median(one.processor for one in costs),
            statistics.median(one.rate for one in costs),
        )
        for name, costs in found.items()
    }


def _evaluated(adapter: Any, count: int) -> Cost:
    batch = rows(count)
    return cost(count, lambda: adapter.evaluate(batch, {"system_prompt": PROMPT}, capture_traces=True))


def cache(count: int, runs: int) -> None:
    """Measure writes on against off, and a run that asks nothing."""
    from calibrant.core import Example
    from calibrant.evaluation import BatchEvaluator
    from calibrant.inference import Classifier
    from calibrant.store import PredictionCache

    with server() as api_base, tempfile.TemporaryDirectory() as folder:
        classifier = Classifier(
            model="openai/fake",
            labels=LABELS,
            field="category",
            prompt=PROMPT,
            concurrency=CONCURRENCY,
            options={"api_base": api_base, "api_key": "none"},
        )

        def run(store: PredictionCache | None, examples: list[Example]) -> float:
            evaluator = BatchEvaluator(classifier, concurrency=CONCURRENCY, cache=store)
            start = time.perf_counter()
            evaluator.evaluate(examples)
            if store is not None:
                store.flush()
            return len(examples) / (time.perf_counter() - start)

        def fresh() -> list[Example]:
            return [Example(input=row["input"], answer=row["answer"]) for row in rows(count)]

        off, on, again = [], [], []
        run(None, fresh())
        for number in range(runs):
            with PredictionCache(f"sqlite:///{folder}/{number}.sqlite") as store:
                off.append(run(None, fresh()))
                asked = fresh()
                on.append(run(store, asked))
                calls = stats(api_base)["requests"]
                again.append(run(store, asked))
                assert stats(api_base)["requests"] == calls, "the second run asked something"  # noqa: S101
    print(f"\ncache: {count} rows, medians of {runs}")
    print(f"off {statistics.median(off):.0f}, on {statistics.median(on):.0f} rows/s")
    print(f"on / off              {statistics.median(on) / statistics.median(off):8.2f}  (bar 0.85)")
    print(f"all in the cache      {statistics.median(again):8.0f} rows/s (bar 5,000)", flush=True)


def faults(count: int) -> None:
    """Rows lost, wrong for the server's faults, requests a row."""
    from calibrant.adapters import ConfidenceAdapter
    from calibrant.logprobs._fields import enum_schema

    with server(faults=FAULTS) as api_base:
        adapter = ConfidenceAdapter(
            "openai/fake",
            "category",
            enum_schema(LABELS, "category"),
            max_litellm_workers=CONCURRENCY,
            litellm_batch_completion_kwargs={"api_base": api_base, "api_key": "none"},
        )
        batch = rows(count)
        found = adapter.evaluate(batch, {"system_prompt": PROMPT}, capture_traces=True)
        seen = stats(api_base)
    assert found.trajectories is not None  # noqa: S101 (asked for)
    predictions = [trajectory["prediction"] for trajectory in found.trajectories]
    lost = sum(prediction.outcome == "error" for prediction in predictions)
    silent = sum(prediction.outcome == "ok" and prediction.confidence is None for prediction in predictions)
    wrong = sum(prediction.outcome in {"unparsed", "refusal"} for prediction in predictions)
    print(f"\nfaults: {count} rows, {sum(FAULTS.values()):.0%} of the calls fail: {seen['faults']}")
    print(f"rows {len(predictions)}, lost {lost}, the model's fault by mistake {wrong}, no evidence {silent}")
    print(f"requests a row        {seen['requests'] / count:8.3f}  (bar 1.25)", flush=True)


def _task(folder: Path, count: int, api_base: str) -> Path:
    with (folder / f"{count}.jsonl").open("w") as file:
        for row in rows(count):
            file.write(json.dumps({"input": row["input"], "answer": row["answer"]}) + "\n")
    task = folder / f"{count}.toml"
    task.write_text(
        f'name = "bench"\nlabels = {json.dumps(LABELS)}\nfield = "category"\nprompt = "{PROMPT}"\n'
        f'[data]\ntest = "{count}.jsonl"\n[model]\nname = "openai/fake"\napi_base = "{api_base}"\n'
        f'concurrency = {CONCURRENCY}\n[model.options]\napi_key = "none"\n'
    )
    return task


def _command(task: Path, out: Path) -> list[str]:
    return [COMMAND, "evaluate", str(task), "--no-cache", "--out", str(out)]


def kill(count: int) -> None:
    """Kill a run five times; every row must be there once, and hardly any paid twice."""
    with tempfile.TemporaryDirectory() as name, server() as api_base:
        folder = Path(name)
        command = _command(_task(folder, count, api_base), folder / "out")
        for _ in range(5):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            before = stats(api_base)["requests"]
            while stats(api_base)["requests"] < before + count // 7:
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
            process.wait()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines = (folder / "out" / "predictions.jsonl").read_text().splitlines()
        indices = [json.loads(line)["index"] for line in lines]
        calls = stats(api_base)["requests"]
    bar = count + 10 * CONCURRENCY
    print(f"\nkill -9 five times in {count} rows: {len(indices)} rows, in order and once each: ", end="")
    print(f"{indices == list(range(count))}; paid calls {calls} (bar {bar})", flush=True)


def memory(few: int, many: int) -> None:
    """Peak memory of two runs of different length."""
    peaks = {}
    with tempfile.TemporaryDirectory() as name, server(latency=0.0) as api_base:
        folder = Path(name)
        for count in (few, many):
            command = _command(_task(folder, count, api_base), folder / f"out{count}")
            # A forked process counts its parent's memory as its own peak: a small one starts it.
            found = subprocess.run(
                [sys.executable, "-c", PEAK, *command], check=True, stdout=subprocess.PIPE, text=True
            )
            peaks[count] = int(found.stdout) / 1024
    ratio = peaks[many] / peaks[few]
    print(f"\nmemory: {few} rows {peaks[few]:.0f} MB, {many} rows {peaks[many]:.0f} MB")
    print(f"ratio                 {ratio:8.2f}  (bar 1.3)", flush=True)


def start(runs: int) -> None:
    """Time to ``calibrant --help`` against importing typer."""

    def seconds(command: list[str]) -> float:
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begin

    sides = {
        "import typer": [sys.executable, "-c", "import typer"],
        "import calibrant": [sys.executable, "-c", "import calibrant"],
        "calibrant --help": [COMMAND, "--help"],
    }
    found = {
        name: statistics.median(seconds(command) for _ in range(runs)) for name, command in sides.items()
    }
    print(f"\nstart: medians of {runs}")
    for name, value in found.items():
        print(f"{name:20} {1000 * value:6.0f} ms, {value / found['import typer']:.2f} of typer's  (bar 3)")
    sys.stdout.flush()


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--many", type=int, default=200_000)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "start": lambda: start(options.runs),
        "speed": lambda: speed(options.rows, options.runs),
        "cache": lambda: cache(options.rows, options.runs),
        "faults": lambda: faults(2000),
        "kill": lambda: kill(5000),
        "memory": lambda: memory(2000, options.many),
    }
    for name in options.only:
        parts[name]()


if __name__ == "__main__":
    main()
