"""Shares of labels, accuracy and macro F1 of a file's rows, from true labels of a few of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core._errors import ConfigurationError
from calibrant.core._frames import values_or_none
from calibrant.core._prediction import BoolArray, FloatArray, IndexArray, Interval
from calibrant.core._ranks import DEFAULT_KEY, draw_ranks
from calibrant.core._reported import listed
from calibrant.metrics._intervals import wilson_limits
from calibrant.metrics._validation import as_numbers, check_level, normal_quantile

AskLabel: TypeAlias = Callable[[int], str | None]
"""Returns the true label of the row at a place, from 0; None where no label fits."""

_FEWEST: Final = 5  # labels from which a slope is learned; with fewer it would be noise
# Mistakes of the full size that no label has shown yet, as in Wilson's interval, which adds z * z / 2 of each kind.
_UNSEEN: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number about all rows of a file, from the labels of some of them.

    Attributes
    ----------
    interval : Interval
        The estimate and its confidence interval, over the draw of the labelled rows.
    plain_labels : int
        Labels after which an interval that makes no use of the predictions would be as narrow, on average.

    Examples
    --------
    >>> from calibrant.calibration import estimate
    >>> found = estimate(["cat"] * 500 + ["dog"] * 500, ask=lambda row: ("cat", "dog")[row // 500], budget=100)
    >>> found.shares["cat"].plain_labels > 100
    True
    """

    interval: Interval
    plain_labels: int


@dataclass(frozen=True, kw_only=True)
class PileEstimate:
    """Answers to questions about all rows of a file; see `estimate`.

    Attributes
    ----------
    shares : mapping of str to Estimate
        Share of the rows that truly have each label.
    predicted : mapping of str to int
        Rows that each label is predicted for.
    accuracy : Estimate
        Share of the rows whose predicted label is the true one.
    macro_f1 : Estimate
        Mean over the labels of their F1.
    labels_used : int
        Rows that were labelled.
    without_label : int
        Those of them that no label fits, which are in no share.

    Examples
    --------
    >>> from calibrant.calibration import estimate
    >>> found = estimate(["cat", "dog", "dog"], ask=lambda row: "dog", budget=3)  # all rows: no doubt is left
    >>> found.shares["dog"].interval.estimate, found.predicted["dog"], round(found.accuracy.interval.lower, 3)
    (1.0, 2, 0.667)
    """

    shares: Mapping[str, Estimate]
    predicted: Mapping[str, int]
    accuracy: Estimate
    macro_f1: Estimate
    labels_used: int
    without_label: int


@dataclass(frozen=True, kw_only=True)
class DifferenceEstimate(Estimate):
    """Accuracy of the first predictions minus that of the second, over all rows; see `estimate_difference`.

    Attributes
    ----------
    labels_used : int
        Rows that were labelled.
    rows_apart : int
        Rows for which the two predict different labels.

    Examples
    --------
    >>> from calibrant.calibration import estimate_difference
    >>> found = estimate_difference(["cat", "dog"], ["dog", "dog"], ask=lambda row: "dog", budget=2)
    >>> found.interval.estimate, found.labels_used, found.rows_apart
    (-0.5, 1, 1)
    """

    labels_used: int
    rows_apart: int


