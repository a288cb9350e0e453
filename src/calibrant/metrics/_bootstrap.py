"""The bootstrap interval of a mean."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
        Empty or non-finite values, or a parameter out of range.

    Examples
    --------
    >>> interval = bootstrap_interval([0, 1] * 50, rng=0)
    >>> bool(0.39 < interval.lower < 0.42)
    True
    """
    x = check_values("values", values)
    confidence = check_level(level)
    resamples = check_count("n_resamples", n_resamples, low=1)
    estimate = float(x.mean())
    if np.ptp(x) == 0.0:
        value = float(x[0])
        return Interval(lower=value, upper=value, level=confidence, estimate=value, median=value)
    generator = np.random.default_rng(0 if rng is None else rng)
    means = np.concatenate(list(_resampled_means(x, resamples, generator)))
    tail = (1.0 - confidence) / 2.0
    lower, median, upper = np.quantile(means, (tail, 0.5, 1.0 - tail))
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
