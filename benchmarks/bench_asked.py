"""Rows kept under a promise on a file, with labels asked for one at a time, beside BARGAIN.

    python benchmarks/bench_asked.py --data DIR_WITH_CSV [--options DIR_WITH_NPZ] [--samples 1000] [--strict]

Every recorded file under every prompt is a pile; with --options the answers of a small model to multiple-choice
questions, the answers of a large one being the truth. The promise of both sides is BARGAIN's: at least the target of
all rows is right where the rows that are not kept get the true label, with probability 0.9. Both get the same
confidences. BARGAIN (PyPI `bargain`) runs with its defaults and a seed for each sample; `certify` has the number of
labels that BARGAIN used on average for its budget, and a key for each sample. `kept` is the mean share of rows that
no label was asked for and that are kept, `broken` the share of samples in which the promise does not hold.

`accuracy` is the promise of `certify` by default, about the accepted rows alone, with 60, 150 and 300 labels.

Exit code 1 with --strict if `certify` keeps less than BARGAIN by more than two standard errors on a pile, less than
three points more on the mean of the piles of which BARGAIN keeps 2 to 98 %, or breaks a promise in more than 10 % of
the samples by more than two standard errors.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _data import available
from BARGAIN import BARGAIN_A, Oracle, Proxy
from numpy.typing import NDArray

from calibrant.calibration import certify

SETS = ("ag_news", "emotion", "rotten_tomatoes")
OPTIONS = ("cosmosqa", "hellaswag")
PAIRS = (("qwen-7b", "qwen-72b"), ("llama-2-7b-hf", "llama-2-70b-hf"))
TARGETS = (0.95, 0.9)
DELTA = 0.1
BUDGETS = (60, 150, 300)
FEWEST, MOST = 0.02, 0.98
MARGIN = 0.03

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Pile:
    """Confidence of each row's answer, and whether it is right, shape (n,)."""

    name: str
    confidence: Floats
    right: Floats


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Shares kept, labels used and broken promises of all samples, shape (samples,)."""

    share: Floats
    labels: Floats
    broken: Floats

    @property
    def error(self) -> float:
        """Standard error of the mean share."""
        return float(self.share.std(ddof=1) / len(self.share) ** 0.5)


class Answers(Proxy):  # type: ignore[misc]
    """The small model: one label for all rows, and its confidence."""

    def __init__(self, pile: Pile) -> None:
        super().__init__(verbose=False)
        self._pile = pile

    def get_preds_and_scores(self, indxs, data_records):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, ARG002
        """Return the answers and confidences of rows."""
        rows = np.asarray(indxs, dtype=int)
        return np.zeros(len(rows), dtype=int), self._pile.confidence[rows]


class Truth(Oracle):  # type: ignore[misc]
    """Whoever knows the true labels; counts the rows that were looked up to find a threshold."""

    def __init__(self, pile: Pile) -> None:
        super().__init__(verbose=False)
        self._pile = pile
        self.asked: set[int] = set()

    def is_answer_correct(self, data_indxs, data_records, proxy_output_at_indxs):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, ARG002
        """Return whether the answers to rows are right."""
        rows = np.asarray(data_indxs, dtype=int)
        self.asked |= set(rows.tolist())
        return self._pile.right[rows]

    def get_pred(self, data_records, indxs=None):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, ARG002
        """Return the true labels of rows; which they are does not matter."""
        return np.zeros(len(indxs), dtype=int)


def recorded_piles(folder: Path) -> Iterator[Pile]:
    """Yield every recorded set under every prompt."""
    for name in available(folder, SETS, ending=".csv"):
        rows: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
        with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                rows[row["prompt"]].append((float(row["probability"]), row["correct"] == "true"))
        for prompt, found in rows.items():
            confidence, right = np.array(found, dtype=np.float64).T
            yield Pile(name=f"{name}, {prompt}", confidence=confidence, right=right)


def option_piles(folder: Path) -> Iterator[Pile]:
    """Yield the answers of small models to multiple-choice questions; right is what the large one says."""
    for name in OPTIONS:
        with np.load(folder / f"{name}.npz") as stored:
            by_model = {model.lower(): stored[model].astype(np.float64) for model in stored.files}
        for small, large in PAIRS:
            logits = by_model[small]
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            confidence = shares.max(axis=1) / shares.sum(axis=1)
            agrees = logits.argmax(axis=1) == by_model[large].argmax(axis=1)
            yield Pile(name=f"{name}, {small}", confidence=confidence, right=agrees.astype(np.float64))


def is_broken(pile: Pile, kept: NDArray[np.bool_], target: float) -> bool:
    """Return True if the rows that are kept have more wrong answers than all rows may have."""
    return bool((pile.right[kept] == 0.0).sum() > (1.0 - target) * len(pile.right) + 1e-9)


def kept_by_bargain(pile: Pile, *, target: float, samples: int) -> Kept:
    """Return BARGAIN's figures."""
    found = []
    for seed in range(samples):
        truth = Truth(pile)
        rows = np.arange(len(pile.right))
        with contextlib.redirect_stdout(io.StringIO()):
            process = BARGAIN_A(
                Answers(pile), truth, target=target, delta=DELTA, verbose=False, seed=seed
            ).process
            _, used = process(rows, return_oracle_usage=True)
        kept = ~np.array(used)
        found.append((kept.mean(), len(truth.asked), is_broken(pile, kept, target)))
    share, labels, broken = np.array(found, dtype=np.float64).T
    return Kept(share=share, labels=labels, broken=broken)


