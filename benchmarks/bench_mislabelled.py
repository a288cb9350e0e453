"""Planted label errors, ranked among a classifier's own mistakes, beside cleanlab.

    python benchmarks/bench_mislabelled.py --data DIR_WITH_CSV [--seeds 10] [--share 0.05]

Every CSV file (columns prompt, expected, predicted, probability) holds recorded answers to several prompts. Of each
prompt's rows, 5 % get a wrong label, uniform over rows and over the other labels. The distribution is rebuilt: the
probability on the predicted label, the rest even over the others. Answers are out of sample; the prior and the
calibrator are fitted on the other folds. Rows are then ranked, least probable label first, and the planted rows are
to be found among all others, the classifier's own errors included.

The peer is cleanlab's ranking by self-confidence, twice: of the distributions as they are, and of those that a
logistic regression on the log-probabilities gives, fitted to the given labels on the other folds. So both sides learn
from the same labels. Printed per prompt: mean average precision, and ours minus the refitted peer's with a 95 %
interval over the draws of planted errors.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from _data import available
from cleanlab.rank import get_label_quality_scores
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from calibrant.calibration._scaling import held_out_answer_probability
from calibrant.metrics import paired_mean_interval

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
SETS = ("ag_news", "emotion")
FOLDS = 5
FLOOR = 1e-6  # of a probability that a regression takes the logarithm of: 1e-12 would rule its columns


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
    """Return all rows as cleanlab ranks them, the least trusted label first."""
    trust = get_label_quality_scores(given, distributions, method="self_confidence")
    return np.argsort(trust, kind="stable")


def refitted(distributions: Floats, given: Places, *, seed: int) -> Floats:
    """Return held-out distributions of a logistic regression on log-probabilities, shape (n, L)."""
    logs = np.log(np.maximum(distributions, FLOOR))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    model = LogisticRegression(max_iter=2000)
    return np.asarray(cross_val_predict(model, logs, given, cv=folds, method="predict_proba"))


def precisions(distributions: Floats, truth: Places, *, share: float, seed: int) -> list[float]:
    """Return the average precision of calibrant, of cleanlab, and of cleanlab on refitted distributions."""
    given, wrong = planted(truth, distributions.shape[1], share, seed)
    logs = np.log(np.maximum(distributions, 1e-12))
    orders = (
        np.argsort(held_out_answer_probability(logs, given), kind="stable"),
        peer_order(distributions, given),
        peer_order(refitted(distributions, given, seed=seed), given),
    )
    return [average_precision(order, wrong) for order in orders]


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
    print(
        f"{'set':22} {'rows':>6} {'own errors':>10} {'ours':>7} {'cleanlab':>8} {'refitted':>8}  ours - refitted"
    )
    for name in names:
        for prompt, (distributions, truth) in recorded(options.data / f"{name}.csv").items():
            figures = np.array(
                [
                    precisions(distributions, truth, share=options.share, seed=seed)
                    for seed in range(options.seeds)
                ]
            )
            ours, plain, again = figures.mean(axis=0)
            gain = paired_mean_interval(figures[:, 0] - figures[:, 2])
            errors = int((distributions.argmax(axis=1) != truth).sum())
            print(
                f"{name + ' ' + prompt:22} {len(truth):6,} {errors:10,} {ours:7.3f} {plain:8.3f} {again:8.3f}  "
                f"{gain.estimate:+.3f} ({gain.lower:+.3f} to {gain.upper:+.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
