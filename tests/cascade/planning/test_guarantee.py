"""Tests of certified thresholds of a cascade: their promise and their exact test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom

from calibrant.cascade import certify_cascade
from calibrant.cascade.planning._guarantee import critical_score, loss_p_value, loss_score
from calibrant.core import ConfigurationError


def population(size: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Return rows on which the small model is worse the less sure it is; half of them are at 1."""
    confidence = np.where(rng.random(size) < 0.5, 1.0, rng.random(size).round(3))
    small = rng.random(size) < np.where(confidence == 1.0, 0.93, 0.5 + 0.4 * confidence)
    large = np.where(rng.random(size) < 0.8, small | (rng.random(size) < 0.5), rng.random(size) < 0.9)
    return confidence, small.astype(float), large.astype(float)


def test_the_promise_fails_at_most_delta_often() -> None:
    """The promise fails in at most delta of 400 samples, up to the error of so many samples."""
    rng = np.random.default_rng(1)
    confidence, small, large = population(4000, rng)
    broken, kept = 0, 0.0
    for _ in range(400):
        own = rng.integers(4000, size=500)
        found = certify_cascade(confidence[own], small[own], large[own], epsilon=0.03, delta=0.1).threshold
        keeps = confidence >= (2.0 if found is None else found)
        broken += float(((large - small) * keeps).mean()) > 0.03
        kept += float(keeps.mean())
    assert broken <= 400 * 0.1 + 2 * np.sqrt(400 * 0.09)
    assert kept / 400 > 0.25


def test_it_is_not_trivially_safe_at_the_edge() -> None:
    """A threshold that loses exactly epsilon is certified in nearly delta of the samples."""
    rng = np.random.default_rng(2)
    n, draws = 400, 2000
    worse = rng.binomial(n, 0.08, size=draws)
    better = rng.binomial(n - worse, 0.05 / 0.92)
    passed = loss_score(worse, better, n, 0.03) <= critical_score(n, 0.03, 0.1)
    assert 0.06 < passed.mean() <= 0.1 + 2 * np.sqrt(0.09 / draws)


def test_thresholds_pass_without_a_gap() -> None:
    """The certified thresholds are those that a loop passes from the top down before the first failure."""
    rng = np.random.default_rng(3)
    confidence, small, large = population(600, rng)
    found = certify_cascade(confidence, small, large, epsilon=0.05, delta=0.1)
    expected = []
    for threshold in sorted(set(confidence.tolist()), reverse=True):
        keeps = confidence >= threshold
        worse, better = int((keeps & (large > small)).sum()), int((keeps & (large < small)).sum())
        if loss_score(worse, better, 600, 0.05) > critical_score(600, 0.05, 0.1):
            break
        expected.append(threshold)
    assert found.thresholds == pytest.approx(expected)
    keeps = confidence >= found.threshold
    assert found.share_small == pytest.approx(keeps.mean())
    assert found.only_large == int((keeps & (large > small)).sum())
    assert found.only_small == int((keeps & (large < small)).sum())
    assert loss_p_value(found.only_large, found.only_small, 600, 0.05) <= 0.1


def test_a_later_pass_does_not_count_after_a_failure() -> None:
    """A rule that passes after a failure is not certified."""
    confidence = np.repeat([0.9, 0.5], [100, 400])
    small = np.repeat([0.0, 1.0, 1.0], [40, 60, 400])
    large = np.repeat([1.0, 1.0, 0.0], [40, 60, 400])
    assert certify_cascade(confidence, small, large).threshold is None


def test_answers_without_confidence_are_routed() -> None:
    """Answers without a confidence count as rows and are never kept."""
    confidence = np.repeat([0.9, np.nan], [300, 300])
    small, large = np.repeat([1.0, 0.0], [300, 300]), np.ones(600)
    found = certify_cascade(confidence, small, large)
    assert (found.threshold, found.share_small, found.only_large) == (0.9, 0.5, 0)
    assert certify_cascade([np.nan] * 200, np.ones(200), np.ones(200)).threshold is None


def test_thresholds_lie_on_a_grid() -> None:
    """The threshold is a value of the grid at or below the lowest kept confidence."""
    confidence = np.full(300, 0.9237)
    found = certify_cascade(confidence, np.ones(300), np.ones(300))
    assert found.threshold == 0.923


