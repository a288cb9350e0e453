"""Certified thresholds: how much a cascade may keep with its small models and stay near the large one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration import candidate_thresholds
from calibrant.cascade._checks import is_number
from calibrant.cascade.planning._loss_test import critical_score, loss_p_value, loss_score
from calibrant.core import ConfigurationError

__all__ = ["CertifiedCascade", "certify_cascade", "check_risk", "fewest_rows", "kept_in_order"]

_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class CertifiedCascade:
    """How far the threshold of a cascade may be lowered.

    Attributes
    ----------
    threshold : float or None
        Keep an answer of the small model whose confidence is at least this, in [0, 1]; None where only the
        large model alone is certified.
    thresholds : tuple of float
        All that are certified, together, from the highest down; the last one is `threshold`.
    share_small : float
        Share of the rows that stay with the small model, in [0, 1].
    loss : float
        Accuracy of the large model minus that of the cascade, on these rows.
    epsilon, delta : float
        With probability ``1 - delta`` the cascade's accuracy is above that of the large model minus epsilon.
    n, only_large, only_small : int
        Rows; kept rows that only the large model has right; kept rows that only the small one has right.
    """

    threshold: float | None
    thresholds: tuple[float, ...]
    share_small: float
    loss: float
    epsilon: float
    delta: float
    n: int
    only_large: int
    only_small: int

    @property
    def p_value(self) -> float:
        """Exact, of "the loss is epsilon or more" at this threshold alone; 1 without a threshold."""
        if self.threshold is None:
            return 1.0
        return loss_p_value(self.only_large, self.only_small, self.n, self.epsilon)


def certify_cascade(
    confidence: ArrayLike,
    small_correct: ArrayLike,
    large_correct: ArrayLike,
    *,
    epsilon: float = 0.02,
    delta: float = 0.1,
) -> CertifiedCascade:
    """Return the lowest threshold at which the cascade is certified to lose less than epsilon.

    Fixed-sequence Learn-then-Test (Angelopoulos et al. 2021) on paired rows. From "route everything"
    the thresholds of a fixed grid are tested downwards, each at level `delta` by the exact test of
    `critical_score`, until the first one fails: an error takes passing the first bad threshold, so
    nothing is paid for trying many. Rows must be drawn independently from what the cascade is used on.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        Of the small model's answers, in [0, 1]; NaN where there is none, which is always routed.
    small_correct, large_correct : array-like of shape (n,)
        1 where that model is right, else 0.
    epsilon : float in (0, 1), default 0.02
        Accuracy that may be lost against the large model.
    delta : float in (0, 1), default 0.1
        Probability with which the guarantee may fail.

    Raises
    ------
    ConfigurationError
        No rows, lengths that differ, or a number out of range.

    Examples
    --------
    >>> certify_cascade([0.9] * 150, [1] * 150, [1] * 150).threshold
    0.9
    >>> certify_cascade([0.9] * 50, [1] * 50, [1] * 50).threshold is None
    True
    """
    p, small, large = (
        np.asarray(one, dtype=np.float64) for one in (confidence, small_correct, large_correct)
    )
    eps, level = check_risk(epsilon, delta)
    if p.ndim != 1 or not len(p) == len(small) == len(large) or not len(p):
        raise ConfigurationError(
            f"Expected confidence and correctness of the same rows, at least one, got {p.shape}, {small.shape} and "
            f"{large.shape}."
        )
    cells, kept, worse, better = _at_thresholds(p, small, large)
    passed = kept_in_order(worse, better, len(p), epsilon=eps, delta=level, first_is_strict=cells[:1] != [0])
    found = tuple(float(candidate_thresholds()[cell]) for cell in cells[:passed])
    last = passed - 1
    a, b = (int(worse[last]), int(better[last])) if passed else (0, 0)
    return CertifiedCascade(
        threshold=found[-1] if passed else None,
        thresholds=found,
        share_small=float(kept[last] / len(p)) if passed else 0.0,
        loss=(a - b) / len(p),
        epsilon=eps,
        delta=level,
        n=len(p),
        only_large=a,
        only_small=b,
    )


def kept_in_order(
    worse: ArrayLike, better: ArrayLike, n: int, *, epsilon: float, delta: float, first_is_strict: bool
) -> int:
    """Return how many policies of a fixed sequence pass before the first one fails.

    Parameters
    ----------
    worse, better : array-like of int, shape (m,)
        Rows of each policy that only the large model has right, and that only the policy has.
    n : int
        All rows.
    epsilon, delta : float
        As for `certify_cascade`.
    first_is_strict : bool
        Whether policies without any such row came before the first one; they must pass as well.
    """
    limit = critical_score(n, epsilon, delta)
    if first_is_strict and float(loss_score(0, 0, n, epsilon)) > limit:
        return 0
    passed = loss_score(worse, better, n, epsilon) <= limit
    return int(passed.argmin()) if not passed.all() else len(passed)


def fewest_rows(epsilon: float, delta: float) -> int:
    """Return how many rows that agree certify anything: ``log(delta) / log(1 - epsilon)``."""
    return math.ceil(math.log(delta) / math.log1p(-epsilon) - 1e-9)


def check_risk(epsilon: object, delta: object) -> tuple[float, float]:
    """Return both as floats strictly between 0 and 1.

    Raises
    ------
    ConfigurationError
        One is not.
    """
    found = []
    for name, value, meaning in (
        ("epsilon", epsilon, "accuracy that may be lost"),
        ("delta", delta, "probability that the guarantee may fail"),
    ):
        if not is_number(value) or not 0.0 < value < 1.0:
            raise ConfigurationError(
                f"Expected {name}, the {meaning}, strictly between 0 and 1, got {value!r}."
            )
        found.append(float(value))
    return found[0], found[1]


def _at_thresholds(
    confidence: _Floats, small: _Floats, large: _Floats
) -> tuple[Sequence[int], NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Return the thresholds that matter, and of the rows each keeps: all, only large right, only small right."""
    sure = ~np.isnan(confidence)
    found = np.searchsorted(-candidate_thresholds(), -confidence[sure])
    cells, own = np.unique(found, return_inverse=True)
    difference = large[sure] - small[sure]

    def up_to(rows: NDArray[np.bool_]) -> NDArray[np.intp]:
        counted: NDArray[np.intp] = np.bincount(own[rows], minlength=len(cells)).cumsum()
        return counted

    everything = np.ones(len(own), dtype=np.bool_)
    return cells.tolist(), up_to(everything), up_to(difference == 1.0), up_to(difference == -1.0)
