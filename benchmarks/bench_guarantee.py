"""Check that certified cascades keep their promise, and how many rows stay with the small model.

    python benchmarks/bench_guarantee.py --data DIR_WITH_CSV [--draws 1000] [--rows 1000] [--only ag_news]

Every recorded file is a population: the small model is the prompt "baseline", the large one the prompt
"confidence", paired by row. 1,000 calibration samples are drawn from it with replacement and a cascade is
certified on each. `violated` is the share of samples whose cascade loses more than epsilon against the
large model in the population, `small` the mean share of the population's rows that stay with the small
model, `hindsight` that of the best threshold if the population were known, `alone` what the small model
loses on all rows. `betting` is `small` with a betting bound (Waudby-Smith and Ramdas 2024) instead of the
exact test, in the same sequence, on the first 300 samples.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrant.cascade import certify_cascade

BARS = {"ag_news": 0.3, "emotion": 0.3, "rotten_tomatoes": 0.0}
_BETTING_DRAWS = 300

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Population:
    """Confidence of the small model and correctness of both, shape (n,)."""

    confidence: Array
    small: Array
    large: Array

    def at(self, threshold: float | None) -> tuple[float, float]:
        """Return the loss at a threshold, and the share that is kept."""
        if threshold is None:
            return 0.0, 0.0
        kept = self.confidence >= threshold
        return float(((self.large - self.small) * kept).mean()), float(kept.mean())


def read(path: Path) -> Population:
    """Return a file's rows as a population."""
    found: dict[str, dict[str, tuple[float, float]]] = {"baseline": {}, "confidence": {}}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["prompt"] in found:
                found[row["prompt"]][row["row"]] = float(row["probability"]), float(row["correct"] == "true")
    rows = [row for row in found["baseline"] if row in found["confidence"]]
    small = np.array([found["baseline"][row] for row in rows])
    large = np.array([found["confidence"][row][1] for row in rows])
    return Population(confidence=small[:, 0], small=small[:, 1], large=large)


def betting_threshold(
    rows: Population, *, epsilon: float, delta: float, rng: np.random.Generator
) -> float | None:
    """Return the lowest threshold by predictable plug-in bets against a loss of epsilon (section 4 of the paper)."""
    order = rng.permutation(len(rows.confidence))
    sure, difference = rows.confidence[order], (rows.large - rows.small)[order]
    found = None
    for threshold in np.unique(sure)[::-1]:
        gain = (epsilon - difference * (sure >= threshold)) / (1.0 + epsilon)  # above -1; mean 0 or less
        count = np.arange(1, len(gain) + 1)
        mean = (np.cumsum(gain)) / (count + 1)
        spread = (0.25 + np.cumsum((gain - mean) ** 2)) / (count + 1)
        bet = np.sqrt(2.0 * np.log(1.0 / delta) / (len(gain) * np.append(0.25, spread[:-1])))
        if np.cumsum(np.log1p(np.minimum(bet, 0.5) * gain)).max() < np.log(1.0 / delta):
            break
        found = float(threshold)
    return found


def main() -> None:
    """Print one line per population."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--epsilon", type=float, default=0.02)
    parser.add_argument("--delta", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(BARS))
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"Expected a folder with {', '.join(BARS)} as .csv, got {options.data}.")
    started = time.perf_counter()
    print(
        f"{'population':16} {'alone':>7} {'violated':>8} {'small':>6} {'hindsight':>9} {'betting':>7} {'bar':>5}"
    )
    missed = False
    for name in BARS if options.only is None else [options.only]:
        population = read(options.data / f"{name}.csv")
        rng = np.random.default_rng(options.seed)
        drawn = [rng.integers(len(population.small), size=options.rows) for _ in range(options.draws)]
        found, betting = [], []
        for number, own in enumerate(drawn):
            one = Population(
                confidence=population.confidence[own],
                small=population.small[own],
                large=population.large[own],
            )
            risk = {"epsilon": options.epsilon, "delta": options.delta}
            threshold = certify_cascade(one.confidence, one.small, one.large, **risk).threshold
            found.append(population.at(threshold))
            if number < _BETTING_DRAWS:
                betting.append(population.at(betting_threshold(one, **risk, rng=rng))[1])
        loss, kept = np.array(found).T
        every = [population.at(value) for value in np.unique(population.confidence)]
        hindsight = max((share for lost, share in every if lost <= options.epsilon), default=0.0)
        violated = float((loss > options.epsilon).mean())
        notes = ["violated too often"] if violated > options.delta else []
        notes += ["below the bar"] if kept.mean() < BARS[name] else []
        missed |= bool(notes)
        print(
            f"{name:16} {population.at(0.0)[0]:+7.4f} {violated:8.3f} {kept.mean():6.3f} {hindsight:9.3f} "
            f"{np.mean(betting):7.3f} {BARS[name]:5.2f}  {', '.join(notes)}"
        )
    print(f"{time.perf_counter() - started:.1f} s")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
