"""Tests of the coverage of intervals of an accuracy, by enumeration of all outcomes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.stats import binom

from calibrant.core import Interval
from calibrant.metrics import bootstrap_interval, wilson_interval

SIZES = (20, 100, 1000)
ACCURACIES = (0.5, 0.9, 0.99)


def coverages(interval: Callable[[int, int], Interval]) -> list[float]:
    """Return the probability that the interval holds p, for every n and p."""
    found = []
    for n in SIZES:
        ends: dict[int, Interval] = {}
        for p in ACCURACIES:
            weights = binom.pmf(np.arange(n + 1), n, p)
            total = 0.0
            for k in np.flatnonzero(weights > 1e-9).tolist():  # the rest together is below 1e-6
                if k not in ends:
                    ends[k] = interval(k, n)
                total += float(weights[k]) * (ends[k].lower <= p <= ends[k].upper)
            found.append(total)
    return found


def percentile(k: int, n: int) -> Interval:
    """Return the percentile bootstrap interval of k right rows of n."""
    return bootstrap_interval(np.arange(n) < k, n_resamples=2_000, rng=k)


def test_wilson_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Wilson's interval covers at least 94.5 % on average, and never less than 92 %."""
    found = coverages(partial(wilson_interval, level=0.95))
    assert np.mean(found) >= 0.945
    assert min(found) >= 0.92


def test_percentile_bootstrap_intervals_do_not() -> None:
    """The percentile bootstrap covers less than 94.5 % on average, and in places less than 20 %."""
    found = coverages(percentile)
    assert np.mean(found) < 0.945
    assert min(found) < 0.2
