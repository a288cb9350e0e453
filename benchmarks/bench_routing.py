"""Regret of the routing strategies beside baselines and a textbook Thompson sampling, and the time they take.

    python benchmarks/bench_routing.py [--seeds 200] [--requests 5000] [--processes 2] [--only stationary]

Five providers, answers that are worth 0 or 1; every seed draws its own probabilities of success, uniform
in [0, 1], and all strategies of a seed meet the same outcomes. Regret is pseudo-regret at the end: what the best
choices would have earned more in expectation, in answers.

stationary  one probability per provider.
change      all probabilities are drawn anew at half-time.
contexts    five kinds of requests, each provider with a probability for each; the kind shows in the embedding
            only (64 numbers, noise half as long as the signal).
noise       one probability per provider, and embeddings that have nothing in common and say nothing; only to see
            what LinUCB pays for looking at them.

Differences are paired by seed, with 95 % t intervals; a strategy is below another when the whole interval is.
Beside the textbook both are means of 5 runs per seed, as luck makes them differ by more than 5 % else; drawing from
the same randomness the textbook has to make the same choices.
The last lines are medians of order + record + making the observation, with 5 providers. Exits with 1 when
a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics import paired_mean_interval
from calibrant.routing import BanditRouter, EMARouter, Observation, Router, ThompsonRouter

# The providers come with the tests, not with the package.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))
from simulated_routing import (
    Change,
    EpsilonGreedy,
    Outcomes,
    RoundRobin,
    Scenario,
    SimulatedProvider,
    simulate,
)

NAMES = ("a", "b", "c", "d", "e")
DECAY = 0.998
MOST_SECONDS = 20e-6
TEXTBOOK_SHARE = 0.05
DRAWS = 5

Array = NDArray[np.float64]
Regrets = dict[str, float]


def make(kind: Callable[..., Router], rng: np.random.Generator, **options: float) -> Router:
    """Return a strategy for the providers."""
    return kind(NAMES, rng=rng, **options)


ROUTERS = {
    "thompson": partial(make, ThompsonRouter),
    "thompson decay": partial(make, ThompsonRouter, decay=DECAY),
    "ema": partial(make, EMARouter),
    "epsilon-greedy": partial(make, EpsilonGreedy),
    "round-robin": lambda rng: RoundRobin(NAMES),  # noqa: ARG005 (every strategy is made with randomness)
    "linucb": partial(make, BanditRouter),
}
COMPARED = {
    "stationary": ("thompson", "ema", "epsilon-greedy", "round-robin"),
    "change": ("thompson decay", "thompson", "ema", "epsilon-greedy", "round-robin"),
    "contexts": ("linucb", "thompson", "thompson decay", "ema", "epsilon-greedy", "round-robin"),
    "noise": ("linucb", "thompson", "round-robin"),
}
MUST_BEAT = {
    "stationary": COMPARED["stationary"][1:],
    "change": ("thompson",),
    "contexts": COMPARED["contexts"][1:],
    "noise": ("round-robin",),
}


def textbook(rows: Outcomes, rng: np.random.Generator) -> float:
    """Return the regret of Thompson sampling as in Russo et al. (2018), algorithm 3.2."""
    ones, zeros = np.ones(rows.success.shape[1]), np.ones(rows.success.shape[1])
    regret = 0.0
    for reward, mean in zip(rows.success, rows.expected, strict=True):
        arm = int(np.argmax(rng.beta(ones, zeros)))
        ones[arm] += reward[arm]
        zeros[arm] += 1.0 - reward[arm]
        regret += mean.max() - mean[arm]
    return regret


def scenario(setting: str, requests: int, rng: np.random.Generator) -> Scenario:
    """Return the providers of one seed."""
    kinds = 5 if setting == "contexts" else 1
    success = rng.random((len(NAMES), kinds))
    if setting == "noise":
        success, kinds = np.repeat(success, 2, axis=1), 2  # alike, but told with an embedding
    providers = [
        SimulatedProvider(name=name, success=own.tolist() if kinds > 1 else float(own[0]))
        for name, own in zip(NAMES, success, strict=True)
    ]
    later = rng.random(len(NAMES)).tolist() if setting == "change" else []
    changes = [
        Change(at=requests // 2, provider=name, success=own)
        for name, own in zip(NAMES[: len(later)], later, strict=True)
    ]
    return Scenario(providers=providers, changes=changes, noise=100.0 if setting == "noise" else 0.5)


def one_seed(setting: str, requests: int, seed: int) -> Regrets:
    """Return the regret of every strategy after all requests."""
    rng = np.random.default_rng(seed)
    rows = scenario(setting, requests, rng).draw(requests, rng)

    def regret(name: str, *stream: int) -> float:
        def router(_: np.random.Generator) -> Router:
            return ROUTERS[name](rng=np.random.default_rng(stream))

        return float(simulate(rows, {name: router})[name].regret[0, -1])

    found = {name: regret(name, seed, 0) for name in COMPARED[setting]}
    if setting == "stationary":
        streams, others = ([(seed, part, number) for number in range(DRAWS)] for part in (1, 2))
        found["thompson"] = float(np.mean([regret("thompson", *stream) for stream in streams]))
        for name, own in {"textbook": others, "same randomness": streams}.items():
            found[name] = float(np.mean([textbook(rows, np.random.default_rng(stream)) for stream in own]))
    return found


def regrets(setting: str, *, seeds: int, requests: int, processes: int) -> dict[str, Array]:
    """Return the regret of every strategy, shape (seeds,)."""
    work = partial(one_seed, setting, requests)
    if processes == 1:
        found = [work(seed) for seed in range(seeds)]
    else:
        with ProcessPoolExecutor(processes) as pool:
            found = list(pool.map(work, range(seeds), chunksize=max(1, seeds // (8 * processes))))
    return {name: np.array([one[name] for one in found]) for name in found[0]}


def report(setting: str, found: dict[str, Array]) -> bool:
    """Print one setting's table; return whether its bars hold."""
    first, *_ = COMPARED[setting]
    print(f"\n{setting:18} {'regret':>8} {'median':>8}   {first} minus it, paired")
    held = True
    for name, values in found.items():
        line = f"{name:18} {values.mean():8.1f} {np.median(values):8.1f}"
        if name != first:
            interval = paired_mean_interval(found[first] - values)
            note = ""
            if name in MUST_BEAT[setting]:
                note = "below" if interval.upper < 0.0 else "MISSED: not below"
            if name in {"textbook", "same randomness"}:
                share = interval.estimate / values.mean()
                most = TEXTBOOK_SHARE if name == "textbook" else 1e-9
                note = f"{share:+.2%} of it" + (
                    "" if abs(share) <= most else f", MISSED: more than {most:.0%}"
                )
            held &= "MISSED" not in note
            line += f"   {interval.estimate:+9.1f} [{interval.lower:+9.1f}, {interval.upper:+9.1f}]  {note}"
        print(line)
    return held


