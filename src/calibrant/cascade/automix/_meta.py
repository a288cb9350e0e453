"""Meta-verifiers: from a verifier's score to the model whose answer is used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from calibrant.cascade._checks import check_real
from calibrant.cascade.automix._answers import normalised_answer
from calibrant.cascade.automix._frontier import routing_frontier
from calibrant.cascade.automix._hull import rising_hull
from calibrant.cascade.automix._routing_checks import Array, Bools, check_costs, check_rows, check_scores
from calibrant.core._errors import ConfigurationError, NotFittedError

_SHOWN = 6  # corners of a frontier in a message


class MetaVerifier(Protocol):
    """Learns from answers of both models which verifier scores of the small one are to be trusted."""

    def fit(
        self,
        verifier_score: ArrayLike,
        small_score: ArrayLike,
        large_score: ArrayLike,
        *,
        small_cost: ArrayLike,
        large_cost: ArrayLike,
        verifier_cost: ArrayLike,
    ) -> Self:
        """Learn from n rows that both models answered."""
        ...

    def route(self, verifier_score: ArrayLike) -> Bools:
        """Return which rows go on to the large model, shape (n,)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Rows that both models answered, checked; costs are means per row."""

    verifier: Array
    small: Array
    large: Array
    small_cost: float
    large_cost: float
    verifier_cost: float

    @property
    def gain(self) -> Array:
        """The large model's score minus the small one's, shape (n,)."""
        return self.large - self.small

    def take(self, rows: Bools) -> Paired:
        """Return these rows alone, at the same costs."""
        return Paired(
            verifier=self.verifier[rows],
            small=self.small[rows],
            large=self.large[rows],
            small_cost=self.small_cost,
            large_cost=self.large_cost,
            verifier_cost=self.verifier_cost,
        )


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a policy is chosen for: a price, a budget, or the best IBC lift where neither is given."""

    price: float | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.price is not None and self.budget is not None:
            msg = f"Expected price or budget, got both ({self.price!r}, {self.budget!r}): pass one of them."
            raise ConfigurationError(msg)
        for name, value in (("price", self.price), ("budget", self.budget)):
            if value is not None:
                check_real(name, value, low=0.0)

    def best_prefix(self, gain: Array, weight: Array, rows: Paired) -> int:
        """Return how many of the ordered groups of rows to route.

        Parameters
        ----------
        gain, weight : ndarray of shape (G,)
            Expected gain of each group, summed over its rows, and its number of rows, both divided by n.
        rows : Paired
            For the costs, and for whether the large model is better.
        """
        gained = np.concatenate(([0.0], np.cumsum(gain)))
        spent = rows.verifier_cost + rows.large_cost * np.concatenate(([0.0], np.cumsum(weight)))
        if self.price is not None:
            return int(np.argmax(gained - self.price * spent))
        if self.budget is not None:
            return self._within(gained, spent + rows.small_cost)
        _check_ibc(rows)
        paid = spent > 0.0  # nothing is bought for nothing
        return int(np.argmax(np.where(paid, gained / np.where(paid, spent, 1.0), -np.inf)))

    def _within(self, gained: Array, cost: Array) -> int:
        assert self.budget is not None  # noqa: S101  (for the type checker)
        if self.budget < cost[0]:
            msg = (
                f"Expected a budget of at least {cost[0]:.6g}, what the small model and its verifier cost per row, got "
                f"{self.budget!r}: `routing_frontier` shows what is cheaper."
            )
            raise ConfigurationError(msg)
        affordable = cost <= self.budget * (1.0 + 1e-12)
        return int(np.argmax(np.where(affordable, gained, -np.inf)))


