"""Proper scores: the whole distribution against the true label.

A proper score is highest, in expectation, for a model that reports the true probabilities. So a wrong
answer that left some probability to the true label scores above 0, and a right answer that was a toss-up
scores below 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import normalise_label
from calibrant.core._prediction import LabelDistribution
from calibrant.metrics._validation import check_number
from calibrant.scoring._validation import check_logprob, format_number


class _ProperScoring(ABC):
    """Base of the proper scores: reads distribution and answer, and holds the rule for missing evidence."""

    @abstractmethod
    def _formula(self, probabilities: NDArray[np.float64], true_probability: float) -> float:
        """Return the score from probabilities (L,) and the true label's probability."""

    def score(
        self,
        is_correct: bool,
        logprob_score: float | None,
        *,
        distribution: LabelDistribution | None = None,
        answer: str | None = None,
    ) -> float:
        """Return the score of one answer, in [0, 1].

        Parameters
        ----------
        is_correct : bool
            Used only without a distribution: correct 1, incorrect 0.
        logprob_score : float or None
            Checked but not used.
        distribution : LabelDistribution, optional
            The distribution over all labels. Without one only the label can be scored (see
            `is_correct`).
        answer : str, optional
            The true label, compared without regard to case and surrounding space; needed with a
            distribution.

        Raises
        ------
        ConfigurationError
            A distribution comes without an answer, the answer is not one of its labels, or the
            log-probability is NaN or more than 1e-6 above 0.
        """
        if logprob_score is not None:
            check_logprob(logprob_score)
        if distribution is None:
            return 1.0 if is_correct else 0.0
        index = _answer_index(distribution, answer)
        probabilities = distribution.probabilities
        return min(1.0, max(0.0, self._formula(probabilities, float(probabilities[index]))))


@dataclass(frozen=True)
class BrierScoring(_ProperScoring):
    """One minus half the squared distance between the distribution and the true label.

    ``1 - sum((p - onehot)^2) / 2``: 1 for certainty on the true label, 0 for certainty on
    another. Strictly proper (Brier 1950; Gneiting and Raftery 2007, section 3.1). Without a
    distribution: correct 1, incorrect 0.

    Examples
    --------
    >>> BrierScoring().score(True, None)
    1.0
    """

    def _formula(self, probabilities: NDArray[np.float64], true_probability: float) -> float:
        # sum((p - onehot)^2) = sum(p^2) - 2 p_true + 1
        return 0.5 + true_probability - 0.5 * float(probabilities @ probabilities)

    def describe(self) -> str:
        """Return one line for a log: the rule and its parameters."""
        return "Brier: 1 - half the squared error of the whole distribution against the true label"


@dataclass(frozen=True)
class LogScoring(_ProperScoring):
    """The true label's log-probability, mapped onto [0, 1].

    ``1 + max(ln p_true, ln m) / |ln m|`` with m = `min_probability`: 1 for probability 1, 0 for
    m and below. The logarithmic score (Good 1952; Gneiting and Raftery 2007, section 3.1) is
    unbounded; cutting it at m makes it fit [0, 1], but it is then not quite proper: a report that
    withdraws probability from labels rarer than about e * m can gain up to ``L * m / |ln m|`` in
    expectation (L labels; 4e-5 for four labels with the default). Where that matters use
    `BrierScoring`. Without a distribution: correct 1, incorrect 0.

    Parameters
    ----------
    min_probability : float in (0, 1), default 1e-4
        The probability of the true label that scores 0.

    Raises
    ------
    ConfigurationError
        `min_probability` is not a number or outside its range.

    Examples
    --------
    >>> from calibrant.logprobs import extract_distribution
    >>> from calibrant.scoring import LogScoring
    >>> from calibrant.testing import fake_response
    >>> response = fake_response("Food", probabilities={"Food": 0.9, "Rent": 0.1})
    >>> distribution = extract_distribution(response, ["Food", "Rent"], "category")
    >>> round(LogScoring().score(False, None, distribution=distribution, answer="Rent"), 3)  # 1 - ln 10 / ln 10,000
    0.75
    """

    min_probability: float = 1e-4

    def __post_init__(self) -> None:
        value = check_number("min_probability", self.min_probability, "(0, 1)")
        object.__setattr__(self, "min_probability", value)

    def _formula(self, probabilities: NDArray[np.float64], true_probability: float) -> float:
        del probabilities
        return 1.0 - math.log(max(true_probability, self.min_probability)) / math.log(self.min_probability)

    def describe(self) -> str:
        """Return one line for a log: the rule and its parameters."""
        return (
            f"log score: log-probability of the true label, from 0 at probability "
            f"{format_number(self.min_probability)} to 1 at probability 1"
        )


@lru_cache(maxsize=64)
def _columns(labels: tuple[str, ...]) -> dict[str, int]:
    return {normalise_label(label): column for column, label in enumerate(labels)}


def _answer_index(distribution: LabelDistribution, answer: str | None) -> int:
    if answer is None:
        raise ConfigurationError("Expected the true label with a distribution, got None: pass answer=.")
    index = _columns(distribution.labels).get(normalise_label(answer))
    if index is None:
        known = ", ".join(repr(label) for label in distribution.labels[:10])
        more = ", ..." if len(distribution.labels) > 10 else ""
        msg = f"Expected answer to be one of the labels {known}{more}, got {answer!r}."
        raise ConfigurationError(msg)
    return index
