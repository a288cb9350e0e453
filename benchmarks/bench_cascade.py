"""What a cascade adds to its models' calls, and how long planning takes.

    python benchmarks/bench_cascade.py [--rows 4000] [--runs 9]

Models answer at once, in this process, with token log-probabilities. One classifier alone is the peer: the difference
in seconds a row is the cascade's own work. All sides run in turns on texts nobody asked before; medians are printed.
Planning: `routing_frontier` on 100,000 rows with nine values of the signal, and with as many values as rows.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from calibrant.cascade import Cascade, routing_frontier
from calibrant.core import CompletionRequest, LogprobSpace
from calibrant.inference import Classifier
from calibrant.logprobs._fields import enum_schema
from calibrant.testing import FakeClient

LABELS = ("World", "Sports", "Business", "Sci/Tech")
MOST_ROWS = 100_000


class Ready:
    """A model whose answer is ready."""

    space = LogprobSpace.MASKED

    def __init__(self, name: str) -> None:
        self.name = name
        fake = FakeClient(
            LABELS, {}, default={"Sports": 0.9, "World": 0.05, "Business": 0.03, "Sci/Tech": 0.02}
        )
        asked = CompletionRequest(
            messages=({"role": "user", "content": "text"},), response_format=enum_schema(LABELS, "category")
        )
        self._answer = json.dumps(asyncio.run(fake.complete(asked)))

    async def complete(self, request: CompletionRequest) -> Any:
        """Return it."""
        del request
        return json.loads(self._answer)

    def close(self) -> None:
        """Hold nothing."""


def classifier(name: str) -> Classifier:
    """Return a classifier of a ready model."""
    return Classifier(model=Ready(name), labels=LABELS, field="category", prompt="Classify.", concurrency=64)


def overhead(rows: int, runs: int) -> None:
    """Print what a decision costs."""
    numbers = itertools.count()
    alone = classifier("alone")
    sides: dict[str, tuple[Classifier, int]] = {"alone": (alone, 1)}
    for method in ("label_probability", "avg_logprob", "margin", "hybrid"):
        for threshold, asked in ((0.0, 1), (1.0, 2)):
            models = [classifier("small"), classifier("large")]
            cascade = Cascade(models, method=method, threshold=threshold, escalation_order="declared")
            sides[f"{method}, {asked} asked"] = cascade, asked
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(runs + 1):
        for name, (side, asked) in sides.items():
            texts = [f"text {next(numbers)}" for _ in range(rows)]
            start = time.process_time()
            found = side.classify_many(texts)
            seconds[name].append((time.process_time() - start) / rows)
            assert all(len(one.steps) in (0, asked) for one in found)  # noqa: S101 (what is measured)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    print(f"a model alone: {1e6 * medians['alone']:.0f} microseconds a row")
    print("the cascade's own microseconds for each decision (bar 200):")
    for name, (_, asked) in sides.items():
        if name != "alone":
            own = (medians[name] - asked * medians["alone"]) / asked
            print(f"  {name:28} {1e6 * own:6.0f}", flush=True)


def planning(runs: int) -> None:
    """Print how long the frontier takes."""
    rng = np.random.default_rng(0)
    small = rng.random(MOST_ROWS) < 0.7
    large = rng.random(MOST_ROWS) < 0.9
    for name, signal in (
        ("9 values", rng.integers(0, 9, MOST_ROWS) / 8),
        ("100,000 values", rng.random(MOST_ROWS)),
    ):
        work: Callable[[], object] = lambda signal=signal: routing_frontier(  # noqa: E731
            signal, small, large, small_cost=1.0, large_cost=50.0, verifier_cost=1.0
        )
        print(
            f"frontier of {MOST_ROWS:,} rows, {name}: {1e3 * _median(work, runs):.1f} ms (bar 2,000)",
            flush=True,
        )


def _median(work: Callable[[], object], runs: int) -> float:
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    overhead(options.rows, options.runs)
    planning(options.runs)


if __name__ == "__main__":
    main()