def _check_ibc(rows: Paired) -> None:
    """Refuse a large model that is not better or not dearer; what can be had instead is part of the message."""
    small, large = rows.small.mean(), rows.large.mean()
    if large > small and rows.large_cost > rows.small_cost:
        return
    found = routing_frontier(
        rows.verifier,
        rows.small,
        rows.large,
        small_cost=rows.small_cost,
        large_cost=rows.large_cost,
        verifier_cost=rows.verifier_cost,
        thresholds_only=True,
    )
    corners = zip(found.performance.tolist(), found.cost.tolist(), strict=True)
    shown = [f"{performance:.6g} for {cost:.6g}" for performance, cost in corners]
    if len(shown) > _SHOWN:
        shown[_SHOWN - 1 : -1] = ["..."]
    msg = (
        f"No IBC lift is defined here: the large model scores {large:.6g} at a cost of {rows.large_cost:.6g}, the "
        f"small one {small:.6g} at {rows.small_cost:.6g}, and it must be better and dearer. Thresholds "
        f"reach {', '.join(shown)} (see `routing_frontier`): pass price or budget to choose."
    )
    raise ConfigurationError(msg)


def prices_between(worth: Array) -> Array:
    """Return a price above all positive break points in `worth`, one between each two, and 0; falling.

    Parameters
    ----------
    worth : ndarray of shape (m,)
        Gain per cost at which a group of rows begins to be routed, falling strictly.
    """
    levels = worth[worth > 0.0]
    if not len(levels):
        return np.zeros(1)
    return np.concatenate(([2.0 * levels[0]], (levels[1:] + levels[:-1]) / 2.0, [0.0]))


