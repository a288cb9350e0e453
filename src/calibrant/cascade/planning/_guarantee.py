"""Certified thresholds, which bound a cascade's loss against its large model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._certify import candidate_thresholds
from calibrant.cascade._ties import DEFAULT_KEY, tie_ranks
from calibrant.cascade.planning._paired_loss import critical_score, loss_score
from calibrant.cascade.planning._rules import KeepRule
from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import check_number

_Floats = NDArray[np.float64]
_Counts = NDArray[np.intp]

# A tied block is split where that keeps so many more of the rows: where blocks are a few rows each, a plain threshold
# is worth more to its reader.
_WORTH_A_SPLIT = 0.02


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
    """Return the certified rule with the highest coverage and a loss below epsilon.

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
    eps, level = check_number("epsilon", epsilon, "(0, 1)"), check_number("delta", delta, "(0, 1)")
    p, small, large = (
        np.asarray(one, dtype=np.float64) for one in (confidence, small_correct, large_correct)
    )
    n = p.size
    texts = [None] * n if inputs is None else inputs
    if {p.shape, small.shape, large.shape, (len(texts),)} != {(n,)} or not n:
        raise ConfigurationError(
            f"Expected confidence, correctness and inputs of the same rows, at least one, got {p.shape}, "
            f"{small.shape}, {large.shape} and {len(texts)} inputs."
        )
    ranks = tie_ranks([row if text is None else text for row, text in enumerate(texts)], key=key)
    order = _in_order(p, ranks, large - small)
    steps = _passing_steps(order, n, eps, level)
    ends = steps[order.whole[steps]]
    thresholds = _round_thresholds(order.confidence, ends)
    rule, last = (KeepRule.from_threshold(thresholds[-1]), int(ends[-1])) if thresholds else (None, -1)
    whole = int(order.kept[last]) if rule else 0
    if len(steps) and order.kept[steps[-1]] - whole >= _WORTH_A_SPLIT * n:
        last = int(steps[-1])
        share = float(order.ranks[last])
        rule = KeepRule.from_threshold(float(order.confidence[last]), tied_share=share, key=key)
    kept, worse, better = (
        int(counts[last]) if rule else 0 for counts in (order.kept, order.worse, order.better)
    )
    return CertifiedCascade(
        rule=rule,
        threshold=thresholds[-1] if thresholds else None,
        thresholds=thresholds,
        share_small=kept / n,
        only_large=worse,
        only_small=better,
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
    """Return the number of leading policies of a fixed sequence that pass.

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
    return int(passed.argmin()) if not passed.all() else len(passed)


def fewest_rows(epsilon: float, delta: float) -> int:
    """Return the number of agreeing rows that certify anything: ``log(delta) / log(1 - epsilon)``."""
    return math.ceil(math.log(delta) / math.log1p(-epsilon) - 1e-9)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Order:
    """Nested rules that keep answers by decreasing confidence, ties by rank.

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

    confidence: _Floats
    ranks: _Floats
    kept: _Counts
    worse: _Counts
    better: _Counts
    whole: NDArray[np.bool_]


def _in_order(confidence: _Floats, ranks: _Floats, difference: _Floats) -> _Order:
    """Return the rules for n rows; answers without a confidence are never kept."""
    sure = np.flatnonzero(~np.isnan(confidence))
    own = sure[np.lexsort((ranks[sure], -confidence[sure]))]
    p, u = confidence[own], ranks[own]
    other = p[1:] != p[:-1]
    steps = np.flatnonzero(np.append(other | (u[1:] != u[:-1]), len(p) > 0))
    return _Order(
        confidence=p[steps],
        ranks=u[steps],
        kept=steps + 1,
        worse=(difference[own] == 1.0).cumsum()[steps],
        better=(difference[own] == -1.0).cumsum()[steps],
        whole=np.append(other, len(p) > 0)[steps],
    )


def _round_thresholds(confidence: _Floats, ends: _Counts) -> tuple[float, ...]:
    """Return a threshold for each rule, rounded where no other answer lies between."""
    grid, below = candidate_thresholds(), np.append(confidence, -1.0)[ends + 1]
    rounded = grid[np.searchsorted(-grid, -confidence[ends])]
    return tuple(np.where(rounded > below, rounded, confidence[ends]).tolist())


def _passing_steps(order: _Order, n: int, epsilon: float, delta: float) -> _Counts:
    """Return the positions of the rules that pass before the first failure."""
    # Shares of the surest block come after keeping nothing; the whole block at 1 need not.
    provable = bool(count_passes([0], [0], n, epsilon=epsilon, delta=delta))
    steps = np.arange(len(order.kept)) if provable else np.flatnonzero(order.whole)
    strict = order.confidence[:1].tolist() != [1.0]
    counts = order.worse[steps], order.better[steps]
    return steps[: count_passes(*counts, n, epsilon=epsilon, delta=delta, first_is_strict=strict)]
