"""Scores of the predicted label's probability: 0 for a wrong answer, less for an unsure right one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from calibrant.core._prediction import LabelDistribution
from calibrant.metrics._validation import check_number
from calibrant.scoring._validation import check_logprob, format_number

# Probabilities are compared with a threshold as logarithms, with this much slack: the sum of a
# few hundred rounded token log-probabilities is off by less, and no provider reports as finely.
# It is a relative slack of 1e-12 on the probability, so exp(log(0.99)) counts as 0.99.
_LOG_SLACK = 1e-12


class _ProbabilityScoring(ABC):
    """Base of the three strategies: incorrect 0, correct without log-probabilities 1, else a rising curve."""

    @abstractmethod
    def _curve(self, logprob: float) -> float:
        """Return the score of a correct answer."""

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
        logprob = logprob_score if logprob_score <= 0.0 else check_logprob(logprob_score)
        return self._curve(logprob) if is_correct else 0.0


@dataclass(frozen=True)
class LinearBlendScoring(_ProbabilityScoring):
    """Score with a floor for correct answers, plus a share that grows linearly with their probability.

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
        """Return one line for a log: the rule and its parameters."""
        return (
            f"linear blend: a correct answer scores 1 from probability "
            f"{format_number(self.low_confidence_threshold)} on, below it falls linearly to "
            f"{format_number(self.min_score_on_correct)}"
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
        return 1.0 if logprob >= math.log(self.threshold) - _LOG_SLACK else 0.0

    def describe(self) -> str:
        """Return one line for a log: the rule and its parameters."""
        return (
            f"threshold: a correct answer scores 1 from probability "
            f"{format_number(self.threshold)} on, 0 below"
        )


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
        """Return one line for a log: the rule and its parameters."""
        return (
            f"sigmoid: a correct answer scores 0.5 at probability {format_number(self.midpoint)}, "
            f"rising with steepness {format_number(self.steepness)}"
        )


def _check_field(strategy: _ProbabilityScoring, name: str, interval: str) -> None:
    object.__setattr__(strategy, name, check_number(name, getattr(strategy, name), interval))
