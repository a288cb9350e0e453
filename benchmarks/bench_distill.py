"""What a student learned from 350 recorded answers may keep before its model, and how fast it answers.

    python benchmarks/bench_distill.py --data DIR_WITH_CSV [--samples 200] [--embeddings NAME] [--strict]

A sample is 700 answers of the model under its default prompt: half teach the student, half certify what it keeps, at a
loss of at most 0.02 of the accuracy against the model, with probability 0.9. All rows that taught nothing are the
truth: on them the loss of the certified threshold is looked up, and the largest share that the same student could have
kept. Twenty certificates are drawn for each student. Without true labels the student learns the model's answers alone,
and its loss is how often it says something else.

Exit code 1 with --strict if more is lost than promised in more than 10 % of the samples by more than two standard
errors, or if a student on words answers fewer than 20,000 rows a second.
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
from scipy.optimize import minimize_scalar

from calibrant.cascade import certify_cascade
from calibrant.heads import Head, fit_head
from calibrant.inference import open_embedding_model

SETS = ("ag_news", "emotion", "rotten_tomatoes")
HALF = 350
EPSILON, DELTA = 0.02, 0.1
DRAWS = 20
CEILING_DRAWS = 20_000
CEILING_STEP = 0.02
TRUTH = 0.5  # as `distill` weighs a true label
ROWS_A_SECOND = 20_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Texts, with the model's label, its probability and the true label by position, shape (n,)."""

    texts: list[str]
    labels: list[str]
    predicted: NDArray[np.intp]
    confidence: Floats
    truth: NDArray[np.intp]

    @classmethod
    def read(cls, path: Path) -> Answers:
        """Read a recorded set under its default prompt."""
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["prompt"] == "default"]
        labels = sorted({row["expected"] for row in rows})
        return cls(
            texts=[row["text"] for row in rows],
            labels=labels,
            predicted=np.array([labels.index(row["predicted"]) for row in rows]),
            confidence=np.array([float(row["probability"]) for row in rows]),
            truth=np.array([labels.index(row["expected"]) for row in rows]),
        )

    def targets(self, rows: NDArray[np.intp], *, labelled: bool) -> Floats:
        """Return what a student learns from rows, shape (rows, L)."""
        even = 1.0 / len(self.labels)
        sure = np.maximum(self.confidence[rows], even)[:, None]
        found = np.repeat((1.0 - sure) / (len(self.labels) - 1), len(self.labels), axis=1)
        found[np.arange(len(rows)), self.predicted[rows]] = sure[:, 0]
        if labelled:
            found *= 1.0 - TRUTH
            found[np.arange(len(rows)), self.truth[rows]] += TRUTH
        return found


def share_in_hindsight(confidence: Floats, lost: Floats) -> float:
    """Return the largest share of the surest rows that loses no more than is allowed."""
    losses = np.cumsum(lost[np.argsort(-confidence, kind="stable")]) / len(lost)
    allowed = np.flatnonzero(losses <= EPSILON)
    return float((allowed[-1] + 1) / len(lost)) if len(allowed) else 0.0


def ceiling(confidence: Floats, lost: Floats, rng: np.random.Generator) -> float:
    """Return the mean share that no valid certificate of `HALF` rows exceeds; see the proof above."""
    ordered = lost[np.argsort(-confidence, kind="stable")]
    worse, better = np.cumsum(ordered == 1.0) / len(lost), np.cumsum(ordered == -1.0) / len(lost)
    loss = worse - better
    powers = []
    for share in np.arange(CEILING_STEP, 1.0 + CEILING_STEP / 2.0, CEILING_STEP):
        last = min(round(share * len(lost)), len(lost)) - 1
        # Where a longer share loses less than this one, the other student has to lose that much more here.
        needed = EPSILON + loss[last] - loss[last:].min()
        powers.append(most_power(worse[last], better[last], needed, rng) if loss[last] < needed else DELTA)
    return float(np.minimum.accumulate(powers).sum() * CEILING_STEP)


def most_power(worse: float, better: float, needed: float, rng: np.random.Generator) -> float:
    """Return the most power against the student of that loss which is hardest to tell from one of these shares."""
    least = 1e-6
    own = np.array([max(worse, least), max(better, least), 1.0 - max(worse, least) - max(better, least)])

    def other(better_there: float) -> Floats:
        return np.array([better_there + needed, better_there, 1.0 - needed - 2.0 * better_there])

    def divergence(better_there: float) -> float:
        return float(own @ np.log(own / other(better_there)))

    nearest = minimize_scalar(divergence, bounds=(least, (1.0 - needed) / 2.0 - least), method="bounded")
    ratio = np.log(own / other(nearest.x))
    bad, good = (rng.multinomial(HALF, p, size=CEILING_DRAWS) @ ratio for p in (other(nearest.x), own))
    critical = np.quantile(bad, 1.0 - DELTA, method="higher")
    # Counts are whole, so that ratios tie: the test that is most powerful decides these by lot.
    above, tied = np.mean(bad > critical + 1e-9), np.mean(np.abs(bad - critical) <= 1e-9)
    chance = (DELTA - above) / tied
    return float(np.mean(good > critical + 1e-9) + chance * np.mean(np.abs(good - critical) <= 1e-9))


