"""What the service adds to a call, and whether it grows.

    python benchmarks/bench_serve.py [--seconds 30] [--rate 200] [--strict]

A model server (20 ms) and `calibrant serve` each run in a process of their own; one text per request, at even times
that do not wait for answers, over at most 256 kept connections, as many rows as the service takes on by default: what
a stalled machine holds up beyond that waits in the client. The same load goes to the model server itself, in turns with
the service; what is added is the difference of the percentiles of seconds from when a request was due. Memory is the
service's resident set: what it has gained between the end of the first quarter and the end, all connections having
been in use at once before that.

The host of a virtual machine may withhold the processors for tenths of a second (Linux counts that as stolen time),
whatever runs here. Percentiles are told over all seconds, and over those quiet ones in which, and before which,
at most one hundredth of the time was stolen.

Exits with 1 if a request failed, if memory grew, or if a request takes more of the processor than one core has at this
rate. The 99th percentile added, over all seconds, is held against its bar, 10 ms, and told; as the host moves it, it
decides with --strict only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from calibrant.core import Task
from calibrant.evaluation import BatchEvaluator, Dataset
from calibrant.inference import Classifier
from calibrant.tuned import Tuned

MOST_ADDED_MS = 10.0
MOST_GROWTH_MIB = 5.0
MOST_STOLEN = 0.01
CONNECTIONS = 256
LABELS = ("Food", "Rent", "Travel", "Other")
SERVER = str(Path(__file__).parents[1] / "tests" / "shared" / "serve_faults.py")
TASK = """\
name = "bench"
labels = ["Food", "Rent", "Travel", "Other"]
field = "category"
prompt = "Which kind of payment is it?"
[data]
test = "test.jsonl"
[model]
name = "openai/bench"
api_base = "{base}"
"""
Body = Callable[[int], dict[str, Any]]
Taken = list[tuple[float, float]]  # when a request was due, and the seconds it took from then


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run a process that prints one JSON line when it is ready; yields its id and the line."""
    running = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert running.stdout is not None  # noqa: S101 (for mypy)
        yield running.pid, json.loads(running.stdout.readline())
    finally:
        running.terminate()
        try:
            running.communicate(timeout=60)
        finally:
            running.kill()  # one that does not end on its own, too


def make_bundle(folder: Path, base: str) -> Path:
    """Return a bundle that asks the server."""
    (folder / "task.toml").write_text(TASK.format(base=base))
    rows = [{"input": f"{n} {LABELS[n % 4]}", "answer": LABELS[n % 4]} for n in range(200)]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Task.from_file(folder / "task.toml", splits=())
    with contextlib.closing(Classifier.from_task(task)) as classifier:
        BatchEvaluator(classifier).evaluate(
            Dataset(source=task.sources["test"], labels=task.labels), out=folder / "run"
        )
    Tuned.from_run(folder / "run", task=task).save(folder / "bundle")
    return folder / "bundle"


async def load(
    session: aiohttp.ClientSession, url: str, body: Body, *, rate: float, seconds: float
) -> tuple[Taken, Counter[str]]:
    """Send requests at even times; return what they took, and what failed and how often."""
    taken: Taken = []
    failed = Counter[str]()

    async def ask(number: int, due: float) -> None:
        try:
            async with session.post(url, json=body(number)) as reply:
                await reply.read()
                if reply.status != 200:
                    failed[str(reply.status)] += 1
        except aiohttp.ClientError as error:
            failed[type(error).__name__] += 1
        taken.append((due, time.perf_counter() - due))

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            due = start + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(ask(number, due))
    return taken, failed


