"""Thresholds of the confidence: suggested for scores and feedback, and certified to reach a target accuracy."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import floor, log, log10
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from pydantic import TypeAdapter

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import BoolArray, FloatArray, IndexArray, Interval, read_only
from calibrant.core._reported import counted
from calibrant.metrics._validation import check_confidence_correct, check_number

ThresholdFamily: TypeAlias = Literal["very-high", "moderately-high", "well-spread", "custom"]

# The guide's families: high, low.
_FAMILIES: Final[tuple[tuple[ThresholdFamily, float, float], ...]] = (
    ("very-high", 0.99, 0.90),
    ("moderately-high", 0.95, 0.80),
    ("well-spread", 0.85, 0.60),
)
_ENOUGH: Final = 50
_FEWEST_CORRECT: Final = 5
_BINARY: Final = 0.95  # share of correct answers from which on hardly any is told from another
_PUNISHING: Final = 0.10  # share of correct answers below which hardly any earns full score
_LEAST: Final = 1e-9  # confidences below count as 0
_MOST_ROWS = 2.0**50  # beyond this, a number of missing rows is of no use
# Probability that the accepted rows of one file are less often right than a true certificate lets expect.
_FILE_DELTA: Final = 0.05
_ROUNDING: Final = 1e-9
_DEFAULT_DELTA: Final = 0.05  # of ``calibrant calibrate``
TARGETS: Final = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)


@dataclass(frozen=True, kw_only=True)
class ThresholdSuggestion:
    """Suggested confidence thresholds for a model, with warnings about their reliability.

    Attributes
    ----------
    high : float
        From here on an answer counts as certain, in (0, 1].
    low : float
        Below, an answer counts as uncertain; in (0, `high`).
    scoring : float
        From here on a correct answer earns full score: ``LinearBlendScoring(scoring)``.
    family : {"very-high", "moderately-high", "well-spread", "custom"}
        The kind of model: 0.99/0.90, 0.95/0.80, 0.85/0.60, or thresholds taken from the sample.
    warnings : tuple of str
        Reasons not to trust the thresholds, in sentences; empty without any.
    n, n_correct : int
        Predictions, and how many of them were right.
    cluster : Interval
        Median confidence of the correct predictions, with an interval from order statistics, of at least
        95 % where there are six or more (its `level` is exact).
    full_score : float
        Share of the correct predictions with a confidence of at least `scoring`.

    Examples
    --------
    >>> from calibrant.calibration import suggest_thresholds
    >>> suggest_thresholds([0.99] * 30 + [0.6] * 10, [1] * 30 + [0] * 10).n_correct
    30
    """

    high: float
    low: float
    scoring: float
    family: ThresholdFamily
    warnings: tuple[str, ...]
    n: int
    n_correct: int
    cluster: Interval
    full_score: float


def suggest_thresholds(confidence: ArrayLike, correct: ArrayLike) -> ThresholdSuggestion:
    """Suggest confidence thresholds from a sample of predictions of one model under one prompt.

    The rule: `high` lies where correct predictions cluster (their median), and `low` where
    predictions become unreliable. The family of the guide whose `high` is nearest to the median, on
    the scale of log-odds, gives both; the next lower one where hardly any correct prediction reaches
    it. None fits where the median is below 0.60 or hardly any reaches 0.85; then the median itself
    is `high`, and `low` is the confidence below it that best divides right from wrong (greatest
    difference between the shares kept).

    Parameters
    ----------
    confidence : array-like of shape (n,)
        In [0, 1].
    correct : array-like of shape (n,)
        1 where the prediction was right, else 0; at least five are needed.

    Raises
    ------
    ConfigurationError
        No rows, NaN, lengths that differ, values out of range, or fewer than five correct
        predictions.

    Examples
    --------
    >>> found = suggest_thresholds([0.97] * 40 + [0.93] * 10 + [0.7] * 10, [1] * 50 + [0] * 10)
    >>> found.high, found.low, found.scoring, found.family
    (0.95, 0.8, 0.95, 'moderately-high')
    """
    p, y = check_confidence_correct(confidence, correct)
    right = np.sort(p[y == 1.0])
    wrong = p[y == 0.0]
    if len(right) < _FEWEST_CORRECT:
        raise ConfigurationError(
            f"Expected at least {_FEWEST_CORRECT} correct predictions to see where they cluster, got {len(right)} "
            f"of {len(p)}: add labelled rows (50 to 100 in all), or look at the prompt first."
        )
    cluster = _median(right)
    family, high, low = _family(right)
    if family == "custom":
        high = max(_rounded_down(cluster.estimate), _LEAST)
        low = _divide(right, wrong, high)
    full_score = float(np.mean(right >= high))
    return ThresholdSuggestion(
        high=high,
        low=low,
        scoring=high,
        family=family,
        warnings=tuple(_warnings(p, right, wrong, cluster, family=family, scoring=high)),
        n=len(p),
        n_correct=len(right),
        cluster=cluster,
        full_score=full_score,
    )


def _family(right: FloatArray) -> tuple[ThresholdFamily, float, float]:
    """Return the usual thresholds that fit the confidence of right answers best, else ``custom``."""
    median = float(np.median(right))
    first = _FAMILIES.index(_nearest(median))
    for name, high, low in _FAMILIES[first:]:
        if median >= low and np.mean(right >= high) >= _PUNISHING:
            return name, high, low
    return "custom", 0.0, 0.0


def _nearest(median: float) -> tuple[ThresholdFamily, float, float]:
    return min(_FAMILIES, key=lambda family: abs(_log_odds(family[1]) - _log_odds(median)))


def _log_odds(p: float) -> float:
    clipped = min(max(p, _LEAST), 1.0 - _LEAST)
    return log(clipped / (1.0 - clipped))


def _median(values: FloatArray) -> Interval:
    """Return the median of sorted values with an exact confidence interval, from their ranks."""
    from scipy.stats import binom  # noqa: PLC0415  (heavy)

    n = len(values)
    # The j-th from either end encloses the median unless fewer than j values lie on one side.
    j = max(1, int(binom.ppf(0.025, n, 0.5)))
    level = 1.0 - 2.0 * float(binom.cdf(j - 1, n, 0.5))
    return Interval(
        lower=float(values[j - 1]),
        upper=float(values[n - j]),
        level=level,
        estimate=float(np.median(values)),
    )


def _divide(right: FloatArray, wrong: FloatArray, high: float) -> float:
    """Return the confidence below `high` that best separates right from wrong predictions."""
    candidates = np.unique(np.concatenate([right, wrong]))
    candidates = candidates[(candidates > _LEAST) & (candidates < high)]
    if len(candidates) == 0:
        return high * 0.9  # nothing lies below: slightly below, as the guide has it
    if len(wrong) == 0:
        return float(min(candidates[-1], max(candidates[0], np.quantile(right, 0.25))))
    kept_right = (right[:, None] >= candidates).mean(axis=0)
    kept_wrong = (wrong[:, None] >= candidates).mean(axis=0)
    best = float(candidates[int(np.argmax(kept_right - kept_wrong))])
    return max(_rounded_down(best), _LEAST)


def _rounded_down(value: float) -> float:
    """Return `value` rounded down to two significant digits."""
    if value <= _LEAST:
        return value
    digits = 1 - floor(log10(value))
    return min(value, floor(value * 10.0**digits + 1e-9) / 10.0**digits)


def _warnings(
    p: FloatArray,
    right: FloatArray,
    wrong: FloatArray,
    cluster: Interval,
    *,
    family: ThresholdFamily,
    scoring: float,
) -> list[str]:
    said = []
    full = float(np.mean(right >= scoring))
    if full >= _BINARY:
        said.append(
            f"{full:.0%} of the right answers reach {scoring:g} and earn the full score, so confidence decides hardly "
            "anything in a search. Consider a proper score such as BrierScoring."
        )
    least = _FAMILIES[-1][1]
    if family == "custom":
        said.append(
            f"The usual thresholds do not fit this model: {np.mean(right < least):.0%} of the right answers are below "
            f"the lowest of them, {least:g}. These are read off the rows instead."
        )
    if len(p) < _ENOUGH:
        said.append(
            f"Only {len(p)} predictions: the middle confidence of the right ones lies somewhere between "
            f"{cluster.lower:.3g} and {cluster.upper:.3g} ({cluster.level:.0%} interval). Use 50 to 100."
        )
    ends = dict.fromkeys((_nearest(cluster.upper), _nearest(cluster.lower)))
    if family != "custom" and len(ends) > 1:
        pairs = " or ".join(f"high {high:g} with low {low:g}" for _, high, low in ends)
        said.append(f"These are too few predictions to tell which thresholds fit, {pairs}: add some.")
    if len(wrong) == 0:
        said.append("No prediction was wrong: where predictions become unreliable was not seen.")
    if p.min() == p.max():
        said.append(f"Every confidence is {p[0]:g}: it says nothing about which predictions are right.")
    return said


@dataclass(frozen=True, kw_only=True)
class Looks:
    """Certificates asked of the same labelled rows.

    Attributes
    ----------
    before, total : float
        Probability, at most, that one asked earlier is wrong; and that one of all is, with lower promises that were
        looked for.
    planned : int
        Number that was planned.
    of_others : bool
        True if some of the earlier ones were of other answers to these rows, as of another prompt or model.
    state : {"planned", "over", "refused"}
        ``over``: together they may be wrong more often than was planned. ``refused``: so often that the rows bear no
        further one.

    Examples
    --------
    >>> from calibrant.calibration import Looks
    >>> looks = Looks(before=0.1, total=0.2, planned=1, of_others=True, state="over")
    >>> f"with probability {1 - looks.total:g}, both certificates hold"
    'with probability 0.8, both certificates hold'
    """

    before: float
    total: float
    planned: int
    of_others: bool
    state: Literal["planned", "over", "refused"]


@dataclass(frozen=True, kw_only=True)
class CertifiedThreshold:
    """Threshold with a certified accuracy, or the reason why none was found.

    Attributes
    ----------
    threshold : float or None
        Least confidence of an accepted answer, in [0, 1]; None if no threshold qualifies.
    coverage : float
        Share of the labelled rows that it accepts, in [0, 1]; 0 without a threshold.
    accuracy : float or None
        Share of right answers among these rows.
    accuracy_lower_bound : float
        Exact (Clopper-Pearson) lower bound of the accuracy at this threshold, at level
        ``1 - delta``; 0 without a threshold. What holds in spite of the choice among thresholds is
        `target_accuracy`, which it is never below.
    target_accuracy, delta : float
        With probability ``1 - delta``, the accuracy is at least the target. Where `looks` are counted, that is the
        probability that all certificates asked of these rows hold.
    n, n_accepted : int
        Labelled rows, and accepted ones among them; of each group one, unless it is all rows that allow less.
    n_repeats : int
        Labelled rows that are no further evidence, as another row of their group was tested.
    additional_rows : int or None
        About how many more labelled rows would be needed if their accuracy were as observed; 0 with
        a threshold, None if no part of the rows that is large enough was observed above the target.
    best_promise : CertifiedThreshold or None
        Without a threshold, where it was looked for: the certificate of the highest lower target that the rows bear;
        see `best_promise`.
    looks : Looks or None
        Certificates asked of these rows; None where they are not counted.
    of_agreement : bool
        True if labels of a model stood in for true ones: what is promised is agreement with it.

    Examples
    --------
    >>> CertifiedThreshold(target_accuracy=0.95, delta=0.1, n=20).threshold is None
    True
    """

    threshold: float | None = None
    coverage: float = 0.0
    accuracy: float | None = None
    accuracy_lower_bound: float = 0.0
    target_accuracy: float
    delta: float
    n: int
    n_accepted: int = 0
    n_repeats: int = 0
    additional_rows: int | None = None
    best_promise: CertifiedThreshold | None = None
    looks: Looks | None = None
    of_agreement: bool = False


@dataclass(frozen=True, kw_only=True)
class CertifiedClassThresholds:
    """Certified threshold for each predicted label, with a joint guarantee.

    Attributes
    ----------
    thresholds : mapping of str to CertifiedThreshold
        By predicted label, each at its share of `delta`.
    coverage : float
        Share of all labelled rows that is accepted, in [0, 1].
    target_accuracy, delta : float
        With probability ``1 - delta`` the accuracy behind every threshold is at least the target.
    """

    thresholds: Mapping[str, CertifiedThreshold]
    coverage: float
    target_accuracy: float
    delta: float

    def accepts(self, confidence: ArrayLike, predicted: Sequence[str]) -> BoolArray:
        """Return a mask of accepted answers, shape (n,); False for labels without a threshold.

        Raises
        ------
        ConfigurationError
            Lengths differ, or confidences are not in [0, 1].
        """
        p, _ = check_confidence_correct(confidence, np.zeros(len(predicted)))
        per_row = [self.thresholds.get(label) for label in predicted]
        least = [np.inf if t is None or t.threshold is None else t.threshold for t in per_row]
        result: BoolArray = p >= np.array(least)
        return result


def certify_threshold(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    target_accuracy: float,
    delta: float = 0.05,
    start: float | None = None,
    groups: ArrayLike | None = None,
) -> CertifiedThreshold:
    """Test thresholds from the highest down; return the last one that reaches the target accuracy.

    Fixed-sequence Learn-then-Test (Angelopoulos et al. 2021): the thresholds of a fixed grid are
    tested from the highest down, each at level `delta` by the exact binomial tail of the number of
    right answers among the rows it accepts, until the first one fails. The last that passed is
    returned. The result can be wrong only if the first bad threshold passed, so testing many
    costs nothing.

    The sequence begins at the highest threshold that accepts enough rows to tell anything, and goes on
    with those where one wrong answer more has just been allowed, and the lowest ones (all by the number of rows,
    never by their answers). This is exact where accuracy does not rise as confidence falls; with `start`,
    chosen without looking at the rows, it is exact whatever the model does. Rows must be drawn
    independently from what the threshold will be used on.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        In [0, 1], n >= 1; ties may be many.
    correct : array-like of shape (n,)
        1 where the answer was right, else 0.
    target_accuracy : float
        In (0, 1).
    delta : float, default 0.05
        Allowed probability that the accuracy is below the target all the same, in (0, 1).
    start : float, optional
        Threshold to begin with, in [0, 1].
    groups : array-like of shape (n,), optional
        Numbers of the rows' groups, such as near-duplicates, which are right or wrong together: they are no more
        evidence than one row. The first row of each group is tested, so order the rows by something that says nothing
        about their answers. All rows must pass the same tests, too: of the two thresholds the higher is returned. The
        promise is of rows where a group's size says nothing of being right, and of groups in any case: where large
        groups are wrong more often, that of rows can be broken.

    Raises
    ------
    ConfigurationError
        No rows, NaN, lengths that differ, or a number out of range.

    Examples
    --------
    >>> certify_threshold([0.9] * 59, [1] * 59, target_accuracy=0.95).threshold
    0.9
    >>> certify_threshold([0.9] * 50, [1] * 50, target_accuracy=0.95).additional_rows
    9
    >>> certify_threshold([0.9] * 59, [1] * 59, target_accuracy=0.95, groups=[0] * 10 + list(range(49))).n
    49
    """
    p, y = check_confidence_correct(confidence, correct)
    target = check_number("target_accuracy", target_accuracy, "(0, 1)")
    level = check_number("delta", delta, "(0, 1)")
    every_row = _certify_rows(p, y, target=target, level=level, start=start)
    if groups is None:
        return every_row
    first = _first_of_groups(groups, len(p))
    one_of_each = _certify_rows(p[first], y[first], target=target, level=level, start=start)
    stricter = every_row if _strictness(every_row) > _strictness(one_of_each) else one_of_each
    return replace(stricter, n_repeats=len(p) - len(first))


def _first_of_groups(groups: ArrayLike, n: int) -> IndexArray:
    """Return the ascending places of the first row of each group."""
    numbers = np.asarray(groups)
    if numbers.shape != (n,):
        raise ConfigurationError(
            f"Expected groups of shape ({n},), got {numbers.shape}: one number for each row."
        )
    return np.sort(np.unique(numbers, return_index=True)[1])


def _strictness(found: CertifiedThreshold) -> float:
    """Return the threshold; infinity without one."""
    return np.inf if found.threshold is None else found.threshold


def _certify_rows(
    p: FloatArray, y: FloatArray, *, target: float, level: float, start: float | None
) -> CertifiedThreshold:
    """Return the certified threshold of independent rows; see `certify_threshold`."""
    cells, n, k = rows_at_thresholds(p, y)
    first = first_rows(len(p), target_accuracy=target, delta=level)
    if start is None:
        top = 0
        started = n >= first
    else:
        highest = check_number("start", start, "[0, 1]")
        top = int(np.searchsorted(-candidate_thresholds(), -highest))
        # The rows that the first threshold accepts are those of the last one above it that matters.
        begin = int(np.searchsorted(cells, top, side="right")) - 1
        started = np.arange(len(cells)) >= begin
        if begin < 0:
            started[:] = False
    last = int(last_certified(n, k, started, target_accuracy=target, delta=level))
    if last < 0:
        missing = _additional_rows(n, k, first, target=target, delta=level)
        return CertifiedThreshold(target_accuracy=target, delta=level, n=len(p), additional_rows=missing)
    from scipy.stats import beta  # noqa: PLC0415  (heavy)

    accepted = int(n[last])
    right = int(k[last])
    # Clopper and Pearson's exact lower bound of a share; a certified threshold accepts a right row.
    lower_bound = float(beta.ppf(level, right, accepted - right + 1))
    return CertifiedThreshold(
        threshold=float(candidate_thresholds()[max(cells[last], top)]),
        coverage=accepted / len(p),
        accuracy=right / accepted,
        accuracy_lower_bound=max(target, lower_bound),
        target_accuracy=target,
        delta=level,
        n=len(p),
        n_accepted=accepted,
        additional_rows=0,
    )


def certify_class_thresholds(
    confidence: ArrayLike,
    correct: ArrayLike,
    predicted: Sequence[str],
    *,
    target_accuracy: float,
    delta: float = 0.05,
    labels: Sequence[str] | None = None,
) -> CertifiedClassThresholds:
    """Return a certified threshold for each predicted label, with a joint guarantee.

    Every label is tested on its own rows at ``delta`` divided by the number of labels (Bonferroni),
    so with probability ``1 - delta`` all thresholds hold.

    Parameters
    ----------
    confidence, correct, target_accuracy, delta
        As for `certify_threshold`.
    predicted : sequence of str, length n
        Predicted labels.
    labels : sequence of str, optional
        The label set; by default the labels that were predicted. Those never predicted get no
        threshold.

    Raises
    ------
    ConfigurationError
        As for `certify_threshold`, or a predicted label is not among `labels`.

    Examples
    --------
    >>> from calibrant.calibration import certify_class_thresholds
    >>> predicted = ["cat"] * 100 + ["dog"] * 100
    >>> correct = [1] * 100 + [1] * 70 + [0] * 30
    >>> found = certify_class_thresholds([0.9] * 200, correct, predicted, target_accuracy=0.9)
    >>> {label: one.threshold for label, one in found.thresholds.items()}, found.coverage
    ({'cat': 0.9, 'dog': None}, 0.5)
    >>> found.accepts([0.95, 0.95], ["cat", "dog"]).tolist()
    [True, False]
    """
    p, y = check_confidence_correct(confidence, correct)
    target = check_number("target_accuracy", target_accuracy, "(0, 1)")
    level = check_number("delta", delta, "(0, 1)")
    names = np.array([str(label) for label in predicted], dtype=object)
    if len(names) != len(p):
        raise ConfigurationError(
            f"Expected predicted to hold {len(p)} labels, one per row, got {len(names)}."
        )
    legal = sorted(set(names)) if labels is None else list(dict.fromkeys(labels))
    unknown = sorted(set(names) - set(legal))
    if unknown:
        raise ConfigurationError(f"Expected predicted labels among {legal[:8]}, got {unknown[:8]}.")
    share = level / len(legal)
    found = {}
    n_accepted = 0
    for label in legal:
        certified = CertifiedThreshold(target_accuracy=target, delta=share, n=0)
        own = names == label
        if own.any():
            certified = certify_threshold(p[own], y[own], target_accuracy=target, delta=share)
        found[label] = certified
        n_accepted += certified.n_accepted
    return CertifiedClassThresholds(
        thresholds=MappingProxyType(found),
        coverage=n_accepted / len(p),
        target_accuracy=target,
        delta=level,
    )


@lru_cache(maxsize=1)
def candidate_thresholds() -> FloatArray:
    """Return the candidate thresholds in descending order, from 1 to 0.

    Thousandths, and two digits of the distance to 0 and 1 below that, down to 1e-12: most models
    are surest about most rows. A dense grid costs nothing, for neighbours accept nearly the same rows.
    """
    fine = [mantissa / 10.0**digits for digits in range(5, 14) for mantissa in range(10, 100)]
    coarse = [thousandth / 1000 for thousandth in range(1001)]
    values = {*coarse, *fine, *(round(1.0 - x, 13) for x in fine)}
    return read_only(sorted(values, reverse=True))


def rows_at_thresholds(
    confidence: FloatArray, correct: FloatArray
) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Return positions of distinct thresholds, and the numbers of accepted and of right rows there.

    Of thresholds that accept the same rows only the highest matters: nothing is claimed about
    confidences never seen. Thresholds are positions in `candidate_thresholds`, ascending.
    """
    positions = np.searchsorted(-candidate_thresholds(), -confidence)
    cells, own = np.unique(positions, return_inverse=True)
    n = np.bincount(own, minlength=len(cells)).cumsum()
    k = np.bincount(own[correct == 1.0], minlength=len(cells)).cumsum()
    return cells, n, k


