"""Rows accepted by a certificate from 200 labelled rows, a head being learned on some of them.

    python benchmarks/bench_certify_heads.py --data DIR_WITH_JSONL --keep DIR [--splits 12] [--draws 500]

The embedded model's answers to each set are split at random: 119 labelled rows for the head, 81 for the certificate at
0.90 with delta 0.1, as `calibrant init` divides 200; the rest is new. `kept` is the mean share of new rows that is
accepted, `right` the share of right answers among them, over all splits; `certified` counts the splits with a
certificate. `every row` is a fixed sequence of the same exact tests at every number of rows from the 22nd on.

`drawn` and `broken` come from samples of 81 rows, drawn with replacement from all rows that the head did not see: the
mean share that is kept, and the share of samples whose threshold has less than 0.90 among these rows.

The last lines are of models without error in their confidence: it follows a Beta distribution with mean 0.875, 80 rows
are labelled. `ceiling` is what no certificate can exceed whose promise holds for every model whose accuracy does not
rise as its confidence falls. Proof: let another model have the same confidences, but be right so seldom that all sets
of the most confident rows with a share of s or more miss the target. There, s or more may be kept with probability
delta at most. Hence on the model at hand with at most the power, at level delta, of the most powerful test that tells
the two apart, which is that of their likelihood ratio (Neyman and Pearson). The mean share kept is the integral over s.
The powers are those of 40,000 simulated samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from _decision_sets import DecisionSet, model_set
from _minilm import MiniLM
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import binom

from calibrant.calibration import certify_threshold
from calibrant.heads import fit_head

SETS: Final = ("requests", "banking", "ag_news", "emotion")
TARGET: Final = 0.9
DELTA: Final = 0.1
N_HEAD: Final = 119
N_CERTIFICATE: Final = 81
N_CALIBRATED: Final = 80
CALIBRATED: Final = ((7.0, 1.0), (14.0, 2.0))
CEILING_DRAWS: Final = 40_000
CEILING_SHARES: Final = 25
NOTHING: Final = 2.0  # a threshold that no confidence reaches

Array: TypeAlias = NDArray[np.float64]
Test: TypeAlias = Callable[[Array, Array], float]


def certified(confidence: Array, right: Array) -> float:
    """Return the certified threshold of labelled rows."""
    found = certify_threshold(confidence, right, target_accuracy=TARGET, delta=DELTA)
    return NOTHING if found.threshold is None else found.threshold


def tested_at_every_row(confidence: Array, right: Array) -> float:
    """Return the threshold of a sequence that tests every number of rows, from the least that could pass."""
    order = np.argsort(-confidence, kind="stable")
    ends = np.diff(confidence[order], append=-1.0) != 0.0  # rows with one confidence go together
    n = np.arange(1, len(order) + 1)[ends]
    k = right[order].cumsum()[ends]
    first = np.ceil(np.log(DELTA) / np.log(TARGET))
    is_passed = binom.sf(k - 1, n, TARGET) <= DELTA
    threshold = NOTHING
    for count, passes in zip(n[n >= first], is_passed[n >= first], strict=True):
        if not passes:
            break
        threshold = float(confidence[order][count - 1])
    return threshold


TESTS: Final[dict[str, Test]] = {"calibrant": certified, "every row": tested_at_every_row}


def heads_of(found: DecisionSet, n_splits: int) -> list[tuple[Array, Array]]:
    """Return confidence and correctness of the rows that a head did not see, the labelled ones first, by split."""
    result = []
    for labelled, new in found.draws(N_HEAD + N_CERTIFICATE, n_splits, n_test=len(found.answers)):
        known, unseen = labelled[:N_HEAD], np.concatenate([labelled[N_HEAD:], new])
        texts = np.array(found.texts)
        features = found.features
        if features is None:
            raise ValueError(f"Expected features of the texts, got none for {found.name}.")
        head = fit_head(
            found.logprobs[known],
            found.answers[known],
            labels=found.labels,
            texts=texts[known].tolist(),
            features=features[known],
        )
        final = np.exp(
            head.transform(found.logprobs[unseen], texts[unseen].tolist(), features=features[unseen])
        )
        right = (final.argmax(axis=1) == found.answers[unseen]).astype(np.float64)
        result.append((final.max(axis=1), right))
    return result


def split_line(test: Test, splits: list[tuple[Array, Array]], draws: int) -> str:
    """Return the figures of one test on the splits of a set."""
    rng = np.random.default_rng(0)
    shares, n_accepted, n_right, n_certified = [], 0.0, 0.0, 0
    drawn, broken = [], []
    for confidence, right in splits:
        threshold = test(confidence[:N_CERTIFICATE], right[:N_CERTIFICATE])
        accepted = confidence[N_CERTIFICATE:] >= threshold
        shares.append(accepted.mean())
        n_accepted += accepted.sum()
        n_right += right[N_CERTIFICATE:][accepted].sum()
        n_certified += threshold < NOTHING
        for _ in range(draws // len(splits)):
            sample = rng.integers(len(confidence), size=N_CERTIFICATE)
            kept = confidence >= test(confidence[sample], right[sample])
            drawn.append(kept.mean())
            broken.append(kept.any() and right[kept].mean() < TARGET)
    share_right = f"{n_right / n_accepted:.3f}" if n_accepted else "-"
    return (
        f"{n_certified:3} of {len(splits)} {np.mean(shares):6.3f} {share_right:>6}"
        f" {np.mean(drawn):6.3f} {np.mean(broken):7.3f}"
    )


def calibrated_line(test: Test, shape: tuple[float, float], draws: int) -> str:
    """Return the figures of one test on a model whose confidence is the probability of being right."""
    rng = np.random.default_rng(0)
    population = np.sort(rng.beta(*shape, 100_000))[::-1]
    accuracy = population.cumsum() / np.arange(1, len(population) + 1)
    drawn, broken = [], []
    for _ in range(draws):
        confidence = rng.beta(*shape, N_CALIBRATED)
        right = (rng.random(N_CALIBRATED) < confidence).astype(np.float64)
        kept = int(np.searchsorted(-population, -test(confidence, right), side="right"))
        drawn.append(kept / len(population))
        broken.append(kept > 0 and accuracy[kept - 1] < TARGET)
    return f"{np.mean(np.array(drawn) > 0):10.3f} {'':6} {'':6} {np.mean(drawn):6.3f} {np.mean(broken):7.3f}"


def ceiling_line(shape: tuple[float, float]) -> str:
    """Return the highest shares of certified samples and of rows kept that a valid certificate can have."""
    rng = np.random.default_rng(0)
    confidence = rng.beta(*shape, (CEILING_DRAWS, N_CALIBRATED))
    population = np.sort(rng.beta(*shape, 100_000))[::-1]
    accuracy = population.cumsum() / np.arange(1, len(population) + 1)
    hindsight = float((accuracy >= TARGET).mean())
    certified = most_power(confidence, np.minimum(confidence, TARGET), rng)
    shares = np.linspace(0.0, hindsight, CEILING_SHARES + 1)[1:]
    powers = [certified]
    for share in shares:
        top = population[: int(share * len(population))]
        shift = brentq(lambda value, top=top: expit(logit(top) + value).mean() - TARGET, -20.0, 0.0)
        end = top[-1]
        # Behind the set the other model is right as often as at its end, or as this one if that is less.
        behind = np.minimum(confidence, expit(logit(end) + shift))
        doubted = np.where(confidence >= end, expit(logit(confidence) + shift), behind)
        powers.append(most_power(confidence, doubted, rng))
    powers = np.minimum.accumulate(powers)
    kept = np.trapezoid(powers, np.append(0.0, shares)) + DELTA * (1.0 - hindsight)
    return f"{certified:10.3f} {'':6} {'':6} {kept:6.3f}"


def most_power(confidence: Array, doubted: Array, rng: np.random.Generator) -> float:
    """Return the power, at level delta, of the best test of `doubted` against `confidence`, shape (samples, rows).

    Both are probabilities of being right.
    """

    def log_ratios(probability: Array) -> Array:
        right = rng.random(confidence.shape) < probability
        gained = np.log(confidence / doubted)
        lost = np.log1p(-confidence) - np.log1p(-doubted)
        ratios: Array = np.where(right, gained, lost).sum(axis=1)
        return ratios

    critical = np.quantile(log_ratios(doubted), 1.0 - DELTA)
    return float((log_ratios(confidence) >= critical).mean())


def main() -> None:
    """Print two lines for each set and each calibrated model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=12)
    parser.add_argument("--draws", type=int, default=500)
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    encoder = MiniLM()
    print(
        f"{'set':16} {'test':10} {'certified':>10} {'kept':>6} {'right':>6} {'drawn':>6} {'broken':>7}",
        flush=True,
    )
    for name in SETS:
        found = model_set(name, options.data, encoder, options.keep)
        everything = DecisionSet(
            name=found.name,
            labels=found.labels,
            logprobs=found.logprobs,
            answers=found.answers,
            texts=found.texts,
            features=found.features,
        )
        splits = heads_of(everything, options.splits)
        for title, test in TESTS.items():
            print(f"{name:16} {title:10} {split_line(test, splits, options.draws)}", flush=True)
    for shape in CALIBRATED:
        for title, test in TESTS.items():
            line = calibrated_line(test, shape, options.draws)
            print(f"Beta{shape!s:12} {title:10} {line}", flush=True)
        print(f"Beta{shape!s:12} {'ceiling':10} {ceiling_line(shape)}", flush=True)


if __name__ == "__main__":
    main()