def estimate(  # noqa: PLR0913 (keyword-only options)
    predicted: Sequence[str | None],
    probabilities: ArrayLike | None = None,
    *,
    ask: AskLabel,
    budget: int,
    labels: Sequence[str] | None = None,
    level: float = 0.95,
    inputs: Sequence[str | int] | None = None,
    key: str = DEFAULT_KEY,
) -> PileEstimate:
    """Estimate shares of labels, accuracy and macro F1 of rows that have predictions, from true labels of a few.

    The rows to label are drawn without replacement in the order of a keyed hash, the same in which `certify` draws. A
    mean over all rows is that over the labelled ones, corrected by how much their probabilities differ from those of
    the others, times a slope (prediction-powered inference: Angelopoulos, Duchi and Zrnic 2023, "PPI++"). The slope
    for each labelled row is learned from the other ones, shrunk where it is uncertain, which keeps the estimate
    unbiased for these very rows, however poor the predictions are (Mickey 1959). Its interval is Wilson's at the number
    of rows that a plain sample would need for the variance found, corrected for the rows being finitely many. The
    variance counts mistakes that no label has shown yet, so that few labels, or none of a kind, never give width 0.

    Parameters
    ----------
    predicted : sequence or series of (str or None), length n
        Predicted label of each row; None (in a series also NaN) where there is none, which counts as wrong.
    probabilities : array-like of shape (n,) or (n, L), optional
        Probability of the predicted label, the rest being spread evenly over the others, or of each of `labels`. NaN
        counts as 1 for the predicted label, which is also the default.
    ask : callable
        Returns the true label of the row at a place, None where no label fits. Whatever it raises goes through.
    budget : int
        Rows to label, from 2 to n.
    labels : sequence of str, optional
        Label set; by default the labels that are predicted or answered. Macro F1 is the mean over all of it.
    level : float, default 0.95
        Level of the intervals.
    inputs : sequence of (str or int), length n, optional
        Texts or identifiers that the hashes are of; by default the place of each row.
    key : str, default "calibrant"
        Key of the hashes: another key draws other rows.

    Raises
    ------
    ConfigurationError
        A number out of range, different lengths, or a label that is not in the label set.

    Examples
    --------
    A model that calls one in ten dogs a cat, and knows that it is unsure there:

    >>> truth = ["cat"] * 500 + ["dog"] * 500
    >>> predicted, sure = truth.copy(), [0.95] * 1000
    >>> for row in range(500, 1000, 10):
    ...     predicted[row], sure[row] = "cat", 0.5
    >>> found = estimate(predicted, sure, ask=lambda row: truth[row], budget=100)
    >>> shares = {label: share.interval for label, share in found.shares.items()}
    >>> shares["cat"].lower < 0.5 < shares["cat"].upper, found.predicted["cat"], found.accuracy.plain_labels > 100
    (True, 550, True)
    """
    check_level(level)
    pile = _LabelledPile.asked(
        predicted, probabilities, ask=ask, budget=budget, labels=labels, inputs=inputs, key=key
    )
    shares = {}
    counts = {}
    for code, label in enumerate(pile.labels):
        is_true = (pile.truth == code) * 1.0
        by = pile.probabilities[:, code]
        shares[label] = _mean(is_true, by, pile.drawn, level=level)
        counts[label] = int((pile.codes == code).sum())
    right = (pile.truth >= 0) & (pile.truth == pile.codes[pile.drawn])
    of_predicted = pile.probabilities[np.arange(len(pile)), pile.codes]
    sure = np.where(pile.codes < 0, 0.0, of_predicted)
    return PileEstimate(
        shares=shares,
        predicted=counts,
        accuracy=_mean(right * 1.0, sure, pile.drawn, level=level),
        macro_f1=_macro_f1(pile, right, level=level),
        labels_used=len(pile.drawn),
        without_label=int((pile.truth < 0).sum()),
    )


