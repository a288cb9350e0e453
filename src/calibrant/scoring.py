"""Scoring strategies: by the probability of the answer, and proper scores of the distribution.

A proper score is highest, in expectation, for a model that reports the true probabilities. So a wrong
answer that left some probability to the true label scores above 0, and a right answer that was a toss-up
scores below 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import normalise_label
from calibrant.core._prediction import FloatArray, LabelDistribution
from calibrant.metrics._validation import check_number

__all__ = [
    "BrierScoring",
    "LinearBlendScoring",
    "LogScoring",
    "ScoringStrategy",
    "SigmoidScoring",
    "ThresholdScoring",
]


# Sums of rounded token log-probabilities can end a little above 0.
_POSITIVE_TOLERANCE = 1e-6
# Probabilities are compared with a threshold as logarithms, with this much slack: the sum of a
# few hundred rounded token log-probabilities is off by less, and no provider reports as finely.
# It is a relative slack of 1e-12 on the probability, so exp(log(0.99)) counts as 0.99.
_LOG_SLACK = 1e-12
# The label prior of a prompt is a running mean: the same answers score otherwise by about 1e-16, in another order.
_ROUNDING = 1e-9


@runtime_checkable
class ScoringStrategy(Protocol):
    """Protocol of objects that score one graded answer by its log-probability or distribution.

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
        """Return the rule and its parameters as one line for a log."""
        ...