@pytest.mark.parametrize(("right", "expected"), [(1.0, 0.4), (0.0, 0.4)])
def test_equal_models_may_be_exchanged(right: float, expected: float) -> None:
    """For models that agree on every row the lowest confidence is certified."""
    both = np.full(200, right)
    assert certify_cascade(np.linspace(0.4, 1.0, 200), both, both).threshold == pytest.approx(expected)


def test_wrong_small_models_keep_nothing() -> None:
    """A small model that is always wrong has no certified threshold."""
    found = certify_cascade(np.full(500, 1.0), np.zeros(500), np.ones(500))
    assert (found.threshold, found.share_small, found.only_large) == (None, 0.0, 0)


def test_the_fewest_rows_certify() -> None:
    """One row less certifies nothing even where all answers agree."""
    n = 114  # log(0.1) / log(1 - 0.02)
    assert certify_cascade([0.9] * (n - 1), [1] * (n - 1), [1] * (n - 1)).threshold is None
    assert certify_cascade([0.9] * (n + 2), [1] * (n + 2), [1] * (n + 2)).threshold == 0.9


@pytest.mark.parametrize(
    "bad",
    [
        {"epsilon": 1.0},
        {"delta": float("nan")},
        {"confidence": [0.5]},
        {"confidence": [], "small_correct": [], "large_correct": []},
        {"inputs": ["a"]},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    """A setting out of range, or columns of different lengths, raise ConfigurationError."""
    given = {"confidence": [0.5, 0.6], "small_correct": [1, 1], "large_correct": [1, 1], **bad}
    with pytest.raises(ConfigurationError, match="Expected"):
        certify_cascade(
            given.pop("confidence"), given.pop("small_correct"), given.pop("large_correct"), **given
        )


def test_empty_rules_must_pass_too() -> None:
    """Where no answer is at 1, keeping none must pass before anything else does."""
    n = 100
    large = np.repeat([0.0, 1.0], [60, 40])
    assert loss_score(0, 60, n, 0.02) <= critical_score(n, 0.02, 0.1)
    assert certify_cascade(np.full(n, 0.9), np.ones(n), large).threshold is None
    assert certify_cascade(np.full(n, 1.0), np.ones(n), large).threshold == 1.0


def rejection_probability(n: int, epsilon: float, score: float, better: float, *, loss: float) -> float:
    """Sum the trinomial probabilities of all outcomes whose score is so low, one by one."""
    worse = better + loss
    total = 0.0
    for b in range(n + 1):
        for a in range(n - b + 1):
            if loss_score(a, b, n, epsilon) <= score:
                rest = 1.0 - worse - better
                ways = math.comb(n, a) * math.comb(n - a, b)
                total += ways * worse**a * better**b * rest ** (n - a - b)
    return total


def largest_rejection_probability(n: int, epsilon: float, score: float) -> float:
    """Return the largest probability over many populations that lose epsilon, by other formulas."""
    b = np.arange(n + 1)
    most = np.array(
        [sum(loss_score(np.arange(n - own + 1), own, n, epsilon) <= score) - 1 for own in b.tolist()]
    )
    top = (1.0 - epsilon) / 2.0
    worst = 0.0
    for q in np.concatenate([np.linspace(0.0, top, 1500), np.geomspace(1e-6, top, 500)]).tolist():
        tails = binom.cdf(most, n - b, min((q + epsilon) / (1.0 - q), 1.0))
        worst = max(worst, float(binom.pmf(b, n, q) @ tails))
    return worst


@pytest.mark.parametrize(("n", "epsilon", "delta"), [(12, 0.3, 0.1), (20, 0.2, 0.2), (25, 0.15, 0.05)])
@pytest.mark.parametrize("better", [0.0, 0.01, 0.1, 0.3])
@pytest.mark.parametrize("more", [0.0, 0.05])
def test_populations_that_lose_are_rarely_rejected(
    n: int, epsilon: float, delta: float, better: float, more: float
) -> None:
    """Enumerated outcomes of a population that loses epsilon are rejected with probability delta at most."""
    critical = critical_score(n, epsilon, delta)
    assert rejection_probability(n, epsilon, critical, better, loss=epsilon + more) <= delta


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "epsilon", "delta"),
    [
        (40, 0.1, 0.1),
        (114, 0.02, 0.1),
        (200, 0.02, 0.1),
        (300, 0.05, 0.02),
        (700, 0.02, 0.1),
        (1500, 0.01, 0.2),
    ],
)
def test_the_level_is_kept_and_nearly_used_up(n: int, epsilon: float, delta: float) -> None:
    """The level holds on a much finer grid of populations than the code looks at, with little to spare."""
    reached = largest_rejection_probability(n, epsilon, critical_score(n, epsilon, delta))
    assert reached <= delta
    assert reached > 0.6 * delta  # few rows have few outcomes


