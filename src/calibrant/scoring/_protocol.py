"""Interface of a scoring strategy, as the adapter calls it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from calibrant.core._prediction import LabelDistribution


@runtime_checkable
class ScoringStrategy(Protocol):
    """Function from one graded answer and its log-probability to a score.

    A strategy of your own needs only the two methods below.

    Examples
    --------
    >>> from calibrant.scoring import ScoringStrategy
    >>> class Accuracy:
    ...     def score(self, is_correct, logprob_score, *, distribution=None, answer=None):
    ...         return float(is_correct)
    ...     def describe(self):
    ...         return "accuracy"
    >>> isinstance(Accuracy(), ScoringStrategy), Accuracy().score(True, -0.1)
    (True, 1.0)
    """

    def score(
        self,
        is_correct: bool,
        logprob_score: float | None,
        *,
        distribution: LabelDistribution | None = None,
        answer: str | None = None,
    ) -> float:
        """Return the score of one answer, in [0, 1], higher is better.

        Parameters
        ----------
        is_correct : bool
            Whether the predicted label is the true one.
        logprob_score : float or None
            Natural logarithm of the confidence in the predicted label, in [-inf, 0]; None where
            the answer came without log-probabilities.
        distribution : LabelDistribution, optional
            The distribution over all labels, where there is one.
        answer : str, optional
            The true label.
        """
        ...

    def describe(self) -> str:
        """Return one line for a log: the rule and its parameters."""
        ...