def kept_by_certify(pile: Pile, *, target: float, samples: int, budget: int, metric: str) -> Kept:
    """Return the figures of `certify`; of ``accuracy``, the share includes the rows that were asked about."""
    found = []
    for number in range(samples):
        asked: list[int] = []

        def ask(row: int, asked: list[int] = asked) -> bool:
            asked.append(row)
            return bool(pile.right[row])

        result = certify(
            pile.confidence,
            ask,
            target=target,
            delta=DELTA,
            metric=metric,  # type: ignore[arg-type]
            budget=budget,
            key=f"key {number}",
        )
        kept = result.accepted.copy()
        if metric == "output":
            kept[asked] = False
            broken = is_broken(pile, result.accepted, target)
        else:
            broken = bool(kept.any() and pile.right[kept].mean() < target - 1e-9)
        found.append((kept.mean(), result.labels_used, broken))
    share, labels, broken = np.array(found, dtype=np.float64).T
    return Kept(share=share, labels=labels, broken=broken)


def too_often(kept: Kept) -> bool:
    """Return True if promises are broken in more than `DELTA` of the samples, beyond two standard errors."""
    error = (DELTA * (1.0 - DELTA) / len(kept.broken)) ** 0.5
    return bool(kept.broken.mean() > DELTA + 2.0 * error)


def compared(pile: Pile, *, samples: int) -> tuple[list[float], list[str]]:
    """Print a pile's lines; return the points kept more than BARGAIN where that counts, and what is wrong."""
    gains, failures = [], []
    for target in TARGETS:
        peer = kept_by_bargain(pile, target=target, samples=samples)
        budget = round(peer.labels.mean())
        own = kept_by_certify(pile, target=target, samples=samples, budget=budget, metric="output")
        difference = float(own.share.mean() - peer.share.mean())
        error = (own.error**2 + peer.error**2) ** 0.5
        print(
            f"{pile.name:32} {target:.2f}  BARGAIN {peer.share.mean():.3f} kept, {peer.labels.mean():3.0f} labels, "
            f"{peer.broken.mean():.3f} broken  certify {own.share.mean():.3f}, {own.labels.mean():3.0f}, "
            f"{own.broken.mean():.3f}  difference {difference:+.3f} ({error:.3f})",
            flush=True,
        )
        if difference < -2.0 * error:
            failures.append(f"{pile.name}, {target}: {difference:+.3f} below BARGAIN")
        if too_often(own):
            failures.append(f"{pile.name}, {target}: broken in {own.broken.mean():.3f}")
        if FEWEST <= peer.share.mean() <= MOST:
            gains.append(difference)
    return gains, failures


def accuracy_line(pile: Pile, *, target: float, samples: int) -> list[str]:
    """Print what is kept under a promise on the accepted rows alone; return what is wrong."""
    failures, cells = [], []
    for budget in BUDGETS:
        own = kept_by_certify(pile, target=target, samples=samples, budget=budget, metric="accuracy")
        cells.append(
            f"{own.share.mean():.3f} ({own.labels.mean():3.0f} labels, {own.broken.mean():.3f} broken)"
        )
        if too_often(own):
            failures.append(f"{pile.name}, {target}, accuracy: broken in {own.broken.mean():.3f}")
    print(f"{pile.name:32} {target:.2f}  {'  '.join(cells)}", flush=True)
    return failures


def main() -> None:
    """Compare all piles."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--options", type=Path)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument(
        "--option-samples", type=int, default=200, help="samples of the options, which are slow"
    )
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    piles = [*recorded_piles(options.data)]
    few = [] if options.options is None else [*option_piles(options.options)]
    gains, failures = [], []
    for pile in [*piles, *few]:
        samples = options.samples if pile in piles else options.option_samples
        found, wrong = compared(pile, samples=samples)
        gains += found
        failures += wrong
    print(f"\nkept more than BARGAIN, mean of {len(gains)}: {np.mean(gains):+.3f}")
    print(f"\naccuracy of the accepted rows: {', '.join(map(str, BUDGETS))} labels at most")
    for pile in piles:
        for target in TARGETS:
            failures += accuracy_line(pile, target=target, samples=options.samples)
    if np.mean(gains) < MARGIN:
        failures.append(f"{np.mean(gains):+.3f} on the mean")
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    if options.strict and failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
