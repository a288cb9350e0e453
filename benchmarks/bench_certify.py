"""Check that certified thresholds keep their promise, and what this costs in coverage.

    python benchmarks/bench_certify.py --data DIR_WITH_CSV [--draws 1000] [--rows 1000] [--delta 0.1]
    python benchmarks/bench_certify.py --data DIR_WITH_CSV --mapie [--draws 200] [--rows 200]

Every recorded file, and every prompt in it, is a population: 1,000 calibration samples are drawn from
it with replacement and a threshold is certified on each. `wrong` is the share of samples whose
threshold has a population accuracy below the target (at most delta, within Monte-Carlo error), `coverage` the
population's mean coverage, `bar` that of the best threshold in hindsight for the target plus 0.03.

With --mapie the same samples go to MAPIE's MultiClassificationLTTController, which abstains below a threshold (Learn
then Test). Its risk is the same promise, right answers among those accepted, and of the thresholds that hold it takes
the one that abstains least. Two settings: its own (100 thresholds from 0 to 0.99, Bonferroni-Holm), and a fixed
sequence from 1 downwards, which is the nearest to what `certify_threshold` does.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _data import available
from numpy.typing import NDArray

from calibrant.calibration._thresholds import first_rows, last_certified, rows_at_thresholds

TARGETS = {"ag_news": (0.85, 0.88), "rotten_tomatoes": (0.85, 0.88), "emotion": (0.60, 0.62)}

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of certifying many samples of one population."""

    wrong: float
    coverage: float
    hindsight: float


def read(path: Path) -> dict[str, tuple[Array, Array]]:
    """Return confidence and correctness of a file's rows, all of them and by prompt."""
    found: dict[str, list[tuple[float, float]]] = {"all": []}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            pair = float(row["probability"]), float(row["correct"] == "true")
            found["all"].append(pair)
            found.setdefault(row["prompt"], []).append(pair)
    return {name: (np.array(pairs)[:, 0], np.array(pairs)[:, 1]) for name, pairs in found.items()}


def hindsight(confidence: Array, correct: Array, target: float) -> float:
    """Return the largest coverage of any threshold whose accuracy in the population is the target."""
    order = np.argsort(-confidence, kind="stable")
    last_of_tie = np.append(np.diff(confidence[order]) != 0, True)
    accuracy = correct[order].cumsum() / np.arange(1, len(order) + 1)
    reached = np.flatnonzero(last_of_tie & (accuracy >= target))
    return float((reached[-1] + 1) / len(order)) if len(reached) else 0.0


def simulate(
    confidence: Array,
    correct: Array,
    *,
    target: float,
    delta: float,
    draws: int,
    rows: int,
    rng: np.random.Generator,
) -> Outcome:
    """Certify `draws` samples of `rows` rows each, all at once."""
    _, n, k = rows_at_thresholds(confidence, correct)
    accuracy, coverage, width = k / n, n / len(confidence), len(n)
    # Every row's threshold: the highest that accepts it.
    rank = np.empty(len(confidence), dtype=np.intp)
    rank[np.argsort(-confidence, kind="stable")] = np.repeat(np.arange(width), np.diff(n, prepend=0))
    drawn = rng.integers(len(confidence), size=(draws, rows))
    flat = (rank[drawn] + width * np.arange(draws)[:, None]).ravel()
    counted = np.bincount(flat, minlength=width * draws).reshape(draws, width).cumsum(axis=1)
    right = np.bincount(flat, correct[drawn].ravel(), minlength=width * draws).reshape(draws, width)
    started = counted >= first_rows(rows, target_accuracy=target, delta=delta)
    last = last_certified(
        counted, right.cumsum(axis=1).astype(np.intp), started, target_accuracy=target, delta=delta
    )
    some = last >= 0
    return Outcome(
        wrong=float(np.mean(some & (accuracy[last] < target))),
        coverage=float(np.mean(np.where(some, coverage[last], 0.0))),
        hindsight=hindsight(confidence, correct, target + 0.03),
    )


def main() -> None:
    """Print one line per population and target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--delta", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mapie", action="store_true", help="the same samples for MAPIE's controller")
    options = parser.parse_args()
    names = available(options.data, TARGETS, ending=".csv")
    if options.mapie:
        from _mapie_peer import compare  # the rest does not need MAPIE

        compare(
            {name: read(options.data / f"{name}.csv")["default"] for name in names},
            TARGETS,
            draws=options.draws,
            rows=options.rows,
            delta=options.delta,
            seed=options.seed,
        )
        return
    started = time.perf_counter()
    error = 2.0 * float(np.sqrt(options.delta * (1.0 - options.delta) / options.draws))
    print(f"{'population':28} {'target':>6} {'wrong':>6} {'coverage':>8} {'bar':>6}")
    for name in names:
        for prompt, (confidence, correct) in read(options.data / f"{name}.csv").items():
            for target in TARGETS[name]:
                found = simulate(
                    confidence,
                    correct,
                    target=target,
                    delta=options.delta,
                    draws=options.draws,
                    rows=options.rows,
                    rng=np.random.default_rng(options.seed),
                )
                notes = ["too many wrong"] if found.wrong > options.delta + error else []
                notes += ["below the bar"] if found.coverage < found.hindsight - 0.005 else []
                print(
                    f"{name + ', ' + prompt:28} {target:6.2f} {found.wrong:6.3f} {found.coverage:8.3f} "
                    f"{found.hindsight:6.3f}  {', '.join(notes)}"
                )
    print(f"{time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
