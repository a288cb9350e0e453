"""POMDP meta-verifier with a horizon of one step, solved exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.cascade.automix._meta import MetaVerifier
from calibrant.cascade.automix._rows import Array, Bools, PairedRows, bin_numbers, check_scores
from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import check_count, check_number

PomdpForm = Literal["functional", "discrete", "continuous", "auto"]

_COMPARED: Final = ("discrete", "functional", "continuous")  # by "auto"; the first of equals is taken
_FOLDS: Final = 5
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
    """Training rows, with the verifier's scores in k + 1 bins.

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
        """Return the row count, or the sum of `values`, in each state and bin, shape (3, k + 1)."""
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
    """Return the smoothed P(observation | state) and the gain in each cell, both of shape (3, k + 1).

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
    """Return the table P(v | s) = v^gamma_s / K_s, shape (3, k + 1), and the gammas, shape (3,).

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
    """Return the grid points below and above each score, with the weights of linear interpolation."""
    below = np.minimum(np.floor(scores * k), k - 1).astype(np.intp)
    upper = scores * k - below
    return [(below, 1.0 - upper), (below + 1, upper)]


class POMDPMetaVerifier(MetaVerifier):
    """Meta-verifier that routes rows by the posterior gain of the large model in a one-step POMDP.

    Questions are simple, complex or unsolvable; the verifier's score, one of k + 1 values, is the observation. As
    there is one decision and rewards are linear, the optimum at the price w is to route if and only if the
    posterior mean of the gain exceeds w times the cost of the large model: no solver is needed.

    Parameters
    ----------
    form : {"auto", "functional", "discrete", "continuous"}, default "auto"
        How P(observation | state) is described. ``"functional"``: a power of the score per state. ``"discrete"``:
        smoothed shares of the training rows. ``"continuous"``: states are the pairs of both models' scores, counts
        are smoothed, and scores between the k + 1 values are interpolated. ``"auto"``: the one that does best on
        held-out folds.
    k : int, default 8
        Samples of the verifier; scores are rounded to the nearest of 0, 1/k, ..., 1.
    price : float, optional
        Performance that one unit of cost must bring, at least 0.
    budget : float, optional
        Most that a row may cost on average, small model and verifier included; met on the training rows. With
        neither, the best IBC lift is chosen.
    smoothing : float, default 1.0
        ``"discrete"``: rows like all rows together that are added to every bin.
    fixed_answers : sequence of str, optional
        Answers of the small model that always go on, as for `MetaVerifier`.

    Attributes
    ----------
    form_ : str
        The form in use.
    gain_ : ndarray of shape (k + 1,)
        Posterior mean of what the large model adds, by observation.
    prior_ : ndarray of shape (S,)
        Probabilities of the states: three, or (k + 1)^2 pairs of scores for ``"continuous"``.
    observation_ : ndarray of shape (S, k + 1)
        P(observation | state).
    state_gain_ : ndarray of shape (S,)
        Expected gain in each state.
    gamma_ : ndarray of shape (3,)
        Of ``"functional"`` alone.
    price_ : float
        The price in use.
    large_cost_ : float
        Mean cost of the large model in training.
    form_values_ : dict of str to float
        ``"auto"`` alone: what each form reached on the held-out folds.

    References
    ----------
    Aggarwal, Madaan et al. (2023). AutoMix: Automatically Mixing Language Models. arXiv:2310.12963, appendix B.1.

    Examples
    --------
    >>> from calibrant.cascade import POMDPMetaVerifier
    >>> sure, small, large = [1, 1, 1, 0, 0, 0] * 10, [1, 1, 1, 0, 0, 1] * 10, [1, 1, 1, 1, 1, 0] * 10
    >>> rule = POMDPMetaVerifier(form="discrete", k=2, price=0.01)
    >>> rule = rule.fit(sure, small, large, small_cost=1, large_cost=10, verifier_cost=1)
    >>> rule.gain_.round(2).tolist(), rule.route([0, 0.5, 1]).tolist()
    ([0.33, 0.17, 0.01], [True, True, False])
    """

    def __init__(
        self,
        *,
        form: PomdpForm = "auto",
        k: int = 8,
        price: float | None = None,
        budget: float | None = None,
        smoothing: float = 1.0,
        fixed_answers: Sequence[str] = (),
    ) -> None:
        super().__init__(price=price, budget=budget, fixed_answers=fixed_answers)
        if form not in get_args(PomdpForm):
            raise ConfigurationError(
                f"Expected form to be one of {', '.join(get_args(PomdpForm))}, got {form!r}."
            )
        self.form, self.k = form, check_count("k", k, low=1)
        self.smoothing = check_number("smoothing", smoothing, "[0, inf)")

    def _learn(self, rows: PairedRows) -> None:
        self.form_ = self._choose_form(rows) if self.form == "auto" else self.form
        self._describe(rows)
        self.large_cost_ = float(rows.large_cost.mean())
        levels, group = np.unique(-self._gain_at(rows.signal), return_inverse=True)
        weight = np.bincount(group) / len(rows.signal)
        taken = self._best_prefix(-levels * weight, weight, rows)
        if self.price is not None:
            self.price_ = self.price
            return
        # Half-way between the worth of the last group that is routed and that of the next one.
        worth = -levels / self.large_cost_
        above = worth[taken - 1] if taken else 2.0 * max(worth[0], 0.0)
        below = worth[taken] if taken < len(worth) else 0.0
        self.price_ = float(max((above + below) / 2.0, 0.0))

    def _describe(self, rows: PairedRows) -> None:
        """Learn prior, observation table and gains in the chosen belief form."""
        binned = BinnedRows.of(rows.signal, rows.small, rows.large, k=self.k)
        if self.form_ == "continuous":
            self.prior_, self.observation_, self.state_gain_ = continuous_belief(binned)
            self.gain_ = posterior_gain(self.prior_, self.observation_, self.state_gain_)
            return
        counts = np.bincount(binned.state, minlength=3)
        self.prior_ = counts / counts.sum()
        self.state_gain_ = gain = np.bincount(binned.state, weights=rows.gain, minlength=3) / np.maximum(
            counts, 1
        )
        if self.form_ == "discrete":
            self.observation_, gain = discrete_belief(binned, smoothing=self.smoothing)
        else:
            seen, gained = binned.sums().sum(axis=0), binned.sums(rows.gain).sum(axis=0)
            self.observation_, self.gamma_ = functional_belief(
                binned,
                value=lambda table: held_out_value(
                    posterior_gain(self.prior_, table, self.state_gain_), gained, seen
                ),
            )
        self.gain_ = posterior_gain(self.prior_, self.observation_, gain)

    def _choose_form(self, rows: PairedRows) -> str:
        """Return the belief form with the highest cross-validated value."""
        n = len(rows.signal)
        # Folds are the same in every fit, so that the same rows lead to the same form.
        fold = np.random.default_rng(0).permutation(n) % min(_FOLDS, n)
        self.form_values_ = dict.fromkeys(_COMPARED, 0.0)
        if n < 2:
            return _COMPARED[0]
        for form in _COMPARED:
            # A rule of its own, as forms leave different attributes behind.
            trial = type(self)(k=self.k, smoothing=self.smoothing)
            trial.form_ = form
            for held in range(int(fold.max()) + 1):
                trial._describe(rows.take(fold != held))  # noqa: SLF001  (of its own kind)
                seen = rows.take(fold == held)
                value = held_out_value(trial._gain_at(seen.signal), seen.gain, np.ones(len(seen.gain)))  # noqa: SLF001
                self.form_values_[form] += value * len(seen.gain) / n
        return max(_COMPARED, key=self.form_values_.__getitem__)

    def _gain_at(self, scores: Array) -> Array:
        if self.form_ == "continuous":
            return np.interp(scores, np.arange(self.k + 1) / self.k, self.gain_)
        gains: Array = self.gain_[bin_numbers(scores, self.k)]
        return gains

    def gain(self, verifier_score: ArrayLike) -> Array:
        """Return the posterior mean of the large model's gain, shape (n,).

        Raises
        ------
        NotFittedError
            Before `fit`.
        ConfigurationError
            Scores outside [0, 1].
        """
        self._require_fitted()
        return self._gain_at(check_scores("verifier_score", verifier_score))

    def _routed(self, scores: Array) -> Bools:
        return self._gain_at(scores) > self.price_ * self.large_cost_


def held_out_value(expected: Array, gained: Array, weight: Array) -> float:
    """Return the area under the curve of gain against share of rows routed, best expected gain first.

    Parameters
    ----------
    expected, gained, weight : ndarray of shape (G,)
        The belief's gain of each group, the sum of what was really gained, and its number of rows.

    Returns
    -------
    float
        Mean, over all shares of rows routed, of the gain per row. Groups expected to gain nothing are not
        routed, and what lies beyond them counts as flat. Unlike the best lift of one policy it does not hang on
        a few rows, and it is defined where the large model is not better.
    """
    levels, group = np.unique(-expected, return_inverse=True)
    useful = levels < 0.0
    n = weight.sum()
    width = np.bincount(group, weights=weight)[useful] / n
    height = np.concatenate(([0.0], np.cumsum(np.bincount(group, weights=gained)[useful]) / n))
    area = float((width * (height[1:] + height[:-1]) / 2.0).sum())
    return area + float(height[-1]) * (1.0 - float(width.sum()))
