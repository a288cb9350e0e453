"""Tests of the benchmarks on scores of the search and on AutoMix's tables: their arithmetic."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from bench_scorers import SCORERS, Gain, RecordedTask
from bench_verification import region_lifts, samples_of

ENDS = (1.0, 0.5, 11.0, 0.7)  # cost and performance of the small model, of the large one


def test_mixtures_of_both_models_have_no_lift() -> None:
    """A curve that ends at the large model has a lift of 0 in every region of cost."""
    found = region_lifts(np.array([1.0, 11.0]), np.array([0.5, 0.7]), ends=ENDS)
    assert found == pytest.approx(np.zeros(5))


def test_twice_the_gain_for_a_cost_is_a_lift_of_one() -> None:
    """A policy with the large model's performance at half of its cost: lift 1 up to there, and no loss beyond."""
    found = region_lifts(np.array([6.0]), np.array([0.7]), ends=ENDS, regions=4)
    assert found == pytest.approx(np.ones(4))
    dear = region_lifts(np.array([6.0, 11.0]), np.array([0.7, 0.7]), ends=ENDS, regions=4)
    assert dear[:2] == pytest.approx(np.ones(2))
    assert np.all(np.diff(dear) <= 1e-12)
    assert 0.0 < dear[3] < dear[2] < 1.0


def test_shares_of_samples_follow_the_verdict() -> None:
    """Eight samples of a sure verdict agree, and the mean share is the verdict's probability."""
    assert samples_of(np.array([0.0, 1.0])).tolist() == [0.0, 1.0]
    assert samples_of(np.full(20_000, 0.3)).mean() == pytest.approx(0.3, abs=0.01)


def planted() -> RecordedTask:
    """Return 200 rows of two labels under three prompts; the last prompt is right on all of the rows."""
    right = np.tile([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], (100, 1))
    scores = {"sees it": right, "is blind": np.ones_like(right)}
    return RecordedTask(answers=np.arange(200) // 100, right=right, scores=scores)


def test_a_score_that_sees_the_better_prompt_picks_it() -> None:
    """A prompt that scores most is picked in every draw; prompts of equal score share the pick."""
    found = planted().picked(50, np.random.default_rng(0))
    assert found["sees it"] == pytest.approx(np.ones(50))
    assert found["is blind"].mean() == pytest.approx(2.0 / 3.0, abs=0.01)


def test_halves_keep_the_mix_of_labels() -> None:
    """A random half has half of the rows of every label."""
    half = planted().half(np.random.default_rng(0))
    assert np.bincount(half.answers).tolist() == [50, 50]
    assert half.right.shape == half.scores["sees it"].shape == (100, 3)


def test_mean_gain_of_independent_tasks() -> None:
    """Errors of independent tasks add up as squares."""
    one = Gain(estimate=1.0, monte_carlo=0.3, over_rows=0.6)
    mean = Gain.mean([one, one, one, one])
    assert (mean.estimate, mean.monte_carlo, mean.over_rows) == pytest.approx((1.0, 0.15, 0.3))


def test_accuracy_alone_ignores_confidence() -> None:
    """A lucky guess and a sure answer score 1 by accuracy; by every other score of an answer they differ or tie."""
    alone = SCORERS["accuracy"]
    assert (
        alone.score(is_correct=True, logprob_score=-5.0)
        == alone.score(is_correct=True, logprob_score=-0.001)
        == 1.0
    )
    assert alone.score(is_correct=False, logprob_score=-0.001) == 0.0
    for name in ("linear .99", "threshold .99", "sigmoid .95/50"):
        assert SCORERS[name].score(is_correct=True, logprob_score=-5.0) < SCORERS[name].score(
            is_correct=True, logprob_score=-0.001
        )
