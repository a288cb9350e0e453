"""Confidence intervals of proportions, means and paired differences, the bootstrap, and tests of two classifiers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import FloatArray, IntegerArray, Interval
from calibrant.metrics._validation import (
    check_binary,
    check_count,
    check_level,
    check_same_length,
    check_values,
    normal_quantile,
)

# Of a value at the other end of the range, which no row has shown yet.
_UNSEEN: Final = 0.5
# Counts drawn at once: 2^22 are 32 MB.
_CHUNK = 1 << 22
# Rows drawn at once: 128 kB of values stay in the cache, and the allocator keeps the pages between chunks
# instead of asking the system for them anew, which takes longer than the drawing.
_ROW_CHUNK = 1 << 14
# One multinomial cell costs about as much as this many row draws.
_CELL_COST = 16
INTERVAL: Final = ("estimate", "lower", "upper", "level")
"""What files hold of an interval."""


def interval_record(interval: Interval) -> dict[str, Any]:
    """Return an interval as JSON values, in the order of `INTERVAL`."""
    return {name: getattr(interval, name) for name in INTERVAL}


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """Return the Wilson score interval of a proportion.

    Solves ``|p - s/n| = z sqrt(p (1 - p) / n)`` for p (Wilson 1927, JASA 22:209-212). Unlike the
    textbook interval it keeps its nominal coverage near 0 and 1 and in small samples.

    Parameters
    ----------
    successes : int in [0, n]
        For instance correct answers.
    n : int, at least 1
        Rows.
    level : float in (0, 1), default 0.95
        Confidence level.

    Returns
    -------
    Interval
        ``lower``, ``upper`` in [0, 1]; ``estimate`` is successes / n.

    Raises
    ------
    ConfigurationError
        n is 0, a count is not whole or out of range, or the level is not in (0, 1).

    Examples
    --------
    >>> interval = wilson_interval(81, 263)
    >>> round(interval.lower, 4), round(interval.upper, 4)
    (0.2553, 0.3662)
    """
    if n == 0:
        raise ConfigurationError(
            "Expected at least one row, got n=0: no data says nothing about a proportion."
        )
    rows = check_count("n", n, low=1)
    hits = check_count("successes", successes, low=0, high=rows)
    lower, upper = wilson_limits(hits, rows, z=normal_quantile(level))
    return Interval(lower=lower, upper=upper, level=level, estimate=hits / rows)


def wilson_limits(successes: float, n: float, *, z: float) -> tuple[float, float]:
    """Return Wilson's lower and upper limit for a standard normal quantile z."""
    p = successes / n
    scale = 1.0 + z * z / n
    centre = (p + z * z / (2 * n)) / scale
    variance = p * (1.0 - p) / n + z * z / (4 * n * n)
    half = z / scale * math.sqrt(variance)
    # Exactly 0 and 1 at the ends, where the formula is right only up to rounding.
    lower = 0.0
    if successes != 0:
        lower = max(0.0, centre - half)
    upper = 1.0
    if successes != n:
        upper = min(1.0, centre + half)
    return lower, upper