class _ProbabilityScoring(ABC):
    """Base class of scores that rise with the probability of a correct answer; others score 0."""

    @abstractmethod
    def _curve(self, logprob: float) -> float:
        """Return the score of a correct answer with this log-probability."""

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
            Whether the predicted label is the true one; if not, the score is 0.
        logprob_score : float or None
            Natural logarithm of the confidence, in [-inf, 0] (up to 1e-6 above 0 counts as 0).
            None, no log-probabilities, gives a correct answer 1.
        distribution, answer
            Not used; accepted so that strategies can replace each other.

        Raises
        ------
        ConfigurationError
            The log-probability is NaN or more than 1e-6 above 0.
        """
        del distribution, answer
        if logprob_score is None:
            return 1.0 if is_correct else 0.0
        logprob = logprob_score if logprob_score <= 0.0 else _checked_logprob(logprob_score)
        return self._curve(logprob) if is_correct else 0.0


@dataclass(frozen=True)
class LinearBlendScoring(_ProbabilityScoring):
    """Score correct answers from a minimum, rising linearly with probability to 1 at a threshold.

    With p the probability: 1 where p >= `low_confidence_threshold`, else
    ``min_score + (1 - min_score) * p / threshold``. Continuous. Incorrect 0, correct without
    log-probability 1.

    Parameters
    ----------
    low_confidence_threshold : float in (0, 1], default 0.5
        The probability from which a correct answer earns 1; a relative 1e-12 below it still
        counts as reaching it.
    min_score_on_correct : float in [0, 1), default 0.3
        Score of a correct answer of probability 0.

    Raises
    ------
    ConfigurationError
        A parameter is not a number or outside its range.

    Examples
    --------
    >>> round(LinearBlendScoring(0.99).score(True, math.log(0.95)), 3)
    0.972
    """

    low_confidence_threshold: float = 0.5
    min_score_on_correct: float = 0.3

    def __post_init__(self) -> None:
        _check_field(self, "low_confidence_threshold", "(0, 1]")
        _check_field(self, "min_score_on_correct", "[0, 1)")

    def _curve(self, logprob: float) -> float:
        log_threshold = math.log(self.low_confidence_threshold)
        shortfall = 0.0 if logprob >= log_threshold - _LOG_SLACK else logprob - log_threshold
        return self.min_score_on_correct + (1.0 - self.min_score_on_correct) * math.exp(shortfall)

    def describe(self) -> str:
        """Return the rule and its parameters as one line for a log."""
        return (
            f"linear blend: a correct answer scores 1 from probability "
            f"{_shown(self.low_confidence_threshold)} on, below it falls linearly to "
            f"{_shown(self.min_score_on_correct)}"
        )


@dataclass(frozen=True)
class ThresholdScoring(_ProbabilityScoring):
    """Score of 1 for a correct answer whose probability reaches the threshold, else 0.

    Incorrect 0, correct without log-probability 1.

    Parameters
    ----------
    threshold : float in (0, 1], default 0.7
        The probability an answer must reach; a relative 1e-12 below it still counts.

    Raises
    ------
    ConfigurationError
        The threshold is not a number or outside its range.

    Examples
    --------
    >>> ThresholdScoring(0.99).score(True, math.log(0.95))
    0.0
    """

    threshold: float = 0.7

    def __post_init__(self) -> None:
        _check_field(self, "threshold", "(0, 1]")

    def _curve(self, logprob: float) -> float:
        if logprob >= math.log(self.threshold) - _LOG_SLACK:
            return 1.0
        return 0.0

    def describe(self) -> str:
        """Return the rule and its parameters as one line for a log."""
        return f"threshold: a correct answer scores 1 from probability {_shown(self.threshold)} on, 0 below"


@dataclass(frozen=True)
class SigmoidScoring(_ProbabilityScoring):
    """Score of ``1 / (1 + exp(-steepness * (p - midpoint)))`` for a correct answer of probability p.

    Incorrect 0, correct without log-probability 1. Note that a probability of 1 earns less than
    1: 0.993 with the defaults.

    Parameters
    ----------
    midpoint : float in (0, 1), default 0.5
        The probability that earns 0.5.
    steepness : float in (0, inf), default 10
        Four times the slope at the midpoint, per unit of probability.

    Raises
    ------
    ConfigurationError
        A parameter is not a number or outside its range.

    Examples
    --------
    >>> round(SigmoidScoring(0.95, 50).score(True, math.log(0.97)), 2)
    0.73
    """

    midpoint: float = 0.5
    steepness: float = 10.0

    def __post_init__(self) -> None:
        _check_field(self, "midpoint", "(0, 1)")
        _check_field(self, "steepness", "(0, inf)")

    def _curve(self, logprob: float) -> float:
        z = self.steepness * (math.exp(logprob) - self.midpoint)
        # The exponent is never positive, so nothing overflows: sigmoid(z) = 1 / (1 + exp(-z)) for
        # z >= 0 and exp(z) / (1 + exp(z)) for z < 0.
        tail = math.exp(-abs(z))
        return (1.0 if z >= 0 else tail) / (1.0 + tail)

    def describe(self) -> str:
        """Return the rule and its parameters as one line for a log."""
        return (
            f"sigmoid: a correct answer scores 0.5 at probability {_shown(self.midpoint)}, "
            f"rising with steepness {_shown(self.steepness)}"
        )


class _ProperScoring(ABC):
    """Base class of proper scores, with the rule for answers without a distribution."""

    @abstractmethod
    def _formula(self, probabilities: FloatArray, true_probability: float) -> float:
        """Return the score from the probabilities, shape (L,), and that of the true label."""

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
            _checked_logprob(logprob_score)
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

    def _formula(self, probabilities: FloatArray, true_probability: float) -> float:
        # sum((p - onehot)^2) = sum(p^2) - 2 p_true + 1
        return 0.5 + true_probability - 0.5 * float(probabilities @ probabilities)

    def describe(self) -> str:
        """Return the rule and its parameters as one line for a log."""
        return "Brier: 1 - half the squared error of the whole distribution against the true label"


@dataclass(frozen=True)
class LogScoring(_ProperScoring):
    """Log-probability of the true label, mapped linearly onto [0, 1] above a minimum probability.

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
        _check_field(self, "min_probability", "(0, 1)")

    def _formula(self, probabilities: FloatArray, true_probability: float) -> float:
        del probabilities
        return 1.0 - math.log(max(true_probability, self.min_probability)) / math.log(self.min_probability)

    def describe(self) -> str:
        """Return the rule and its parameters as one line for a log."""
        return (
            f"log score: log-probability of the true label, from 0 at probability "
            f"{_shown(self.min_probability)} to 1 at probability 1"
        )


@lru_cache(maxsize=64)
def is_higher(score: float, other: float) -> bool:
    """Return True if a score is higher than another by more than rounding."""
    return score - other > _ROUNDING


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


def _check_field(strategy: object, name: str, interval: str) -> None:
    object.__setattr__(strategy, name, check_number(name, getattr(strategy, name), interval))


def _checked_logprob(logprob_score: float) -> float:
    """Return a log-probability in [-inf, 0]; up to 1e-6 above 0 counts as rounding.

    Raises
    ------
    ConfigurationError
        NaN or more than 1e-6 above 0.
    """
    number = float(logprob_score)
    if number <= 0.0:
        return number
    if number <= _POSITIVE_TOLERANCE:
        return 0.0
    if math.isnan(number):
        raise ConfigurationError(
            "Expected a log-probability in [-inf, 0], got NaN: pass None where there is none."
        )
    raise ConfigurationError(
        f"Expected a log-probability in [-inf, 0], got {number!r}: pass the natural logarithm of the confidence, not "
        "the confidence itself."
    )


def _shown(value: float) -> str:
    """Return a number as text for a log line, with six significant digits."""
    return repr(float(f"{value:.6g}"))
