"""The exact test of a loss against enumeration of every outcome."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom

from calibrant.cascade.planning._guarantee import critical_score, loss_p_value, loss_score


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
    """Maximise over many populations that lose epsilon, by the conditional binomial; independent of the code."""
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
def test_a_population_that_loses_epsilon_or_more_is_rejected_with_probability_delta_at_most(
    n: int, epsilon: float, delta: float, better: float, more: float
) -> None:
    """Every outcome of the rows is enumerated."""
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
def test_the_level_is_kept_whatever_share_of_rows_the_models_differ_on_and_nearly_used_up(
    n: int, epsilon: float, delta: float
) -> None:
    """On a grid of populations much finer than the one the code looks at."""
    reached = largest_rejection_probability(n, epsilon, critical_score(n, epsilon, delta))
    assert reached <= delta
    assert reached > 0.6 * delta  # few rows have few outcomes


@pytest.mark.parametrize(
    ("worse", "better", "n", "epsilon"),
    [(0, 0, 150, 0.02), (2, 3, 60, 0.1), (9, 4, 400, 0.03), (30, 5, 90, 0.2)],
)
def test_the_p_value_is_the_largest_probability_of_such_a_score(
    worse: int, better: int, n: int, epsilon: float
) -> None:
    """Up to the hundredth that is kept back."""
    exact = largest_rejection_probability(n, epsilon, float(loss_score(worse, better, n, epsilon)))
    found = loss_p_value(worse, better, n, epsilon)
    assert exact <= found <= exact * 1.02 + 1e-12


def test_rows_that_all_agree_have_the_binomial_p_value() -> None:
    """(1 - epsilon)^n: none of n rows lost."""
    assert loss_p_value(0, 0, 114, 0.02) == pytest.approx(0.98**114 / 0.99)


def test_a_low_p_value_and_a_low_score_say_the_same() -> None:
    """For every outcome of 130 rows on which the models differ a few times."""
    critical = critical_score(130, 0.05, 0.1)
    for worse in range(6):
        for better in range(3):
            rejected = float(loss_score(worse, better, 130, 0.05)) <= critical
            p_value = loss_p_value(worse, better, 130, 0.05)
            assert not rejected or p_value <= 0.1
            assert rejected or p_value > 0.07  # the search for the score stops a little early


def test_the_score_uses_the_likeliest_population_that_loses_epsilon() -> None:
    """Found numerically."""
    for worse, better, n, epsilon in (
        (3, 1, 50, 0.1),
        (0, 4, 30, 0.2),
        (10, 10, 40, 0.05),
        (7, 0, 100, 0.02),
    ):

        def cost(q: float, a: int = worse, b: int = better, rows: int = n, loss: float = epsilon) -> float:
            rest = 1.0 - 2.0 * q - loss
            return -(a * math.log(q + loss) + b * math.log(q) + (rows - a - b) * math.log(rest))

        top = (1.0 - epsilon) / 2.0
        q = minimize_scalar(cost, bounds=(1e-12, top - 1e-12), method="bounded", options={"xatol": 1e-12}).x
        expected = (worse - better - n * epsilon) / math.sqrt(n * (2 * q + epsilon - epsilon**2))
        assert float(loss_score(worse, better, n, epsilon)) == pytest.approx(expected, rel=1e-4)


def test_scores_rise_with_rows_lost_and_fall_with_rows_won() -> None:
    """So that a sequence of ever larger losses is rejected ever less."""
    worse, better = np.arange(20), np.arange(20)
    assert (np.diff(loss_score(worse, 5, 60, 0.05)) > 0).all()
    assert (np.diff(loss_score(5, better, 60, 0.05)) < 0).all()


def test_too_few_rows_reject_nothing() -> None:
    """One row proves nothing; 113 agreeing ones prove no loss below 0.02 at 0.1."""
    assert critical_score(1, 0.02, 0.1) < loss_score(0, 1, 1, 0.02)
    assert float(loss_score(0, 0, 113, 0.02)) > critical_score(113, 0.02, 0.1)


@pytest.mark.parametrize("n", [5_000, 100_000, 1_000_000])
def test_many_rows_come_near_the_normal_quantile(n: int) -> None:
    """And are summed in blocks without losing the level: the normal tail is the independent figure."""
    assert -1.37 < critical_score(n, 0.02, 0.1) < -1.2816