@pytest.mark.parametrize(
    ("worse", "better", "n", "epsilon"),
    [(0, 0, 150, 0.02), (2, 3, 60, 0.1), (9, 4, 400, 0.03), (30, 5, 90, 0.2)],
)
def test_the_p_value_is_the_largest_probability(worse: int, better: int, n: int, epsilon: float) -> None:
    """The p-value is the largest probability of such a score, up to the hundredth that is kept back."""
    exact = largest_rejection_probability(n, epsilon, float(loss_score(worse, better, n, epsilon)))
    found = loss_p_value(worse, better, n, epsilon)
    assert exact <= found <= exact * 1.02 + 1e-12


def test_agreeing_rows_have_the_binomial_p_value() -> None:
    """The p-value of n rows without a loss is (1 - epsilon)^n."""
    assert loss_p_value(0, 0, 114, 0.02) == pytest.approx(0.98**114 / 0.99)


def test_p_values_and_scores_agree() -> None:
    """A score is critical if and only if its p-value is low, for many outcomes of 130 rows."""
    critical = critical_score(130, 0.05, 0.1)
    for worse in range(6):
        for better in range(3):
            rejected = float(loss_score(worse, better, 130, 0.05)) <= critical
            p_value = loss_p_value(worse, better, 130, 0.05)
            assert not rejected or p_value <= 0.1
            assert rejected or p_value > 0.07  # the search for the score stops a little early


def test_the_score_uses_the_likeliest_population() -> None:
    """The score equals one whose population is found by numerical optimisation."""
    outcomes = [(3, 1, 50, 0.1), (0, 4, 30, 0.2), (10, 10, 40, 0.05), (7, 0, 100, 0.02)]
    for worse, better, n, epsilon in outcomes:

        def cost(q: float, a: int = worse, b: int = better, rows: int = n, loss: float = epsilon) -> float:
            rest = 1.0 - 2.0 * q - loss
            return -(a * math.log(q + loss) + b * math.log(q) + (rows - a - b) * math.log(rest))

        top = (1.0 - epsilon) / 2.0
        q = minimize_scalar(cost, bounds=(1e-12, top - 1e-12), method="bounded", options={"xatol": 1e-12}).x
        expected = (worse - better - n * epsilon) / math.sqrt(n * (2 * q + epsilon - epsilon**2))
        assert float(loss_score(worse, better, n, epsilon)) == pytest.approx(expected, rel=1e-4)


def test_scores_follow_losses() -> None:
    """Scores rise with every row lost and fall with every row won."""
    worse, better = np.arange(20), np.arange(20)
    assert (np.diff(loss_score(worse, 5, 60, 0.05)) > 0).all()
    assert (np.diff(loss_score(5, better, 60, 0.05)) < 0).all()


def test_too_few_rows_reject_nothing() -> None:
    """One row rejects nothing, and 113 equal rows reject a loss of 0.02 at a level of 0.1."""
    assert critical_score(1, 0.02, 0.1) < loss_score(0, 1, 1, 0.02)
    assert float(loss_score(0, 0, 113, 0.02)) > critical_score(113, 0.02, 0.1)


@pytest.mark.parametrize("n", [5_000, 100_000, 1_000_000])
def test_many_rows_come_near_the_normal_quantile(n: int) -> None:
    """For many rows the critical score lies just below the normal quantile."""
    assert -1.37 < critical_score(n, 0.02, 0.1) < -1.2816