def mean_interval(values: FloatArray, counts: IntegerArray, level: float = 0.95) -> Interval:
    """Return the Wilson score interval of the mean of numbers in [0, 1], such as partial credit.

    Wilson's interval at the effective sample size ``n (m (1 - m) + u) / (v + u)`` (after Kish 1965), m the mean and v
    the variance of the n values (divisor n): numbers between 0 and 1 vary less than 0 and 1 themselves, so that each
    counts as more than one row. ``u = 1 / (2 n)`` stands for half a value at the other end that was not drawn: without
    it, few rows that happen to lack the rare large mistakes would seem to exclude them. For values of 0 and 1 it is
    Wilson's own interval. Values that do not vary count as n rows.

    Parameters
    ----------
    values : ndarray of float, shape (k,)
        Distinct or repeated values in [0, 1].
    counts : ndarray of int, shape (k,)
        Rows that have each; at least one row in all.
    level : float in (0, 1), default 0.95
        Confidence level.

    Returns
    -------
    Interval
        Ends in [0, 1].

    Raises
    ------
    ConfigurationError
        No rows, or the level is not in (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.metrics import mean_interval
    >>> interval = mean_interval(np.array([0.0, 0.5, 1.0]), np.array([10, 20, 70]))  # 70 rows are all right
    >>> interval.estimate, round(interval.lower, 3), round(interval.upper, 3)
    (0.8, 0.727, 0.857)
    """
    n = int(counts.sum())
    if n == 0:
        raise ConfigurationError("Expected at least one row, got none: no data says nothing about a mean.")
    mean = min(max(float(counts @ values) / n, 0.0), 1.0)
    variance = float(counts @ (values - mean) ** 2) / n
    unseen = _UNSEEN / n
    size = float(n)
    if variance > 1e-12:
        as_right_and_wrong = mean * (1.0 - mean)
        size *= max(1.0, (as_right_and_wrong + unseen) / (variance + unseen))
    lower, upper = wilson_limits(mean * size, size, z=normal_quantile(level))
    return Interval(lower=lower, upper=upper, level=level, estimate=mean)


def paired_mean_interval(
    differences: ArrayLike, groups: Sequence[object] | NDArray[np.generic] | None = None, level: float = 0.95
) -> Interval:
    """Return the t interval of the mean of paired differences, stratified if groups are given.

    Use it to pool several tasks: each task is a stratum, so differences between tasks, which are
    no sampling error, do not widen the interval.

    The strata h = 1..H hold n_h of the n rows, with mean d_h and sample variance s_h^2 (divisor
    n_h - 1). The estimate is ``sum_h (n_h / n) d_h``, that is the mean of all rows; its variance
    ``sum_h v_h`` with ``v_h = (n_h / n)^2 s_h^2 / n_h`` (Cochran 1977, section 5.4, without finite
    population correction). The interval is ``estimate ± t sqrt(sum v_h)``, with
    ``(sum v_h)^2 / sum(v_h^2 / (n_h - 1))`` degrees of freedom (Satterthwaite 1946). Without strata
    this is the ordinary paired t interval.

    Parameters
    ----------
    differences : array-like of shape (n,)
        One finite difference per row, such as correctness after minus before.
    groups : sequence of shape (n,), optional
        The stratum of each row; every stratum needs two rows or more.
    level : float in (0, 1), default 0.95
        Confidence level.

    Returns
    -------
    Interval
        In the unit of the differences. If the differences vary in no stratum, the data hold no
        information about the error and both ends equal the estimate.

    Raises
    ------
    ConfigurationError
        A stratum of fewer than two rows, different lengths, NaN, or a level outside (0, 1).

    Examples
    --------
    >>> from calibrant.metrics import paired_mean_interval
    >>> interval = paired_mean_interval([1, 0, 0, 1, -1, 1, 0, 1])  # five rows changed, four of them for the better
    >>> interval.estimate, round(interval.lower, 3), round(interval.upper, 3)
    (0.375, -0.247, 0.997)
    """
    values = check_values("differences", differences)
    confidence = check_level(level)
    n, mean, variance = _strata(values, groups)
    if (n < 2).any():
        subject = "differences" if groups is None else "every group of differences"
        raise ConfigurationError(
            f"Expected {subject} to hold two rows or more, got {int(n.min())}: one row shows no variation."
        )
    weight = n / n.sum()
    estimate = float(weight @ mean)
    parts = weight**2 * variance / n
    total = float(parts.sum())
    if total == 0.0:
        return Interval(lower=estimate, upper=estimate, level=confidence, estimate=estimate)
    from scipy.special import stdtrit  # noqa: PLC0415 - `import calibrant` must not load scipy

    # Shares, so that tiny variances do not underflow when squared.
    squares = (parts / total) ** 2
    degrees = 1.0 / float((squares / (n - 1)).sum())
    quantile = float(stdtrit(degrees, (1.0 + confidence) / 2.0))
    half = quantile * math.sqrt(total)
    return Interval(lower=estimate - half, upper=estimate + half, level=confidence, estimate=estimate)


