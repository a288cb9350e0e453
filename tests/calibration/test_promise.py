"""Tests of the best promise that rows bear: its validity, its targets, and the sentences about it."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.calibration import best_promise, certify_threshold
from calibrant.core import ConfigurationError

SURE, UNSURE = 0.99, 0.6


def test_the_best_promise_is_seldom_wrong() -> None:
    """In at most `delta` of the draws the promised accuracy is above the true one, whichever target was taken.

    300 answers in 1,200 are right a little less often than 0.85, and all of them a little less often than 0.8: the
    highest target that certifies at `delta` itself is wrong in 15 % of the draws, as any of two may be.
    """
    rng, delta, draws = np.random.default_rng(0), 0.1, 200
    wrong = 0
    for _ in range(draws):
        is_sure = rng.random(1200) < 0.25
        confidence = np.where(is_sure, SURE, UNSURE)
        correct = rng.random(1200) < np.where(is_sure, 0.8495, 0.7828)
        found = best_promise(confidence, correct, below=1.0, delta=delta)
        if found is not None:
            true = 0.8495 if found.threshold == SURE else 0.7995
            wrong += found.target_accuracy > true
    assert wrong / draws <= delta


def test_it_is_the_first_target_that_certifies() -> None:
    """The promise is that of `certify_threshold` at a tenth of delta, for the highest target below the wanted one."""
    confidence = np.r_[np.full(60, SURE), np.full(60, UNSURE)]
    correct = np.r_[np.ones(58), np.zeros(2), np.tile([1, 0], 30)]
    found = best_promise(confidence, correct, below=0.9, delta=0.1)
    assert found is not None
    assert (found.target_accuracy, found.delta, found.coverage) == (0.85, 0.01, 0.5)
    assert found == certify_threshold(confidence, correct, target_accuracy=0.85, delta=0.01)
    assert certify_threshold(confidence, correct, target_accuracy=0.9, delta=0.01).threshold is None


def test_rows_may_bear_no_promise() -> None:
    """Answers that are right in half of the rows bear no promise, and no target lies below 0.5."""
    confidence, correct = np.full(100, 0.9), np.tile([1, 0], 50)
    assert best_promise(confidence, correct, below=0.9) is None
    assert best_promise(confidence, np.ones(100), below=0.5) is None
    with pytest.raises(ConfigurationError, match="delta"):
        best_promise(confidence, correct, below=0.9, delta=2.0)