def estimate_difference(  # noqa: PLR0913 (keyword-only options)
    first: Sequence[str | None],
    second: Sequence[str | None],
    *,
    ask: AskLabel,
    budget: int,
    confidences: tuple[ArrayLike, ArrayLike] | None = None,
    level: float = 0.95,
    inputs: Sequence[str | int] | None = None,
    key: str = DEFAULT_KEY,
) -> DifferenceEstimate:
    """Estimate the accuracy of the first predictions minus that of the second, on the same rows.

    Where both predict the same, the difference is 0 whatever is true: only the other rows are drawn, in the order of
    `estimate`, and the mean over them is found as there.

    Parameters
    ----------
    first, second : sequence or series of (str or None), length n
        Predicted labels of each row, by position, whatever the index of a series.
    ask, level, inputs, key
        As for `estimate`.
    budget : int
        Most rows to label, at least 2; where fewer rows differ, these are labelled, and the difference is exact.
    confidences : pair of array-like of shape (n,), optional
        Confidence of each prediction, in [0, 1]; NaN counts as 1.

    Raises
    ------
    ConfigurationError
        A number out of range, or different lengths.

    Examples
    --------
    >>> from calibrant.calibration import estimate_difference
    >>> truth = ["cat", "dog"] * 500
    >>> first, second = ["cat"] * 100 + truth[100:], ["dog"] * 20 + truth[20:]
    >>> found = estimate_difference(first, second, ask=lambda row: truth[row], budget=100)
    >>> found.interval.estimate, found.labels_used, found.rows_apart
    (-0.04, 60, 60)
    """
    check_level(level)
    first = values_or_none(first)
    second = values_or_none(second)
    n = len(first)
    if len(second) != n or not n:
        raise ConfigurationError(f"Expected two predictions for each row, got {n:,} and {len(second):,}.")
    if confidences is None:
        confidences = np.ones(n), np.ones(n)
    checked = [_checked(values, n, n_axes=1) for values in confidences]
    sure, other_sure = np.nan_to_num(checked, nan=1.0)
    apart = np.array([one != other for one, other in zip(first, second, strict=True)])
    names = range(n) if inputs is None else inputs
    _checked_budget(budget, n)
    drawn = [row for row in rows_drawn(names, n, key=key) if apart[row]][:budget]
    signs = []
    for row in drawn:
        label = ask(row)
        signs.append((first[row] == label is not None) - (second[row] == label is not None))
    n_apart = int(apart.sum())
    if not n_apart:
        exact = Interval(lower=0.0, upper=0.0, level=level, estimate=0.0)
        return DifferenceEstimate(interval=exact, plain_labels=0, labels_used=0, rows_apart=0)
    of_rows = np.cumsum(apart) - 1
    by = (1.0 + sure - other_sure) / 2.0
    values = (1.0 + np.array(signs)) / 2.0
    found = _mean(values, by[apart], of_rows[drawn], level=level).interval
    share = n_apart / n
    lower = share * (2.0 * found.lower - 1.0)
    upper = share * (2.0 * found.upper - 1.0)
    value = share * (2.0 * found.estimate - 1.0)
    # A plain sample sees a difference in a share of its rows only.
    square = share * float(np.square(2.0 * values - 1.0).mean())
    half = max(upper - lower, 1e-12) / 2.0 / normal_quantile(level)
    size = max(square - value**2, 0.0) / half**2
    return DifferenceEstimate(
        interval=Interval(lower=lower, upper=upper, level=level, estimate=value),
        plain_labels=_of_a_pile(size, n) if n_apart > len(drawn) else n,
        labels_used=len(drawn),
        rows_apart=n_apart,
    )


