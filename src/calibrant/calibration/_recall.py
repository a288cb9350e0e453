"""Tests of the recall of a label among the most probable rows of a file, from labels drawn by importance."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from calibrant.core._prediction import Bools, Floats, Places

_RATIO: Final = 0.97  # of a number of rows that is tested to the one before
# Recorded and drawn piles, 300 labels: 0.02 did as well, 0.05 better for common labels and worse for rare ones.
_DOUBT: Final = 0.01  # variance of a label beyond what its probability says: no row is drawn too seldom
_MOST: Final = 0.8  # share of the wealth that one label may cost: 0.7 suits common labels, 0.9 rare ones
_PRIOR: Final = 20  # labels that the probabilities are worth where variances are estimated; 50 did as well


@dataclass(kw_only=True, eq=False)
class RecallTests:
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

    probability: Floats
    target: float
    delta: float
    budget: int
    sizes: Places = field(init=False)
    labels_needed: Floats = field(init=False)
    weights: Floats = field(init=False)
    passed: Bools = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.probability)
        steps = np.ceil(n * _RATIO ** np.arange(1 + math.log(n) / -math.log(_RATIO)))
        self.sizes = np.unique(steps.astype(np.intp))[::-1]
        doubt = np.sqrt(self.probability * (1.0 - self.probability) + _DOUBT)
        self.labels_needed = self._labels_needed(doubt)
        enough = np.flatnonzero((self.labels_needed <= self.budget) & (self.sizes < n))
        size = int(self.sizes[enough[-1]]) if len(enough) else n
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
        return int(self.sizes[failed[0] - 1] if len(failed) else self.sizes[-1])

    def order(self, ranks: Floats) -> Places:
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
        self.passed |= is_certain | (self._log_wealth >= -math.log(self.delta))

    def _stake(self) -> Floats:
        """Return the stakes on the next label, which are to reach ``1 / delta`` with the last one.

        The stake that does so at the largest sum at which it can be done depends on the variance alone (Voracek and
        Orabona 2025, STaR-Bets): on recorded piles it left out more rows than the stake of the fastest growth.
        """
        missing = np.maximum(-math.log(self.delta) - self._log_wealth, 0.0)
        mean = self._mean / self._count
        variance = np.maximum(self._square / self._count - mean**2, 1e-300)
        aimed = np.sqrt(2.0 * missing / (max(self._labels_left, 1) * variance))
        most = np.maximum(self._most * self._left + self._sum, 1e-300)
        stake: Floats = np.minimum(aimed, _MOST / most)
        return stake

    def _labels_needed(self, doubt: Floats) -> Floats:
        """Return the labels that tests take, each with the best weights for it, if the probabilities are right."""
        gain = -self._split_sum(self.probability)
        scale = self._absolute_sum(doubt)
        most = scale * self._largest((1.0 - self.probability) / doubt, self.probability / doubt) - gain
        square = scale**2 + gain**2
        stake = np.minimum(gain / square, _MOST / np.maximum(most, 1e-300))
        growth = stake * gain - stake**2 * square / 2.0
        enough = (gain > 0.0) & (growth > 0.0)
        return np.where(enough, -math.log(self.delta) / np.maximum(growth, 1e-300), np.inf)

    def _begin(self, variance: Floats) -> None:
        """Initialise the sums that the tests keep."""
        self._log_wealth = np.zeros(len(self.sizes))
        self._left = self.weights.sum()  # of the rows not drawn yet
        self._sum = self._split_sum(
            self.probability
        )  # of the values, as far as known, and as expected otherwise
        gain = -self._sum
        inside, after = self._parts(variance / self.weights)
        spread = ((1.0 - self.target) ** 2 * inside + self.target**2 * after) * self._left
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

    def _parts(self, values: Floats) -> tuple[Floats, Floats]:
        """Return the sums of values over the first rows, and over the others, for each size."""
        sums = np.cumsum(values)
        inside = sums[self.sizes - 1]
        return inside, sums[-1] - inside

    def _split_sum(self, values: Floats) -> Floats:
        inside, after = self._parts(values)
        return (self.target - 1.0) * inside + self.target * after

    def _absolute_sum(self, values: Floats) -> Floats:
        inside, after = self._parts(values)
        return (1.0 - self.target) * inside + self.target * after

    def _largest(self, after: Floats, inside: Floats) -> Floats:
        """Return the largest of `inside` over the first rows, and of `after` over the others, for each size."""
        after_max = np.append(np.maximum.accumulate(after[::-1])[::-1], 0.0)
        inside_max = np.maximum.accumulate(inside)
        largest: Floats = np.maximum(after_max[self.sizes], inside_max[self.sizes - 1])
        return largest
