"""Two Ray workers against one, and what Ray Data adds to a row beside the engine of one machine.

    python benchmarks/bench_ray.py [--rows 2400] [--rounds 3] [--cpu-ms 10] [--plain-rows 12000] [--file-rows 100000]

The loopback server is a process of its own. For the first figures every row costs `cpu-ms` of the worker's own CPU
time before it is asked, as local rendering or tokenising would, so that the workers are the bound; one worker and two
take turns, and the ratio is the median of those of the rounds. The next are of rows without such work, here and on
one worker in turn (medians again), and say what dealing them out, moving and writing them costs. Starting Ray and the
workers is left out there, as the clock runs from the first block that came back to the last, and stated alone. The
last figures are of one process without Ray: how fast it reads the input, writes blocks, puts them in order and makes
Parquet of them, how many bytes a row of two labels takes there, and how many of memory while the numbers are made.

Every run has 24 blocks: with `--rows 480` a block is 20 rows, and what Ray does for each block shows.

Prints two tables as docs/scale.md has them: what was measured, and what 10^9 rows would take at that speed. Exit code
1 when two workers are less than 1.7 times as fast as one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

LABELS = ["cat", "dog"]
SERVER = str(Path(__file__).parents[1] / "tests" / "shared" / "serve_faults.py")
LEAST_SPEED_UP = 1.7
CONCURRENCY = 32
BLOCK = 1024
ROWS = 1e9


@contextmanager
def server() -> Iterator[str]:
    """Yield the address of a server on the loopback interface."""
    command = [sys.executable, SERVER, "--labels", *LABELS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield str(json.loads(process.stdout.readline())["api_base"])
        finally:
            process.terminate()


def opens(url: str, cpu_seconds: float) -> Callable[..., Any]:
    """Return what opens a classifier whose rows cost so much CPU time of its own process."""

    def opening(*, limits: Any) -> Any:
        from calibrant.inference import Classifier

        class Busy(Classifier):
            async def feed(self, queries: Any, deliver: Any, **options: Any) -> str:
                def worked() -> Any:
                    for query in queries:
                        end = time.thread_time() + cpu_seconds
                        while time.thread_time() < end:
                            pass
                        yield query

                return await super().feed(worked(), deliver, **options)

            def with_limits(self, _limits: Any) -> Any:
                return self

        options = {"api_base": url, "api_key": "none"}
        kind = Busy if cpu_seconds else Classifier
        return kind(model="openai/any", labels=LABELS, field="category", options=options, limits=limits)

    return opening


def dataset(folder: Path, rows: int) -> Any:
    """Return so many rows."""
    from calibrant.core import DataSource, LabelSet
    from calibrant.evaluation import Dataset

    path = folder / f"{rows}.jsonl"
    lines = [
        json.dumps({"input": f"row {row} is a {LABELS[row % 2]}", "answer": LABELS[row % 2]})
        for row in range(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return Dataset(source=DataSource(path=path), labels=LabelSet.of(LABELS))


def rows_per_second(folder: Path, opening: Callable[..., Any], *, rows: int, workers: int) -> float:
    """Return the speed of a run on Ray, from its first block to its last."""
    from calibrant.core import Limits
    from calibrant.distributed import Cluster, evaluate

    seen: list[tuple[float, int]] = []
    evaluate(
        dataset(folder, rows),
        opening=opening,
        out=Path(tempfile.mkdtemp(dir=folder)),
        cluster=Cluster(workers=workers, block_rows=max(1, rows // 24)),
        limits=Limits(concurrency=CONCURRENCY),
        on_progress=lambda now: seen.append((now.seconds, now.session_rows)),
    )
    (begun, first), (ended, last) = seen[0], seen[-1]
    return (last - first) / (ended - begun)


def seconds_to_start(folder: Path, opening: Callable[..., Any]) -> float:
    """Return how long a run of two rows takes: Ray and two workers are started, and ended."""
    from calibrant.distributed import Cluster, evaluate

    begun = time.perf_counter()
    evaluate(
        dataset(folder, 2),
        opening=opening,
        out=Path(tempfile.mkdtemp(dir=folder)),
        cluster=Cluster(workers=2, block_rows=1),
    )
    return time.perf_counter() - begun


def measure_files(folder: Path, rows: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return what one process does with so many rows: rows/s by what is done, and bytes a row by what they are for."""
    import pyarrow.parquet

    from calibrant.core import DataSource, LabelSet
    from calibrant.evaluation import Dataset
    from calibrant.evaluation._data import inspect
    from calibrant.evaluation._metrics import Tally
    from calibrant.evaluation._parquet import write_parquet
    from calibrant.runs._shards import Shards

    speeds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        begun = time.perf_counter()
        work()
        speeds[name] = rows / (time.perf_counter() - begun)

    given = dataset(folder, rows)
    columns = {"input": [row.input for row in given], "answer": [row.answer for row in given]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "input.parquet")
    in_columns = Dataset(source=DataSource(path=folder / "input.parquet"), labels=LabelSet.of(LABELS))
    timed("reading JSON Lines", lambda: inspect(given, given.labels))
    timed("reading Parquet", lambda: inspect(in_columns, given.labels))
    blocks = [lines_of(start, min(BLOCK, rows - start)) for start in range(0, rows, BLOCK)]
    (folder / "files").mkdir()
    shards = Shards(folder / "files" / "shards", BLOCK)
    timed("writing blocks", lambda: [shards.add(number, block) for number, block in enumerate(blocks)])
    timed("putting them in order", lambda: shards.join(folder / "predictions.jsonl"))
    timed(
        "making Parquet", lambda: write_parquet(folder / "predictions.jsonl", folder / "predictions.parquet")
    )
    sizes = {
        f"`{name}`": (folder / name).stat().st_size / rows
        for name in ("predictions.jsonl", "predictions.parquet")
    }
    tracemalloc.start()
    tally = Tally(given.labels)
    for number in range(len(blocks)):
        for line in blocks[number].splitlines():
            tally.add(json.loads(line))
    tally.metrics(expected=rows, stopped="", seconds=1.0, session_rows=rows)
    sizes["memory"] = tracemalloc.get_traced_memory()[1] / rows
    tracemalloc.stop()
    return speeds, sizes


