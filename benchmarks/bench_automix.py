"""Meta-verifiers beside the package automix-llm, on the same splits.

    python benchmarks/bench_automix.py --data DIR_WITH_CSV [--seeds 20] [--resamples 1000]

Recorded answers: the small model is the baseline prompt, the large one the confidence prompt, the signal the small
model's probability. Synthetic: three states (Simple, Complex, Unsolvable), a verifier with 8 samples. Costs 1 and 50, 1
for looking at the signal. Half of the rows (of the synthetic ones 500 of 2,500) choose the policies, the others test
them. Every side is a curve: the policies on the upper hull of what the training rows showed, the small model alone
included for all sides, joined by lines (mixtures), at the costs and accuracies of the test rows. The number is the mean
height of the curve from the cost of the small model to that of looking and then always asking the large one. The
package cannot ask the large model at once; one line gives it this policy as a present. The learned scorer is
FrugalGPT's way, by scikit-learn: a regression on the text's words and the label, whose frontier is used instead of the
confidence's. Differences are paired; their intervals resample rows, all splits at once.

automix-llm runs in an environment of its own, which this script makes.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import tempfile
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _data import available
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import OneHotEncoder

from calibrant.cascade import ibc_lift, routing_frontier
from calibrant.cascade.automix._frontier import rising_hull

PEER = Path(__file__).with_name("_automix_peer.py")
PACKAGE = "automix-llm==1.0.3"
SETS = ("ag_news", "emotion", "rotten_tomatoes")
SMALL, LARGE, VERIFIER = 1.0, 50.0, 1.0
COSTS = {"small_cost": SMALL, "large_cost": LARGE, "verifier_cost": VERIFIER}
METHODS = ("Threshold", "SelfConsistency", "POMDP")
PRESENT = "POMDP + large"
LEARNED = "learned scorer"
BUCKETS = 4096  # that words and pairs of words are hashed into
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)  # C of the regression, chosen by cross-validated log-loss
STATES = (0.55, 0.25, 0.20)
# Chances of 0, 1, ..., 8 approving samples in each state: errors nobody can mend look hopeless at once.
OBSERVED = (
    (0.01, 0.01, 0.02, 0.03, 0.05, 0.08, 0.15, 0.25, 0.40),
    (0.03, 0.06, 0.12, 0.20, 0.22, 0.17, 0.11, 0.06, 0.03),
    (0.36, 0.25, 0.15, 0.09, 0.06, 0.04, 0.03, 0.01, 0.01),
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Rows of one kind: signal, small and large scores, shape (3, n); how many choose the policy; bins.

    Where they are known, `answers` holds each row's text and the small model's answer.
    """

    rows: Floats
    train: int
    k: int | None
    num_bins: int
    answers: tuple[tuple[str, str], ...] = ()

    def split(self, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the positions of training and test rows."""
        order = np.random.default_rng(seed).permutation(self.rows.shape[1])
        return order[: self.train], order[self.train :]


Rows = tuple[Floats, Floats]
"""What a policy costs and reaches on every test row, expected."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side on one split.

    Attributes
    ----------
    curve : list of Rows
        The policies on the hull of the training rows.
    alone : tuple of Rows
        Always small, always large.
    chosen : Rows
        The policy with the best IBC lift on the training rows.
    """

    curve: list[Rows]
    alone: tuple[Rows, Rows]
    chosen: Rows

    def heights(self, weights: Floats) -> Floats:
        """Return the mean height under weights of the rows, shape (r, n) -> (r,)."""
        total = weights.sum(axis=1, keepdims=True)
        costs = weights @ np.array([cost for cost, _ in self.curve]).T / total
        reached = weights @ np.array([performance for _, performance in self.curve]).T / total
        grid = np.linspace(SMALL, SMALL + VERIFIER + LARGE, 256)
        found = np.empty(len(weights))
        for row, (cost, performance) in enumerate(zip(costs, reached, strict=True)):
            order = np.argsort(cost, kind="stable")
            found[row] = np.interp(grid, cost[order], performance[order]).mean()
        return found

    def lift(self) -> float:
        """Return the IBC lift of the chosen policy on the test rows; NaN where it is not defined."""
        (_, small), (_, large) = self.alone
        cost, performance = (values.mean() for values in self.chosen)
        if large.mean() <= small.mean() or cost <= SMALL:
            return float("nan")
        return ibc_lift(
            performance=float(performance),
            cost=float(cost),
            small_performance=float(small.mean()),
            small_cost=SMALL,
            large_performance=float(large.mean()),
            large_cost=LARGE,
        )


def recorded(path: Path) -> Problem:
    """Return the rows of a recorded set, prompts paired by text."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["prompt"], {})[row["row"]] = row
    pairs = [(row, found["confidence"][key]) for key, row in found["baseline"].items()]
    rows = [
        (float(small["probability"]), float(small["correct"] == "true"), float(large["correct"] == "true"))
        for small, large in pairs
    ]
    return Problem(
        rows=np.array(rows).T,
        train=len(rows) // 2,
        k=None,
        num_bins=10,
        answers=tuple((small["text"], small["predicted"]) for small, _ in pairs),
    )


def synthetic() -> Problem:
    """Return rows of the three states."""
    rng = np.random.default_rng(0)
    state = rng.choice(3, 2_500, p=STATES)
    signal = np.array([rng.choice(9, p=OBSERVED[one]) for one in state]) / 8
    return Problem(
        rows=np.array([signal, state == 0, state < 2], dtype=np.float64), train=500, k=8, num_bins=8
    )


def alone(test: Floats) -> tuple[Rows, Rows]:
    """Return always small and always large."""
    n = test.shape[1]
    return (np.full(n, SMALL), test[1]), (np.full(n, LARGE), test[2])


def own(problem: Problem, train: Floats, test: Floats) -> Side:
    """Return what the exact frontier of the training rows comes to on the test rows."""
    frontier = routing_frontier(*train, **COSTS, k=problem.k, thresholds_only=problem.k is None)
    policies = [frontier.policy(point) for point in range(len(frontier))]
    rows = [policy.expected(*test, **COSTS) for policy in policies]
    worth = [
        (policy.performance - train[1].mean()) / (policy.cost - SMALL) if policy.cost > SMALL else -np.inf
        for policy in policies
    ]
    return Side(curve=rows, alone=alone(test), chosen=rows[int(np.argmax(worth))])


def learned(problem: Problem, train: NDArray[np.intp], test: NDArray[np.intp]) -> Side:
    """Return what a scorer of text and label comes to (FrugalGPT's way): half of the training rows fit it.

    The other half chooses the policies: a scorer is too sure of the rows it was fitted on.
    """
    fitted, chosen = train[: len(train) // 2], train[len(train) // 2 :]
    counts = HashingVectorizer(ngram_range=(1, 2), n_features=BUCKETS, alternate_sign=False, norm=None)
    words = counts.transform([text for text, _ in problem.answers])
    words = TfidfTransformer().fit(words[fitted]).transform(words)
    labels = OneHotEncoder().fit_transform([[label] for _, label in problem.answers])
    features = csr_array(hstack([words, labels]))
    scorer = GridSearchCV(LogisticRegression(max_iter=5000), {"C": STRENGTHS}, scoring="neg_log_loss", cv=5)
    scorer.fit(features[fitted], problem.rows[1, fitted])

    def scored(rows: NDArray[np.intp]) -> Floats:
        signal = scorer.predict_proba(features[rows])[:, 1]
        return np.vstack((signal, problem.rows[1:, rows]))

    return own(problem, scored(chosen), scored(test))


def peer(
    policies: Mapping[str, NDArray[np.generic]], key: str, train: Floats, test: Floats, *, large: bool = False
) -> Side:
    """Return what one of the package's methods comes to: its parameters on the hull of the training rows.

    The small model alone is added; with `large` the large one, asked at once, which the package does not know.
    """
    routed = policies[f"{key}/routed"].astype(bool)
    rows = [(SMALL + VERIFIER + LARGE * one, np.where(one, test[2], test[1])) for one in routed]
    chosen = rows[int(policies[f"{key}/chosen"])]
    ends = alone(test)[: 1 + large]
    cost = np.append(policies[f"{key}/cost"].astype(float), (SMALL, LARGE)[: 1 + large])
    reached = np.append(
        policies[f"{key}/performance"].astype(float), (train[1].mean(), train[2].mean())[: 1 + large]
    )
    kept = [(*rows, *ends)[point] for point in rising_hull(cost, reached)]
    return Side(curve=kept, alone=alone(test), chosen=chosen)


def ask_peer(python: Path, splits: Mapping[str, Floats], folder: Path) -> Mapping[str, NDArray[np.generic]]:
    """Run the package on the splits."""
    source, target = folder / "splits.npz", folder / "policies.npz"
    np.savez_compressed(source, **splits)
    subprocess.run([python, PEER, source, target], check=True)
    return dict(np.load(target))


def environment(folder: Path) -> Path:
    """Return the Python of an environment with the package."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", PACKAGE], check=True)
    return python


def compare(name: str, problem: Problem, python: Path, *, seeds: int, resamples: int, folder: Path) -> None:
    """Print how the sides compare on one set."""
    splits: dict[str, Floats] = {
        "costs": np.array([SMALL, LARGE]),
        "verifier_cost": np.array(VERIFIER),
        "num_bins": np.array(problem.num_bins),
    }
    parts = [problem.split(seed) for seed in range(seeds)]
    for seed, (train, test) in enumerate(parts):
        splits[f"{seed:03d}/train"], splits[f"{seed:03d}/test"] = (
            problem.rows[:, train],
            problem.rows[:, test],
        )
    policies = ask_peer(python, splits, folder)
    n = problem.rows.shape[1]
    # The first row of weights is the sample itself.
    weights = np.vstack((np.ones(n), np.random.default_rng(1).multinomial(n, np.full(n, 1 / n), resamples)))
    titles = ("calibrant", *METHODS, PRESENT, *([LEARNED] if problem.answers else []))
    heights = {title: np.zeros(resamples + 1) for title in titles}
    lifts: dict[str, list[float]] = {title: [] for title in heights}
    for seed, (train, test) in enumerate(parts):
        rows = problem.rows[:, train], problem.rows[:, test]
        sides = {"calibrant": own(problem, *rows)}
        sides |= {title: peer(policies, f"{seed:03d}/{title}", *rows) for title in METHODS}
        if problem.answers:
            sides[LEARNED] = learned(problem, train, test)
        sides[PRESENT] = peer(policies, f"{seed:03d}/POMDP", *rows, large=True)
        for title, side in sides.items():
            heights[title] += side.heights(weights[:, test]) / seeds
            lifts[title].append(side.lift())
    print(f"\n{name}: {n:,} rows, {problem.train:,} of them choose, {seeds} splits, {resamples:,} resamples")
    print(
        f"{'':16} {'mean height':>12} {'calibrant minus it':>28} {'IBC lift, median':>17} {'middle half':>16}"
    )
    for title, found in heights.items():
        difference = heights["calibrant"] - found
        low, high = np.quantile(difference[1:], (0.025, 0.975))
        against = "" if title == "calibrant" else f"{difference[0]:+.5f} ({low:+.5f} to {high:+.5f})"
        lower, median, upper = np.nanquantile(lifts[title], (0.25, 0.5, 0.75))
        print(
            f"{title:16} {found[0]:12.5f} {against:>28} {median:17.2f} {lower:7.2f} to {upper:.2f}",
            flush=True,
        )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the recorded answers")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--resamples", type=int, default=1000)
    options = parser.parse_args()
    problems = {"synthetic": synthetic()}
    if options.data is not None:
        names = available(options.data, ["synthetic", *SETS], ending=".csv", without_file=["synthetic"])[1:]
        problems |= {name: recorded(options.data / f"{name}.csv") for name in names}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = environment(folder / "peer")
        for title, problem in problems.items():
            compare(title, problem, python, seeds=options.seeds, resamples=options.resamples, folder=folder)


if __name__ == "__main__":
    main()
