"""Check that certified cascades keep their promise, and how many rows stay with the small model.

    python benchmarks/bench_guarantee.py --data DIR_WITH_CSV [--draws 1000] [--rows 1000] [--only ag_news]

Every recorded file is a population: the small model is the prompt "baseline", the large one the prompt
"confidence", paired by row. 1,000 calibration samples are drawn from it with replacement and a cascade is
certified on each. `violated` is the share of samples whose cascade loses more than epsilon against the
large model in the population, `small` the mean share of the population's rows that stay with the small
model, `whole` the same where a block of equal confidences is taken or left whole, `hindsight` that of the
best threshold if the population were known, `alone` what the small model loses on all rows. `betting` is
`small` with a betting bound (Waudby-Smith and Ramdas 2024) instead of the exact test, in the sequence of
whole blocks, on the first 300 samples.

The same is then done with a large model that is always right, where most rows are tied at 1 (`CERTAIN`):
violations over 1,000 samples, and what a plan keeps that has every row labelled, as the mean over 20 keys of
the hash that splits ties, the default key first (`mean`, `least`, `most`); `ranks` is the same exact test on
ranks with ties split at random, the mean of 200 orders.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _data import available
from numpy.typing import NDArray

from calibrant.cascade import RecordedRun, certify_cascade, plan_cascade
from calibrant.cascade._rules import tie_ranks
from calibrant.cascade.planning._guarantee import CertifiedCascade
from calibrant.cascade.planning._planner import replay

BARS = {"ag_news": 0.3, "emotion": 0.3, "rotten_tomatoes": 0.0}
# Recorded set, prompt of the small model, epsilon, and the share that plans keep at least.
CERTAIN = (
    ("ag_news", "baseline", 0.05, 0.55),
    ("ag_news", "default", 0.05, 0.48),
    ("emotion", "confidence", 0.10, 0.30),
    ("rotten_tomatoes", "confidence", 0.02, 0.32),
)
KEYS = ("calibrant", *(f"key {number}" for number in range(1, 20)))  # the default key first
_BETTING_DRAWS = 300
_ORDERS = 200

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Population:
    """Confidence of the small model, correctness of both and ranks of the texts, shape (n,); and the texts."""

    confidence: Array
    small: Array
    large: Array
    texts: list[str]
    ranks: Array

    def at(self, threshold: float | None) -> tuple[float, float]:
        """Return the loss at a threshold, and the share that is kept."""
        return self._kept(self.confidence >= (2.0 if threshold is None else threshold))

    def under(self, found: CertifiedCascade) -> tuple[float, float]:
        """Return the loss under a certified rule, and the share that is kept."""
        nothing = np.zeros(len(self.texts), dtype=np.bool_)
        return self._kept(nothing if found.rule is None else found.rule.accepts(self.confidence, self.ranks))

    def _kept(self, kept: NDArray[np.bool_]) -> tuple[float, float]:
        return float(((self.large - self.small) * kept).mean()), float(kept.mean())

    def certify(self, own: NDArray[np.intp], *, epsilon: float, delta: float) -> CertifiedCascade:
        """Return what is certified on a sample of the rows."""
        return certify_cascade(
            self.confidence[own],
            self.small[own],
            self.large[own],
            epsilon=epsilon,
            delta=delta,
            inputs=[self.texts[row] for row in own],
        )


def read(path: Path, small: str = "baseline", large: str | None = "confidence") -> Population:
    """Return a file's rows as a population; None is a large model that is always right."""
    found: dict[str, dict[str, tuple[float, float, str]]] = {small: {}, large or small: {}}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["prompt"] in found:
                right = float(row["correct"] == "true")
                found[row["prompt"]][row["row"]] = float(row["probability"]), right, row["text"]
    rows = [row for row in found[small] if row in found[large or small]]
    texts = [found[small][row][2] for row in rows]
    return Population(
        confidence=np.array([found[small][row][0] for row in rows]),
        small=np.array([found[small][row][1] for row in rows]),
        large=np.array([1.0 if large is None else found[large][row][1] for row in rows]),
        texts=texts,
        ranks=tie_ranks(texts),
    )


def betting_threshold(
    rows: Population, own: NDArray[np.intp], *, epsilon: float, delta: float, rng: np.random.Generator
) -> float | None:
    """Return the lowest threshold by predictable plug-in bets against a loss of epsilon (section 4 of the paper)."""
    order = rng.permutation(own)
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


