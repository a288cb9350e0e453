"""Speed and kills of ``calibrant review`` with many rows.

    python benchmarks/bench_review.py [--rows 10000] [--decisions 100] [--kills 20] [--strict]

The rows have eight labels with probabilities, and 30 words each. The command is a process of its own. Opening is timed
in Chromium, from the address to the first text; a decision from the request to the answer, which comes when it is on
disk: with few answers, with a promise that is recomputed between two of them, and with an answer to every row. Last,
the command is killed (SIGKILL) at random moments while decisions stream in: each that was answered has to be in the
file, which has to be readable after every kill.

Prints a table. Exit code 1 with --strict when the page opens in more than 1 s, half of the decisions of a kind take
more than 50 ms, or one is lost.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))

from headless import CHROMIUM, Browser
from review_page import GONE, Visitor, answers_in, reviewed

LABELS = [f"label {n}" for n in range(8)]
WORDS = (
    "refund",
    "parcel",
    "late",
    "card",
    "phone",
    "lost",
    "again",
    "money",
    "when",
    "order",
    "courier",
    "never",
)


def write_rows(folder: Path, n: int) -> Path:
    """Write the predictions of a run; return its folder."""
    draw = random.Random(0)
    folder.mkdir()
    with (folder / "predictions.jsonl").open("w") as file:
        for index in range(n):
            sure, label = draw.betavariate(5, 1.2), draw.choice(LABELS)
            probabilities = {name: (1 - sure) / (len(LABELS) - 1) for name in LABELS} | {label: sure}
            text = " ".join(draw.choices(WORDS, k=30))
            values = {"index": index, "input": f"{text} {index}", "label": label, "answer": None}
            print(json.dumps(values | {"confidence": sure, "probabilities": probabilities}), file=file)
    return folder


def seconds_to_open(run: Path, out: Path) -> float:
    """Return the seconds from the address to the first text on the page."""
    with reviewed(run, "--out", out) as page, tempfile.TemporaryDirectory() as profile:
        browser = Browser(Path(profile))
        begun = time.perf_counter()
        browser.send("Page.navigate", url=page.url)
        while not browser.run("document.getElementById('text')?.textContent ?? ''"):
            time.sleep(0.005)
        found = time.perf_counter() - begun
        browser.close()
    return found


def decision_times(visitor: Visitor, rows: Sequence[int], after: Callable[[], object]) -> list[float]:
    """Return the milliseconds of a decision on each row; `after` runs behind each."""
    found = []
    for row in rows:
        begun = time.perf_counter()
        visitor.decide(row, LABELS[row % len(LABELS)]).json["answered"]
        found.append(1000 * (time.perf_counter() - begun))
        after()
    return found


def fill(run: Path, out: Path) -> None:
    """Write a file with an answer to every row."""
    out.mkdir()
    with (run / "predictions.jsonl").open() as file, (out / "answers.csv").open("w", newline="") as answers:
        table = csv.writer(answers, lineterminator="\n")
        table.writerow(("index", "text", "label", "answer"))
        for line in file:
            row = json.loads(line)
            table.writerow((row["index"], row["input"], row["label"], row["label"]))


def lost_in_kills(run: Path, out: Path, n: int, kills: int) -> tuple[int, int]:
    """Kill the command again and again; return the decisions that were answered, and those that were lost."""
    draw = random.Random(1)
    kept: dict[int, str] = {}
    confirmed = lost = 0
    for _ in range(kills):
        with reviewed(run, "--out", out) as page:
            visitor = Visitor(page.url)
            threading.Timer(draw.uniform(0.05, 1.0), page.process.kill).start()
            row, answer = 0, ""
            try:
                while True:
                    row, answer = draw.randrange(n), draw.choice(LABELS)
                    if visitor.decide(row, answer).status == 200:
                        kept[row] = answer
                        confirmed += 1
            except GONE:
                page.process.wait()
        found = answers_in(out / "answers.csv") if (out / "answers.csv").exists() else {}
        under_way = {row} if found.get(row) == answer else set()
        lost += sum(found.get(place) != given for place, given in kept.items() if place not in under_way)
        kept = found
    return confirmed, lost


def line(name: str, times: Sequence[float]) -> str:
    """Return a line of the table."""
    ordered = sorted(times)
    last = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"{name:<44} {ordered[len(ordered) // 2]:7.1f} {last:7.1f} {ordered[-1]:7.1f}"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--decisions", type=int, default=100)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--strict", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, n = write_rows(folder / "run", given.rows), given.rows
        opened = [seconds_to_open(run, folder / f"open{k}") for k in range(3)] if CHROMIUM else []
        draw = random.Random(2)
        chosen = draw.sample(range(n), given.decisions)
        kinds: dict[str, list[float]] = {}
        with reviewed(run, "--out", folder / "few") as page:
            kinds["few answers"] = decision_times(Visitor(page.url), chosen, lambda: None)
        with reviewed(run, "--out", folder / "promise", "--certify") as page:
            visitor = Visitor(page.url)
            promise: list[float] = []

            def ask() -> None:
                begun = time.perf_counter()
                visitor.ask("/api/promise")
                promise.append(1000 * (time.perf_counter() - begun))

            kinds["few answers, promise after each"] = decision_times(visitor, chosen, ask)
        fill(run, folder / "all")
        with reviewed(run, "--out", folder / "all") as page:
            kinds["an answer to every row"] = decision_times(Visitor(page.url), chosen, lambda: None)
        confirmed, lost = lost_in_kills(run, folder / "killed", n, given.kills)
    print(f"{n:,} rows; milliseconds {'':<24} median     p99    most")
    for kind, times in kinds.items():
        print(line(f"decision: {kind}", times))
    print(line("the promise", promise))
    if opened:
        print(f"the page opens in {min(opened):.2f} to {max(opened):.2f} s")
    print(f"{given.kills} kills: {confirmed:,} decisions answered, {lost} of them lost")
    slow = any(sorted(times)[len(times) // 2] > 50 for times in kinds.values())
    return int(given.strict and (lost > 0 or slow or (bool(opened) and min(opened) > 1)))


if __name__ == "__main__":
    sys.exit(main())
