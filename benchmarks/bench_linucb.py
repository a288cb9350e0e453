"""LinUCB: is it what its recursion says after 10,000 records with decay, and how long does a decision take.

    python benchmarks/bench_linucb.py [--records 10000] [--rounds 1500]

1. `LinUCB` (dim 64, five arms, decay 0.99) beside the closed form of the same recursion: A and b summed over all
   records at once, theta from numpy.linalg.solve. Largest absolute errors (bar: 1e-8) and condition number.
2. `BanditRouter.order` and `.record` together, without the embedding, in microseconds by dim: the least median of five
   parts of the rounds, as other processes only add to it, and the mean of all. Bars: 100 at dim 64, and at most 2 for
   the exponent of the power of dim fitted to the medians (O(dim^2) work beside a part that does not grow must stay
   below). The peer decides and learns by the textbook: it decays A towards the identity at every record and
   inverts the matrix of every arm for every decision.

Exits with 1 when a bar is not met.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from calibrant.routing import BanditRouter, Observation, RoutingRequest
from calibrant.routing._bandit import LinUCB

Array = NDArray[np.float64]
ARMS = 5
DECAY = 0.99
DIMS = (16, 32, 64, 128, 256)
LARGEST_ERROR = 1e-8
LONGEST_US = 100.0
STEEPEST = 2.0
PARTS = 5


class Peer:
    """LinUCB as one writes it down: every inverse afresh for every decision."""

    def __init__(self, dim: int) -> None:
        self._a = np.stack([np.eye(dim)] * ARMS)
        self._b = np.zeros((ARMS, dim))
        self._eye = np.eye(dim)

    def order(self, embedding: Array) -> list[int]:
        """Return the arms, the highest bound first."""
        x = embedding / np.linalg.norm(embedding)
        scores = []
        for a, b in zip(self._a, self._b, strict=True):
            inverse = np.linalg.inv(a)
            scores.append(float((inverse @ b) @ x + np.sqrt(x @ inverse @ x)))
        return [int(arm) for arm in np.argsort(-np.array(scores), kind="stable")]

    def record(self, arm: int, embedding: Array, reward: float) -> None:
        """Learn a reward."""
        x = embedding / np.linalg.norm(embedding)
        self._a[arm] = self._eye + DECAY * (self._a[arm] - self._eye) + np.outer(x, x)
        self._b[arm] = DECAY * self._b[arm] + reward * x


def closed_form(contexts: Array, arms: Array, rewards: Array) -> tuple[Array, Array]:
    """Return A and theta of every arm after all records, summed at once."""
    records, dim = contexts.shape
    g = DECAY ** (1.0 / ARMS)
    ridge, since = np.ones(ARMS), np.zeros(ARMS)
    for arm in arms:
        ridge = ridge * g
        due = (ridge < 0.5) | (since >= dim)
        ridge[due], since[due] = 1.0, 0.0
        since[arm] += 1
    weights = g ** np.arange(records)[::-1]
    a = np.empty((ARMS, dim, dim))
    theta = np.empty((ARMS, dim))
    for arm in range(ARMS):
        mine = arms == arm
        weighted = contexts[mine] * weights[mine, None]
        a[arm] = ridge[arm] * np.eye(dim) + weighted.T @ contexts[mine]
        theta[arm] = np.linalg.solve(a[arm], weighted.T @ rewards[mine])
    return a, theta


def equality(records: int) -> bool:
    """Print how far the recursion is from its closed form; return whether it is near enough."""
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(records, 64)) + 0.5
    contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
    truth = rng.normal(size=(ARMS, 64))
    model = LinUCB(arms=ARMS, dim=64, alpha=1.0, decay=DECAY)
    arms = np.empty(records, dtype=np.int64)
    rewards = np.empty(records)
    for row, x in enumerate(contexts):
        arms[row] = np.argmax(model.scores(x))
        rewards[row] = np.clip(truth[arms[row]] @ x + rng.normal(), -1.0, 1.0)
        model.learn(int(arms[row]), x, float(rewards[row]))
    a, theta = closed_form(contexts, arms, rewards)
    found_a = model.ridge[:, None, None] * (np.eye(64) + model.gram)
    off_a = float(np.abs(found_a - a).max())
    found_theta = np.einsum("ade,ae->ad", model.inverse, model.response)  # scores without a bound
    off_theta = float(np.abs(found_theta - theta).max())
    print(
        f"after {records} records with decay {DECAY}, dim 64, {ARMS} arms ({np.bincount(arms, minlength=ARMS)}):"
    )
    print(f"  largest error of A {off_a:.1e}, of theta {off_theta:.1e} (bar {LARGEST_ERROR:.0e})")
    print(f"  condition number of A: {np.linalg.cond(a).max():.0f} at most")
    return max(off_a, off_theta) <= LARGEST_ERROR


def microseconds(step: Callable[[Array, float], None], dim: int, rounds: int) -> list[float]:
    """Return the times of a decision and a record, after as many rounds to warm up as the matrices need."""
    rng = np.random.default_rng(dim)
    times = []
    for row in range(rounds + 200):
        embedding, quality = rng.normal(size=dim), float(rng.random())
        start = time.perf_counter()
        step(embedding, quality)
        if row >= 200:
            times.append(1e6 * (time.perf_counter() - start))
    return times


def our_step(dim: int) -> Callable[[Array, float], None]:
    """Return one decision and one record of a router."""
    router = BanditRouter([f"provider {number}" for number in range(ARMS)], dim=dim, decay_factor=DECAY)

    def step(embedding: Array, quality: float) -> None:
        first = router.order(RoutingRequest(embedding=embedding))[0]
        router.record(
            Observation(
                provider=first,
                success=True,
                latency_seconds=0.1,
                quality=quality,
                cost=0.01,
                context=embedding,
            )
        )

    return step


def peer_step(dim: int) -> Callable[[Array, float], None]:
    """Return one decision and one record of the peer."""
    peer = Peer(dim)

    def step(embedding: Array, quality: float) -> None:
        peer.record(peer.order(embedding)[0], embedding, quality)

    return step


def speed(rounds: int) -> bool:
    """Print the times by dim; return whether they and their growth are within the bars."""
    medians = {}
    print(f"decision and record, {ARMS} providers, microseconds:")
    for dim in DIMS:
        ours = microseconds(our_step(dim), dim, rounds)
        theirs = statistics.median(microseconds(peer_step(dim), dim, max(30, 4_000 // dim)))
        part = len(ours) // PARTS
        medians[dim] = min(statistics.median(ours[part * n : part * (n + 1)]) for n in range(PARTS))
        print(
            f"  dim {dim:3}: median {medians[dim]:7.1f}, mean {statistics.fmean(ours):7.1f}; "
            f"every inverse afresh {theirs:8.1f}, {theirs / medians[dim]:5.1f} times"
        )
    exponent = float(np.polyfit(np.log(DIMS), np.log(list(medians.values())), 1)[0])
    steepest = float(np.log2(medians[256] / medians[128]))
    print(
        f"  growth: dim ** {exponent:.2f} over all, dim ** {steepest:.2f} from 128 to 256 (bar {STEEPEST:g} over all)"
    )
    print(f"  at dim 64: {medians[64]:.1f} (bar {LONGEST_US:g})")
    return exponent <= STEEPEST and medians[64] <= LONGEST_US


def main() -> None:
    """Print both parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1_500)
    arguments = parser.parse_args()
    with threadpool_limits(1):  # threads of linear algebra wait for each other on a busy machine
        good = [equality(arguments.records), speed(arguments.rounds)]
    if not all(good):
        sys.exit("A bar is not met.")


if __name__ == "__main__":
    main()
