"""Check how often the best of several configurations, each certified on the same rows, breaks its promise.

    python benchmarks/bench_looks.py --data DIR_WITH_CSV [--draws 1000] [--rows 180]

Useless configurations are right with a probability just below the target, whatever their confidence, and
independently of one another: any certificate of theirs is wrong. `alone` counts the draws in which one of k is
certified, each as if it were the only one; `planned` the same with `--looks k`, and `one more each` without a plan,
beside the highest probability of being wrong that is printed with one of them (`stated`). On the recorded sets, the
configurations are the three prompts, at targets 0.95 and 0.9, planned as six looks: `broken` counts draws in which any
certificate is wrong in the whole set, `alone` the same where each is certified as if it were the only one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from _data import available
from bench_guarantee import read
from numpy.typing import NDArray

from calibrant.calibration import CertifiedThreshold, certify_threshold
from calibrant.evaluation._looks import CertificateRequest, counted_certificate
from calibrant.runs import SavedRows

SETS = ("ag_news", "emotion", "rotten_tomatoes")
PROMPTS = ("baseline", "default", "confidence")
LETTERS = str.maketrans("0123456789", "abcdefghij")  # texts that differ in a number alone are near-duplicates
COUNTS = (1, 3, 5, 10)
TARGET, BELOW, DELTA = 0.9, 0.899, 0.1

Floats = NDArray[np.float64]


def certified(confidence: Floats, right: Floats, *, target: float, looks: int) -> CertifiedThreshold:
    """Return the certificate that the ledger allows; rows are known by their places."""
    values = zip(confidence.tolist(), right.tolist(), strict=True)
    records = [
        {"input": str(row).translate(LETTERS), "answer": "a", "label": "ba"[int(y)], "confidence": p}
        for row, (p, y) in enumerate(values)
    ]
    saved = SavedRows.of(records)
    return counted_certificate(
        CertificateRequest(target_accuracy=target, delta=DELTA, looks=looks),
        saved,
        range(len(records)),
    )


def forget(home: Path) -> None:
    """Begin an empty ledger."""
    os.environ["CALIBRANT_HOME"] = str(home)


def useless(draws: int, rows: int, homes: Path) -> None:
    """Print how often one of k useless configurations is certified."""
    print(f"{draws:,} draws of {rows} rows, delta {DELTA:g}, useless configurations")
    print(f"{'k':>3} {'alone':>7} {'planned':>8} {'one more each':>14} {'stated':>7}")
    rng = np.random.default_rng(0)
    for count in COUNTS:
        broken = dict.fromkeys(("alone", "planned", "more"), 0)
        stated = 0.0
        for draw in range(draws):
            confidence = rng.random((count, rows))
            right = (rng.random((count, rows)) < BELOW).astype(float)
            answers = list(zip(confidence, right, strict=True))
            alone = [certify_threshold(*one, target_accuracy=TARGET, delta=DELTA) for one in answers]
            broken["alone"] += any(one.threshold is not None for one in alone)
            for name, looks in (("planned", count), ("more", 1)):
                forget(homes / f"{name} {count} {draw}")
                found = [certified(*one, target=TARGET, looks=looks) for one in answers]
                issued = [one for one in found if one.threshold is not None]
                broken[name] += bool(issued)
            stated = max(stated, *(one.delta for one in issued), 0.0)
        print(
            f"{count:>3} {broken['alone'] / draws:>7.3f} {broken['planned'] / draws:>8.3f} "
            f"{broken['more'] / draws:>14.3f} {stated:>7.2f}",
            flush=True,
        )


def recorded(folder: Path, draws: int, rows: int, homes: Path) -> bool:
    """Print how often a certificate of a prompt is wrong in the whole set; return True if seldom enough."""
    print(
        f"\n{draws:,} draws of {rows} rows, delta {DELTA:g}, six looks: three prompts, targets 0.95 and 0.9"
    )
    print(f"{'set':<16} {'certified':>9} {'alone':>7} {'broken':>7}")
    limit = DELTA + 2 * (DELTA * (1 - DELTA) / draws) ** 0.5
    is_kept = True
    for name in available(folder, SETS, ending=".csv"):
        populations = [read(folder / f"{name}.csv", prompt, prompt) for prompt in PROMPTS]
        rng = np.random.default_rng(0)
        counts = dict.fromkeys(("certified", "alone", "broken"), 0)
        for draw in range(draws):
            forget(homes / f"{name} {draw}")
            own = rng.integers(0, len(populations[0].texts), size=rows)
            wrong = dict.fromkeys(("alone", "broken"), False)
            for rows_of in populations:
                p, y = rows_of.confidence, rows_of.small
                for target in (0.95, 0.9):
                    alone = certify_threshold(p[own], y[own], target_accuracy=target, delta=DELTA)
                    wrong["alone"] |= is_wrong(alone, p, y, target)
                    found = certified(p[own], y[own], target=target, looks=2 * len(PROMPTS))
                    counts["certified"] += found.threshold is not None
                    wrong["broken"] |= is_wrong(found, p, y, target)
            for kind, is_so in wrong.items():
                counts[kind] += is_so
        shares = {kind: count / draws for kind, count in counts.items()}
        is_kept &= shares["broken"] <= limit
        print(
            f"{name:<16} {shares['certified']:>9.2f} {shares['alone']:>7.3f} {shares['broken']:>7.3f}",
            flush=True,
        )
    return is_kept


def is_wrong(found: CertifiedThreshold, confidence: Floats, right: Floats, target: float) -> bool:
    """Return True if the accepted rows of the whole set are right less often than was promised."""
    return found.threshold is not None and right[confidence >= found.threshold].mean() < target


def main() -> int:
    """Run both; return 1 if promises on a recorded set are broken too often."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=180)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        useless(options.draws, options.rows, Path(folder))
        return 0 if recorded(options.data, options.draws, options.rows, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