def drawn(
    answers: Answers, head: Head, rest: NDArray[np.intp], rng: np.random.Generator, *, labelled: bool
) -> Floats:
    """Return the share kept, in hindsight, and at most, and whether more is lost than promised, shape (draws, 4)."""
    found = np.exp(
        head.transform(np.zeros((len(rest), len(answers.labels))), [answers.texts[row] for row in rest])
    )
    confidence, guess = found.max(axis=1), found.argmax(axis=1)
    truth = answers.truth[rest] if labelled else answers.predicted[rest]
    own, model = (guess == truth).astype(float), (answers.predicted[rest] == truth).astype(float)
    best, results = share_in_hindsight(confidence, model - own), []
    most = ceiling(confidence, model - own, rng)
    for _ in range(DRAWS):
        rows = rng.permutation(len(rest))[:HALF]
        certified = certify_cascade(confidence[rows], own[rows], model[rows], epsilon=EPSILON, delta=DELTA)
        least = certified.threshold
        kept = np.zeros(len(rest), dtype=bool) if least is None else confidence >= least
        results.append((kept.mean(), best, most, (model - own)[kept].sum() / len(rest) > EPSILON))
    return np.array(results, dtype=np.float64)


def measured(name: str, answers: Answers, *, samples: int, labelled: bool, embeddings: str | None) -> bool:
    """Print the line of a set; return True if more is lost than promised too often."""
    found = []
    embedding = None if embeddings is None else open_embedding_model(embeddings, labels=answers.labels)
    for seed in range(-(-samples // DRAWS)):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(answers.texts))
        taught, rest = order[:HALF], order[HALF:]
        head = fit_head(
            np.zeros((HALF, len(answers.labels))),
            answers.targets(taught, labelled=labelled),
            labels=answers.labels,
            texts=[answers.texts[row] for row in taught],
            embedding=embedding,
        )
        found.append(drawn(answers, head, rest, rng, labelled=labelled))
    kept, best, most, broken = np.concatenate(found).T
    against = "true labels" if labelled else "the model's labels"
    print(
        f"{name:16} {against:18} kept {kept.mean():.3f} ({np.quantile(kept, 0.05):.3f} to "
        f"{np.quantile(kept, 0.95):.3f}), at most {most.mean():.3f}, in hindsight {best.mean():.3f}, "
        f"broken {broken.mean():.3f} of {len(kept)}",
        flush=True,
    )
    return bool(broken.mean() > DELTA + 2.0 * (DELTA * (1.0 - DELTA) / len(kept)) ** 0.5)


def rows_a_second(answers: Answers) -> tuple[float, float]:
    """Return how many texts a student on words answers in a second of one process, the first time and again.

    The first time it cuts most words into pieces; of a long file most words are known.
    """
    taught = np.arange(HALF)
    head = fit_head(
        np.zeros((HALF, len(answers.labels))),
        answers.targets(taught, labelled=True),
        labels=answers.labels,
        texts=answers.texts[:HALF],
    )
    even = np.zeros((len(answers.texts), len(answers.labels)))
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        head.transform(even, answers.texts)
        times.append(time.perf_counter() - begin)
    n = len(answers.texts)
    return n / times[0], n / min(times)


def main() -> None:
    """Measure all sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--embeddings", help="embedding model that reads the texts beside their words")
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    failures = []
    for name in available(options.data, SETS, ending=".csv"):
        answers = Answers.read(options.data / f"{name}.csv")
        for labelled in (True, False):
            settings = {"samples": options.samples, "embeddings": options.embeddings}
            if measured(name, answers, labelled=labelled, **settings):
                failures.append(f"{name}: more is lost than promised")
        first, speed = rows_a_second(answers)
        characters = sum(map(len, answers.texts)) / len(answers.texts)
        print(
            f"{name:16} {speed:,.0f} rows/s of {characters:.0f} characters, {first:,.0f} the first time",
            flush=True,
        )
        if speed < ROWS_A_SECOND:
            failures.append(f"{name}: {speed:,.0f} rows/s")
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    if options.strict and failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
