"""Time of ``calibrant label`` with spans sent to a collector, beside the time without, 64 rows at once.

    python benchmarks/bench_tracing.py [--rows 4000] [--latency 0.2] [--rounds 5] [--strict]
    python benchmarks/bench_tracing.py --extras ALL/bin/python --without NONE/bin/python

Model server and collector are processes of their own, on loopback; every command is one, too. With and without tracing
take turns, start and end included, without a cache. Ratios are of the same round; their median counts.

The second form compares two environments instead, one with every extra and one with none, where nothing is traced: the
time of `import calibrant`, and of `label`.

Prints a table. Exit code 1 with --strict when the ratio is above 1.10, in the second form above 1.05, or when a span is
lost.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from bench_label import COMMAND, LABELS, SERVER, TASK, write_rows

COLLECTOR = str(Path(SERVER).with_name("span_collector.py"))
MOST, MOST_EXTRAS = 1.10, 1.05
Seconds: TypeAlias = tuple[float, float]
Measure: TypeAlias = Callable[[int], Seconds]


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


def measure(folder: Path, *words: object, collector: str = "", python: str = "") -> tuple[float, float]:
    """Run a command that sends its spans, if there is a collector; return its seconds and those of its processor."""
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
    code = COMMAND if words else "import calibrant"
    begun = time.perf_counter()
    with (folder / "output.txt").open("ab") as output:
        command = [python or sys.executable, "-c", code, *map(str, words)]
        one = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        _, status, usage = os.wait4(one.pid, 0)
    one.returncode = os.waitstatus_to_exitcode(status)
    if one.returncode:
        raise SystemExit((folder / "output.txt").read_text())
    return time.perf_counter() - begun, usage.ru_utime + usage.ru_stime


def in_turn(first: Measure, second: Measure, *, rounds: int) -> list[tuple[Seconds, Seconds]]:
    """Return the seconds of two measurements in each round; the one that begins changes from round to round."""
    found = []
    for number in range(rounds):
        if number % 2:
            after = second(number)
            found.append((first(number), after))
        else:
            found.append((first(number), second(number)))
    return found


def print_table(title: str, names: tuple[str, str], found: list[tuple[Seconds, Seconds]]) -> float:
    """Print the medians of two measurements and of their ratios; return the ratio of the seconds."""
    ratios = [second[0] / first[0] for first, second in found]
    busy = [second[1] / first[1] for first, second in found]
    print(f"| {title}, median of {len(found)} | seconds | of the processor |")
    print("| --- | --- | --- |")
    for name, one in zip(names, zip(*found, strict=True), strict=True):
        wall, cpu = map(statistics.median, zip(*one, strict=True))
        print(f"| {name} | {wall:.2f} | {cpu:.2f} |")
    ratio = statistics.median(ratios)
    print(
        f"| ratio | {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}) | {statistics.median(busy):.3f} |\n"
    )
    return ratio


def compare_environments(folder: Path, words: tuple[object, ...], options: argparse.Namespace) -> bool:
    """Measure both environments; return True if every extra together costs too much."""
    pythons = (options.without, options.extras)
    names = ("no extra", "every extra")

    def label(python: str, number: int) -> Seconds:
        out = folder / f"{number}-{pythons.index(python)}"
        return measure(folder, *words, "--out", out, "--no-cache", python=python)

    imports = [partial(lambda python, _: measure(folder, python=python), python) for python in pythons]
    labels = [partial(label, python) for python in pythons]
    most = print_table("`import calibrant`", names, in_turn(*imports, rounds=4 * options.rounds))
    return max(most, print_table("`label`", names, in_turn(*labels, rounds=options.rounds))) > MOST_EXTRAS


def compare_tracing(folder: Path, words: tuple[object, ...], options: argparse.Namespace) -> bool:
    """Measure with a collector and without; return True if tracing costs too much, or loses spans."""
    with process(COLLECTOR) as root:
        collector = root.strip()

        def label(address: str, number: int) -> Seconds:
            out = folder / f"{number}-{bool(address)}"
            return measure(folder, *words, "--out", out, "--no-cache", collector=address)

        found = in_turn(partial(label, ""), partial(label, collector), rounds=options.rounds)
        with urllib.request.urlopen(f"{collector}/count", timeout=60) as answer:  # noqa: S310
            spans = json.load(answer)
    title = f"{options.rows:,} rows, {options.latency:g} s a call"
    ratio = print_table(title, ("without tracing", "two spans a row"), found)
    expected = options.rounds * 2 * options.rows
    print(f"{spans:,} spans arrived of at least {expected:,}.")
    return ratio > MOST or spans < expected


def main() -> None:
    """Measure, print the tables, and exit with 1 if a bar is missed and --strict is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--extras")
    parser.add_argument("--without")
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    model = (SERVER, "--labels", *LABELS, "--latency", str(options.latency))
    with tempfile.TemporaryDirectory() as name, process(*model) as line:
        folder = Path(name)
        task = folder / "task.toml"
        task.write_text(TASK.format(url=json.loads(line)["api_base"]))
        words = ("label", task, write_rows(folder, options.rows))
        compare = compare_environments if options.extras else compare_tracing
        missed = compare(folder, words, options)
    raise SystemExit(int(missed and options.strict))


if __name__ == "__main__":
    main()