class LearnedRouting(ABC):
    """What meta-verifiers share: checks, fixed answers, and the choice of a policy."""

    def __init__(self, *, fixed_answers: Sequence[str] = ()) -> None:
        if isinstance(fixed_answers, str):
            msg = f"Expected fixed_answers to be a list of answers, got the text {fixed_answers!r}: put it in a list."
            raise ConfigurationError(msg)
        self.fixed_answers = tuple(fixed_answers)
        self._fixed = frozenset(normalised_answer(answer) for answer in fixed_answers)

    def fit(  # noqa: PLR0913  (the seam's signature)
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
        """Learn from n rows that both models answered.

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
        verifier = check_scores("verifier_score", verifier_score)
        small, large = check_scores("small_score", small_score), check_scores("large_score", large_score)
        n = check_rows(verifier_score=verifier, small_score=small, large_score=large)
        rows = Paired(
            verifier=verifier,
            small=small,
            large=large,
            small_cost=float(check_costs("small_cost", small_cost, n).mean()),
            large_cost=float(check_costs("large_cost", large_cost, n, positive=True).mean()),
            verifier_cost=float(check_costs("verifier_cost", verifier_cost, n).mean()),
        )
        free = ~self._always(n, answers)
        if not free.all():
            rows = rows.take(free)
        if not len(rows.verifier):
            msg = "Every row has a fixed answer and is routed anyway: nothing can be learned. Add other rows."
            raise ConfigurationError(msg)
        self._learn(rows)
        return self

    @abstractmethod
    def _learn(self, rows: Paired) -> None: ...

    def _always(self, n: int, answers: Sequence[str] | None) -> Bools:
        """Return which of n rows are routed for their answer alone."""
        if not self._fixed:
            return np.zeros(n, dtype=bool)
        if answers is None:
            msg = "This meta-verifier has fixed_answers: pass answers=, the small model's answers to the same rows."
            raise ConfigurationError(msg)
        if isinstance(answers, str) or len(answers) != n:
            msg = f"Expected {n} answers, one per row, got {answers if isinstance(answers, str) else len(answers)!r}."
            raise ConfigurationError(msg)
        return np.array([normalised_answer(answer) in self._fixed for answer in answers], dtype=bool)


class PricedRouting(LearnedRouting):
    """What meta-verifiers share that route at any price.

    Attributes
    ----------
    prices_ : ndarray of shape (m,)
        One price, falling, for each policy some price leads to.
    """

    prices_: Array

    def route(
        self,
        verifier_score: ArrayLike,
        *,
        price: float | None = None,
        answers: Sequence[str] | None = None,
    ) -> Bools:
        """Return which rows go on to the large model, shape (n,).

        Parameters
        ----------
        verifier_score : array-like of shape (n,)
            In [0, 1]; scores never seen are welcome.
        price : float, optional
            Another price than the one of the fit, at least 0.
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
        worth = None if price is None else check_real("price", price, low=0.0)
        return self._routed(scores, worth) | self._always(len(scores), answers)

    @abstractmethod
    def _routed(self, scores: Array, price: float | None) -> Bools: ...

    def _require_fitted(self) -> None:
        if not hasattr(self, "prices_"):
            raise NotFittedError(f"This {type(self).__name__} has learned nothing yet: call fit first.")


class ThresholdMetaVerifier(PricedRouting):
    """Trusts the small model from a threshold of its verifier's score on.

    Parameters
    ----------
    price : float, optional
        Performance that one unit of cost must bring.
    budget : float, optional
        Most that a row may cost on average, small model and verifier included; met on the training rows. With
        neither, the threshold of the best IBC lift is chosen.
    fixed_answers : sequence of str, optional
        Answers of the small model that always go on, compared whole after `normalised_answer`.

    Attributes
    ----------
    threshold_ : float
        The least score that is trusted; infinity if none is.
    prices_ : ndarray of shape (m,)
        One price, falling, for each policy some price leads to: ``route(..., price=p)`` over them is the whole
        curve.

    References
    ----------
    Aggarwal, Madaan et al. (2023). AutoMix: Automatically Mixing Language Models. arXiv:2310.12963.
    """

    threshold_: float

    def __init__(
        self, *, price: float | None = None, budget: float | None = None, fixed_answers: Sequence[str] = ()
    ) -> None:
        super().__init__(fixed_answers=fixed_answers)
        self.price, self.budget = price, budget
        self._goal = Goal(price=price, budget=budget)

    def _learn(self, rows: Paired) -> None:
        levels, group = np.unique(rows.verifier, return_inverse=True)
        n = len(rows.verifier)
        gain = np.bincount(group, weights=rows.gain) / n
        weight = np.bincount(group) / n
        least = np.append(levels, np.inf)
        # The first threshold routes nothing: the lowest level seen is trusted.
        self.threshold_ = float(least[self._goal.best_prefix(gain, weight, rows)])
        gained = np.concatenate(([0.0], np.cumsum(gain)))
        cost = rows.large_cost * np.concatenate(([0.0], np.cumsum(weight)))
        self._corners = rising_hull(cost, gained)
        worth = np.diff(gained[self._corners]) / np.diff(cost[self._corners])
        self._worth, self._least = worth, least
        self.prices_ = prices_between(worth)

    def _routed(self, scores: Array, price: float | None) -> Bools:
        threshold = self.threshold_
        if price is not None:
            taken = int(np.count_nonzero(self._worth > price))
            threshold = float(self._least[self._corners[taken]])
        return scores < threshold


class SelfConsistencyMetaVerifier(LearnedRouting):
    """Trusts the small model where more than half of its verifier's samples do; a tie escalates.

    Parameters
    ----------
    fixed_answers : sequence of str, optional
        Answers of the small model that always go on, compared whole after `normalised_answer`.

    Notes
    -----
    There is nothing to learn: `fit` checks its rows, and `route` works without it.

    References
    ----------
    Aggarwal, Madaan et al. (2023). AutoMix: Automatically Mixing Language Models. arXiv:2310.12963.
    """

    def _learn(self, rows: Paired) -> None:
        """Learn nothing: a majority needs no data."""

    def route(self, verifier_score: ArrayLike, *, answers: Sequence[str] | None = None) -> Bools:
        """Return which rows go on to the large model, shape (n,): those with scores of at most 0.5.

        Raises
        ------
        ConfigurationError
            Scores outside [0, 1], or missing answers.
        """
        scores = check_scores("verifier_score", verifier_score)
        return (scores <= 0.5) | self._always(len(scores), answers)
