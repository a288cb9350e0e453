"""Proper scores: the whole distribution against the true label.

A proper score is highest, in expectation, for a model that reports the true probabilities. So a wrong
answer that left some probability to the true label scores above 0, and a right answer that was a toss-up
scores below 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core import ConfigurationError, LabelDistribution, normalise_label
from calibrant.scoring._validation import (
    LogprobBatch,
    check_correct,
    check_logprob,
    check_logprobs,
    check_parameter,
    format_number,
)

__all__ = ["BrierScoring", "LogScoring"]

# Rows of probabilities may be float32 or rounded to a few decimals.
_SUM_TOLERANCE = 1e-3

LabelProbabilities = NDArray[np.float64] | Sequence[Sequence[float] | NDArray[np.float64] | None]


class _ProperScoring(ABC):
    """Base of the proper scores: reads distribution and answer, and holds the rule for missing evidence."""

    @abstractmethod
    def _formula(
        self, probabilities: NDArray[np.float64], true_probability: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the score from probabilities (..., L) and the true label's probability (...)."""

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
        return min(1.0, max(0.0, float(self._formula(probabilities, probabilities[index]))))

    def score_many(
        self,
        is_correct: ArrayLike,
        logprob_score: LogprobBatch,
        *,
        label_probabilities: LabelProbabilities | None = None,
        answer_index: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """Return the scores of n answers, shape (n,), in [0, 1].

        Parameters
        ----------
        is_correct : array-like of shape (n,)
            Used only in rows without a distribution: correct 1, incorrect 0.
        logprob_score : array of float or sequence of (float or None), shape (n,)
            Checked but not used; None marks a row without log-probabilities.
        label_probabilities : array of shape (n, L) or sequence of n rows, optional
            Each row a distribution over the L labels; None in place of a row marks one without.
        answer_index : array-like of int, shape (n,), optional
            Column of the true label; needed with `label_probabilities`, ignored in rows without.

        Raises
        ------
        ConfigurationError
            Shapes differ, a row is not a distribution (NaN, outside [0, 1], sum more than 1e-3
            from 1), an index is out of range, or a log-probability is invalid.
        """
        logprob, _ = check_logprobs(logprob_score)
        n = len(logprob)
        scores = check_correct(is_correct, n=n).astype(np.float64)
        if label_probabilities is None:
            return scores
        present, table = _check_table(label_probabilities, n=n)
        if not present.any():
            return scores
        index = _check_index(answer_index, present=present, n_labels=table.shape[1])
        true_probability = np.take_along_axis(table, index[:, None], axis=1)[:, 0]
        scores[present] = np.clip(self._formula(table, true_probability), 0.0, 1.0)
        return scores


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

    def _formula(
        self, probabilities: NDArray[np.float64], true_probability: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        # sum((p - onehot)^2) = sum(p^2) - 2 p_true + 1
        squares = np.einsum("...l,...l->...", probabilities, probabilities)
        result: NDArray[np.float64] = 0.5 + true_probability - 0.5 * squares
        return result

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
    """

    min_probability: float = 1e-4

    def __post_init__(self) -> None:
        value = check_parameter("min_probability", self.min_probability, interval="(0, 1)")
        object.__setattr__(self, "min_probability", value)

    def _formula(
        self, probabilities: NDArray[np.float64], true_probability: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        del probabilities
        floor = math.log(self.min_probability)
        result: NDArray[np.float64] = 1.0 - np.log(np.maximum(true_probability, self.min_probability)) / floor
        return result

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


def _check_table(
    label_probabilities: LabelProbabilities, *, n: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return a mask of the n rows that have a distribution, (n,), and their distributions, (n_present, L)."""
    if len(label_probabilities) != n:
        msg = f"Expected label_probabilities of {n} rows, like logprob_score, got {len(label_probabilities)}."
        raise ConfigurationError(msg)
    present = np.array([row is not None for row in label_probabilities], dtype=bool)
    rows = [row for row in label_probabilities if row is not None]
    try:
        table = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        msg = f"Expected label_probabilities of shape (n, L), numbers only: {error}."
        raise ConfigurationError(msg) from error
    if not rows:
        return present, table
    if table.ndim != 2 or table.shape[1] < 2:
        msg = f"Expected label_probabilities of shape (n, L) with L >= 2, got {table.shape}."
        raise ConfigurationError(msg)
    legal = (table >= 0.0).all(axis=1) & (np.abs(table.sum(axis=1) - 1.0) <= _SUM_TOLERANCE)
    if not legal.all():
        row = int(np.flatnonzero(present)[np.argmin(legal)])
        msg = f"Row {row} of label_probabilities: expected numbers in [0, 1] that sum to 1."
        raise ConfigurationError(msg)
    return present, table


def _check_index(
    answer_index: ArrayLike | None, *, present: NDArray[np.bool_], n_labels: int
) -> NDArray[np.intp]:
    """Return the true label's column in each row that has a distribution."""
    if answer_index is None:
        raise ConfigurationError("Expected the true labels with label_probabilities: pass answer_index=.")
    index = np.asarray(answer_index)
    if index.shape != present.shape or not np.issubdtype(index.dtype, np.integer):
        msg = (
            f"Expected answer_index to be integers of shape {present.shape}, got {index.dtype} {index.shape}."
        )
        raise ConfigurationError(msg)
    chosen = index[present].astype(np.intp)
    if ((chosen < 0) | (chosen >= n_labels)).any():
        msg = f"Expected answer_index in [0, {n_labels - 1}], got {chosen.min()} to {chosen.max()}."
        raise ConfigurationError(msg)
    return chosen