def _strata(
    values: FloatArray, groups: Sequence[object] | NDArray[np.generic] | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return size, mean and sample variance of each stratum, each of shape (H,)."""
    if groups is None:
        members = [values]
    else:
        if len(groups) != len(values):
            raise ConfigurationError(
                f"Expected one group per difference, got {len(groups)} groups for {len(values)} rows."
            )
        by_group: dict[object, list[float]] = {}
        for value, group in zip(values.tolist(), groups, strict=True):
            by_group.setdefault(group, []).append(value)
        members = [np.array(rows) for rows in by_group.values()]
    n = np.array([len(rows) for rows in members], dtype=np.float64)
    mean = np.array([rows.mean() for rows in members])
    variance = np.zeros(len(members))
    for place, rows in enumerate(members):
        # Rounding in the mean must not make equal differences vary.
        if len(rows) > 1 and np.ptp(rows) > 0.0:
            variance[place] = rows.var(ddof=1)
    return n, mean, variance


def bootstrap_interval(
    values: ArrayLike,
    level: float = 0.95,
    *,
    method: Literal["percentile", "bca"] = "percentile",
    n_resamples: int = 10_000,
    rng: np.random.Generator | int | None = None,
) -> Interval:
    """Return a bootstrap confidence interval of a mean.

    Resamples n of the n rows with replacement. Only how often each distinct value is drawn
    matters, and those counts are multinomial; so where values repeat (0 and 1 above all) the
    counts are drawn instead of the rows, which is the same distribution, exactly, at a cost that
    does not grow with n.

    Parameters
    ----------
    values : array-like of shape (n,)
        One finite value per row.
    level : float in (0, 1), default 0.95
        Confidence level.
    method : {"percentile", "bca"}, default "percentile"
        ``percentile``: quantiles of the resampled means by linear interpolation. ``bca``: bias
        corrected and accelerated (Efron 1987, JASA 82:171-185), better for skewed values.
    n_resamples : int, at least 1, default 10,000
        Resampled means.
    rng : numpy Generator, int or None, default None
        Source of randomness or its seed; None is seed 0, so that equal calls agree.

    Returns
    -------
    Interval
        In the unit of the values; ``median`` is that of the resampled means. Values that do not
        vary give an interval of width 0.

    Raises
    ------
    ConfigurationError
        Empty or non-finite values, an unknown method, or a parameter out of range.

    Examples
    --------
    >>> interval = bootstrap_interval([0, 1] * 50, rng=0)
    >>> bool(0.39 < interval.lower < 0.42)
    True
    """
    x = check_values("values", values)
    confidence = check_level(level)
    resamples = check_count("n_resamples", n_resamples, low=1)
    if method not in ("percentile", "bca"):
        raise ConfigurationError(f"Expected method 'percentile' or 'bca', got {method!r}.")
    estimate = float(x.mean())
    if np.ptp(x) == 0.0:
        value = float(x[0])
        return Interval(lower=value, upper=value, level=confidence, estimate=value, median=value)
    generator = np.random.default_rng(0 if rng is None else rng)
    means = np.concatenate(list(_resampled_means(x, resamples, generator)))
    tails = ((1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0)
    if method == "bca":
        tails = _bca_tails(x, means, estimate, tails)
    lower, median, upper = np.quantile(means, (tails[0], 0.5, tails[1]))
    return Interval(
        lower=float(lower), upper=float(upper), level=confidence, estimate=estimate, median=float(median)
    )


def _resampled_means(x: FloatArray, n_resamples: int, rng: np.random.Generator) -> Iterator[FloatArray]:
    """Yield resampled means in chunks that fit in memory."""
    n = len(x)
    distinct, counts = np.unique(x, return_counts=True)
    by_value = len(distinct) == 2 or len(distinct) * _CELL_COST < n
    step = max(1, _CHUNK // len(distinct) if by_value else _ROW_CHUNK // n)
    # Two bytes of randomness are drawn faster than eight.
    kind = np.uint16 if n <= 1 << 16 else np.int64
    for start in range(0, n_resamples, step):
        size = min(step, n_resamples - start)
        if by_value:
            yield rng.multinomial(n, counts / n, size=size) @ distinct / n
        else:
            drawn = rng.integers(0, n, size=(size, n), dtype=kind)
            yield x.take(drawn).mean(axis=1)


def _bca_tails(
    x: FloatArray, means: FloatArray, estimate: float, tails: tuple[float, float]
) -> tuple[float, float]:
    """Return the corrected tail probabilities of the BCa bootstrap (Efron 1987, sections 3 and 6).

    ``alpha' = Phi(z0 + (z0 + z) / (1 - a (z0 + z)))`` with the bias correction z0 from the share of
    resampled means below the estimate (ties count half, since 0/1 values tie often) and the
    acceleration a, for a mean, a sixth of the skewness over sqrt(n):
    ``sum(d^3) / (6 sum(d^2)^1.5)`` with d = x - mean(x).
    """
    normal = NormalDist()
    # Summing in another order may move a tie by an ulp or two.
    near = np.abs(means - estimate) <= 1e-12 * np.ptp(x)
    below = ((means < estimate) & ~near).mean() + 0.5 * near.mean()
    half_step = 0.5 / len(means)
    share = float(np.clip(below, half_step, 1.0 - half_step))
    z0 = normal.inv_cdf(share)
    d = (x - estimate) / np.abs(x - estimate).max()
    scale = (d**2).sum() ** 1.5
    a = float((d**3).sum() / (6.0 * scale))
    shifted = [z0 + normal.inv_cdf(tail) for tail in tails]
    low, high = (normal.cdf(z0 + z / max(1.0 - a * z, 1e-12)) for z in shifted)
    return low, high


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Comparison of two classifiers, or two prompts, on the same rows.

    Attributes
    ----------
    difference : float
        Accuracy of b minus accuracy of a, in [-1, 1]; above 0 where b is better.
    interval : Interval
        Interval of the difference, in the same direction.
    p_value : float
        Exact McNemar test of equal accuracy, two-sided; 1 where a and b never differ.
    n : int
        Rows.
    only_a, only_b : int
        Rows that only a, or only b, has right.
    """

    difference: float
    interval: Interval
    p_value: float
    n: int
    only_a: int
    only_b: int


def paired_comparison(correct_a: ArrayLike, correct_b: ArrayLike, level: float = 0.95) -> PairedComparison:
    """Compare the accuracy of a and b on the same rows; positive differences favour b.

    The interval is Newcombe's square-and-add of two Wilson intervals, with the correlation of
    the pairs (Newcombe 1998, Statistics in Medicine 17:2635-2650, method 10). The test is
    McNemar's, exact: given the rows on which a and b differ, each is as likely to favour either
    (binomial, 1/2). Interval and test are different methods: near the edge one may exclude 0 and
    the other not reject.

    Parameters
    ----------
    correct_a, correct_b : array-like of 0/1, shape (n,)
        Correctness on the same rows, in the same order.
    level : float in (0, 1), default 0.95
        Confidence level of the interval.

    Raises
    ------
    ConfigurationError
        No rows, different lengths, an entry other than 0 and 1, or a level outside (0, 1).

    Examples
    --------
    >>> result = paired_comparison([1, 0, 0, 0, 1, 0], [1, 1, 1, 0, 1, 1])
    >>> result.difference, result.only_a, result.only_b, result.p_value
    (0.5, 0, 3, 0.25)
    """
    a = check_binary("correct_a", correct_a)
    b = check_binary("correct_b", correct_b)
    check_same_length(correct_a=a, correct_b=b)
    z = normal_quantile(level)
    n = len(a)
    both = int(np.sum(a * b))
    only_a = int(a.sum()) - both
    only_b = int(b.sum()) - both
    difference = (only_b - only_a) / n
    lower, upper = _newcombe_limits(both, only_b, only_a, n, z=z)
    return PairedComparison(
        difference=difference,
        interval=Interval(lower=lower, upper=upper, level=float(level), estimate=difference),
        p_value=_mcnemar(only_a, only_b),
        n=n,
        only_a=only_a,
        only_b=only_b,
    )


def holm(p_values: ArrayLike) -> FloatArray:
    """Return p-values adjusted for multiple tests by Holm's method.

    Holm's step-down procedure (Holm 1979, Scandinavian Journal of Statistics 6:65-70): the i-th
    smallest of m is multiplied by m - i + 1, made no smaller than the one before it and at most 1.
    A test that rejects every adjusted value up to alpha then rejects any true hypothesis with
    probability at most alpha, under any dependence between the tests.

    Parameters
    ----------
    p_values : array-like of shape (m,)
        One p-value per candidate, in [0, 1]; for instance those of `paired_comparison` with the
        same baseline.

    Returns
    -------
    ndarray of shape (m,)
        Adjusted values in the order given, none smaller than before.

    Raises
    ------
    ConfigurationError
        No values, NaN, or a value outside [0, 1].

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    p = check_values("p_values", p_values)
    if p.min() < 0.0 or p.max() > 1.0:
        raise ConfigurationError(
            f"Expected p_values in [0, 1], got {p.min()} to {p.max()}: pass one p-value per candidate."
        )
    order = np.argsort(p, kind="stable")
    factors = np.arange(len(p), 0, -1)
    stepped = np.maximum.accumulate(p[order] * factors)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _newcombe_limits(e: int, f: int, g: int, n: int, *, z: float) -> tuple[float, float]:
    """Return Newcombe's limits for p1 - p2, in the symbols of his paper.

    e rows have both, f only the first, g only the second, h neither; l, u are Wilson's limits.
    """
    h = n - e - f - g
    p1 = (e + f) / n
    p2 = (e + g) / n
    l1, u1 = wilson_limits(e + f, n, z=z)
    l2, u2 = wilson_limits(e + g, n, z=z)
    phi = _corrected_phi(e, f, g, h)
    theta = p1 - p2
    lower = theta - _side(p1 - l1, u2 - p2, phi)
    upper = theta + _side(u1 - p1, p2 - l2, phi)
    return max(-1.0, lower), min(1.0, upper)


def _side(first: float, second: float, phi: float) -> float:
    """Return one side of Newcombe's interval from those of the two shares, whose correlation is phi."""
    squared = first**2 - 2.0 * phi * first * second + second**2
    return math.sqrt(max(squared, 0.0))


def _corrected_phi(e: int, f: int, g: int, h: int) -> float:
    """Return the correlation of the pairs with continuity correction; 0 if it is undefined."""
    margins = (e + f) * (g + h) * (e + g) * (f + h)
    if margins == 0:
        return 0.0
    numerator = float(e * h - f * g)
    if numerator > 0.0:
        numerator = max(numerator - (e + f + g + h) / 2.0, 0.0)
    return numerator / math.sqrt(margins)


def _mcnemar(only_a: int, only_b: int) -> float:
    discordant = only_a + only_b
    if discordant == 0:
        return 1.0
    from scipy.special import bdtr  # noqa: PLC0415 - `import calibrant` must not load scipy

    tail = float(bdtr(min(only_a, only_b), discordant, 0.5))
    return min(1.0, 2.0 * tail)
