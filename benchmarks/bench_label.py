"""Speed, memory and kills of ``calibrant label``, beside ``calibrant evaluate`` on the same texts.

    python benchmarks/bench_label.py [--rows 200000] [--few 2000] [--rounds 2] [--kills 5] [--strict]

The loopback server is a process of its own and counts its requests; every command is one, too. A run on a few rows with
answers is calibrated, and `label` labels with it: thresholds decide, and drift is looked for. `evaluate` and `label` of
the same texts take turns, start and end included, without a cache, and the best round of each counts; then `label` of a
few rows, whose peak of memory that of many is compared with. Last, `label` is killed (SIGKILL) at even shares of
the rows and started again: every id has to be there once, in the order of the input, and the server counts what is
paid. Processor seconds are those of the command alone, and say more where other programs run beside it.

Prints a table. Exit code 1 with --strict when label has less than 0.9 of evaluate's rows/s, takes more than 1.3 times
the memory, loses or repeats an id, or pays for more than 1.02 times the rows.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LABELS = ["cat", "dog"]
SERVER = str(Path(__file__).parents[1] / "tests" / "shared" / "serve_faults.py")
COMMAND = "from calibrant.cli import main; main()"
TASK = """
name = "animals"
labels = ["cat", "dog"]
field = "category"
prompt = "Which animal?"
[data]
input_column = "text"
[model]
name = "openai/any"
api_base = "{url}"
[model.options]
api_key = "none"
"""


@contextmanager
def server() -> Iterator[str]:
    """Yield the address of a server on the loopback interface."""
    command = [sys.executable, SERVER, "--labels", *LABELS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield str(json.loads(process.stdout.readline())["api_base"])
        finally:
            process.terminate()


def paid(url: str) -> int:
    """Return the number of requests the server has answered."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/stats", timeout=30) as answer:  # noqa: S310
        return int(json.load(answer)["requests"])


def begin(folder: Path, *words: object) -> subprocess.Popen[bytes]:
    """Start a command whose output goes to a file."""
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-c", COMMAND, *map(str, words)], stdout=output, stderr=output
        )


def measure(folder: Path, *words: object) -> tuple[float, float, float]:
    """Run a command; return its seconds, those of its processor, and its peak of memory in MB."""
    begun = time.perf_counter()
    process = begin(folder, *words)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit((folder / "output.txt").read_text())
    scale = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * scale / 1e6


def write_rows(folder: Path, rows: int) -> Path:
    """Write a CSV file of so many rows with ids, texts and answers."""
    path = folder / f"{rows}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "answer"])
        writer.writerows(
            [f"{row:07d}", f"row {row} is a {LABELS[row % 2]}", LABELS[row % 2]] for row in range(rows)
        )
    return path


def ids_in_order(path: Path, rows: int) -> bool:
    """Return True if every id is in the file once, in order."""
    with path.open(newline="") as file:
        found = [row["id"] for row in csv.DictReader(file)]
    return found == [f"{row:07d}" for row in range(rows)]


def kill_often(folder: Path, url: str, words: tuple[object, ...], *, rows: int, kills: int) -> int:
    """Run a command, kill it so many times, and return the calls that were paid until it ended."""
    before = paid(url)
    for number in range(1, kills + 1):
        process = begin(folder, *words)
        while paid(url) - before < rows * number // (kills + 1) and process.poll() is None:
            time.sleep(0.02)
        process.kill()
        process.wait()
    measure(folder, *words)
    return paid(url) - before


def main() -> None:
    """Measure, print the table, and exit with 1 if a bar is missed and --strict is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--few", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    rows, few = options.rows, options.few
    with tempfile.TemporaryDirectory() as name, server() as url:
        folder = Path(name)
        task = folder / "task.toml"
        task.write_text(TASK.format(url=url))
        many, some = write_rows(folder, rows), write_rows(folder, few)
        run = folder / "run"
        measure(folder, "evaluate", task, "--file", some, "--out", run, "--no-cache")
        measure(folder, "calibrate", run, "--target-accuracy", "0.5", "--out", run)
        figures: dict[str, list[tuple[float, float, float]]] = {"evaluate": [], "label": []}
        for number in range(options.rounds):
            for command, words in (("evaluate", (task, "--file", many)), ("label", (run, many))):
                out = folder / f"{command}{number}"
                figures[command].append(measure(folder, command, *words, "--out", out, "--no-cache"))
        _, _, least_memory = measure(folder, "label", run, some, "--out", folder / "few", "--no-cache")
        words = ("label", run, many, "--out", folder / "killed", "--no-cache")
        calls = kill_often(folder, url, words, rows=rows, kills=options.kills)
        whole = all(ids_in_order(folder / name / "labels.csv", rows) for name in ("label0", "killed"))
    best = {command: min(found) for command, found in figures.items()}
    memory = max(found[2] for found in figures["label"])
    speed, share = best["evaluate"][0] / best["label"][0], memory / least_memory
    effort, calls_a_row = best["label"][1] / best["evaluate"][1], calls / rows
    print(
        f"| {rows:,} rows, the best of {options.rounds} | seconds | of the processor | rows/s | peak of memory |"
    )
    print("| --- | --- | --- | --- | --- |")
    for command, (seconds, busy, peak) in best.items():
        print(f"| `{command}` | {seconds:.1f} | {busy:.1f} | {rows / seconds:,.0f} | {peak:.0f} MB |")
    print(f"| `label`, {few:,} rows | | | | {least_memory:.0f} MB |")
    print(
        f"\nlabel has {speed:.2f} of evaluate's rows/s, {effort:.2f} times its processor time, and {share:.2f} times "
        f"the memory of {few:,} rows; after "
        f"{options.kills} kills every id is {'there once, in order' if whole else 'NOT there once'}, and "
        f"{calls_a_row:.4f} calls a row were paid."
    )
    missed = speed < 0.9 or share > 1.3 or not whole or calls_a_row > 1.02
    raise SystemExit(int(missed and options.strict))


if __name__ == "__main__":
    main()
