"""The bootstrap interval of 1,000 values from 10,000 resamples, beside scipy.stats.bootstrap.

    python benchmarks/bench_metrics.py [--repeats 15]

Percentile intervals of the mean of 0/1 and of continuous values; the best of some repetitions, taken in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from scipy import stats

from calibrant.metrics import bootstrap_interval


def seconds(call: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Print both times and their ratio, by kind of value."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    kinds = {"binary": (rng.random(1_000) < 0.85).astype(float), "continuous": rng.normal(size=1_000)}
    for name, x in kinds.items():

        def ours(x: np.ndarray = x) -> object:
            return bootstrap_interval(x, n_resamples=10_000, rng=0)

        def peer(x: np.ndarray = x) -> object:
            return stats.bootstrap(
                (x,), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(0)
            )

        ours(), peer()
        pairs = [(seconds(ours), seconds(peer)) for _ in range(repeats)]
        best, reference = (min(column) for column in zip(*pairs, strict=True))
        print(
            f"{name:10}: calibrant {1e3 * best:7.2f} ms, scipy {1e3 * reference:7.2f} ms, {reference / best:5.1f} times"
        )


if __name__ == "__main__":
    main()