def first_rows(n: int, *, target_accuracy: float, delta: float) -> int:
    """Return the least number of rows that the first tested threshold must accept.

    Enough to pass, about nine times in ten, with an accuracy halfway between the target and 1 (by a normal
    approximation; exactly 0.86 to 0.91 for targets from 0.8 to 0.95), but no more than a quarter of the rows,
    and never fewer than pass when all of them are right.
    """
    from scipy.stats import norm  # noqa: PLC0415  (heavy)

    least = int(np.ceil(np.log(delta) / np.log(target_accuracy) - 1e-9))
    halfway = (1.0 + target_accuracy) / 2.0
    spread = norm.isf(delta) * np.sqrt(target_accuracy * (1.0 - target_accuracy))
    spread += norm.isf(0.1) * np.sqrt(halfway * (1.0 - halfway))
    enough = int(np.ceil((max(spread, 0.0) / (halfway - target_accuracy)) ** 2))
    return max(1, least, min(enough, n // 4))


def last_certified(
    n: IndexArray,
    k: IndexArray,
    started: BoolArray,
    *,
    target_accuracy: float,
    delta: float,
) -> IndexArray:
    """Return the position of the last threshold that is tested before the first one that fails; -1 without any.

    A threshold is tested where one wrong answer more is allowed than at the one before, or than half the usual distance
    before. What lies further on is not, unless no more will be allowed: no row may be wrong there until then, so that
    tests would end the sequence early and gain few rows.

    Parameters
    ----------
    n, k : array of int, shape (..., t)
        Rows accepted and right answers among them, for t thresholds from the highest down.
    started : array of bool, shape (..., t)
        False for the thresholds before the sequence begins, True from there on.
    target_accuracy, delta : float
        As for `certify_threshold`.
    """
    # One wrong answer more is allowed about every 1 / (1 - target_accuracy) rows.
    since = int(np.ceil(0.5 / (1.0 - target_accuracy) - 1e-9))
    before = np.minimum(np.roll(n, 1, axis=-1), n - since)
    before[..., 0] = 0
    allowed, allowed_before = (
        _most_wrong(rows, target_accuracy=target_accuracy, delta=delta) for rows in (n, before)
    )
    tested = started & ((allowed > allowed_before) | (allowed == allowed[..., -1:]))
    chain = np.logical_and.accumulate((n - k <= allowed) | ~tested, axis=-1) & tested
    last = n.shape[-1] - 1 - chain[..., ::-1].argmax(axis=-1)
    # Of thresholds that accept the same rows, the highest: all of them passed.
    accepted = np.take_along_axis(n, last[..., None], axis=-1)
    highest = (n == accepted).argmax(axis=-1)
    result: IndexArray = np.where(chain.any(axis=-1), highest, -1)
    return result


def _most_wrong(n: IndexArray, *, target_accuracy: float, delta: float) -> FloatArray:
    """Return the number of wrong answers among n with which the exact test passes; -1 without any."""
    from scipy.stats import binom  # noqa: PLC0415  (heavy)

    fewest_right = binom.isf(delta, np.maximum(n, 0), target_accuracy) + 1.0
    most: FloatArray = np.maximum(n - fewest_right, -1.0)
    return most


def _additional_rows(n: IndexArray, k: IndexArray, first: int, *, target: float, delta: float) -> int | None:
    """Return the number of further rows that would certify a threshold at its observed accuracy."""
    from scipy.stats import binom  # noqa: PLC0415  (heavy)

    total = int(n[-1])
    promising = (n >= min(first, max(1, total // 4))) & (k > target * n)
    if not promising.any():
        return None
    observed = k[promising] / n[promising]
    coverage = n[promising] / total

    def fails(rows: FloatArray) -> BoolArray:
        right = np.floor(observed * rows + 1e-9)
        found: BoolArray = binom.sf(right - 1.0, rows, target) > delta
        return found

    low = np.zeros(len(observed))
    high = np.ones(len(observed))
    while (growing := fails(high) & (high < _MOST_ROWS)).any():
        low = np.where(growing, high, low)
        high = np.where(growing, 2.0 * high, high)
    while (high - low > 1.0).any():
        middle = np.floor((low + high) / 2.0)
        failed = fails(middle)
        low = np.where(failed, middle, low)
        high = np.where(failed, high, middle)
    needed = np.ceil(high / coverage - 1e-9)[high < _MOST_ROWS]
    if needed.size == 0:
        return None
    return max(1, int(needed.min()) - total)


def best_promise(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    below: float,
    delta: float = 0.05,
    groups: ArrayLike | None = None,
) -> CertifiedThreshold | None:
    """Return the certified threshold of the highest target accuracy that the rows bear; None without any.

    Targets are 0.95, 0.9 and so on down to 0.5, fixed before the rows are seen. Each is certified with a tenth of
    `delta` (Bonferroni), so that, with probability ``1 - delta``, none of the ten certificates is wrong, whichever of
    them is taken.

    Parameters
    ----------
    confidence, correct, delta, groups
        As for `certify_threshold`. The `delta` of the result is a tenth of this one.
    below : float
        Only targets below this accuracy, in (0, 1], are tried.

    Raises
    ------
    ConfigurationError
        As for `certify_threshold`.

    Examples
    --------
    >>> from calibrant.calibration import best_promise
    >>> found = best_promise([0.9] * 40 + [0.6] * 60, [1] * 40 + [1, 0] * 30, below=0.95)
    >>> found.target_accuracy, found.delta, found.coverage
    (0.85, 0.005, 0.4)
    """
    share = check_number("delta", delta, "(0, 1)") / len(TARGETS)
    highest = check_number("below", below, "(0, 1]")
    for target in TARGETS:
        if target < highest:
            found = certify_threshold(confidence, correct, target_accuracy=target, delta=share, groups=groups)
            if found.threshold is not None:
                return found
    return None


def with_best_promise(
    wanted: CertifiedThreshold,
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    groups: ArrayLike | None,
) -> CertifiedThreshold:
    """Return a certificate; one without a threshold together with the best promise that the rows bear."""
    if wanted.threshold is not None:
        return wanted
    target = wanted.target_accuracy
    lower = best_promise(confidence, correct, below=target, delta=wanted.delta, groups=groups)
    return replace(wanted, best_promise=lower)


def certificate_from_record(record: Mapping[str, Any]) -> CertifiedThreshold:
    """Return a certificate from the JSON values in ``calibration.json``."""
    return TypeAdapter(CertifiedThreshold).validate_python(record)


AGREEMENT: Final = (
    "Labels of a model stood in for true ones that are not known: right means as that model says."
)


def certificate_lines(
    found: CertifiedThreshold, *, run: str | Path = "RUN", out: str | Path = "RUN"
) -> Iterator[str]:
    """Yield the sentence on a certificate; without one, the reason and the best promise that the rows bear.

    Parameters
    ----------
    found : CertifiedThreshold
        The certificate, or its absence.
    run, out : str or Path
        Labelled predictions and directory for the command that certifies the best promise.
    """
    if found.threshold is not None:
        yield f"Certified: {promise_sentence(found)}"
        if found.of_agreement:
            yield AGREEMENT
        yield from _looks_lines(found, run=run)
        return
    if found.looks is not None and found.looks.state == "refused":
        yield from _looks_lines(found, run=run)
        return
    yield _reason(found)
    yield from _looks_lines(found, run=run)
    lower = found.best_promise
    if lower is None:
        yield from _no_lower_lines(found)
        return
    joint = found.delta if found.looks is None else found.looks.total
    certain = (
        f"with probability {1 - joint:.4g} (that it was picked from {len(TARGETS)} targets is allowed for)"
    )
    yield (
        f"These rows do bear a promise of {lower.target_accuracy:g} for {lower.coverage:.0%} of the rows, {certain}. "
        "To accept by it:"
    )
    words = ["calibrant", "calibrate", str(run), "--target-accuracy", f"{lower.target_accuracy:g}"]
    yield f"  {shlex.join([*words, '--delta', f'{lower.delta:.12g}', '--out', str(out)])}"


def _no_lower_lines(found: CertifiedThreshold) -> Iterator[str]:
    """Yield a line on lower targets, none of which passed; of a plan, whose targets are the user's, none was tried."""
    looks = found.looks
    if looks is None or looks.planned == 1:
        if found.target_accuracy > TARGETS[-1]:
            yield f"Nor do they bear a lower promise: targets down to {TARGETS[-1]:g} were tried."
        return
    with_next = looks.before + 2 * found.delta / looks.planned
    if with_next <= found.delta * (1.0 + _ROUNDING):
        yield (
            f"No lower target was tried: one can be asked for as the next of the {looks.planned} planned certificates."
        )


def _looks_lines(found: CertifiedThreshold, *, run: str | Path) -> Iterator[str]:
    """Yield lines on other certificates of the same rows; none where this is the only one, asked or planned."""
    looks = found.looks
    if looks is None:
        return
    if looks.state == "planned":
        if looks.planned > 1:
            yield f"That is the probability that all {looks.planned} certificates planned for these rows hold."
        return
    earlier = f"Earlier certificates of these rows may be wrong with probability {looks.before:.4g}"
    if looks.state == "refused":
        yield (
            f"Nothing certified: {earlier}; with one more, little would be promised. Certify on fresh rows, and plan "
            "with --looks if several are to come:"
        )
    elif not looks.of_others:
        yield f"{earlier}: that is allowed for."
        return
    else:
        yield (
            f"{earlier}, some of them of other answers: that is allowed for. It does not cover a prompt or model that "
            "was changed after its mistakes on these rows were seen. Then certify on fresh rows:"
        )
    named = "RUN"
    if Path(run).is_dir():
        named = str(run)
    words = ["calibrant", "calibrate", named, "--fresh-test", "FRESH.csv", *asked_options(found)]
    yield f"  {shlex.join([*words, '--out', 'fresh'])}"


def asked_options(found: CertifiedThreshold) -> list[str]:
    """Return the options of ``calibrant calibrate`` that ask for the same certificate; others are one more."""
    looks = found.looks
    planned = 1 if looks is None else looks.planned
    delta = found.delta
    if looks is not None and looks.state == "over" and found.threshold is not None:
        delta = (delta - looks.before) * planned  # that of a certificate has the earlier ones in it
    words = ["--target-accuracy", f"{found.target_accuracy:g}"]
    if not math.isclose(delta, _DEFAULT_DELTA):
        words += ["--delta", f"{delta:.12g}"]
    if planned > 1:
        words += ["--looks", str(planned)]
    return words


def promise_sentence(found: CertifiedThreshold) -> str:
    """Return the sentence on the answers that a certified threshold accepts."""
    least = f"answers with a confidence of {found.threshold:.6g} or more have"
    which = least if found.threshold else "all answers have"
    return (
        f"{which} at least accuracy {found.target_accuracy:g} with probability {1 - found.delta:g}; of these "
        f"{found.n:,} rows it accepts {found.coverage:.1%}, {found.accuracy or 0.0:.1%} of them right."
        f"{_repeats(found)}"
    )


def _repeats(found: CertifiedThreshold) -> str:
    """Return a sentence on the rows that were not tested, after a space; nothing without any."""
    count = found.n_repeats
    if not count:
        return ""
    rows = counted(count, "near-duplicate of them counts", "near-duplicates of them count")
    return f" {rows} for nothing more: one of each group was tested."


@dataclass(frozen=True, kw_only=True)
class FilePromise:
    """Promise on the accepted rows of one file, from a certificate about all rows like the labelled ones.

    Attributes
    ----------
    accepted : int
        Accepted rows of the file.
    texts : int
        Different texts among them: equal ones are one, and near-duplicates if they were compared.
    compared : bool
        True if near-duplicates among them were looked for.
    least_right : int
        Right ones among them, at least.
    probability : float
        Of the promise: 1 less the certificate's `delta` and 0.05.
    """

    accepted: int
    texts: int
    compared: bool
    least_right: int
    probability: float

    @classmethod
    def of(cls, certified: Mapping[str, Any], repeats: ArrayLike, *, compared: bool) -> FilePromise:
        """Return the promise on the accepted rows of a file that is drawn like those of the certificate.

        If each text is right with probability `target_accuracy` at least, fewer rows than the lower 0.05 quantile of
        their sum are right with probability 0.05 at most. Without repeated texts the sum is binomial.

        Parameters
        ----------
        certified : mapping
            The certificate.
        repeats : array-like of int, shape (m,)
            Number of accepted rows with each of m texts, which are right or wrong together.
        compared : bool
            True if near-duplicates are one of these texts.
        """
        rows, counts = np.unique(repeats, return_counts=True)
        accepted = int(rows @ counts)
        target = certified["target_accuracy"]
        # The characteristic function of the sum is the product of those of the texts.
        turn = np.exp(-2j * np.pi * np.fft.rfftfreq(accepted + 1))
        spectrum = np.ones_like(turn)
        for size, count in zip(rows, counts, strict=True):
            spectrum *= (1.0 - target + target * turn**size) ** count
        below = np.cumsum(np.fft.irfft(spectrum, accepted + 1))
        return cls(
            accepted=accepted,
            texts=int(counts.sum()),
            compared=compared,
            least_right=int(np.searchsorted(below, _FILE_DELTA)),
            probability=round(1.0 - certified["delta"] - _FILE_DELTA, 12),
        )

    def sentence(self) -> str:
        """Return the promise as a sentence."""
        alike = f" {self.texts:,} of which differ (equal texts and near-duplicates are one),"
        if not self.compared:
            alike = (
                f" {self.texts:,} of which differ (equal texts are one; so many are not compared further),"
            )
        elif self.texts == self.accepted:
            alike = ""
        return (
            f"That is about all rows like the labelled ones. Of the {self.accepted:,} accepted in this file,{alike} at "
            f"least {self.least_right:,} ({self.least_right / self.accepted:.1%}) are right with probability "
            f"{self.probability:.4g}."
        )


def _reason(found: CertifiedThreshold) -> str:
    """Return the reason for the absence of a certificate, and the rows that it takes."""
    if found.additional_rows is None:
        return (
            f"Nothing certified: No threshold reaches {found.target_accuracy:g} accuracy on these {found.n:,} rows; no "
            "group of confident answers large enough to tell was that accurate, so that more rows like these would "
            f"not help.{_repeats(found)}"
        )
    more = counted(found.additional_rows, "more row", "more rows")
    return (
        f"Nothing certified: These {found.n:,} rows are too few to promise {found.target_accuracy:g} accuracy with "
        f"probability {1 - found.delta:g}; about {more} like these, which nothing learned from, would do."
        f"{_repeats(found)}"
    )
