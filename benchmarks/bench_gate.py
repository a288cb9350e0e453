"""Two runs compared after every row until the gate decides, beside the exact test on a number of rows fixed before.

    python benchmarks/bench_gate.py [--runs 1000] [--strict]

Pairs of right and wrong answers are drawn with a known gain in accuracy and a known share of rows that one of the two
has right. The exact test is McNemar's, one-sided, at the level of the gate; its rows are the fewest with a power of
0.8, without simulation. Pairs with a gain are looked at up to twice those rows, pairs without one up to 2,000 rows;
where the gate has not decided by then, the mean counts these rows.

Then the gate against worse runs, the same one with sides swapped: pairs of 200 rows, of which a share is worse and a
share is better, drawn like those above. A pair fails if all of its rows together fail it; pairs of equals are counted
if they fail after any row, too. The exact test is at the level of this gate, on the 200 rows.

Exit code 1 with --strict if pairs without a gain, of which 10 % or more of the rows differ, are accepted more often
than `delta`; or if at a gain of 5 points, with 15 or 25 % of such rows, the gate takes more than 1.3 times the rows of
the exact test or accepts less than 0.75 of the pairs; or if the gate against worse runs fails more than 0.05 of equals,
less than 0.75 of pairs with 15 % worse and 5 % better, or less than 0.95 of those with 11 % worse and 1 % better.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from calibrant.metrics import PairedGate

DELTA: Final = 0.1
POWER: Final = 0.8
LONGEST: Final = 2000
BARRED: Final = ((0.05, 0.15), (0.05, 0.25))
OTHERS: Final = ((0.05, 0.1), (0.05, 0.4), (0.1, 0.2), (0.02, 0.1))
SHARES: Final = (0.1, 0.15, 0.25, 0.4)
MOST_ROWS: Final = 1.3
LEAST_POWER: Final = 0.75
# The gate against worse runs: rows of a pair; shares of them that are worse, better, and the least share of failures.
DELTA_WORSE: Final = 0.05
CHECKED_ROWS: Final = 200
WORSE: Final = ((0.15, 0.05, 0.75), (0.11, 0.01, 0.95), (0.1, 0.05, 0.0), (0.05, 0.01, 0.0))
EQUALS: Final = (0.02, 0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True, kw_only=True)
class Looked:
    """Shares of pairs that are accepted and rejected, and the mean rows to a decision."""

    accepted: float
    rejected: float
    rows: float


def exact_rows(gain: float, share: float) -> int:
    """Return the fewest rows on which the exact one-sided test has a power of 0.8."""
    better = (1.0 + gain / share) / 2.0
    differing = np.arange(LONGEST * 2)
    least = binom.isf(DELTA, differing, 0.5) + 1  # wins that reject
    power = binom.sf(least - 1, differing, better)
    # Averaged over the rows that differ, the power rises with the rows.
    low, high = 1, 2
    while binom.pmf(differing, high, share) @ power < POWER:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        enough = binom.pmf(differing, middle, share) @ power >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


def drawn(gain: float, share: float, rows: int, rng: np.random.Generator) -> NDArray[np.int8]:
    """Return rows of a pair: 1 where only b is right, -1 where only a is, else 0."""
    values = rng.random(rows)
    wins = values < (share + gain) / 2.0
    return np.where(wins, 1, np.where(values < share, -1, 0)).astype(np.int8)


@cache
def decided(n: int, only_a: int, only_b: int) -> str:
    """Return the decision of a gate that was undecided until the last row: then these counts are all it depends on."""
    return PairedGate(n=n, only_a=only_a, only_b=only_b, delta=DELTA).decision


def looked(gain: float, share: float, *, most: int, runs: int, rng: np.random.Generator) -> Looked:
    """Return what the gate decides on pairs, looking after every row and stopping at once."""
    decisions, used = [], []
    for _ in range(runs):
        rows = drawn(gain, share, most, rng)
        counts = zip(np.cumsum(rows < 0).tolist(), np.cumsum(rows > 0).tolist(), strict=True)
        for n, (only_a, only_b) in enumerate(counts, 1):
            decision = decided(n, only_a, only_b)
            if decision != "undecided":
                break
        decisions.append(decision)
        used.append(n)
    return Looked(
        accepted=decisions.count("accepted") / runs,
        rejected=decisions.count("rejected") / runs,
        rows=float(np.mean(used)),
    )


def exact_power(worse: float, better: float) -> float:
    """Return the power of the exact one-sided test on the rows of a pair, at the level of the gate."""
    differing = np.arange(CHECKED_ROWS + 1)
    least = binom.isf(DELTA_WORSE, differing, 0.5) + 1
    power = binom.sf(least - 1, differing, worse / (worse + better))
    return float(binom.pmf(differing, CHECKED_ROWS, worse + better) @ power)


def failed(rows: NDArray[np.int8]) -> tuple[bool, bool]:
    """Return True if rows fail the gate against worse runs after the last one, and True if they do after any."""
    gate = PairedGate(delta=DELTA_WORSE)
    ever = False
    for row in rows.tolist():
        gate = gate.plus(n=1, only_a=int(row > 0), only_b=int(row < 0))
        ever = ever or gate.decision == "accepted"
    return gate.decision == "accepted", ever


def check_worse(runs: int) -> list[str]:
    """Simulate pairs of equals and pairs with a worse run; return what is missed."""
    rng = np.random.default_rng(1)
    missed = []
    for share in EQUALS:
        pairs = [failed(drawn(0.0, share, CHECKED_ROWS, rng)) for _ in range(runs)]
        last, ever = np.mean(pairs, axis=0)
        print(
            f"equals, {share:.0%} differ: failed {last:.3f} after {CHECKED_ROWS} rows, {ever:.3f} after any",
            flush=True,
        )
        if ever > DELTA_WORSE:
            missed.append(f"equals, {share:.0%} differ: failed {ever:.3f}")
    for worse, better, least in WORSE:
        pairs = [failed(drawn(better - worse, worse + better, CHECKED_ROWS, rng)) for _ in range(runs)]
        last, _ = np.mean(pairs, axis=0)
        print(
            f"{worse:.0%} worse, {better:.0%} better: failed {last:.3f}, exact test {exact_power(worse, better):.3f}",
            flush=True,
        )
        if last < least:
            missed.append(f"{worse:.0%} worse, {better:.0%} better: failed {last:.3f}")
    return missed


def main() -> None:
    """Simulate pairs with and without a gain, and with a loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    failures = []
    for share in SHARES:
        found = looked(0.0, share, most=LONGEST, runs=options.runs, rng=rng)
        print(
            f"no gain, {share:.0%} differ: accepted {found.accepted:.3f}, rejected {found.rejected:.3f}, "
            f"{found.rows:.0f} rows",
            flush=True,
        )
        if found.accepted > DELTA:
            failures.append(f"no gain, {share:.0%} differ: accepted {found.accepted:.3f}")
    for gain, share in (*BARRED, *OTHERS):
        fixed = exact_rows(gain, share)
        found = looked(gain, share, most=2 * fixed, runs=options.runs, rng=rng)
        ratio = found.rows / fixed
        print(
            f"gain {gain:.2f}, {share:.0%} differ: exact test {fixed} rows; accepted {found.accepted:.3f}, rejected "
            f"{found.rejected:.3f} within twice those, {found.rows:.0f} rows ({ratio:.2f})",
            flush=True,
        )
        if (gain, share) in BARRED and (ratio > MOST_ROWS or found.accepted < LEAST_POWER):
            failures.append(f"gain {gain:.2f}, {share:.0%} differ: {ratio:.2f} rows, {found.accepted:.3f}")
    failures += check_worse(options.runs)
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    if options.strict and failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
