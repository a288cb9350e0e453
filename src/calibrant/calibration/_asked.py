"""Promises on the rows of a file in hand, from labels that are asked for one at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, floor, inf, log, log1p
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import BoolArray, FloatArray, IndexArray
from calibrant.core._ranks import DEFAULT_KEY, draw_ranks, tie_ranks
from calibrant.core._reported import counted
from calibrant.metrics._validation import as_numbers, check_number

Metric = Literal["accuracy", "output", "recall"]
Ask: TypeAlias = Callable[[int], bool]
"""Returns True if the answer to the row at a place, from 0, is right; for recall, if the row has the label."""

_Labels: TypeAlias = dict[int, bool]
"""Labels so far, by row: whether its answer is right."""

METRICS: Final[tuple[Metric, ...]] = get_args(Metric)
# Share of the wrong answers allowed that the test bets on: on drawn piles of 1,000 rows with calibrated confidences and
# 50 to 300 labels, 0.3 kept most rows for both metrics; 0.1 and 0.5 kept up to a third less.
_BET: Final = 0.3
# A sequence begins with so many times the rows that prove the target if all are right, and at least so many of all.
_MARGIN: Final = 2
_LEAST_SHARE: Final = 0.1
_STEPS: Final = 100  # sizes that are tested: hundredths of the rows
_MORE: Final = 1.5  # times the wrong answers allowed, which a test that gives up bets on
# Of tests of a recall:
_RATIO: Final = 0.97  # of a number of rows that is tested to the one before
# Recorded and drawn piles, 300 labels: 0.02 did as well, 0.05 better for common labels and worse for rare ones.
_DOUBT: Final = 0.01  # variance of a label beyond what its probability says: no row is drawn too seldom
# Share of the wealth that one label may cost: 0.7 suits common labels, 0.9 rare ones.
_MOST_STAKED: Final = 0.8
_PRIOR: Final = 20  # labels that the probabilities are worth where variances are estimated; 50 did as well


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedCertificate:
    """Promise on the rows of a file, from labels asked for one at a time; or the reason for its absence.

    Attributes
    ----------
    certified : bool
        True if answers are accepted, with the promise; for recall, if some rows need not be looked at.
    threshold : float or None
        Least confidence of an accepted answer, in [0, 1]; None without a promise. Of the answers with exactly this
        confidence some may be left out.
    kept : float
        Share of all rows that are accepted, in [0, 1]; for recall, those to look at, which are all without a promise.
    accepted : ndarray of bool, shape (n,)
        True for these rows.
    labels_used : int
        Labels that were asked for.
    reason : str
        Why no more rows are accepted, as a sentence.
    target, delta : float
        The request: with probability ``1 - delta``, over the draw of the rows that are asked about, the target holds.
    metric : str
        As for `certify`.
    labels_missing : int
        Fewest further labels with which more rows would be accepted, if all of them are right; 0 where none are waited
        for, or it is not known.
    is_refused : bool
        True if other promises on the same rows left too little for this one, whatever the labels are.

    Examples
    --------
    >>> from calibrant.calibration import certify
    >>> certify([0.9] * 1000, lambda row: True, target=0.95, budget=300).labels_used
    169
    """

    certified: bool
    threshold: float | None
    kept: float
    accepted: BoolArray
    labels_used: int
    reason: str
    target: float
    delta: float
    metric: Metric
    labels_missing: int = 0
    is_refused: bool = False


def certify(  # noqa: PLR0913 (keyword-only options)
    confidence: ArrayLike,
    ask: Ask,
    *,
    target: float,
    delta: float = 0.1,
    metric: Metric = "accuracy",
    budget: int,
    inputs: Sequence[str | int] | None = None,
    key: str = DEFAULT_KEY,
) -> AskedCertificate:
    """Ask for labels, one at a time, until the most confident answers of a file keep a promise.

    The promise is about the rows given, and no others: nothing is assumed of the confidences, nor of how the rows came
    about. Rows are ordered by confidence, equal ones by a keyed hash of their text. Sets of the first rows, each a
    hundredth of the file larger than the one before, are tested in turn, each at level `delta`; the first that does
    not pass ends the sequence, so that trying many costs nothing (Angelopoulos et al. 2021). In a set, rows are drawn
    without replacement in the order of another hash. The sets share that order, and hence most labels.

    A test multiplies, for each label, the probability of it under an alternative, that 0.3 of the wrong answers allowed
    are there, by the inverse of its probability if one more than allowed were there. Where the target is missed that
    product exceeds ``1 / delta`` at any time with probability `delta` at most (Ville's inequality), so that one may
    look after every label and stop at once (Waudby-Smith and Ramdas 2020, "Confidence sequences for sampling without
    replacement"). A like product for the opposite gives up where the target is missed for certain.

    For recall, sets are tested from all rows down. The same draws serve all of them, and are aimed at the smallest set
    that the budget would do for if the probabilities were right: its least certain rows are drawn most often, each row
    sometimes, and every label counts by the inverse of the probability of its draw. The budget is used up.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        Confidence of each answer, in [0, 1]; NaN where there is none, which is never accepted. For recall, probability
        of the label; NaN counts as 1.
    ask : callable
        Returns True if the answer to the row at a place is right; for recall, if the row has the label. Whatever it
        raises goes through.
    target : float
        In (0, 1).
    delta : float, default 0.1
        Probability that the promise is wrong all the same, in (0, 1).
    metric : {"accuracy", "output", "recall"}, default "accuracy"
        ``accuracy``: of the accepted answers, `target` are right. ``output``: of all rows, `target` are right where
        the others get the label that `ask` compares with, as from a larger model or a person. ``recall``: of all rows
        that have the label, `target` are among the accepted ones.
    budget : int
        Most labels to ask for, at least 1.
    inputs : sequence of (str or int), length n, optional
        Texts or identifiers that the hashes are of; by default the place of each row.
    key : str, default "calibrant"
        Key of the hashes, 1 to 64 bytes in UTF-8: another key draws other rows.

    Raises
    ------
    ConfigurationError
        No rows, confidences outside [0, 1], a number or the metric out of range, or `ask` returns neither True nor
        False.

    Examples
    --------
    A model that is right on the surest nine of ten rows, and wrong on the others:

    >>> confidence = [0.99] * 900 + [0.6] * 100
    >>> found = certify(confidence, lambda row: row < 900, target=0.95, budget=200)
    >>> found.certified, 0.88 < found.kept < 0.93, found.labels_used
    (True, True, 181)
    """
    asked = rows_to_ask(
        confidence, target=target, delta=delta, metric=metric, budget=budget, inputs=inputs, key=key
    )
    row = next(asked)
    while not isinstance(row, AskedCertificate):
        answer = ask(row)
        if answer not in (True, False):
            raise ConfigurationError(
                f"Expected ask to return True or False, got {answer!r:.40} for row {row}: say if its answer is right."
            )
        row = asked.send(bool(answer))
    return row


def rows_to_ask(  # noqa: PLR0913 (keyword-only options)
    confidence: ArrayLike,
    *,
    target: float,
    delta: float,
    metric: Metric,
    budget: int,
    inputs: Sequence[str | int] | None,
    key: str = DEFAULT_KEY,
) -> Generator[int | AskedCertificate, bool | None, None]:
    """Yield the place of the row to label next, and take whether its answer is right; the certificate comes last.

    Which row comes next depends on the labels so far alone: whoever gives the same ones comes to the same row. None for
    an answer ends it with what is certified so far. See `certify` for the parameters.
    """
    pile = _Pile.of(confidence, inputs=inputs, key=key)
    request = _Request.checked(target=target, delta=delta, metric=metric, budget=budget)
    known: _Labels = {}
    missing = 0
    if request.metric == "recall":
        pile = _Pile.of(np.nan_to_num(pile.confidence, nan=1.0), inputs=inputs, key=key)
        size, reason = yield from _holding_label(pile, request, known)
        certified = size < len(pile)
    else:
        size, reason, missing = yield from _accepted(pile, request, known)
        certified = size > 0
    accepted = np.zeros(len(pile), dtype=np.bool_)
    accepted[pile.order[:size]] = True
    threshold = None
    if certified:
        threshold = float(pile.confidence[pile.order[size - 1]])
    yield AskedCertificate(
        certified=certified,
        threshold=threshold,
        kept=size / len(pile),
        accepted=accepted,
        labels_used=len(known),
        reason=reason,
        target=request.target,
        delta=request.delta,
        metric=request.metric,
        labels_missing=missing,
    )


def _accepted(
    pile: _Pile, request: _Request, known: _Labels
) -> Generator[int | AskedCertificate, bool | None, tuple[int, str, int]]:
    """Return the number of rows that are accepted, from the surest on, why there are no more, and labels missing."""
    accepted = 0
    for size in request.sizes(pile):
        most_wrong = request.most_wrong(size, pile)
        test = _Test(n=size, most_wrong=most_wrong, delta=request.delta)
        drawn = pile.drawn(size)
        if not accepted and test.fewest_labels > request.budget:
            return 0, _too_few(request, test.fewest_labels), 0
        for position in drawn:
            if test.is_over:
                break
            row = int(pile.order[position])
            if row not in known:
                missing = _missing(test, drawn, pile, known)
                if missing > request.budget - len(known):
                    return (
                        accepted,
                        f"What is left of {counted(request.budget, 'label')} could not show more.",
                        0,
                    )
                right = yield row
                if right is None:
                    return accepted, "More labels are needed to accept more.", missing
                known[row] = right
            test.add(right=known[row])
        if not test.passed:
            return accepted, "The labels show that the rows after these miss the target.", 0
        accepted = size
    reason = "These are all rows that have a confidence." if accepted else "No row has a confidence."
    return accepted, reason, 0


def _holding_label(
    pile: _Pile, request: _Request, known: _Labels
) -> Generator[int | AskedCertificate, bool | None, tuple[int, str]]:
    """Return the number of rows among which the label's rows are, from the most probable on, and the reason."""
    tests = _RecallTests(
        probability=pile.confidence[pile.order],
        target=request.target,
        delta=request.delta,
        budget=request.budget,
    )
    if not tests.weights.any():
        return len(pile), _too_few_for_recall(tests)
    for position in tests.order(pile.ranks)[: request.budget]:
        if tests.passed.all():
            return tests.size, "No fewer rows were tested."
        row = int(pile.order[position])
        has_label = yield row
        if has_label is None:
            return tests.size, "More labels are needed to leave out more rows."
        known[row] = has_label
        tests.add(int(position), has_label=has_label)
    if not any(known.values()):
        return tests.size, f"None of {len(known):,} rows has the label."
    return tests.size, f"{counted(len(known), 'label shows', 'labels show')} no more."


def _too_few_for_recall(tests: _RecallTests) -> str:
    fewest = tests.labels_needed[1:].min(initial=inf)
    if not tests.probability.any():
        return "By their probabilities the rows have the label nowhere, so that no labels could show where."
    n = len(tests.probability)
    wanted = f"A recall of {tests.target:g} with probability {1.0 - tests.delta:g} takes about"
    if fewest >= n:
        return f"{wanted} as many labels as there are rows, {n:,}: label them all, or promise less."
    return f"{wanted} {counted(ceil(fewest), 'label')}, got a budget of {tests.budget:,}: allow more, or promise less."


def _missing(test: _Test, drawn: IndexArray, pile: _Pile, known: _Labels) -> int:
    """Return the number of further labels that make the test pass if all of them are right."""
    ahead = drawn[test.seen : test.seen + test.fewest_labels]
    return sum(row not in known for row in pile.order[ahead].tolist())


def _too_few(request: _Request, fewest: int) -> str:
    labels = counted(fewest, "label")
    return (
        f"A promise of {request.target:g} with probability {1.0 - request.delta:g} takes at least {labels}, "
        f"all of them as predicted, got a budget of {request.budget:,}: allow more, or promise less."
    )


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Target, delta, metric and budget, checked; see `certify`."""

    target: float
    delta: float
    metric: Metric
    budget: int

    @classmethod
    def checked(cls, *, target: float, delta: float, metric: Metric, budget: int) -> _Request:
        if metric not in METRICS:
            raise ConfigurationError(f"Expected metric to be one of {', '.join(METRICS)}, got {metric!r}.")
        if type(budget) is not int or budget < 1:
            raise ConfigurationError(f"Expected budget as a number of labels from 1, got {budget!r}.")
        return cls(
            target=check_number("target", target, "(0, 1)"),
            delta=check_number("delta", delta, "(0, 1)"),
            metric=metric,
            budget=budget,
        )

    def most_wrong(self, size: int, pile: _Pile) -> int:
        """Return the number of wrong answers that `size` accepted rows may have."""
        rows = size if self.metric == "accuracy" else len(pile)
        return floor((1.0 - self.target) * rows + 1e-9)

    def sizes(self, pile: _Pile) -> list[int]:
        """Return the numbers of rows that are tested, ascending."""
        n = len(pile)
        ends = {ceil(n * step / _STEPS) for step in range(1, _STEPS)}
        ends.add(pile.n_sure)
        first = 1
        if self.metric == "accuracy":
            # A set that is too small shows nothing, and a wrong answer in it would end the sequence.
            growth = log1p(_gain(1.0 - self.target))
            all_right = ceil(-log(self.delta) / growth)
            first = min(max(_MARGIN * all_right, ceil(_LEAST_SHARE * n)), pile.n_sure)
        return sorted(end for end in ends if max(first, 1) <= end <= pile.n_sure)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pile:
    """Rows of a file in the order in which they are accepted, and drawn.

    Attributes
    ----------
    confidence : ndarray of shape (n,)
        As given.
    order : ndarray of int, shape (n_sure,)
        Rows that have a confidence, the surest first.
    ranks : ndarray of shape (n_sure,)
        Ranks in whose order these rows are drawn, in (0, 1].
    """

    confidence: FloatArray
    order: IndexArray
    ranks: FloatArray

    @classmethod
    def of(cls, confidence: ArrayLike, *, inputs: Sequence[str | int] | None, key: str) -> _Pile:
        p = as_numbers("confidence", confidence)
        if p.ndim != 1 or not len(p):
            raise ConfigurationError(f"Expected confidence of shape (n,), n >= 1, got {p.shape}.")
        known = ~np.isnan(p)
        is_legal = (p[known] >= 0.0) & (p[known] <= 1.0)
        if not is_legal.all():
            raise ConfigurationError("Expected confidences in [0, 1], or NaN where there is none.")
        names = range(len(p)) if inputs is None else inputs
        if len(names) != len(p):
            raise ConfigurationError(
                f"Expected an input for each of {len(p):,} confidences, got {len(names):,}."
            )
        rows = np.flatnonzero(known)
        # Of the same text, rows come in the order of the file.
        ranks = tie_ranks(names, key=key)[rows]
        order = rows[np.lexsort((rows, ranks, -p[rows]))]
        drawn = draw_ranks(names, key=key)
        return cls(confidence=p, order=order, ranks=drawn[order])

    def __len__(self) -> int:
        return len(self.confidence)

    @property
    def n_sure(self) -> int:
        """Number of rows that have a confidence."""
        return len(self.order)

    @cached_property
    def draws(self) -> IndexArray:
        """Positions in `order`, the first drawn first."""
        return np.argsort(self.ranks, kind="stable")

    def drawn(self, size: int) -> IndexArray:
        """Return the positions of the `size` surest rows in the order in which they are drawn."""
        return self.draws[self.draws < size]


@dataclass(kw_only=True)
class _Test:
    """Test of "more than `most_wrong` of n rows are wrong", by rows drawn without replacement.

    Attributes
    ----------
    n, most_wrong : int
        Rows, and wrong answers allowed among them.
    delta : float
        Level of the test.
    seen, wrong : int
        Labels so far, and those of wrong answers.
    for_target, against : float
        Logarithms of the products that show that the target holds, and that it is missed.
    """

    n: int
    most_wrong: int
    delta: float
    seen: int = 0
    wrong: int = 0
    for_target: float = 0.0
    against: float = 0.0

    @property
    def passed(self) -> bool:
        """True if the target holds, but for the error allowed."""
        is_certain = self.wrong + self.n - self.seen <= self.most_wrong
        return is_certain or self.for_target >= -log(self.delta)

    @property
    def is_over(self) -> bool:
        """True if no further label is needed."""
        return self.passed or self.wrong > self.most_wrong or self.against >= -log(self.delta)

    @property
    def fewest_labels(self) -> int:
        """Number of labels that make the test pass if all of them are right."""
        missing = -log(self.delta) - self.for_target
        left = self.n - self.seen
        worst = self.most_wrong + 1 - self.wrong
        certain = max(0, left - (worst - 1))
        taken = 0
        while missing > 0.0 and taken < certain:
            missing -= log1p(_gain(min(worst / (left - taken), 1.0)))
            taken += 1
        return taken

    def add(self, *, right: bool) -> None:
        """Add the label of the row drawn next."""
        left = self.n - self.seen
        # Probabilities of a wrong answer if one more is there than allowed, and if there are as many as allowed.
        missed = (self.most_wrong + 1 - self.wrong) / left
        held = (self.most_wrong - self.wrong) / left
        more = min(_MORE * held, (1.0 + held) / 2.0)
        if right:
            self.for_target += log1p(_gain(missed))
            self.against += log1p(-more) - log1p(-held)
        else:
            self.for_target += log(_BET)
            self.against += log(more / held) if held > 0.0 else inf
        self.seen += 1
        self.wrong += not right


def _gain(missed: float) -> float:
    """Return the gain of the product by a right answer, as a share, where a wrong one has probability `missed`."""
    if missed >= 1.0:
        return inf
    return (1.0 - _BET * missed) / (1.0 - missed) - 1.0


@dataclass(kw_only=True, eq=False)
class _RecallTests:
    """Tests of "recall among the first rows is below target", for many numbers of first rows on the same labels.

    With ``y`` 1 where a row has the label, recall among the first rows is below `target` if and only if the sum of
    ``y * value`` is above 0, ``value`` being ``target - 1`` among them and `target` after them. Rows are drawn without
    replacement, with probabilities in proportion to `weights`. After each draw the sum is estimated: what the labels
    given and the probabilities of the other rows add up to, plus the surprise of this label over its probability of
    being drawn. That is unbiased whatever the probabilities (Waudby-Smith, Wu, Ramdas, Karampatziakis and Mineiro
    2022). A test's wealth is multiplied by one minus a stake times the estimate, the stake being chosen before the
    draw so that wealth stays positive. Where the sum is above 0 the wealth exceeds ``1 / delta`` at any time with
    probability `delta` at most (Ville's inequality); with weights, Shekhar, Xu, Lipton, Liang and Ramdas 2023.

    Attributes
    ----------
    probability : ndarray of shape (n,)
        Probability of the label, descending.
    target, delta : float
        In (0, 1).
    budget : int
        Most labels; the weights serve the fewest rows that so many may do for, if the probabilities are right.
    sizes : ndarray of int
        Numbers of first rows that are tested, from all rows down.
    labels_needed : ndarray of float
        Labels that each test takes if the probabilities are right; infinite where it would not pass.
    weights : ndarray of shape (n,)
        Rows are drawn in proportion to these; zeros where the budget does for none but all rows.
    passed : ndarray of bool
        True for the tests that passed.
    """

    probability: FloatArray
    target: float
    delta: float
    budget: int
    sizes: IndexArray = field(init=False)
    labels_needed: FloatArray = field(init=False)
    weights: FloatArray = field(init=False)
    passed: BoolArray = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.probability)
        n_steps = 1 + log(n) / -log(_RATIO)
        steps = np.ceil(n * _RATIO ** np.arange(n_steps))
        self.sizes = np.unique(steps.astype(np.intp))[::-1]
        doubt = np.sqrt(self.probability * (1.0 - self.probability) + _DOUBT)
        self.labels_needed = self._labels_needed(doubt)
        enough = np.flatnonzero((self.labels_needed <= self.budget) & (self.sizes < n))
        size = n
        if len(enough):
            size = int(self.sizes[enough[-1]])
        first = np.arange(n) < size
        # Neyman's allocation: in proportion to the deviation of what a row adds to the sum.
        self.weights = np.where(first, 1.0 - self.target, self.target) * doubt * (size < n)
        self.passed = self.sizes == n
        if size < n:
            self._begin(doubt**2)

    @property
    def size(self) -> int:
        """Fewest first rows that pass, as do all larger numbers that are tested; n without a label."""
        failed = np.flatnonzero(~self.passed)
        last = -1
        if len(failed):
            last = failed[0] - 1
        return int(self.sizes[last])

    def order(self, ranks: FloatArray) -> IndexArray:
        """Return the positions in the order in which they are drawn, by ranks that are uniform in (0, 1]."""
        # The first of exponential clocks with these rates is drawn next (Efraimidis and Spirakis 2006).
        return np.argsort(-np.log(ranks) / self.weights, kind="stable")

    def add(self, position: int, *, has_label: bool) -> None:
        """Add whether the row drawn next has the label."""
        value = np.where(position < self.sizes, self.target - 1.0, self.target)
        surprise = value * (float(has_label) - self.probability[position])
        estimate = self._sum + surprise * self._left / self.weights[position]
        self._log_wealth += np.log1p(-self._stake() * estimate)
        self._mean -= estimate
        self._square += estimate**2
        self._count += 1
        self._labels_left -= 1
        self._sum += surprise
        self._left -= self.weights[position]
        self._known += value * has_label
        self._unknown_after -= position >= self.sizes
        is_certain = self._known + self.target * self._unknown_after <= 1e-9
        self.passed |= is_certain | (self._log_wealth >= -log(self.delta))

    def _stake(self) -> FloatArray:
        """Return the stakes on the next label, which are to reach ``1 / delta`` with the last one.

        The stake that does so at the largest sum at which it can be done depends on the variance alone (Voracek and
        Orabona 2025, STaR-Bets): on recorded piles it left out more rows than the stake of the fastest growth.
        """
        missing = np.maximum(-log(self.delta) - self._log_wealth, 0.0)
        mean = self._mean / self._count
        variance = np.maximum(self._square / self._count - mean**2, 1e-300)
        aimed = np.sqrt(2.0 * missing / (max(self._labels_left, 1) * variance))
        most = np.maximum(self._most * self._left + self._sum, 1e-300)
        stake: FloatArray = np.minimum(aimed, _MOST_STAKED / most)
        return stake

    def _labels_needed(self, doubt: FloatArray) -> FloatArray:
        """Return the labels that tests take, each with the best weights for it, if the probabilities are right."""
        gain = -self._split_sum(self.probability)
        scale = self._absolute_sum(doubt)
        most = scale * self._largest((1.0 - self.probability) / doubt, self.probability / doubt) - gain
        square = scale**2 + gain**2
        stake = np.minimum(gain / square, _MOST_STAKED / np.maximum(most, 1e-300))
        growth = stake * gain - stake**2 * square / 2.0
        enough = (gain > 0.0) & (growth > 0.0)
        return np.where(enough, -log(self.delta) / np.maximum(growth, 1e-300), np.inf)

    def _begin(self, variance: FloatArray) -> None:
        """Initialise the sums that the tests keep."""
        self._log_wealth = np.zeros(len(self.sizes))
        self._left = self.weights.sum()  # of the rows not drawn yet
        self._sum = self._split_sum(
            self.probability
        )  # of the values, as far as known, and as expected otherwise
        gain = -self._sum
        inside, after = self._parts(variance / self.weights)
        squares = (1.0 - self.target) ** 2 * inside + self.target**2 * after
        spread = squares * self._left
        self._labels_left = min(self.budget, len(self.probability))
        self._count = _PRIOR
        self._mean = _PRIOR * gain
        self._square = _PRIOR * (spread + gain**2)
        self._most = self._largest(
            self.target * (1.0 - self.probability) / self.weights,
            (1.0 - self.target) * self.probability / self.weights,
        )
        self._known = np.zeros(len(self.sizes))  # the sum of the labels given
        self._unknown_after = len(self.probability) - self.sizes  # rows after the first without a label given

    def _parts(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the sums of values over the first rows, and over the others, for each size."""
        sums = np.cumsum(values)
        inside = sums[self.sizes - 1]
        return inside, sums[-1] - inside

    def _split_sum(self, values: FloatArray) -> FloatArray:
        inside, after = self._parts(values)
        return (self.target - 1.0) * inside + self.target * after

    def _absolute_sum(self, values: FloatArray) -> FloatArray:
        inside, after = self._parts(values)
        return (1.0 - self.target) * inside + self.target * after

    def _largest(self, after: FloatArray, inside: FloatArray) -> FloatArray:
        """Return the largest of `inside` over the first rows, and of `after` over the others, for each size."""
        from_the_end = np.maximum.accumulate(after[::-1])
        after_max = np.append(from_the_end[::-1], 0.0)
        inside_max = np.maximum.accumulate(inside)
        largest: FloatArray = np.maximum(after_max[self.sizes], inside_max[self.sizes - 1])
        return largest
