"""Time of ``calibrant label`` with spans sent to a collector, beside the time without, 64 rows at once.

    python benchmarks/bench_tracing.py [--rows 4000] [--latency 0.1] [--rounds 5] [--strict]

Model server and collector are processes of their own, on loopback; every command is one, too. With and without tracing
take turns, start and end included, without a cache. Ratios are of the same round; their median counts.

Prints a table. Exit code 1 with --strict when the ratio is above 1.10, or when a span is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_label import COMMAND, LABELS, SERVER, TASK, write_rows

COLLECTOR = str(Path(SERVER).with_name("span_collector.py"))
MOST = 1.10


@contextmanager
def process(*command: str) -> Iterator[str]:
    """Yield the first line that a process prints."""
    with subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        try:
            yield one.stdout.readline() if one.stdout else ""
        finally:
            one.terminate()


def measure(folder: Path, *words: object, collector: str) -> tuple[float, float]:
    """Run a command that sends its spans, if there is a collector; return its seconds and those of its processor."""
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
    begun = time.perf_counter()
    with (folder / "output.txt").open("ab") as output:
        one = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *map(str, words)], stdout=output, stderr=output, env=environment
        )
        _, status, usage = os.wait4(one.pid, 0)
    one.returncode = os.waitstatus_to_exitcode(status)
    if one.returncode:
        raise SystemExit((folder / "output.txt").read_text())
    return time.perf_counter() - begun, usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure, print the table, and exit with 1 if a bar is missed and --strict is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--latency", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    model = (SERVER, "--labels", *LABELS, "--latency", str(options.latency))
    seconds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name, process(*model) as line, process(COLLECTOR) as root:
        folder, collector = Path(name), root.strip()
        task = folder / "task.toml"
        task.write_text(TASK.format(url=json.loads(line)["api_base"]))
        rows = write_rows(folder, options.rows)
        for number in range(options.rounds):
            for traced in (False, True) if number % 2 else (True, False):
                words = ("label", task, rows, "--out", folder / f"{number}{traced}", "--no-cache")
                seconds[traced].append(measure(folder, *words, collector=collector if traced else ""))
        with urllib.request.urlopen(f"{collector}/count", timeout=60) as answer:  # noqa: S310
            spans = json.load(answer)
    expected = options.rounds * 2 * options.rows
    ratios = [on[0] / off[0] for off, on in zip(seconds[False], seconds[True], strict=True)]
    busy = [on[1] / off[1] for off, on in zip(seconds[False], seconds[True], strict=True)]
    ratio = statistics.median(ratios)
    title = f"{options.rows:,} rows, {options.latency:g} s a call, median of {options.rounds}"
    print(f"| {title} | seconds | of the processor |")
    print("| --- | --- | --- |")
    for traced, title in ((False, "without tracing"), (True, "two spans a row")):
        wall, cpu = map(statistics.median, zip(*seconds[traced], strict=True))
        print(f"| {title} | {wall:.2f} | {cpu:.2f} |")
    print(
        f"| ratio | {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}) | {statistics.median(busy):.3f} |\n\n"
        f"{spans:,} spans arrived of at least {expected:,}."
    )
    raise SystemExit(int(options.strict and (ratio > MOST or spans < expected)))


if __name__ == "__main__":
    main()
