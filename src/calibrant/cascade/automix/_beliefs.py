"""Beliefs about questions after a verifier's score: observation models, and the posterior mean of the gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from calibrant.cascade.automix._routing_checks import Array, bin_numbers

_SOLVED = 0.5
# Exponents that the search tries; beyond the last one a power hardly changes.
_GAMMAS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0)
_MOST_GAMMA = 50.0
# The search changes one exponent at a time, and settles within two or three passes.
_PASSES = 5


class State(IntEnum):
    """Difficulty of a question for the two models. A score of at least 0.5 counts as solved."""

    SIMPLE = 0
    """The small model solves it, and is not beaten."""
    COMPLEX = 1
    """The large model solves it, and is better."""
    UNSOLVABLE = 2
    """Neither does."""


@dataclass(frozen=True, kw_only=True)
class BinnedRows:
    """Training rows, with scores in k + 1 bins.

    Attributes
    ----------
    k : int
        Bins are 0, 1/k, ..., 1.
    bins, state : ndarray of int, shape (n,)
        Observation, in [0, k], and `State`.
    small, large : ndarray of shape (n,)
        Scores of either model.
    """

    k: int
    bins: NDArray[np.intp]
    state: NDArray[np.intp]
    small: Array
    large: Array

    @classmethod
    def of(cls, verifier: Array, small: Array, large: Array, *, k: int) -> BinnedRows:
        """Sort rows into bins and states."""
        unsolved = np.maximum(small, large) < _SOLVED
        state = np.where(unsolved, State.UNSOLVABLE, np.where(large > small, State.COMPLEX, State.SIMPLE))
        return cls(k=k, bins=bin_numbers(verifier, k), state=state.astype(np.intp), small=small, large=large)

    def sums(self, values: Array | None = None) -> Array:
        """Return numbers of rows, or sums of `values`, by state and bin, shape (3, k + 1)."""
        cells = self.state * (self.k + 1) + self.bins
        totals = np.bincount(cells, weights=values, minlength=3 * (self.k + 1))
        return totals.reshape(3, self.k + 1).astype(np.float64)


def posterior_gain(prior: Array, observation: Array, gain: Array) -> Array:
    """Return the mean gain of the large model after each observation, by Bayes' rule.

    Parameters
    ----------
    prior : ndarray of shape (S,)
        Probabilities of the states.
    observation : ndarray of shape (S, O)
        Probability of each observation in each state.
    gain : ndarray of shape (S,) or (S, O)
        Expected gain in each state, or in each state after each observation.

    Returns
    -------
    ndarray of shape (O,)
        Where an observation is impossible, the mean before any observation.
    """
    joint = prior[:, None] * observation
    seen = joint.sum(axis=0)
    by_cell = np.broadcast_to(gain[:, None] if gain.ndim == 1 else gain, joint.shape)
    before = float((joint * by_cell).sum() / max(joint.sum(), np.finfo(np.float64).tiny))
    means: Array = np.where(
        seen > 0.0, (joint * by_cell).sum(axis=0) / np.where(seen > 0.0, seen, 1.0), before
    )
    return means


def discrete_belief(rows: BinnedRows, *, smoothing: float) -> tuple[Array, Array]:
    """Return the empirical P(observation | state) and the gain in each cell, both of shape (3, k + 1).

    To every bin are added `smoothing` rows that look like all rows together: to its counts and to its sums of
    gains separately. By Bayes' rule the posterior mean is then the bin's mean gain, shrunk towards the mean of all.
    """
    counts, gains = rows.sums(), rows.sums(rows.large - rows.small)
    n = counts.sum()
    joint = counts + smoothing * counts.sum(axis=1, keepdims=True) / n
    gained = gains + smoothing * gains.sum(axis=1, keepdims=True) / n
    total = joint.sum(axis=1, keepdims=True)
    uniform = 1.0 / (rows.k + 1)
    observation = np.where(total > 0.0, joint / np.where(total > 0.0, total, 1.0), uniform)
    return observation, gained / np.where(joint > 0.0, joint, 1.0)


def functional_belief(rows: BinnedRows, *, value: Callable[[Array], float]) -> tuple[Array, Array]:
    """Return P(v | s) = v^gamma_s / K_s, shape (3, k + 1), and the three gammas, at least 0.

    Parameters
    ----------
    rows : BinnedRows
        Training rows.
    value : callable
        How good the policies of an observation table of shape (3, k + 1) are on these rows; the larger the better.

    Notes
    -----
    v = 0 counts as half a step: its power would be 0 for every gamma, and observing it impossible. The search
    begins at the maximum-likelihood gammas and changes one at a time; likelihood decides between equals, as the
    value depends on the order of bins alone and leaves whole ranges of gammas equal.
    """
    steps = np.log(np.maximum(np.arange(rows.k + 1) / rows.k, 0.5 / rows.k))
    counts = rows.sums()

    def judge(gammas: Array) -> tuple[float, float]:
        table = _powers(gammas, steps)
        return round(value(table), 12), float((counts * np.log(table)).sum())

    gammas = np.array([_likeliest_gamma(row, steps) for row in counts])
    best = judge(gammas)
    for _ in range(_PASSES):
        before = best
        for state in State:
            for candidate in _GAMMAS:
                tried = gammas.copy()
                tried[state] = candidate
                merit = judge(tried)
                if merit > best:
                    gammas, best = tried, merit
        if best == before:
            break
    return _powers(gammas, steps), gammas


def _powers(gammas: Array, steps: Array) -> Array:
    weights = np.exp(gammas[:, None] * steps)
    table: Array = weights / weights.sum(axis=1, keepdims=True)
    return table


def _likeliest_gamma(counts: Array, steps: Array) -> float:
    """Return the maximum-likelihood gamma >= 0, where expected and observed log v agree."""
    if not counts.sum():
        return 0.0
    observed = float(counts @ steps / counts.sum())
    low, high = 0.0, _MOST_GAMMA
    for _ in range(60):  # the expectation rises with gamma: halve the interval
        middle = (low + high) / 2.0
        low, high = (
            (middle, high)
            if float(_powers(np.array([middle]), steps)[0] @ steps) < observed
            else (low, middle)
        )
    return low if high < _MOST_GAMMA else _MOST_GAMMA


def continuous_belief(rows: BinnedRows) -> tuple[Array, Array, Array]:
    """Return prior, observation table and gain over states (P_S, P_L) on a grid with steps of 1/k.

    Rows are shared out to the four nodes around their scores so that their means stay (linear interpolation);
    counts are smoothed by a Gaussian with a standard deviation of one step, along both scores and the observation.

    Returns
    -------
    prior, gain : ndarray of shape (S,)
        Of the S = (k + 1)^2 nodes: share of the rows, unsmoothed, and P_L - P_S.
    observation : ndarray of shape (S, k + 1)
        P(observation | node).
    """
    width = rows.k + 1
    counts = np.zeros((width, width, width))
    for small, small_part in _nodes(rows.small, rows.k):
        for large, large_part in _nodes(rows.large, rows.k):
            np.add.at(counts, (small, large, rows.bins), small_part * large_part)
    steps = np.arange(width)
    kernel = np.exp(-0.5 * (steps[:, None] - steps) ** 2)
    kernel /= kernel.sum(axis=0)  # a row smeared at the edge still counts as one
    smooth = np.einsum("ai,bj,ok,ijk->abo", kernel, kernel, kernel, counts, optimize=True)
    smooth = smooth.reshape(width * width, width)
    prior = counts.sum(axis=2).reshape(-1) / counts.sum()
    gain = (steps[None, :] - steps[:, None]).reshape(-1) / rows.k
    return prior, smooth / smooth.sum(axis=1, keepdims=True), gain


def _nodes(scores: Array, k: int) -> list[tuple[NDArray[np.intp], Array]]:
    """Return the nodes below and above each score, and its share of each."""
    below = np.minimum(np.floor(scores * k), k - 1).astype(np.intp)
    upper = scores * k - below
    return [(below, 1.0 - upper), (below + 1, upper)]