def lines_of(start: int, rows: int) -> bytes:
    """Return so many lines of predictions, each with its own confidence, as a model gives them."""
    import numpy as np

    from calibrant.core import Example, LabelDistribution, Outcome, Prediction, Usage
    from calibrant.core._prediction import LogprobSpace
    from calibrant.runs._rows import row_line

    rng = np.random.default_rng(start)
    found = []
    for index in range(start, start + rows):
        share = rng.uniform(0.5, 1.0)
        distribution = LabelDistribution(
            labels=tuple(LABELS),
            logprobs=np.log([share, 1 - share]),
            measured=np.array([True, True]),
            joint_logprob=None,
            label_mass=rng.uniform(0.9, 1.0),
            unresolved_mass=0.0,
            space=LogprobSpace.RAW,
        )
        prediction = Prediction(
            label=LABELS[0],
            confidence=share,
            outcome=Outcome.OK,
            distribution=distribution,
            usage=Usage(prompt_tokens=80, completion_tokens=5, cost=2e-5),
            model="any",
            attempts=1,
            latency_seconds=rng.uniform(0.1, 0.5),
        )
        answer = LABELS[index % 4 == 0]  # some are wrong: numbers of rows that are all right take less memory
        found.append(row_line(index, Example(input=f"row {index} is a {answer}", answer=answer), prediction))
    return b"".join(found)


def local_rows_per_second(folder: Path, opening: Callable[..., Any], *, rows: int) -> float:
    """Return the speed of the engine of one machine."""
    from calibrant.core import Limits
    from calibrant.evaluation import BatchEvaluator

    classifier = opening(limits=Limits(concurrency=CONCURRENCY))
    try:
        result = BatchEvaluator(classifier, concurrency=CONCURRENCY).evaluate(
            dataset(folder, rows), out=Path(tempfile.mkdtemp(dir=folder))
        )
    finally:
        classifier.close()
    return result.metrics.rows_per_second or 0.0


def table(title: str, rows: dict[str, str]) -> None:
    """Print a table of Markdown."""
    print(f"\n| {title} | |\n|---|---|")
    print("\n".join(f"| {name} | {value} |" for name, value in rows.items()))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-ms", type=float, default=10.0)
    parser.add_argument("--plain-rows", type=int, default=12_000)
    parser.add_argument("--file-rows", type=int, default=100_000)
    arguments = parser.parse_args()
    with server() as url, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        busy = opens(url, arguments.cpu_ms / 1000)
        plain = opens(url, 0.0)
        speed = partial(rows_per_second, folder)
        busy_rounds, plain_rounds = [], []
        for _ in range(arguments.rounds):
            busy_rounds.append([speed(busy, rows=arguments.rows, workers=workers) for workers in (1, 2)])
            plain_rounds.append(
                [
                    local_rows_per_second(folder, plain, rows=arguments.plain_rows),
                    speed(plain, rows=arguments.plain_rows, workers=1),
                ]
            )
        one, two = map(median, zip(*busy_rounds, strict=True))
        ratios = sorted(fast / slow for slow, fast in busy_rounds)
        ratio = median(ratios)
        here, ray = map(median, zip(*plain_rounds, strict=True))
        more = sorted(1e3 * (1 / on_ray - 1 / local) for local, on_ray in plain_rounds)
        started = seconds_to_start(folder, plain)
        speeds, sizes = measure_files(folder, arguments.file_rows)
    table(
        "Measured",
        {
            f"{arguments.cpu_ms:g} ms of CPU a row, one worker": f"{one:,.0f} rows/s",
            "the same, two workers": (
                f"{two:,.0f} rows/s ({ratio:.2f} times; {ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} rounds)"
            ),
            "no such work, local engine": f"{here:,.0f} rows/s",
            "no such work, one Ray worker": (
                f"{ray:,.0f} rows/s: {median(more):.2f} ms a row more ({more[0]:.2f} to {more[-1]:.2f})"
            ),
            "starting and ending Ray and two workers": f"{started:.1f} s a run",
            **{name: f"{speed:,.0f} rows/s" for name, speed in speeds.items()},
            **{f"a row of two labels, {name}": f"{size:,.0f} bytes" for name, size in sizes.items()},
        },
    )
    days = {"one worker": ROWS / ray, **{name: ROWS / speed for name, speed in speeds.items()}}
    table(
        "Projected for 10⁹ rows",
        {
            **{f"{name}, in one process": f"{seconds / 86_400:.1f} days" for name, seconds in days.items()},
            **{name: f"{ROWS * size / 1e9:,.0f} GB" for name, size in sizes.items()},
        },
    )
    return 0 if ratio >= LEAST_SPEED_UP else 1


if __name__ == "__main__":
    raise SystemExit(main())