def kept_by_plans(rows: Population, epsilon: float, delta: float) -> list[float]:
    """Return what the plan of every key keeps of all rows; 0 where it is not certified."""
    small = RecordedRun(confidence=rows.confidence, correct=rows.small, inputs=rows.texts)
    large = RecordedRun(confidence=np.ones(len(rows.texts)), correct=rows.large, inputs=rows.texts)
    found = []
    for key in KEYS:
        plan = plan_cascade(
            small, large, small_cost=1.0, large_cost=50.0, epsilon=epsilon, delta=delta, key=key
        )
        found.append(replay(plan, small, large).share_small.estimate if plan.certified else 0.0)
    return found


def kept_by_ranks(rows: Population, epsilon: float, delta: float, rng: np.random.Generator) -> float:
    """Return the mean share that stays with the small model where ties are split at random."""
    found = []
    for _ in range(_ORDERS):
        order = np.lexsort((rng.random(len(rows.texts)), rows.confidence))
        ranks = np.empty(len(order))
        ranks[order] = np.linspace(0.0, 1.0, len(order))
        found.append(certify_cascade(ranks, rows.small, rows.large, epsilon=epsilon, delta=delta).share_small)
    return float(np.mean(found))


def certain(options: argparse.Namespace) -> bool:
    """Print one line for each setting of `CERTAIN`; return whether one missed its bar."""
    missed = False
    print(f"\n{'always right':28} {'eps':>5} {'violated':>8} {'mean':>6} {'least':>6} {'most':>6} {'default':>7}"
          f" {'ranks':>6} {'bar':>5}")  # fmt: skip
    for name, prompt, epsilon, bar in CERTAIN:
        if options.only not in {None, name}:
            continue
        population = read(options.data / f"{name}.csv", prompt, None)
        rng = np.random.default_rng(options.seed)
        losses = []
        for _ in range(options.draws):
            own = rng.integers(len(population.texts), size=options.rows)
            losses.append(population.under(population.certify(own, epsilon=epsilon, delta=options.delta))[0])
        violated = float((np.array(losses) > epsilon).mean())
        kept = kept_by_plans(population, epsilon, options.delta)
        ranks = kept_by_ranks(population, epsilon, options.delta, rng)
        notes = ["violated too often"] if violated > options.delta else []
        notes += ["below the bar"] if np.mean(kept) < bar else []
        missed |= bool(notes)
        print(
            f"{name + ' ' + prompt:28} {epsilon:5.2f} {violated:8.3f} {np.mean(kept):6.3f} {min(kept):6.3f} "
            f"{max(kept):6.3f} {kept[0]:7.3f} {ranks:6.3f} {bar:5.2f}  {', '.join(notes)}"
        )
    return missed


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
    names = available(options.data, BARS if options.only is None else [options.only], ending=".csv")
    started = time.perf_counter()
    print(
        f"{'population':16} {'alone':>7} {'violated':>8} {'small':>6} {'whole':>6} {'hindsight':>9} "
        f"{'betting':>7} {'bar':>5}"
    )
    missed = False
    for name in names:
        population = read(options.data / f"{name}.csv")
        rng = np.random.default_rng(options.seed)
        drawn = [rng.integers(len(population.small), size=options.rows) for _ in range(options.draws)]
        found, whole, betting = [], [], []
        risk = {"epsilon": options.epsilon, "delta": options.delta}
        for number, own in enumerate(drawn):
            certified = population.certify(own, **risk)
            found.append(population.under(certified))
            whole.append(population.at(certified.threshold)[1])
            if number < _BETTING_DRAWS:
                betting.append(population.at(betting_threshold(population, own, **risk, rng=rng))[1])
        loss, kept = np.array(found).T
        every = [population.at(value) for value in np.unique(population.confidence)]
        hindsight = max((share for lost, share in every if lost <= options.epsilon), default=0.0)
        violated = float((loss > options.epsilon).mean())
        notes = ["violated too often"] if violated > options.delta else []
        notes += ["below the bar"] if kept.mean() < BARS[name] else []
        missed |= bool(notes)
        print(
            f"{name:16} {population.at(0.0)[0]:+7.4f} {violated:8.3f} {kept.mean():6.3f} {np.mean(whole):6.3f} "
            f"{hindsight:9.3f} {np.mean(betting):7.3f} {BARS[name]:5.2f}  {', '.join(notes)}"
        )
    missed |= certain(options)
    print(f"{time.perf_counter() - started:.1f} s")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
