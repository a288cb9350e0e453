"""Meta-verifiers: routing rules on a verifier's scores, learned from rows of two models."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike

from calibrant.cascade.automix._frontier import routing_frontier
from calibrant.cascade.automix._rows import Array, Bools, PairedRows, check_scores
from calibrant.core._errors import ConfigurationError, NotFittedError
from calibrant.metrics._validation import check_number

_SHOWN: Final = 6  # corners of a frontier in a message
_ARTICLES: Final = re.compile(r"\b(?:a|an|the)\b")


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
    >>> isinstance(ThresholdMetaVerifier(), MetaVerifier)
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
        self.price, self.budget = price, budget
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
        scores, costs = (
            check_scores("verifier_score", verifier_score),
            (small_cost, large_cost, verifier_cost),
        )
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

    def route(self, verifier_score: ArrayLike, *, answers: Sequence[str] | None = None) -> Bools:
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
    def _routed(self, scores: Array) -> Bools: ...

    def _require_fitted(self) -> None:
        if not self._fitted:
            raise NotFittedError(f"This {type(self).__name__} has learned nothing yet: call fit first.")

    def _routed_anyway(self, n: int, answers: Sequence[str] | None) -> Bools:
        """Return the mask of rows routed because their answer is one of `fixed_answers`."""
        if not self._fixed:
            return np.zeros(n, dtype=bool)
        if answers is None or isinstance(answers, str) or len(answers) != n:
            count = answers if answers is None or isinstance(answers, str) else len(answers)
            raise ConfigurationError(
                f"Expected answers of {n} rows for a meta-verifier with fixed_answers, got {count!r}: pass answers=, "
                "the small model's answers to the same rows."
            )
        return np.array([_plain_answer(answer) in self._fixed for answer in answers], dtype=bool)

    def _best_prefix(self, gain: Array, weight: Array, rows: PairedRows) -> int:
        """Return the number of leading groups of rows to route, by price, budget or best IBC lift.

        Parameters
        ----------
        gain, weight : ndarray of shape (G,)
            Expected gain of each group, summed over its rows, and its number of rows, both divided by n.
        rows : PairedRows
            For the costs, and for whether the large model is better.
        """
        gained = np.concatenate(([0.0], np.cumsum(gain)))
        spent = rows.verifier_cost.mean() + rows.large_cost.mean() * np.concatenate(
            ([0.0], np.cumsum(weight))
        )
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
            return int(np.argmax(np.where(cost <= self.budget * (1.0 + 1e-12), gained, -np.inf)))
        _check_lift(rows)
        paid = spent > 0.0  # nothing is bought for nothing
        return int(np.argmax(np.where(paid, gained / np.where(paid, spent, 1.0), -np.inf)))


def _plain_answer(answer: object) -> str:
    """Return an answer in lower case, without punctuation and English articles, single-spaced."""
    if not isinstance(answer, str):
        raise ConfigurationError(f"Expected an answer to be text, got {answer!r} ({type(answer).__name__}).")
    # Some marks that answers hold are symbols to Unicode, not punctuation.
    kept = [c for c in answer.lower() if unicodedata.category(c)[0] != "P" and c not in "`^$+<=>|~"]
    return " ".join(_ARTICLES.sub(" ", "".join(kept)).split())


def _check_lift(rows: PairedRows) -> None:
    """Refuse rows on which the large model is not both better and more expensive."""
    small, large = rows.small.mean(), rows.large.mean()
    small_cost, large_cost = rows.small_cost.mean(), rows.large_cost.mean()
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

    def _routed(self, scores: Array) -> Bools:
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

    def _routed(self, scores: Array) -> Bools:
        return scores <= 0.5