def rows_drawn(names: Sequence[str | int], budget: int, *, key: str = DEFAULT_KEY) -> list[int]:
    """Return the places of the first `budget` rows in the order in which they are drawn."""
    order = np.argsort(draw_ranks(names, key=key), kind="stable")
    return [int(row) for row in order[:budget]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _LabelledPile:
    """Predictions of all rows, and true labels of those that were drawn.

    Attributes
    ----------
    labels : tuple of str, length L
        The label set.
    codes : ndarray of int, shape (N,)
        Predicted label as a position in `labels`; -1 for none.
    probabilities : ndarray of shape (N, L)
        Probability of each label.
    drawn : ndarray of int, shape (n,)
        Rows that are labelled.
    truth : ndarray of int, shape (n,)
        Their true labels as positions; -1 where no label fits.
    """

    labels: tuple[str, ...]
    codes: IndexArray
    probabilities: FloatArray
    drawn: IndexArray
    truth: IndexArray

    @classmethod
    def asked(  # noqa: PLR0913 (keyword-only options)
        cls,
        predicted: Sequence[str | None],
        probabilities: ArrayLike | None,
        *,
        ask: AskLabel,
        budget: int,
        labels: Sequence[str] | None,
        inputs: Sequence[str | int] | None,
        key: str,
    ) -> _LabelledPile:
        predicted = values_or_none(predicted)
        n = len(predicted)
        _checked_budget(budget, n)
        names = range(n) if inputs is None else inputs
        if len(names) != n:
            raise ConfigurationError(f"Expected an input for each of {n:,} rows, got {len(names):,}.")
        sure = _checked(np.ones(n) if probabilities is None else probabilities, n)
        if sure.ndim == 2 and labels is None:
            raise ConfigurationError(
                "Expected labels beside probabilities of each label, got none: name the columns."
            )
        drawn = rows_drawn(names, budget, key=key)
        seen = {label for label in predicted if label is not None}
        if labels is not None:
            _check_known(seen, labels)
        answers = [ask(row) for row in drawn]
        seen.update(label for label in answers if label is not None)
        known = tuple(sorted(seen) if labels is None else labels)
        _check_known(seen, known)
        place: dict[str | None, int] = {label: code for code, label in enumerate(known)}
        place[None] = -1
        codes = np.array([place[label] for label in predicted], dtype=np.intp)
        return cls(
            labels=known,
            codes=codes,
            probabilities=_spread(sure, codes, n_labels=len(known)),
            drawn=np.array(drawn, dtype=np.intp),
            truth=np.array([place[label] for label in answers], dtype=np.intp),
        )

    def __len__(self) -> int:
        return len(self.codes)


def _check_known(seen: Collection[str], labels: Sequence[str]) -> None:
    unknown = sorted(set(seen).difference(labels))
    if unknown or not labels:
        raise ConfigurationError(
            f"Expected labels of the label set, {listed(labels) or 'which is empty'}, got "
            f"{unknown[0] if unknown else None!r:.60}: write it as the label set does, or None where no label fits."
        )


def _checked_budget(budget: int, n: int) -> int:
    if type(budget) is not int or not 2 <= budget <= n:
        raise ConfigurationError(
            f"Expected budget as a number of labels from 2 to {n:,}, the rows that there are, got {budget!r}."
        )
    return budget


def _checked(given: ArrayLike, n: int, *, n_axes: int = 2) -> FloatArray:
    """Return probabilities of n rows, shape (n,) or, with two axes allowed, (n, L)."""
    found = as_numbers("probabilities", given)
    if not 1 <= found.ndim <= n_axes or len(found) != n:
        raise ConfigurationError(
            f"Expected probabilities for each of {n:,} rows, got numbers of shape {found.shape}: one for each row."
        )
    known = found[~np.isnan(found)]
    if not ((known >= 0.0) & (known <= 1.0)).all():
        raise ConfigurationError("Expected probabilities in [0, 1], or NaN where there is none.")
    return found


def _spread(found: FloatArray, codes: IndexArray, *, n_labels: int) -> FloatArray:
    """Return the probability of each label, shape (N, L)."""
    n = len(codes)
    if found.ndim == 2 and found.shape[1] != n_labels:
        raise ConfigurationError(
            f"Expected probabilities of {n_labels} labels, got {found.shape[1]} columns: name all labels with labels=."
        )
    known = ~np.isnan(found)
    own = np.where(known, found, 1.0) if found.ndim == 1 else np.ones(n)
    others = (1.0 - own) / max(n_labels - 1, 1)
    rows = np.flatnonzero(codes >= 0)
    spread = np.full((n, n_labels), 1.0 / n_labels)
    spread[rows] = others[rows, None]
    spread[rows, codes[rows]] = own[rows]
    if found.ndim == 1:
        return spread
    return np.where(known, found, spread)


def _mean(values: FloatArray, by: FloatArray, drawn: IndexArray, *, level: float) -> Estimate:
    """Return the mean over all rows of values in [0, 1] that are known for the rows drawn.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Values of the rows drawn.
    by : ndarray of shape (N,)
        A number for every row that tells something of its value.
    drawn : ndarray of int, shape (n,)
        Rows drawn at random without replacement.
    level : float
        Level of the interval.
    """
    mean, left = _corrected(values, by, drawn)
    n = len(values)
    n_pile = len(by)
    known = float(values.sum())
    # What the labels themselves settle.
    least = known / n_pile
    most = (known + n_pile - n) / n_pile
    value = min(max(mean, least), most)
    if n == n_pile:
        exact = Interval(lower=value, upper=value, level=level, estimate=value)
        return Estimate(interval=exact, plain_labels=n)
    plain_mean = float(values.mean())
    plain = n * plain_mean * (1.0 - plain_mean)
    rows = n * (plain + _UNSEEN) / (left + _UNSEEN)
    size = _of_a_large_pile(rows, n, n_pile)
    lower, upper = wilson_limits(value * size, size, z=normal_quantile(level))
    interval = Interval(
        lower=max(min(lower, value), least),
        upper=min(max(upper, value), most),
        level=level,
        estimate=value,
    )
    return Estimate(interval=interval, plain_labels=_plain(rows, n, n_pile))


def _of_a_large_pile(rows: float, n: int, n_pile: int) -> float:
    """Return the rows that tell as much of a pile without end as n labels, worth `rows`, of this one."""
    return rows * (n_pile - 1) / (n_pile - n)


def _plain(rows: float, n: int, n_pile: int) -> int:
    """Return the labels that a plain sample takes for the precision of n labels that are worth `rows` ones."""
    if n == n_pile:
        return n
    return _of_a_pile(_of_a_large_pile(rows, n, n_pile), n_pile)


def _of_a_pile(size: float, n_pile: int) -> int:
    """Return the labels of a pile that tell as much as `size` labels of a pile without end."""
    return math.ceil(size * n_pile / (n_pile - 1 + size) - 1e-9)


def _corrected(values: FloatArray, by: FloatArray, drawn: IndexArray) -> tuple[float, float]:
    """Return the unbiased estimate of the mean over all rows, and the sum of squares that the slopes leave."""
    n = len(values)
    n_pile = len(by)
    known = by[drawn]
    y = values - values.mean()
    x = known - known.mean()
    slopes = _slopes(x, y, least=float(by.var()))
    left = float(((y - slopes * x) ** 2).sum())
    if n == n_pile:
        return float(values.mean()), left
    rest = (by.sum() - known.sum()) / (n_pile - n)
    shift = float((slopes * (rest - known)).mean())
    return float(values.mean()) + (n_pile - n) / n_pile * shift, left


def _slopes(x: FloatArray, y: FloatArray, *, least: float) -> FloatArray:
    """Return for each row the slope of y by x, both centred, over the other rows, shrunk by adjusted R squared.

    As in PPI++ it is 1 at most and 0 at least. The variance of x is `least` at least, that of the whole pile: where the
    rows drawn are nearly alike in x, a slope by their own would be any number, and the rows unlike them far away.
    """
    n = len(x)
    if n < _FEWEST or np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return np.zeros(n)
    share = n / (n - 1.0)

    def product(a: FloatArray, b: FloatArray) -> FloatArray:
        of_others: FloatArray = (a * b).sum() - share * a * b
        return of_others

    xx = np.maximum(product(x, x), least * (n - 1.0))
    yy = product(y, y)
    xy = product(x, y)
    explained = np.clip(xy * xy / np.maximum(xx * yy, 1e-24), 0.0, 1.0)
    adjusted = np.maximum(1.0 - (1.0 - explained) * (n - 2.0) / (n - 3.0), 0.0)
    slopes: FloatArray = adjusted / np.maximum(explained, 1e-12) * xy / np.maximum(xx, 1e-12)
    return slopes.clip(0.0, 1.0)


def _true_and_hit(
    pile: _LabelledPile, right: BoolArray, predicted: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the estimated shares of all rows that have each label, and that have it and are predicted so.

    Mistakes are estimated, false predictions and missed rows: where none was seen, F1 is 1 whatever the confidences.
    """
    false = np.zeros(len(pile.labels))
    missed = np.zeros(len(pile.labels))

    def share(flags: BoolArray, by: FloatArray) -> float:
        mean, _ = _corrected(flags.astype(np.float64), by, pile.drawn)
        return max(mean, float(flags.sum()) / len(pile))

    wrong = ~right
    codes = pile.codes[pile.drawn]
    for code in range(len(pile.labels)):
        by = pile.probabilities[:, code]
        is_predicted = pile.codes == code
        false[code] = share((codes == code) & wrong, np.where(is_predicted, 1.0 - by, 0.0))
        missed[code] = share((pile.truth == code) & wrong, np.where(is_predicted, 0.0, by))
    hit = np.maximum(predicted - false, 0.0)
    return hit + missed, hit


def _macro_f1(pile: _LabelledPile, right: BoolArray, *, level: float) -> Estimate:
    """Return macro F1, its interval by linearisation: F1 is 2 TP / (predicted + true) for each label.

    The interval is Wilson's for what is missing of 1, in units of the largest mistake.
    """
    n = len(pile.drawn)
    n_pile = len(pile)
    n_labels = len(pile.labels)
    predicted = np.bincount(pile.codes[pile.codes >= 0], minlength=n_labels) / n_pile
    true, hit = _true_and_hit(pile, right, predicted)
    # The F1 of a label that is never predicted is 0, whatever is true.
    inverse = np.where(predicted > 0.0, 1.0 / np.maximum(predicted + true, 1.0 / n_pile), 0.0)
    f1 = 2.0 * hit * inverse
    value = float(f1.mean())
    # What a row adds: its true label adds to the size, and where it is predicted, to the hits. What it would add if its
    # prediction was right is known, and taken away: the rest is that of mistakes.
    per_row = inverse / n_labels
    wrong = -f1 * per_row
    hitting = (2.0 - f1) * per_row
    given = np.where(right, hitting[pile.truth], wrong[pile.truth])
    given[pile.truth < 0] = 0.0
    by = pile.probabilities @ wrong
    rows = np.flatnonzero(pile.codes >= 0)
    codes = pile.codes[rows]
    by[rows] += pile.probabilities[rows, codes] * (hitting - wrong)[codes]
    if_right = np.zeros(n_pile)
    if_right[rows] = hitting[codes]
    by -= if_right
    given -= if_right[pile.drawn]
    _, left = _corrected(given, by, pile.drawn)
    plain = float(((given - given.mean()) ** 2).sum())
    # What is missing of 1 is a mean of mistakes, none of which takes more than this away.
    reach = max(float(np.ptp(np.concatenate([hitting, wrong]))), 1.0)
    unseen = _UNSEEN * reach**2
    ratio = (left + unseen) / (plain + unseen)
    lower = upper = value
    if n < n_pile:
        missing = (1.0 - value) / reach
        as_right_and_wrong = n * missing * (1.0 - missing)
        worth = n * (as_right_and_wrong + _UNSEEN) / (left / reach**2 + _UNSEEN)
        size = _of_a_large_pile(worth, n, n_pile)
        least, most = wilson_limits(missing * size, size, z=normal_quantile(level))
        lower = max(1.0 - reach * most, 0.0)
        upper = 1.0 - reach * least
    return Estimate(
        interval=Interval(lower=lower, upper=upper, level=level, estimate=value),
        plain_labels=_plain(n / ratio, n, n_pile),
    )
