"""Certified thresholds that bound a cascade's accuracy loss against its large model; exact test.

Every row adds +1 where only the large model is right, -1 where only the cascade is, else 0. This is
the non-inferiority problem for paired proportions; what is tested is that the mean is above epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from calibrant.calibration._thresholds import candidate_thresholds
from calibrant.cascade._rules import KeepRule
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import BoolArray, FloatArray, IndexArray
from calibrant.core._ranks import DEFAULT_KEY, tie_ranks
from calibrant.metrics._validation import check_number

# A tied block is split where that keeps so many more of the rows: where blocks are a few rows each, a plain threshold
# is worth more to its reader.
_WORTH_A_SPLIT = 0.02
_KEPT_BACK = 0.01  # share of the allowed error that covers what lies between the points of `_nuisances`
_TAIL = 7.0  # standard deviations beyond which a binomial tail, below 1e-11, counts in full
_DENSE = 400  # counts up to this are summed one by one
_PER_DEVIATION = 8  # blocks of counts per standard deviation above that
_COARSE = 12  # of so many populations one is looked at to find where to begin


@dataclass(frozen=True, kw_only=True)
class CertifiedCascade:
    """Certified acceptance rule for the small model's answers.

    Attributes
    ----------
    rule : KeepRule or None
        Keeps what is surer than a threshold, and a share of the answers at it. It is a meta-verifier of a `Cascade`.
        None where only the large model alone is certified.
    threshold : float or None
        The lowest plain threshold that is certified, in [0, 1]: it takes or leaves answers of one confidence whole,
        and so keeps no more than `rule`. None where there is none.
    thresholds : tuple of float
        All that are certified, together, from the highest down; the last one is `threshold`.
    share_small : float
        Share of the rows that stay with the small model under `rule`, in [0, 1].
    only_large, only_small : int
        Kept rows that only the large model has right; kept rows that only the small one has right.
    """

    rule: KeepRule | None
    threshold: float | None
    thresholds: tuple[float, ...]
    share_small: float
    only_large: int
    only_small: int


def certify_cascade(  # noqa: PLR0913  (keyword-only options)
    confidence: ArrayLike,
    small_correct: ArrayLike,
    large_correct: ArrayLike,
    *,
    epsilon: float = 0.02,
    delta: float = 0.1,
    inputs: Sequence[str | int | None] | None = None,
    key: str = DEFAULT_KEY,
) -> CertifiedCascade:
    """Return the rule with the highest coverage whose loss is certified to be below epsilon.

    Fixed-sequence Learn-then-Test (Angelopoulos et al. 2021) on paired rows. Answers are ordered by confidence, equal
    ones by a keyed hash of their text (`tie_ranks`). From "route everything" one after the other is kept, and each
    such rule is tested at level `delta` by the exact test of `critical_score`, until the first one fails: an error
    takes passing the first bad rule of an order that was fixed before any answer was looked at, so nothing is paid
    for trying many. Rows must be drawn independently from what the cascade is used on.

    A block of equal confidences is split where that keeps at least 2 % more of the rows; else the rule is the plain
    threshold before it. Rows too few to prove anything where none is kept are tried as whole blocks only.

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
    inputs : sequence of (str, int or None), length n, optional
        The texts, or the places that stand in for them; None is the row's own place.
    key : str, default "calibrant"
        Key of the hash.

    Raises
    ------
    ConfigurationError
        No rows, lengths that differ, or a number or the key out of range.

    Examples
    --------
    >>> certify_cascade([0.9] * 150, [1] * 150, [1] * 150).threshold
    0.9
    >>> certify_cascade([0.9] * 50, [1] * 50, [1] * 50).threshold is None
    True
    >>> found = certify_cascade([1.0] * 500, [1] * 460 + [0] * 40, [1] * 500, epsilon=0.05)
    >>> found.threshold is None, found.rule.tied_confidence, 0.3 < found.share_small < 0.6
    (True, 1.0, True)
    """
    eps = check_number("epsilon", epsilon, "(0, 1)")
    level = check_number("delta", delta, "(0, 1)")
    p = np.asarray(confidence, dtype=np.float64)
    small = np.asarray(small_correct, dtype=np.float64)
    large = np.asarray(large_correct, dtype=np.float64)
    n = p.size
    texts: Sequence[str | int | None] = [None] * n if inputs is None else inputs
    if {p.shape, small.shape, large.shape, (len(texts),)} != {(n,)} or not n:
        raise ConfigurationError(
            f"Expected confidence, correctness and inputs of the same rows, at least one, got {p.shape}, "
            f"{small.shape}, {large.shape} and {len(texts)} inputs."
        )
    names = [row if text is None else text for row, text in enumerate(texts)]
    ranks = tie_ranks(names, key=key)
    order = _in_order(p, ranks, large - small)
    steps = _passing_steps(order, n, eps, level)
    ends = steps[order.whole[steps]]
    thresholds = _round_thresholds(order.confidence, ends)
    rule = None
    kept = last = 0
    if thresholds:
        rule = KeepRule.from_threshold(thresholds[-1])
        last = int(ends[-1])
        kept = int(order.kept[last])
    if len(steps) and order.kept[steps[-1]] - kept >= _WORTH_A_SPLIT * n:
        last = int(steps[-1])
        kept = int(order.kept[last])
        share = float(order.ranks[last])
        rule = KeepRule.from_threshold(float(order.confidence[last]), tied_share=share, key=key)
    return CertifiedCascade(
        rule=rule,
        threshold=thresholds[-1] if thresholds else None,
        thresholds=thresholds,
        share_small=kept / n,
        only_large=int(order.worse[last]) if rule else 0,
        only_small=int(order.better[last]) if rule else 0,
    )


def count_passes(
    worse: ArrayLike,
    better: ArrayLike,
    n: int,
    *,
    epsilon: float,
    delta: float,
    first_is_strict: bool = False,
) -> int:
    """Return the number of policies that pass, in the given order, before the first failure.

    Parameters
    ----------
    worse, better : array-like of int, shape (m,)
        Rows of each policy that only the large model has right, and that only the policy has.
    n : int
        All rows.
    epsilon, delta : float
        As for `certify_cascade`.
    first_is_strict : bool, default False
        True where policies without any such row came before the first one; they must pass as well.
    """
    limit = critical_score(n, epsilon, delta)
    if first_is_strict and float(loss_score(0, 0, n, epsilon)) > limit:
        return 0
    passed = loss_score(worse, better, n, epsilon) <= limit
    if not passed.all():
        return int(passed.argmin())
    return len(passed)


def fewest_rows(epsilon: float, delta: float) -> int:
    """Return the fewest rows that can certify a rule: ``log(delta) / log(1 - epsilon)``."""
    return math.ceil(math.log(delta) / math.log1p(-epsilon) - 1e-9)


class _Order(NamedTuple):
    """Nested acceptance rules, from the highest confidence down; ties are ordered by rank.

    Answers of equal confidence and rank, those of one text, come together.

    Attributes
    ----------
    confidence, ranks : ndarray of shape (m,)
        Of the answer that each rule keeps last.
    kept, worse, better : ndarray of int, shape (m,)
        Answers each keeps; of these, those that only the large model has right, and only the small one.
    whole : ndarray of bool, shape (m,)
        True where all answers of that confidence are kept.
    """

    confidence: FloatArray
    ranks: FloatArray
    kept: IndexArray
    worse: IndexArray
    better: IndexArray
    whole: BoolArray


def _in_order(confidence: FloatArray, ranks: FloatArray, difference: FloatArray) -> _Order:
    """Return the nested acceptance rules for n rows; answers without a confidence are never accepted."""
    sure = np.flatnonzero(~np.isnan(confidence))
    own = sure[np.lexsort((ranks[sure], -confidence[sure]))]
    p = confidence[own]
    u = ranks[own]
    gain = difference[own]
    has_any = len(p) > 0
    ends_block = np.append(np.diff(p) != 0.0, has_any)
    ends_text = np.append(np.diff(u) != 0.0, has_any)
    steps = np.flatnonzero(ends_block | ends_text)
    return _Order(
        confidence=p[steps],
        ranks=u[steps],
        kept=steps + 1,
        worse=(gain == 1.0).cumsum()[steps],
        better=(gain == -1.0).cumsum()[steps],
        whole=ends_block[steps],
    )


def _round_thresholds(confidence: FloatArray, ends: IndexArray) -> tuple[float, ...]:
    """Return a threshold for each rule, rounded if that does not change the accepted answers."""
    grid = candidate_thresholds()
    kept = confidence[ends]
    below = np.append(confidence, -1.0)[ends + 1]
    rounded = grid[np.searchsorted(-grid, -kept)]
    return tuple(np.where(rounded > below, rounded, kept).tolist())


def _passing_steps(order: _Order, n: int, epsilon: float, delta: float) -> IndexArray:
    """Return the positions of the rules that pass before the first failure."""
    # Shares of the surest block come after keeping nothing; the whole block at 1 need not.
    provable = bool(count_passes([0], [0], n, epsilon=epsilon, delta=delta))
    steps = np.arange(len(order.kept)) if provable else np.flatnonzero(order.whole)
    strict = order.confidence[:1].tolist() != [1.0]
    counts = order.worse[steps], order.better[steps]
    return steps[: count_passes(*counts, n, epsilon=epsilon, delta=delta, first_is_strict=strict)]


def loss_score(worse: ArrayLike, better: ArrayLike, n: int, epsilon: float) -> FloatArray:
    """Return Tango's score of the loss against `epsilon`, in standard errors; negative if below.

    Tango's score statistic for paired proportions (Tango 1998, Statistics in Medicine 17:891-908):
    ``(worse - better - n epsilon) / sqrt(n (2 q + epsilon - epsilon^2))``, where q is the likeliest
    probability of `better` if the loss is epsilon, the positive root of ``2 n q^2 - B q - better
    epsilon (1 - epsilon)`` with ``B = worse (1 + epsilon) + better (1 - epsilon) - 2 n epsilon``.

    Parameters
    ----------
    worse, better : array-like of int
        Rows that only the large model has right, and rows that only the cascade has.
    n : int
        All rows.
    epsilon : float
        Allowed loss, in (0, 1).
    """
    w = np.asarray(worse, dtype=np.float64)
    b = np.asarray(better, dtype=np.float64)
    slope = w * (1.0 + epsilon) + b * (1.0 - epsilon) - 2.0 * n * epsilon
    root = np.sqrt(slope**2 + 8.0 * n * b * epsilon * (1.0 - epsilon))
    q = (slope + root) / (4.0 * n)
    spread = np.sqrt(n * (2.0 * np.maximum(q, 0.0) + epsilon - epsilon**2))
    result: FloatArray = (w - b - n * epsilon) / spread
    return result


def loss_p_value(worse: int, better: int, n: int, epsilon: float) -> float:
    """Return the exact p-value of the null hypothesis "the loss is at least epsilon".

    The largest probability, over all populations with such a loss, of a score this low. See
    `critical_score` for how it is found.
    """
    score = float(loss_score(worse, better, n, epsilon))
    return min(1.0, _size(score, n, epsilon) / (1.0 - _KEPT_BACK))


@lru_cache(maxsize=256)
def critical_score(n: int, epsilon: float, delta: float) -> float:
    """Return the critical score that rejects a loss of epsilon at level delta.

    The level is exact, not asymptotic: with probability at most delta is the score of n rows so low
    where the loss is epsilon or more, whatever the share of rows on which the models differ (an
    unconditional exact test; Hsueh, Liu and Chen 2001, Biometrics 57:478-483). It depends on the
    number of rows alone, so one value serves every threshold of a sequence.

    A bound that adapts to the variance but not to the distribution, such as a betting martingale,
    needs about 1.7 times as wide a margin at delta = 0.1.
    """
    normal = NormalDist()
    allowed = delta * (1.0 - _KEPT_BACK)
    score = goal = normal.inv_cdf(allowed)
    for every in (_COARSE, 1):
        while (size := _size(score, n, epsilon, every=every)) > allowed:
            score -= max(0.005, normal.inv_cdf(min(size, 0.999)) - goal)
    return score


def _size(score: float, n: int, epsilon: float, *, every: int = 1) -> float:
    """Return the test's size: the largest probability of a score up to `score` at a loss of epsilon.

    A population with a larger loss turns into one that loses epsilon by making rows of `worse` equal,
    which only lowers scores; so the maximum is over the probability q of `better` alone.
    """
    from scipy.special import bdtr  # noqa: PLC0415  (heavy)

    better = _counts(n)
    worse = _largest_worse(score, better, n, epsilon)
    rejects = worse >= 0
    worst = 0.0
    for q in _nuisances(n, epsilon)[::every]:
        mean = n * q
        spread = np.sqrt(n * q * (1.0 - q))
        ends = (mean - _TAIL * spread - 5.0, mean + _TAIL * spread + 25.0)
        first, last = np.searchsorted(better, ends)
        near = slice(max(first - 1, 0), last + 1)
        counts = better[near]
        up_to = bdtr(counts, n, q)
        left = (n - counts).astype(np.int64)
        chance = min((q + epsilon) / (1.0 - q), 1.0)  # of `worse`, given that a row is not `better`
        given = bdtr(np.maximum(worse[near], 0.0), left, chance)
        given[~rejects[near]] = 0.0
        # A single count has its own probability of rejecting; a block the mean of its ends.
        wide = np.diff(counts, prepend=counts[0]) > 1.0
        given = np.where(wide, (given + np.roll(given, 1)) / 2.0, given)
        rejected = float(np.diff(up_to, prepend=0.0) @ given)
        worst = max(worst, rejected + 1.0 - float(up_to[-1]))
    return worst


def _counts(n: int) -> FloatArray:
    """Return the upper ends of blocks of counts from 0 to n; blocks of large counts are wider."""
    dense = np.arange(min(n, _DENSE) + 1.0)
    if n <= _DENSE:
        return dense
    # The square root of a count has the same standard deviation, a half, everywhere.
    roots = np.arange(np.sqrt(_DENSE), np.sqrt(n), 0.5 / _PER_DEVIATION)
    ends = np.concatenate([dense, np.floor(roots**2), [float(n)]])
    return np.unique(ends)


def _nuisances(n: int, epsilon: float) -> FloatArray:
    """Return a grid of probabilities of `better`, the nuisance parameter of the test."""
    top = (1.0 - epsilon) / 2.0
    few = (np.arange(0.0, 20.0, 0.1) / 2.0) ** 2 / n  # up to an expected count of 100
    powers = max(0.0, np.log(n * top / 100.0) / np.log(1.03))
    many = 100.0 / n * 1.03 ** np.arange(0.0, powers + 1.0)
    tried = np.concatenate([few, many, top - few / 2.0])
    return np.unique(tried[(tried >= 0.0) & (tried <= top)])


def _largest_worse(score: float, better: FloatArray, n: int, epsilon: float) -> FloatArray:
    """Return, for each count of `better`, the largest count of `worse` that is rejected; -1 where none is."""
    low = np.full(len(better), -1.0)
    high = n - better + 1.0
    while (open_ := high - low > 1.0).any():
        middle = np.floor((low + high) / 2.0)
        fits = loss_score(middle, better, n, epsilon) <= score
        low = np.where(open_ & fits, middle, low)
        high = np.where(open_ & ~fits, middle, high)
    return low
