"""Tests of Wilson, bootstrap and pooled paired intervals."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from calibrant.core import ConfigurationError, Interval
from calibrant.metrics import bootstrap_interval, paired_mean_interval, wilson_interval


@pytest.mark.parametrize(
    ("successes", "n", "lower", "upper"),
    # Newcombe 1998, Statistics in Medicine 17:857-872, table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_matches_newcombes_table(successes: int, n: int, lower: float, upper: float) -> None:
    """Wilson's interval equals Newcombe's published one to four digits."""
    interval = wilson_interval(successes, n)
    assert (interval.lower, interval.upper) == pytest.approx((lower, upper), abs=5e-5)
    assert interval.estimate == successes / n
    assert interval.level == 0.95
    assert interval.median is None


@pytest.mark.parametrize(("successes", "n"), [(3, 10), (50, 100), (1, 400), (399, 400)])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_wilson_solves_score_equation(successes: int, n: int, level: float) -> None:
    """Each end of Wilson's interval solves the score equation."""
    interval = wilson_interval(successes, n, level)
    z = NormalDist().inv_cdf((1 + level) / 2)
    for end in (interval.lower, interval.upper):
        assert abs(end - successes / n) == pytest.approx(z * math.sqrt(end * (1 - end) / n))


def test_wilson_touches_bounds() -> None:
    """Wilson's interval is exactly 0 or 1 at its end if no row or every row is right."""
    for n in (1, 3, 7, 10, 1_000_003):
        assert wilson_interval(0, n).lower == 0.0
        assert wilson_interval(n, n).upper == 1.0
        assert 0.0 < wilson_interval(0, n).upper < 1.0


