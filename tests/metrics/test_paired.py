"""Tests of the paired comparison of two classifiers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calibrant.core import ConfigurationError
from calibrant.metrics import paired_comparison


def _table(both: int, only_a: int, only_b: int, neither: int) -> tuple[list[int], list[int]]:
    a = [1] * both + [1] * only_a + [0] * only_b + [0] * neither
    b = [1] * both + [0] * only_a + [1] * only_b + [0] * neither
    return a, b


@pytest.mark.parametrize(
    ("table", "lower", "upper", "digits"),
    [
        # Altman et al. 2000, Statistics with Confidence, p. 52 (Newcombe's method): 0.2, 0.056 to 0.329.
        ((20, 2, 12, 16), 0.056, 0.329, 3),
        # Fagerland, Lydersen and Laake 2014, Statistics in Medicine 33:2850-2875: airway
        # hyper-responsiveness and complete response, square-and-add.
        ((1, 7, 1, 12), -0.507, -0.026, 3),
        ((59, 16, 6, 80), -0.1186, -0.0046, 4),
    ],
)
def test_intervals_match_published_examples(
    table: tuple[int, int, int, int], lower: float, upper: float, digits: int
) -> None:
    """The interval equals the published examples of Newcombe's method 10."""
    both, only_a, only_b, neither = table
    found = paired_comparison(*_table(*table))
    assert found.difference == pytest.approx((only_b - only_a) / sum(table))
    assert (found.only_a, found.only_b, found.n) == (only_a, only_b, both + only_a + only_b + neither)
    ends = (found.interval.lower, found.interval.upper)
    assert ends == pytest.approx((lower, upper), abs=0.51 * 10**-digits)
    assert found.interval.estimate == found.difference


def test_negative_correlation_is_not_reduced() -> None:
    """For the table 1, 5, 5, 1 the limits equal those worked out by hand, symmetric about 0."""
    found = paired_comparison(*_table(1, 5, 5, 1))
    z2 = 1.959963984540054**2
    # Both Wilson intervals are 0.5 ± w with w = z / 2 / sqrt(n + z^2).
    w = math.sqrt(z2) / 2 / math.sqrt(12 + z2)
    half = w * math.sqrt(2 + 2 * 24 / 36)
    assert (found.interval.lower, found.interval.upper) == pytest.approx((-half, half))


@pytest.mark.parametrize(
    ("only_a", "only_b"), [(0, 0), (0, 1), (0, 5), (5, 0), (1, 9), (9, 1), (6, 6), (10, 12), (30, 50)]
)
def test_the_p_value_counts_outcomes_at_least_as_extreme(only_a: int, only_b: int) -> None:
    """The p-value equals McNemar's exact two-sided one, added up from binomials."""
    n = only_a + only_b
    extreme = [k for k in range(n + 1) if abs(k - n / 2) >= abs(only_a - n / 2)]
    expected = sum(math.comb(n, k) for k in extreme) / 2**n
    found = paired_comparison(*_table(10, only_a, only_b, 3))
    assert found.p_value == pytest.approx(min(1.0, expected))


def test_positive_differences_favour_the_second() -> None:
    """The difference is b minus a, and swapping a and b mirrors the interval."""
    a, b = _table(50, 2, 20, 28)
    forward, backward = paired_comparison(a, b), paired_comparison(b, a)
    assert forward.difference == pytest.approx(0.18)
    assert forward.interval.lower > 0
    assert backward.interval.lower == pytest.approx(-forward.interval.upper)
    assert backward.interval.upper == pytest.approx(-forward.interval.lower)
    assert (backward.only_a, backward.only_b) == (forward.only_b, forward.only_a)
    assert backward.p_value == forward.p_value


@pytest.mark.parametrize("table", [(10, 0, 0, 0), (0, 0, 0, 10), (6, 0, 0, 4), (0, 10, 0, 0), (1, 0, 0, 0)])
def test_degenerate_tables_give_intervals_inside_the_range(table: tuple[int, int, int, int]) -> None:
    """The interval of an extreme table lies in [-1, 1] and holds the difference."""
    found = paired_comparison(*_table(*table))
    assert -1.0 <= found.interval.lower <= found.difference <= found.interval.upper <= 1.0


def test_a_higher_level_gives_a_wider_interval() -> None:
    """A higher level gives a wider interval, which keeps its level."""
    a, b = _table(50, 5, 9, 6)
    narrow, wide = paired_comparison(a, b, 0.8).interval, paired_comparison(a, b, 0.99).interval
    assert wide.lower < narrow.lower < narrow.upper < wide.upper
    assert (narrow.level, wide.level) == (0.8, 0.99)


@pytest.mark.parametrize(
    ("a", "b", "level"),
    [([], [], 0.95), ([1], [1, 0], 0.95), ([2], [1], 0.95), ([math.nan], [1], 0.95), ([1], [0], 0)],
)
def test_bad_input_is_an_error(a: list[float], b: list[float], level: float) -> None:
    """No rows, different lengths and values other than 0 and 1 raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        paired_comparison(a, b, level)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "cells"),
    [
        (50, (0.6, 0.1, 0.15, 0.15)),
        (100, (0.8, 0.03, 0.07, 0.1)),
        (200, (0.7, 0.1, 0.1, 0.1)),
        (30, (0.25, 0.25, 0.25, 0.25)),
        (400, (0.85, 0.02, 0.05, 0.08)),
    ],
)
def test_intervals_cover_the_truth(n: int, cells: tuple[float, float, float, float]) -> None:
    """At a level of 95 %, at least 94 % of the intervals hold the true difference."""
    rng = np.random.default_rng(0)
    truth, hits, runs = cells[2] - cells[1], 0, 4_000
    for table in rng.multinomial(n, cells, size=runs):
        found = paired_comparison(*_table(*table.tolist()))
        hits += found.interval.lower <= truth <= found.interval.upper
    assert hits / runs >= 0.94
