"""Certified thresholds: how much a cascade may keep with its small models and stay near the large one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._certify import candidate_thresholds
from calibrant.cascade._checks import is_number
from calibrant.cascade._ties import DEFAULT_KEY, tie_ranks
from calibrant.cascade.planning._loss_test import critical_score, loss_p_value, loss_score
from calibrant.cascade.planning._rules import KeepRule
from calibrant.core._errors import ConfigurationError

_Floats = NDArray[np.float64]
_Counts = NDArray[np.intp]

# A tied block is split where that keeps so many more of the rows: where blocks are a few rows each, a plain threshold
# is worth more to its reader.
_WORTH_A_SPLIT = 0.02


@dataclass(frozen=True, kw_only=True)
class CertifiedCascade:
    """How much a cascade may keep with its small model.

    Attributes
    ----------
    rule : KeepRule or None
        What may be kept: what is surer than a threshold, and a share of the answers at it. It is a meta-verifier of a
        `Cascade`. None where only the large model alone is certified.
    threshold : float or None
        The lowest plain threshold that is certified, in [0, 1]: it takes or leaves answers of one confidence whole,
        and so keeps no more than `rule`. None where there is none.
    thresholds : tuple of float
        All that are certified, together, from the highest down; the last one is `threshold`.
    share_small : float
        Share of the rows that stay with the small model under `rule`, in [0, 1].
    loss : float
        Accuracy of the large model minus that of the cascade, on these rows.
    epsilon, delta : float
        With probability ``1 - delta`` the cascade's accuracy is above that of the large model minus epsilon.
    n, only_large, only_small : int
        Rows; kept rows that only the large model has right; kept rows that only the small one has right.
    """

    rule: KeepRule | None
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
        """Exact, of "the loss is epsilon or more" under this rule alone; 1 without a rule."""
        if self.rule is None:
            return 1.0
        return loss_p_value(self.only_large, self.only_small, self.n, self.epsilon)


def certify_cascade(  # noqa: PLR0913  (keyword-only options)
    confidence: ArrayLike,
    small_correct: ArrayLike,
    large_correct: ArrayLike,
    *,
    epsilon: float = 0.02,
    delta: float = 0.1,
    inputs: Sequence[str | None] | None = None,
    key: str = DEFAULT_KEY,
) -> CertifiedCascade:
    """Return the rule that keeps the most of those certified to lose less than epsilon.

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
    inputs : sequence of (str or None), length n, optional
        The texts; where there is none, the row's place stands in.
    key : str, default "calibrant"
        Of the hash.

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
    p, small, large = (
        np.asarray(one, dtype=np.float64) for one in (confidence, small_correct, large_correct)
    )
    if p.ndim != 1 or not len(p) == len(small) == len(large) or not len(p):
        raise ConfigurationError(
            f"Expected confidence and correctness of the same rows, at least one, got {p.shape}, {small.shape} and "
            f"{large.shape}."
        )
    texts = [None] * len(p) if inputs is None else inputs
    if len(texts) != len(p):
        raise ConfigurationError(f"Expected inputs of the same rows, {len(p)}, got {len(texts)}.")
    ranks = tie_ranks([row if text is None else text for row, text in enumerate(texts)], key=key)
    return certify_ranked(p, ranks, small, large, epsilon=epsilon, delta=delta, key=key)


def certify_ranked(  # noqa: PLR0913  (keyword-only options)
    confidence: _Floats,
    ranks: _Floats,
    small: _Floats,
    large: _Floats,
    *,
    epsilon: float,
    delta: float,
    key: str,
) -> CertifiedCascade:
    """Return what `certify_cascade` does, of rows whose texts have these ranks under `key`, shape (n,)."""
    eps, level = check_risk(epsilon, delta)
    n = len(confidence)
    order = _in_order(confidence, ranks, large - small)
    steps = _passed(order, n, eps, level)
    ends = steps[order.whole[steps]]
    thresholds = _rounded(order.confidence, ends)
    rule, last = (KeepRule.from_threshold(thresholds[-1]), int(ends[-1])) if thresholds else (None, -1)
    before = int(order.kept[last]) if rule else 0
    if len(steps) and order.kept[steps[-1]] - before >= _WORTH_A_SPLIT * n:
        last = int(steps[-1])
        share = float(order.ranks[last])
        rule = KeepRule.from_threshold(float(order.confidence[last]), tied_share=share, key=key)
    a, b = (int(order.worse[last]), int(order.better[last])) if rule else (0, 0)
    return CertifiedCascade(
        rule=rule,
        threshold=thresholds[-1] if thresholds else None,
        thresholds=thresholds,
        share_small=float(order.kept[last] / n) if rule else 0.0,
        loss=(a - b) / n,
        epsilon=eps,
        delta=level,
        n=n,
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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Order:
    """Rules that keep one answer after the other: the surest first, of equals the lowest rank.

    Answers of equal confidence and rank, those of one text, come together.

    Attributes
    ----------
    confidence, ranks : ndarray of shape (m,)
        Of the answer that each rule keeps last.
    kept, worse, better : ndarray of int, shape (m,)
        How many each keeps; of these, on how many only the large model is right, and only the small one.
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


def _rounded(confidence: _Floats, ends: _Counts) -> tuple[float, ...]:
    """Return thresholds that keep what is kept up to these answers: round ones where no other answer lies between."""
    grid, below = candidate_thresholds(), np.append(confidence, -1.0)[ends + 1]
    found = grid[np.searchsorted(-grid, -confidence[ends])]
    return tuple(np.where(found > below, found, confidence[ends]).tolist())


def _passed(order: _Order, n: int, epsilon: float, delta: float) -> _Counts:
    """Return which rules pass before the first one fails."""
    # Shares of the surest block come after keeping nothing; the whole block at 1 need not.
    provable = bool(kept_in_order([0], [0], n, epsilon=epsilon, delta=delta, first_is_strict=False))
    steps = np.arange(len(order.kept)) if provable else np.flatnonzero(order.whole)
    strict = order.confidence[:1].tolist() != [1.0]
    counts = order.worse[steps], order.better[steps]
    return steps[: kept_in_order(*counts, n, epsilon=epsilon, delta=delta, first_is_strict=strict)]
