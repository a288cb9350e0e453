"""Check how often promises are broken: accuracy, precision or recall of a label, and the promise on a file.

    python benchmarks/bench_promises.py --data DIR_WITH_CSV [--samples 1000] [--strict]

Every recorded set under every prompt, with targets 0.95 and 0.90 and delta 0.1. For the first three `certify` asks for
at most 150, 150 and 300 labels of the set itself; every sample has its own key, and of the label's promises its own
label, in turn. For the last, a threshold is certified (delta 0.05) on 1,000 rows drawn from the set with replacement,
100 rows of a new file are drawn likewise, and the promise is on how many of its accepted rows are right (0.05 more).
The set has the probability of the answer alone; the rest is spread evenly over the other labels.

`broken` is the share of samples with a promise that does not hold, `kept` the mean share of rows accepted; for recall
those flagged. Of all cells the line at the end has the worst.

The second table has recall alone: rows flagged on the mean of the labels by `certify`; by labels of rows drawn evenly,
with the exact binomial test of each size at delta, from all rows down; and by whoever knows all labels.

Exit code 1 with --strict if a promise is broken in more than 10 % of the samples by more than two standard errors, or
if more rows are flagged than after even draws, on the mean of all sets.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from _data import available
from numpy.typing import NDArray
from scipy.stats import binom

from calibrant.calibration import certify, certify_threshold
from calibrant.calibration._thresholds import FilePromise

SETS = ("ag_news", "emotion", "rotten_tomatoes")
TARGETS = (0.95, 0.9)
DELTA = 0.1
LABELS, LABELS_RECALL = 150, 300
CERTIFIED_ROWS, FILE_ROWS, CERTIFIED_DELTA = 1000, 100, 0.05

Floats = NDArray[np.float64]
Result = tuple[bool, float]


@dataclass(frozen=True, kw_only=True)
class Pile:
    """True and predicted labels of a set under one prompt, and confidences."""

    name: str
    truth: NDArray[np.str_]
    predicted: NDArray[np.str_]
    confidence: Floats

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """True where the prediction is right."""
        return np.asarray(self.truth == self.predicted, dtype=np.bool_)

    @cached_property
    def labels(self) -> list[str]:
        """All labels that occur."""
        return sorted(set(self.truth.tolist()))

    def probability(self, label: str) -> Floats:
        """Return the probability of a label in each row."""
        others = len(set(self.truth.tolist()) | set(self.predicted.tolist())) - 1
        return np.where(self.predicted == label, self.confidence, (1.0 - self.confidence) / others)


def recorded_piles(folder: Path) -> Iterator[Pile]:
    """Yield every recorded set under every prompt."""
    for name in available(folder, SETS, ending=".csv"):
        rows: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
        with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                rows[row["prompt"]].append(row)
        for prompt, found in rows.items():
            yield Pile(
                name=f"{name}, {prompt}",
                truth=np.array([row["expected"] for row in found]),
                predicted=np.array([row["predicted"] for row in found]),
                confidence=np.array([float(row["probability"]) for row in found]),
            )


def asked(
    confidence: Floats,
    right: NDArray[np.bool_],
    *,
    target: float,
    metric: Literal["accuracy", "recall"],
    number: int,
) -> NDArray[np.bool_]:
    """Return the rows that `certify` accepts in a sample."""
    return certify(
        confidence,
        lambda row: bool(right[row]),
        target=target,
        delta=DELTA,
        metric=metric,
        budget=LABELS_RECALL if metric == "recall" else LABELS,
        key=f"key {number}",
    ).accepted


def accuracy(pile: Pile, target: float, number: int) -> Result:
    """Return whether a promise on accuracy is broken, and the share of rows kept."""
    kept = asked(pile.confidence, pile.right, target=target, metric="accuracy", number=number)
    return bool(kept.any() and pile.right[kept].mean() < target - 1e-9), float(kept.mean())


def precision(pile: Pile, target: float, number: int) -> Result:
    """Return the same of a promise on the precision of a label."""
    rows = pile.predicted == pile.labels[number % len(pile.labels)]
    right = pile.right[rows]
    kept = asked(pile.confidence[rows], right, target=target, metric="accuracy", number=number)
    return bool(kept.any() and right[kept].mean() < target - 1e-9), float(kept.mean())


def recall(pile: Pile, target: float, number: int) -> Result:
    """Return the same of a promise on the recall of a label, and the share of rows flagged."""
    label = pile.labels[number % len(pile.labels)]
    has_label = pile.truth == label
    flagged = asked(pile.probability(label), has_label, target=target, metric="recall", number=number)
    return bool(has_label[flagged].sum() < target * has_label.sum() - 1e-9), float(flagged.mean())


def promised_file(pile: Pile, target: float, number: int) -> Result:
    """Return the same of a promise on the accepted rows of a new file."""
    rng = np.random.default_rng(number)
    labelled = rng.integers(len(pile.right), size=CERTIFIED_ROWS)
    found = certify_threshold(
        pile.confidence[labelled], pile.right[labelled], target_accuracy=target, delta=CERTIFIED_DELTA
    )
    if found.threshold is None:
        return False, 0.0
    file = rng.integers(len(pile.right), size=FILE_ROWS)
    accepted = file[pile.confidence[file] >= found.threshold]
    if not len(accepted):
        return False, 0.0
    promise = FilePromise.of({"target_accuracy": target, "delta": CERTIFIED_DELTA}, np.ones(len(accepted)))
    return bool(pile.right[accepted].sum() < promise.least_right), len(accepted) / FILE_ROWS


KINDS: dict[str, Callable[[Pile, float, int], Result]] = {
    "accuracy": accuracy,
    "precision": precision,
    "recall": recall,
    "file": promised_file,
}


def flagged_after_even_draws(pile: Pile, label: str, target: float, number: int) -> float:
    """Return the share of rows flagged by the exact binomial test, from rows drawn evenly."""
    rng = np.random.default_rng(number)
    n = len(pile.truth)
    ranks = np.empty(n, dtype=np.intp)
    ranks[np.lexsort((rng.random(n), -pile.probability(label)))] = np.arange(n)
    drawn = rng.permutation(n)[:LABELS_RECALL]
    places = ranks[drawn[pile.truth[drawn] == label]]
    sizes = np.arange(n, 0, -max(1, n // 100))
    inside = (places[None, :] < sizes[:, None]).sum(axis=1)
    passed = (binom.sf(inside - 1, len(places), target) <= DELTA) | (sizes == n)
    return float(sizes[np.flatnonzero(~passed)[0] - 1] if not passed.all() else sizes[-1]) / n


def fewest_flagged(pile: Pile, label: str, target: float) -> float:
    """Return the least share of rows that hold the target share of a label, ties taken evenly."""
    has_label = (pile.truth == label)[np.argsort(-pile.probability(label), kind="stable")]
    found = np.flatnonzero(has_label.cumsum() >= target * has_label.sum() - 1e-9)
    return float(found[0] + 1) / len(has_label)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    error = (DELTA * (1.0 - DELTA) / options.samples) ** 0.5
    started = time.perf_counter()
    failures, worst = [], dict.fromkeys(KINDS, 0.0)
    recalls: list[tuple[Pile, float, float]] = []
    print(f"{'broken, kept':28} target  {'  '.join(f'{kind:12}' for kind in KINDS)}")
    piles = [*recorded_piles(options.data)]
    for pile in piles:
        for target in TARGETS:
            cells = []
            for kind, sample in KINDS.items():
                results = np.array([sample(pile, target, number) for number in range(options.samples)])
                broken, kept = results.mean(axis=0)
                worst[kind] = max(worst[kind], broken)
                cells.append(f"{broken:.3f} {kept:.3f} ")
                if broken > DELTA + 2.0 * error:
                    failures.append(f"{pile.name}, {target}, {kind}: broken in {broken:.3f}")
                if kind == "recall":
                    recalls.append((pile, target, kept))
            print(f"{pile.name:28} {target:.2f}    {'  '.join(cells)}", flush=True)
    print(f"{'broken, most':28}         {'  '.join(f'{share:.3f}       ' for share in worst.values())}")
    print(f"within Monte-Carlo error of {error:.3f}, {options.samples:,} samples")

    print(f"\n{'recall: rows flagged':28} target  certify  even draws  all labels known")
    flagged = []
    for pile, target, kept in recalls:
        numbers = range(0, options.samples, max(1, options.samples // 200))
        even = np.mean(
            [flagged_after_even_draws(pile, label, target, n) for label in pile.labels for n in numbers]
        )
        fewest = np.mean([fewest_flagged(pile, label, target) for label in pile.labels])
        flagged.append((kept, float(even)))
        print(f"{pile.name:28} {target:.2f}    {kept:.3f}    {even:.3f}       {fewest:.3f}", flush=True)
    mean, mean_even = np.mean(flagged, axis=0)
    print(f"{'mean':28}         {mean:.3f}    {mean_even:.3f}")
    print(f"{time.perf_counter() - started:.0f} s")
    if mean > mean_even:
        failures.append(f"{mean:.3f} flagged, {mean_even:.3f} after even draws")
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    if options.strict and failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
