"""Recorded confidence before and after calibration, beside scikit-learn's isotonic curve.

    python benchmarks/bench_calibration.py --data DIR_WITH_CSV [--halves 20]

Every CSV file (columns prompt, predicted, probability, correct) holds the answers to several prompts. The rows
of each prompt are split into random halves: a calibrator is selected and fitted on one and judged on the other,
beside no calibration and scikit-learn's isotonic regression. Printed per set: means over the halves, and in how
many of them the Brier score is worse than uncalibrated.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from pathlib import Path

import numpy as np
from _data import available
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

from calibrant.calibration import select_calibrator
from calibrant.metrics import brier_score, expected_calibration_error

Array = NDArray[np.float64]


def recorded(path: Path) -> dict[str, tuple[Array, Array, list[str]]]:
    """Return confidence, correctness and predicted labels by prompt."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {}
    for prompt in dict.fromkeys(row["prompt"] for row in rows):
        own = [row for row in rows if row["prompt"] == prompt]
        p = np.array([float(row["probability"]) for row in own])
        y = np.array([float(row["correct"] == "true") for row in own])
        found[prompt] = (p, y, [row["predicted"] for row in own])
    return found


def halves(p: Array, y: Array, labels: list[str], *, n_halves: int) -> tuple[Array, Counter[str]]:
    """Return, by half, Brier and ECE uncalibrated, ours and isotonic, shape (n_halves, 6); and what was chosen."""
    figures, chosen = [], Counter[str]()
    for seed in range(n_halves):
        order = np.random.default_rng(seed).permutation(len(p))
        fit, test = order[: len(p) // 2], order[len(p) // 2 :]
        found = select_calibrator(p[fit], y[fit], predicted=[labels[i] for i in fit], rng=seed)
        chosen[found.name] += 1
        q = found.calibrator.predict(p[test], predicted=[labels[i] for i in test])
        curve = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(p[fit], y[fit])
        peer = curve.predict(p[test])
        figures.append(
            [
                measure(given, y[test])
                for given in (p[test], q, peer)
                for measure in (brier_score, expected_calibration_error)
            ]
        )
    return np.array(figures), chosen


def main() -> None:
    """Print one line per set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with CSV files of recorded answers")
    parser.add_argument("--halves", type=int, default=20)
    options = parser.parse_args()
    paths = sorted(options.data.glob("*.csv"))
    if not paths:
        available(options.data, ("ag_news", "emotion", "rotten_tomatoes"), ending=".csv")
    print(
        f"{'set':26} {'Brier raw':>9} {'ours':>7} {'isotonic':>8} {'ECE raw':>8} {'ours':>7} {'isotonic':>8} "
        f"{'ours - isotonic':>15} {'Brier worse':>11}  chosen"
    )
    for path in paths:
        for prompt, (p, y, labels) in recorded(path).items():
            found, chosen = halves(p, y, labels, n_halves=options.halves)
            mean = found.mean(axis=0)
            worse = int((found[:, 2] > found[:, 0]).sum())
            print(
                f"{path.stem + ' ' + prompt:26} {mean[0]:9.4f} {mean[2]:7.4f} {mean[4]:8.4f} {mean[1]:8.4f} "
                f"{mean[3]:7.4f} {mean[5]:8.4f} {mean[3] - mean[5]:15.4f} {worse:5d} of {len(found)}  "
                f"{', '.join(f'{name} {count}' for name, count in chosen.most_common())}"
            )


if __name__ == "__main__":
    main()