@pytest.mark.parametrize(
    ("successes", "n", "level"),
    [(0, 0, 0.95), (3, 2, 0.95), (0.5, 2, 0.95), (1, math.nan, 0.95), (True, 2, 0.95), (1, 2, 95)],
)
def test_wilson_rejects_bad_input(successes: int, n: int, level: float) -> None:
    """Impossible counts, NaN and levels out of range raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        wilson_interval(successes, n, level)


def _rows(kind: str) -> np.ndarray:
    rng = np.random.default_rng(7)
    if kind == "binary":
        return (rng.random(300) < 0.85).astype(float)
    if kind == "few values":
        return rng.choice([-1.0, 0.0, 0.5, 1.0], 400)
    return rng.exponential(size=120)


@pytest.mark.parametrize("kind", ["binary", "few values", "continuous"])
def test_bootstrap_matches_row_draws(kind: str) -> None:
    """The bootstrap has the percentiles of resampled rows, also for repeated values."""
    x = _rows(kind)
    rng = np.random.default_rng(1)
    means = np.array([rng.choice(x, len(x)).mean() for _ in range(20_000)])
    interval = bootstrap_interval(x, 0.9, n_resamples=20_000, rng=2)
    spread = means.std()
    for value, quantile in ((interval.lower, 0.05), (interval.median, 0.5), (interval.upper, 0.95)):
        assert value == pytest.approx(np.quantile(means, quantile), abs=0.06 * spread)
    assert interval.estimate == pytest.approx(x.mean())


def test_bootstrap_seeds() -> None:
    """Equal seeds give equal intervals, and the default is seed 0."""
    x = _rows("continuous")
    one = bootstrap_interval(x, rng=11, n_resamples=500)
    assert bootstrap_interval(x, rng=np.random.default_rng(11), n_resamples=500) == one
    assert bootstrap_interval(x, rng=12, n_resamples=500) != one
    assert bootstrap_interval(x, n_resamples=500) == bootstrap_interval(x, rng=0, n_resamples=500)


def test_bootstrap_in_chunks() -> None:
    """The bootstrap of 5,000 rows has the width of the normal interval."""
    x = np.random.default_rng(0).normal(size=5_000)
    interval = bootstrap_interval(x, n_resamples=2_000, rng=0)
    half = 1.96 * x.std() / math.sqrt(len(x))
    assert interval.upper - interval.lower == pytest.approx(2 * half, rel=0.1)


def test_bootstrap_of_a_million_rows() -> None:
    """The bootstrap of a million zeros and ones has the normal interval."""
    x = np.zeros(1_000_000)
    x[:900_000] = 1.0
    interval = bootstrap_interval(x, rng=0)
    assert (interval.lower, interval.upper) == pytest.approx((0.9 - 0.000588, 0.9 + 0.000588), abs=3e-5)


@pytest.mark.parametrize("method", ["percentile", "bca"])
@pytest.mark.parametrize("values", [[1.0], [0.1] * 7, [0, 0]])
def test_bootstrap_of_equal_values(method: Any, values: list[float]) -> None:
    """The interval of equal values is one point."""
    found = bootstrap_interval(values, method=method)
    assert found == Interval(
        lower=values[0], upper=values[0], level=0.95, estimate=values[0], median=values[0]
    )


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ([1.0, math.inf], {}),
        ([0, 1], {"level": 1.0}),
        ([0, 1], {"method": "normal"}),
        ([0, 1], {"n_resamples": 0}),
    ],
)
def test_bootstrap_rejects_bad_input(values: list[float], options: dict[str, object]) -> None:
    """Infinite values and wrong options raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        bootstrap_interval(values, **options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_bootstrap_coverage(method: Any) -> None:
    """Intervals of a skewed mean (n = 60) at 95 % cover the mean in 92 to 97 % of samples."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2_000):
        x = rng.gamma(4.0, 0.25, size=60)
        found = bootstrap_interval(x, method=method, n_resamples=1_000, rng=rng)
        hits += found.lower <= 1.0 <= found.upper
    assert 0.92 < hits / 2_000 < 0.97


def test_paired_mean_is_t_interval() -> None:
    """The interval of Student's sleep data (1908) is the published 0.70 to 2.46 around 1.58."""
    differences = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    interval = paired_mean_interval(differences)
    assert interval.estimate == pytest.approx(1.58)
    assert (interval.lower, interval.upper) == pytest.approx((0.7001, 2.4599), abs=1e-4)


def test_paired_mean_of_two_groups() -> None:
    """The interval of two groups has Welch's degrees of freedom."""
    values, groups = [0.0, 2.0, 10.0, 13.0, 13.0], ["a", "a", "b", "b", "b"]
    interval = paired_mean_interval(values, groups)
    v = (0.4**2 * 2 / 2, 0.6**2 * 3 / 3)
    df = sum(v) ** 2 / (v[0] ** 2 / 1 + v[1] ** 2 / 2)
    stats = pytest.importorskip("scipy.stats")
    half = stats.t.ppf(0.975, df) * math.sqrt(sum(v))
    assert interval.estimate == pytest.approx(7.6)
    assert (interval.lower, interval.upper) == pytest.approx((7.6 - half, 7.6 + half))


def test_group_shift_keeps_width() -> None:
    """A constant added to one group shifts the estimate and leaves the width."""
    rng = np.random.default_rng(0)
    values, groups = rng.normal(size=60), np.repeat(["a", "b", "c"], 20)
    before = paired_mean_interval(values, groups)
    after = paired_mean_interval(values + 100.0 * (groups == "b"), groups)
    assert after.estimate == pytest.approx(before.estimate + 100 / 3)
    assert after.upper - after.lower == pytest.approx(before.upper - before.lower)


def test_row_order_is_irrelevant() -> None:
    """The order of rows does not change the interval."""
    rng = np.random.default_rng(1)
    values, groups = rng.normal(size=30), rng.integers(0, 3, 30)
    order = rng.permutation(30)
    one, other = (
        paired_mean_interval(values, groups),
        paired_mean_interval(values[order], groups[order].tolist()),
    )
    assert (one.lower, one.upper) == pytest.approx((other.lower, other.upper))


def test_constant_groups() -> None:
    """Groups of equal values give width 0, and one group that varies gives more."""
    flat = paired_mean_interval([0.1, 0.1, 0.1, 0.3, 0.3], [0, 0, 0, 1, 1])
    assert flat.lower == flat.upper == flat.estimate == pytest.approx(0.18)
    mixed = paired_mean_interval([0.1, 0.1, 0.0, 1.0, 0.5], [0, 0, 1, 1, 1])
    assert mixed.lower < mixed.estimate < mixed.upper


@pytest.mark.parametrize(
    ("values", "groups", "level"),
    [
        ([1.0], None, 0.95),
        ([1.0, 2.0, 3.0], ["a", "a", "b"], 0.95),
        ([1.0, 2.0], ["a"], 0.95),
        ([1.0, 2.0], None, 1.5),
    ],
)
def test_paired_mean_rejects_bad_input(values: list[float], groups: list[str] | None, level: float) -> None:
    """A group of one row, or a level out of range, raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        paired_mean_interval(values, groups, level)


@pytest.mark.slow
def test_paired_mean_coverage() -> None:
    """Intervals over three unequal groups at 95 % cover the mean in 95 % of samples."""
    rng = np.random.default_rng(0)
    sizes, means, spreads = (15, 30, 60), (0.0, 0.3, -0.2), (0.2, 1.0, 0.5)
    truth = np.dot(sizes, means) / sum(sizes)
    groups = np.repeat([0, 1, 2], sizes)
    hits = 0
    for _ in range(4_000):
        values = rng.normal(np.repeat(means, sizes), np.repeat(spreads, sizes))
        interval = paired_mean_interval(values, groups)
        hits += interval.lower <= truth <= interval.upper
    assert hits / 4_000 == pytest.approx(0.95, abs=0.012)


@pytest.mark.parametrize("kind", ["binary", "few values", "continuous"])
def test_bca_agrees_with_scipy(kind: str) -> None:
    """The BCa interval agrees with SciPy's, up to the noise of resampling."""
    stats = pytest.importorskip("scipy.stats")
    x = _rows(kind)
    reference = stats.bootstrap((x,), np.mean, method="BCa", n_resamples=20_000, rng=np.random.default_rng(3))
    found = bootstrap_interval(x, method="bca", n_resamples=20_000, rng=4)
    spread = x.std() / math.sqrt(len(x))
    assert found.lower == pytest.approx(reference.confidence_interval.low, abs=0.12 * spread)
    assert found.upper == pytest.approx(reference.confidence_interval.high, abs=0.12 * spread)


def test_bca_agrees_with_scipy_where_the_corrections_are_large() -> None:
    """The BCa interval of twelve very skewed values agrees with SciPy's."""
    stats = pytest.importorskip("scipy.stats")
    x = np.random.default_rng(2).lognormal(sigma=1.2, size=12)
    options = {"method": "BCa", "n_resamples": 100_000, "rng": np.random.default_rng(3)}
    reference = stats.bootstrap((x,), np.mean, **options).confidence_interval
    found = bootstrap_interval(x, method="bca", n_resamples=100_000, rng=4)
    spread = x.std() / math.sqrt(len(x))
    assert found.lower == pytest.approx(reference.low, abs=0.025 * spread)
    assert found.upper == pytest.approx(reference.high, abs=0.05 * spread)
