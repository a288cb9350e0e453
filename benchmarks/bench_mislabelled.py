"""Planted label errors, ranked among a classifier's own mistakes, beside cleanlab.

    python benchmarks/bench_mislabelled.py --data DIR_WITH_CSV [--seeds 10] [--share 0.05]

Every CSV file (columns prompt, expected, predicted, probability) holds recorded answers to several prompts. Of each
prompt's rows, 5 % get a wrong label, uniform over rows and over the other labels. The distribution is rebuilt: the
probability on the predicted label, the rest even over the others. Answers are out of sample; the prior and the
calibrator are fitted on the other folds. Rows are then ranked, least probable label first, and the planted rows are
to be found among all others, the classifier's own errors included.

The peer is cleanlab's `find_label_issues(return_indices_ranked_by="self_confidence")` on the distributions as they
are. It names a part of the rows; the others follow by the probability of their label, which only helps it. Printed
per prompt: mean average precision of both. Exits with 1 if ours is below cleanlab's minus 0.01 anywhere.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
from _data import available
from cleanlab.filter import find_label_issues
from numpy.typing import NDArray

from calibrant.calibration._scaling import held_out_answer_probability

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
SETS = ("ag_news", "emotion")
MARGIN = 0.01


def recorded(path: Path) -> dict[str, tuple[Floats, Places]]:
    """Return rebuilt distributions (n, L) and places of the true labels (n,) by prompt."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    labels = sorted({row["expected"] for row in rows})
    found = {}
    for prompt in dict.fromkeys(row["prompt"] for row in rows):
        own = [row for row in rows if row["prompt"] == prompt]
        p = np.array([float(row["probability"]) for row in own])
        predicted = np.array([labels.index(row["predicted"]) for row in own])
        distributions = np.repeat(((1.0 - p) / (len(labels) - 1))[:, None], len(labels), axis=1)
        distributions[np.arange(len(own)), predicted] = p
        found[prompt] = (distributions, np.array([labels.index(row["expected"]) for row in own]))
    return found


def planted(truth: Places, n_labels: int, share: float, seed: int) -> tuple[Places, NDArray[np.bool_]]:
    """Return labels with errors, and which rows these are."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(truth), round(share * len(truth)), replace=False)
    given, wrong = truth.copy(), np.zeros(len(truth), dtype=np.bool_)
    given[rows] = (truth[rows] + rng.integers(1, n_labels, len(rows))) % n_labels
    wrong[rows] = True
    return given, wrong


def average_precision(order: Places, wrong: NDArray[np.bool_]) -> float:
    """Return the mean, over the wrong rows, of the share of wrong rows up to each of them."""
    hits = wrong[order]
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float(precision[hits].mean())


def peer_order(distributions: Floats, given: Places) -> Places:
    """Return cleanlab's issues as it ranks them, then all other rows by the probability of their label."""
    issues = find_label_issues(given, distributions, return_indices_ranked_by="self_confidence", n_jobs=1)
    by_label = np.argsort(distributions[np.arange(len(given)), given], kind="stable")
    return np.concatenate([issues, by_label[~np.isin(by_label, issues)]]).astype(np.intp)


def main() -> None:
    """Print one line per prompt."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with CSV files of recorded answers")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--share", type=float, default=0.05)
    options = parser.parse_args()
    names = available(options.data, SETS, ending=".csv")
    print(f"{'set':22} {'rows':>6} {'own errors':>10} {'ours':>7} {'cleanlab':>8} {'ours - cleanlab':>15}")
    failed = False
    for name in names:
        for prompt, (distributions, truth) in recorded(options.data / f"{name}.csv").items():
            figures = []
            for seed in range(options.seeds):
                given, wrong = planted(truth, distributions.shape[1], options.share, seed)
                logs = np.log(np.maximum(distributions, 1e-12))
                ours = np.argsort(held_out_answer_probability(logs, given), kind="stable")
                theirs = peer_order(distributions, given)
                figures.append([average_precision(order, wrong) for order in (ours, theirs)])
            mean = np.mean(figures, axis=0)
            failed |= bool(mean[0] < mean[1] - MARGIN)
            errors = int((distributions.argmax(axis=1) != truth).sum())
            print(
                f"{name + ' ' + prompt:22} {len(truth):6,} {errors:10,} {mean[0]:7.3f} {mean[1]:8.3f} "
                f"{mean[0] - mean[1]:+15.3f}",
                flush=True,
            )
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