def resident(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def processor_ms(pid: int) -> float:
    """Return the milliseconds of processor time a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1e3


def stolen() -> float:
    """Return the seconds for which the host has withheld this virtual machine's processors; 0 elsewhere."""
    with contextlib.suppress(OSError):
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK")
    return 0.0


async def watch_host(quiet: dict[int, bool]) -> None:
    """Note for every second from now on whether it and the one before it were quiet."""
    before, last = stolen(), False
    while True:
        await asyncio.sleep(1 - time.perf_counter() % 1)
        now = stolen()
        calm = now - before <= MOST_STOLEN * (os.cpu_count() or 1)
        quiet[int(time.perf_counter()) - 1] = calm and last
        before, last = now, calm


def percentiles(taken: dict[str, Taken], *, kept: Callable[[int], bool], title: str) -> Any:
    """Print percentiles of requests that were due in seconds that are kept; return those added, in milliseconds."""
    print(title)
    found = {}
    for name, requests in taken.items():
        values = [seconds for due, seconds in requests if kept(int(due))]
        found[name] = np.percentile(values, [50, 95, 99]) * 1e3 if values else np.full(3, np.nan)
        shown = "  ".join(f"p{p} {ms:6.2f}" for p, ms in zip((50, 95, 99), found[name], strict=True))
        print(f"  {name:8} {len(values):7,} requests  {shown} ms")
    added = found["service"] - found["model"]
    shown = "  ".join(f"p{p} {ms:6.2f}" for p, ms in zip((50, 95, 99), added, strict=True))
    print(f"  added                      {shown} ms")
    return added


async def measure(base: str, url: str, pid: int, *, rate: float, seconds: float, strict: bool) -> bool:
    """Print what was measured; return whether it is within the bars that count."""

    def bare(number: int) -> dict[str, Any]:
        messages = [
            {"role": "system", "content": "Which kind of payment is it?"},
            {"role": "user", "content": f"{time.time_ns()} {LABELS[number % 4]}"},
        ]
        return {"model": "bench", "messages": messages, "logprobs": True, "top_logprobs": 5}

    def served(number: int) -> dict[str, Any]:
        return {"text": f"{time.time_ns()} {LABELS[number % 4]}"}

    # Rounds of a minute, so that memory is known after the first; at least four.
    rounds = max(4, round(seconds / 60))
    loads = {"model": (f"{base}/chat/completions", bare), "service": (f"{url}/v1/classify", served)}
    taken: dict[str, Taken] = {name: [] for name in loads}
    failures = Counter[str]()
    quiet: dict[int, bool] = {}
    host = asyncio.create_task(watch_host(quiet))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS)) as session:
        for address, body in loads.values():  # connections, imports, caches; at once, and then as measured
            await load(session, address, body, rate=CONNECTIONS / 0.01, seconds=0.01)
            await load(session, address, body, rate=rate, seconds=2)
        memory, processor = [resident(pid)], processor_ms(pid)
        for _ in range(rounds):
            for name, (address, body) in loads.items():
                # Most of the time belongs to the service.
                part = 0.8 if name == "service" else 0.2
                found, failed = await load(session, address, body, rate=rate, seconds=part * seconds / rounds)
                taken[name] += found
                failures += failed
            memory.append(resident(pid))
        processor = (processor_ms(pid) - processor) / len(taken["service"])
    host.cancel()
    added = percentiles(taken, kept=lambda _: True, title="all seconds")
    share = sum(quiet.values()) / len(quiet)
    print(f"quiet seconds: {share:.0%}")
    if any(quiet.get(int(due), False) for due, _ in taken["model"]):
        percentiles(taken, kept=lambda at: quiet.get(at, False), title="quiet seconds")
    growth = memory[-1] - memory[rounds // 4]
    print(
        f"memory {memory[0]:.1f} MiB at the start, {memory[1]:.1f} after {seconds / rounds:.0f} s, "
        f"{memory[-1]:.1f} at the end; {growth:+.2f} since the first quarter"
    )
    bars = {
        f"failures: {dict(failures)}, none expected": not failures,
        f"growth: {growth:.2f} MiB, at most {MOST_GROWTH_MIB:g}": growth <= MOST_GROWTH_MIB,
        f"processor: {processor:.2f} ms a request, at most {1e3 / rate:g}": processor <= 1e3 / rate,
        f"added p99: {added[2]:.2f} ms, at most {MOST_ADDED_MS:g}": bool(added[2] <= MOST_ADDED_MS),
    }
    for bar, kept in bars.items():
        print("PASS" if kept else "FAIL", bar)
    return all(bars.values() if strict else list(bars.values())[:-1])


def main() -> int:
    """Run; return 1 beyond a bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--strict", action="store_true", help="the 99th percentile decides, too")
    options = parser.parse_args()
    server = [SERVER, "--labels", *LABELS, "--latency", "0.02"]
    with tempfile.TemporaryDirectory() as folder, process(*server) as (_, model):
        bundle = make_bundle(Path(folder), model["api_base"])
        command = "from calibrant.cli._app import main; main()"
        with process("-c", command, "serve", str(bundle), "--port", "0", "--json") as (pid, service):
            within = asyncio.run(
                measure(
                    model["api_base"],
                    service["url"],
                    pid,
                    rate=options.rate,
                    seconds=options.seconds,
                    strict=options.strict,
                )
            )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
