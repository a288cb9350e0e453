"""Table of `calibrant init`: what a search's certificate keeps, by accuracy of the model and test rows.

    python benchmarks/draw_outlook.py [--draws 2000]

The model is without error in its confidence, which follows the Beta distribution with the accuracy as its mean and
parameters that add up to 8. Test rows are drawn from it, certified as `optimize` does (0.90 with probability 0.9), and
the share of all rows above the certified threshold is averaged over the draws; it is 0 without a certificate.
"""

from __future__ import annotations

import argparse
from typing import Final

import numpy as np
from scipy.stats import beta

from calibrant.assembly._init import ACCURACIES, TEST_ROWS
from calibrant.calibration import certify_threshold

SPREAD: Final = 8.0
TARGET: Final = 0.9
SHARE: Final = 0.05  # of the 0.1: for all rows at once, and then for the sequence


def kept_share(accuracy: float, n_rows: int, rng: np.random.Generator) -> float:
    """Return the share of rows that the certificate of one draw of test rows accepts."""
    shape = (SPREAD * accuracy, SPREAD * (1.0 - accuracy))
    confidence = rng.beta(*shape, n_rows)
    correct = rng.random(n_rows) < confidence
    found = certify_threshold(confidence, correct, target_accuracy=TARGET, delta=SHARE, start=0.0)
    if found.threshold is not None:
        return float(beta.sf(confidence.min(), *shape))
    found = certify_threshold(confidence, correct, target_accuracy=TARGET, delta=SHARE)
    return 0.0 if found.threshold is None else float(beta.sf(found.threshold, *shape))


def main() -> None:
    """Print a line for each accuracy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=2_000)
    draws = parser.parse_args().draws
    for accuracy in ACCURACIES:
        shares = []
        for n_rows in TEST_ROWS:
            rng = np.random.default_rng(n_rows)
            shares.append(np.mean([kept_share(accuracy, n_rows, rng) for _ in range(draws)]))
        print(f"    {accuracy}: ({', '.join(f'{share:.2f}' for share in shares)}),", flush=True)


if __name__ == "__main__":
    main()
