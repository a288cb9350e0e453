"""Meta-verifiers: routing rules on a verifier's scores, learned from rows of two models."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from typing import Final, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike

from calibrant.cascade.automix._frontier import (
    PairedRows,
    bin_numbers,
    check_scores,
    routing_frontier,
)
from calibrant.core._errors import ConfigurationError, NotFittedError
from calibrant.core._prediction import BoolArray, FloatArray, IndexArray
from calibrant.metrics._validation import check_count, check_number

_SHOWN: Final = 6  # corners of a frontier in a message
_ARTICLES: Final = re.compile(r"\b(?:a|an|the)\b")

PomdpForm = Literal["functional", "discrete", "continuous", "auto"]
_COMPARED: Final = ("discrete", "functional", "continuous")  # by "auto"; the first of equals is taken
_FOLDS: Final = 5
_SOLVED = 0.5
# Exponents that the search tries; beyond the last one a power hardly changes.
_GAMMAS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0)
_MOST_GAMMA = 50.0
# The search changes one exponent at a time, and settles within two or three passes.
_PASSES = 5


class MetaVerifier(ABC):
    """Base class of meta-verifiers, learned from the answers of both models.

    Parameters
    ----------
    price : float, optional
        Performance that one unit of cost must bring.
    budget : float, optional
        Most that a row may cost on average, small model and verifier included; met on the training rows. With
        neither, the policy of the best IBC lift is chosen.
    fixed_answers : sequence of str, optional
        Answers of the small model that always go on, compared whole without case, punctuation and English articles.

    Raises
    ------
    ConfigurationError
        Both a price and a budget, one of them below 0, or a text instead of a list of answers.

    Examples
    --------
    >>> from calibrant.cascade import MetaVerifier, ThresholdMetaVerifier
    >>> isinstance(ThresholdMetaVerifier(budget=2.0), MetaVerifier)
    True
    """

    _fitted = False

    def __init__(
        self, *, price: float | None = None, budget: float | None = None, fixed_answers: Sequence[str] = ()
    ) -> None:
        if price is not None and budget is not None:
            raise ConfigurationError(
                f"Expected price or budget, got both ({price!r}, {budget!r}): pass one of them."
            )
        for name, value in (("price", price), ("budget", budget)):
            if value is not None:
                check_number(name, value, "[0, inf)")
        if isinstance(fixed_answers, str):
            raise ConfigurationError(
                f"Expected fixed_answers to be a list of answers, got the text {fixed_answers!r}: put it in a list."
            )
        self.price = price
        self.budget = budget
        self.fixed_answers = tuple(fixed_answers)
        self._fixed = frozenset(map(_plain_answer, fixed_answers))

    def fit(  # noqa: PLR0913  (keyword-only costs)
        self,
        verifier_score: ArrayLike,
        small_score: ArrayLike,
        large_score: ArrayLike,
        *,
        small_cost: ArrayLike,
        large_cost: ArrayLike,
        verifier_cost: ArrayLike,
        answers: Sequence[str] | None = None,
    ) -> Self:
        """Fit the rule to n rows that both models answered.

        Parameters
        ----------
        verifier_score : array-like of shape (n,), n >= 1
            In [0, 1]: how sure the verifier is of the small model's answer.
        small_score, large_score : array-like of shape (n,)
            Performance of either model: 0 and 1, or any score in [0, 1].
        small_cost, large_cost, verifier_cost : float or array-like of shape (n,)
            Per row, at least 0, in one unit of any kind; of arrays the mean counts.
        answers : sequence of str of length n, optional
            The small model's answers, needed with `fixed_answers`: rows that are routed anyway teach nothing.

        Returns
        -------
        self

        Raises
        ------
        ConfigurationError
            Lengths differ, NaN, numbers out of range, a large model that costs nothing; or, where the best IBC
            lift is asked for, a large model that is not better or not dearer.
        """
        scores = check_scores("verifier_score", verifier_score)
        costs = (small_cost, large_cost, verifier_cost)
        rows = PairedRows.of(scores, small_score, large_score, costs, name="verifier_score")
        # Rows that are routed anyway would teach that their scores are not to be trusted.
        rows = rows.take(~self._routed_anyway(len(rows.signal), answers))
        if not len(rows.signal):
            raise ConfigurationError(
                "Every row has a fixed answer and is routed anyway: nothing can be learned. Add other rows."
            )
        self._learn(rows)
        self._fitted = True
        return self

    def route(self, verifier_score: ArrayLike, *, answers: Sequence[str] | None = None) -> BoolArray:
        """Return the mask of rows routed to the large model, bool, shape (n,).

        Parameters
        ----------
        verifier_score : array-like of shape (n,)
            In [0, 1]; scores never seen are welcome.
        answers : sequence of str of length n, optional
            The small model's answers, needed with `fixed_answers`.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ConfigurationError
            Bad scores, or missing answers.
        """
        self._require_fitted()
        scores = check_scores("verifier_score", verifier_score)
        return self._routed(scores) | self._routed_anyway(len(scores), answers)

    @abstractmethod
    def _learn(self, rows: PairedRows) -> None: ...

    @abstractmethod
    def _routed(self, scores: FloatArray) -> BoolArray: ...

    def _require_fitted(self) -> None:
        if not self._fitted:
            raise NotFittedError(f"This {type(self).__name__} has learned nothing yet: call fit first.")

    def _routed_anyway(self, n: int, answers: Sequence[str] | None) -> BoolArray:
        """Return the mask of rows routed because their answer is one of `fixed_answers`."""
        if not self._fixed:
            return np.zeros(n, dtype=bool)
        if answers is None or isinstance(answers, str) or len(answers) != n:
            count = answers if answers is None or isinstance(answers, str) else len(answers)
            raise ConfigurationError(
                f"Expected answers of {n} rows for a meta-verifier with fixed_answers, got {count!r}: pass answers=, "
                "the small model's answers to the same rows."
            )
        plain = map(_plain_answer, answers)
        return np.array([answer in self._fixed for answer in plain], dtype=bool)

    def _best_prefix(self, gain: FloatArray, weight: FloatArray, rows: PairedRows) -> int:
        """Return the number of leading groups of rows to route, by price, budget or best IBC lift.

        Parameters
        ----------
        gain, weight : ndarray of shape (G,)
            Expected gain of each group, summed over its rows, and its number of rows, both divided by n.
        rows : PairedRows
            For the costs, and for whether the large model is better.
        """
        gained = np.append(0.0, np.cumsum(gain))
        routed = np.append(0.0, np.cumsum(weight))
        spent = rows.verifier_cost.mean() + rows.large_cost.mean() * routed
        if self.price is not None:
            return int(np.argmax(gained - self.price * spent))
        if self.budget is not None:
            cost = spent + rows.small_cost.mean()
            if self.budget < cost[0]:
                raise ConfigurationError(
                    f"Expected a budget of at least {cost[0]:.6g}, the cost of the small model and its verifier per "
                    f"row, got {self.budget!r}: `routing_frontier` shows what is cheaper."
                )
            # Rounding of the sums must not lose the last group that the budget pays for.
            gained[cost > self.budget * (1.0 + 1e-12)] = -np.inf
            return int(np.argmax(gained))
        _check_lift(rows)
        lift = np.full(len(gained), -np.inf)  # nothing is bought for nothing
        np.divide(gained, spent, out=lift, where=spent > 0.0)
        return int(np.argmax(lift))


def _plain_answer(answer: object) -> str:
    """Return an answer in lower case, without punctuation and English articles, single-spaced."""
    if not isinstance(answer, str):
        raise ConfigurationError(f"Expected an answer to be text, got {answer!r} ({type(answer).__name__}).")
    kept = ""
    for character in answer.lower():
        is_mark = unicodedata.category(character).startswith("P")
        # Some marks that answers hold are symbols to Unicode, not punctuation.
        if not is_mark and character not in "`^$+<=>|~":
            kept += character
    words = _ARTICLES.sub(" ", kept).split()
    return " ".join(words)


def _check_lift(rows: PairedRows) -> None:
    """Refuse rows on which the large model is not both better and more expensive."""
    small = rows.small.mean()
    large = rows.large.mean()
    small_cost = rows.small_cost.mean()
    large_cost = rows.large_cost.mean()
    if large > small and large_cost > small_cost:
        return
    frontier = routing_frontier(
        rows.signal,
        rows.small,
        rows.large,
        small_cost=small_cost,
        large_cost=large_cost,
        verifier_cost=rows.verifier_cost.mean(),
        thresholds_only=True,
    )
    corners = zip(frontier.performance.tolist(), frontier.cost.tolist(), strict=True)
    shown = [f"{performance:.6g} for {cost:.6g}" for performance, cost in corners]
    if len(shown) > _SHOWN:
        shown[_SHOWN - 1 : -1] = ["..."]
    raise ConfigurationError(
        f"No IBC lift is defined here: the large model scores {large:.6g} at a cost of {large_cost:.6g}, the "
        f"small one {small:.6g} at {small_cost:.6g}, and it must be better and dearer. Thresholds "
        f"reach {', '.join(shown)} (see `routing_frontier`): pass price or budget to choose."
    )


class ThresholdMetaVerifier(MetaVerifier):
    """Meta-verifier with a threshold on the verifier's score.

    Parameters and errors are those of `MetaVerifier`.

    Attributes
    ----------
    threshold_ : float
        The least score that is trusted; infinity if none is.

    References
    ----------
    Aggarwal, Madaan et al. (2023). AutoMix: Automatically Mixing Language Models. arXiv:2310.12963.

    Examples
    --------
    >>> from calibrant.cascade import ThresholdMetaVerifier
    >>> sure, small, large = [1, 0.75, 0.5, 0.25], [1, 1, 0, 0], [1, 1, 1, 1]
    >>> rule = ThresholdMetaVerifier().fit(sure, small, large, small_cost=1, large_cost=10, verifier_cost=1)
    >>> rule.threshold_, rule.route([0.9, 0.6]).tolist()
    (0.75, [False, True])
    """

    threshold_: float

    def _learn(self, rows: PairedRows) -> None:
        levels, group = np.unique(rows.signal, return_inverse=True)
        n = len(rows.signal)
        gain = np.bincount(group, weights=rows.gain) / n
        weight = np.bincount(group) / n
        least = np.append(levels, np.inf)
        # The first threshold routes nothing: the lowest level seen is trusted.
        self.threshold_ = float(least[self._best_prefix(gain, weight, rows)])

    def _routed(self, scores: FloatArray) -> BoolArray:
        return scores < self.threshold_


class SelfConsistencyMetaVerifier(MetaVerifier):
    """Meta-verifier that escalates unless most samples of the verifier confirm the answer.

    There is nothing to learn: `fit` checks its rows, and `route` works without it.

    Parameters
    ----------
    fixed_answers : sequence of str, optional
        Answers of the small model that always go on, as for `MetaVerifier`.

    References
    ----------
    Aggarwal, Madaan et al. (2023). AutoMix: Automatically Mixing Language Models. arXiv:2310.12963.

    Examples
    --------
    >>> from calibrant.cascade import SelfConsistencyMetaVerifier
    >>> SelfConsistencyMetaVerifier().route([0.25, 0.5, 0.75]).tolist()
    [True, True, False]
    >>> rule = SelfConsistencyMetaVerifier(fixed_answers=["unanswerable"])
    >>> rule.route([0.75, 0.75], answers=["Paris", "Unanswerable."]).tolist()
    [False, True]
    """

    _fitted = True

    def __init__(self, *, fixed_answers: Sequence[str] = ()) -> None:
        super().__init__(fixed_answers=fixed_answers)

    def _learn(self, rows: PairedRows) -> None:
        """Learn nothing: a majority needs no data."""

    def _routed(self, scores: FloatArray) -> BoolArray:
        return scores <= 0.5


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
    bins: IndexArray
    state: IndexArray
    small: FloatArray
    large: FloatArray

    @classmethod
    def of(cls, verifier: FloatArray, small: FloatArray, large: FloatArray, *, k: int) -> BinnedRows:
        """Sort rows into bins and states."""
        unsolved = np.maximum(small, large) < _SOLVED
        solved = np.where(large > small, State.COMPLEX, State.SIMPLE)
        state = np.where(unsolved, State.UNSOLVABLE, solved).astype(np.intp)
        return cls(k=k, bins=bin_numbers(verifier, k), state=state, small=small, large=large)

    def sums(self, values: FloatArray | None = None) -> FloatArray:
        """Return the row count, or the sum of `values`, in each state and bin, shape (3, k + 1)."""
        cells = self.state * (self.k + 1) + self.bins
        totals = np.bincount(cells, weights=values, minlength=3 * (self.k + 1))
        return totals.reshape(3, self.k + 1).astype(np.float64)


def posterior_gain(prior: FloatArray, observation: FloatArray, gain: FloatArray) -> FloatArray:
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
    gained = joint * (gain[:, None] if gain.ndim == 1 else gain)
    total = max(joint.sum(), np.finfo(np.float64).tiny)
    means = np.full(len(seen), float(gained.sum() / total))
    np.divide(gained.sum(axis=0), seen, out=means, where=seen > 0.0)
    return means


def discrete_belief(rows: BinnedRows, *, smoothing: float) -> tuple[FloatArray, FloatArray]:
    """Return the smoothed P(observation | state) and the gain in each cell, both of shape (3, k + 1).

    To every bin are added `smoothing` rows that look like all rows together: to its counts and to its sums of
    gains separately. By Bayes' rule the posterior mean is then the bin's mean gain, shrunk towards the mean of all.
    """
    counts = rows.sums()
    gains = rows.sums(rows.large - rows.small)
    n = counts.sum()
    joint = counts + smoothing * counts.sum(axis=1, keepdims=True) / n
    gained = gains + smoothing * gains.sum(axis=1, keepdims=True) / n
    total = joint.sum(axis=1, keepdims=True)
    observation = np.full(joint.shape, 1.0 / (rows.k + 1))
    np.divide(joint, total, out=observation, where=total > 0.0)
    return observation, gained / np.where(joint > 0.0, joint, 1.0)


def functional_belief(
    rows: BinnedRows, *, value: Callable[[FloatArray], float]
) -> tuple[FloatArray, FloatArray]:
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
    scores = np.arange(rows.k + 1) / rows.k
    steps = np.log(np.maximum(scores, 0.5 / rows.k))
    counts = rows.sums()

    def judge(gammas: FloatArray) -> tuple[float, float]:
        table = _powers(gammas, steps)
        likelihood = (counts * np.log(table)).sum()
        return round(value(table), 12), float(likelihood)

    gammas = np.array([_likeliest_gamma(row, steps) for row in counts])
    best = judge(gammas)
    for _ in range(_PASSES):
        before = best
        for state, candidate in product(State, _GAMMAS):
            tried = gammas.copy()
            tried[state] = candidate
            merit = judge(tried)
            if merit > best:
                gammas = tried
                best = merit
        if best == before:
            break
    return _powers(gammas, steps), gammas


def _powers(gammas: FloatArray, steps: FloatArray) -> FloatArray:
    weights = np.exp(gammas[:, None] * steps)
    table: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return table


def _likeliest_gamma(counts: FloatArray, steps: FloatArray) -> float:
    """Return the maximum-likelihood gamma >= 0, where expected and observed log v agree."""
    if not counts.sum():
        return 0.0
    observed = float(counts @ steps / counts.sum())
    low = 0.0
    high = _MOST_GAMMA
    for _ in range(60):  # the expectation rises with gamma: halve the interval
        middle = (low + high) / 2.0
        (weights,) = _powers(np.array([middle]), steps)
        if float(weights @ steps) < observed:
            low = middle
        else:
            high = middle
    return low if high < _MOST_GAMMA else _MOST_GAMMA


def continuous_belief(rows: BinnedRows) -> tuple[FloatArray, FloatArray, FloatArray]:
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


def _nodes(scores: FloatArray, k: int) -> list[tuple[IndexArray, FloatArray]]:
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
        self.form = form
        self.k = check_count("k", k, low=1)
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
        half_way = (above + below) / 2.0
        self.price_ = float(max(half_way, 0.0))

    def _describe(self, rows: PairedRows) -> None:
        """Learn prior, observation table and gains in the chosen belief form."""
        binned = BinnedRows.of(rows.signal, rows.small, rows.large, k=self.k)
        if self.form_ == "continuous":
            self.prior_, self.observation_, self.state_gain_ = continuous_belief(binned)
            self.gain_ = posterior_gain(self.prior_, self.observation_, self.state_gain_)
            return
        counts = np.bincount(binned.state, minlength=3)
        self.prior_ = counts / counts.sum()
        gained_in_state = np.bincount(binned.state, weights=rows.gain, minlength=3)
        self.state_gain_ = gain = gained_in_state / np.maximum(counts, 1)
        if self.form_ == "discrete":
            self.observation_, gain = discrete_belief(binned, smoothing=self.smoothing)
        else:
            seen = binned.sums().sum(axis=0)
            gained = binned.sums(rows.gain).sum(axis=0)

            def value(table: FloatArray) -> float:
                return held_out_value(posterior_gain(self.prior_, table, self.state_gain_), gained, seen)

            self.observation_, self.gamma_ = functional_belief(binned, value=value)
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
                count = len(seen.gain)
                expected = trial._gain_at(seen.signal)  # noqa: SLF001
                value = held_out_value(expected, seen.gain, np.ones(count))
                self.form_values_[form] += value * count / n
        return max(_COMPARED, key=self.form_values_.__getitem__)

    def _gain_at(self, scores: FloatArray) -> FloatArray:
        if self.form_ == "continuous":
            nodes = np.arange(self.k + 1) / self.k
            return np.interp(scores, nodes, self.gain_)
        gains: FloatArray = self.gain_[bin_numbers(scores, self.k)]
        return gains

    def gain(self, verifier_score: ArrayLike) -> FloatArray:
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

    def _routed(self, scores: FloatArray) -> BoolArray:
        return self._gain_at(scores) > self.price_ * self.large_cost_


def held_out_value(expected: FloatArray, gained: FloatArray, weight: FloatArray) -> float:
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
    rises = np.bincount(group, weights=gained)[useful]
    height = np.append(0.0, np.cumsum(rises) / n)
    areas = width * (height[1:] + height[:-1]) / 2.0
    flat = 1.0 - float(width.sum())
    return float(areas.sum()) + float(height[-1]) * flat
