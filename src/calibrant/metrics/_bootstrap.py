"""The bootstrap interval of a mean."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Interval
from calibrant.metrics._validation import check_count, check_level, check_values

# Counts drawn at once: 2^22 are 32 MB.
_CHUNK = 1 << 22
# Rows drawn at once: 128 kB of values stay in the cache, and the allocator keeps the pages between chunks
# instead of asking the system for them anew, which takes longer than the drawing.
_ROW_CHUNK = 1 << 14
# One multinomial cell costs about as much as this many row draws.
_CELL_COST = 16


def bootstrap_interval(
    values: ArrayLike,
    level: float = 0.95,
    *,
    method: Literal["percentile", "bca"] = "percentile",
    n_resamples: int = 10_000,
    rng: np.random.Generator | int | None = None,
) -> Interval:
    """Return the bootstrap interval of a mean.

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
        msg = f"Expected method 'percentile' or 'bca', got {method!r}."
        raise ConfigurationError(msg)
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


def _resampled_means(
    x: NDArray[np.float64], n_resamples: int, rng: np.random.Generator
) -> Iterator[NDArray[np.float64]]:
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
            yield x.take(rng.integers(0, n, size=(size, n), dtype=kind)).mean(axis=1)


def _bca_tails(
    x: NDArray[np.float64], means: NDArray[np.float64], estimate: float, tails: tuple[float, float]
) -> tuple[float, float]:
    """Return the corrected tail probabilities (Efron 1987, sections 3 and 6).

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
    z0 = normal.inv_cdf(float(np.clip(below, half_step, 1.0 - half_step)))
    d = (x - estimate) / np.abs(x - estimate).max()
    a = float((d**3).sum() / (6.0 * (d**2).sum() ** 1.5))
    shifted = [z0 + normal.inv_cdf(tail) for tail in tails]
    low, high = (normal.cdf(z0 + z / max(1.0 - a * z, 1e-12)) for z in shifted)
    return low, high