def microseconds(router: Router, rounds: int = 20_000) -> float:
    """Return the median time of a decision, the observation of what came of it, and learning from it."""
    taken = []
    for number in range(rounds):
        start = time.perf_counter()
        provider = router.order()[0]
        router.record(
            Observation(
                provider=provider, success=number % 7 > 0, latency_seconds=0.4, quality=1.0, cost=1e-4
            )
        )
        taken.append(time.perf_counter() - start)
    return 1e6 * median(taken)


def main() -> None:
    """Print a table per setting, then the times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", choices=[*COMPARED, "speed"])
    options = parser.parse_args()
    if options.seeds < 2 or options.requests < 2 or options.processes < 1:
        sys.exit("Expected at least 2 seeds, 2 requests and 1 process.")
    held = True
    sizes = {"seeds": options.seeds, "requests": options.requests, "processes": options.processes}
    for setting in COMPARED:
        if options.only in {None, setting}:
            started = time.perf_counter()
            held &= report(setting, regrets(setting, **sizes))
            print(f"{time.perf_counter() - started:.1f} s")
    if options.only in {None, "speed"}:
        print(f"\nmicroseconds per decision and record, at most {1e6 * MOST_SECONDS:.0f}")
        for name in ("ema", "thompson", "thompson decay"):
            taken = microseconds(ROUTERS[name](rng=np.random.default_rng(0)))
            missed = taken > 1e6 * MOST_SECONDS
            held &= not missed
            print(f"{name:18} {taken:8.1f}{'   MISSED' if missed else ''}")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
