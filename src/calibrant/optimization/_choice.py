"""Choice of the best candidate of a search by validation rows: by a score or by a race.

A candidate is a prompt under comparison; the first one is the seed. A race compares candidates by the log-likelihood of
the true labels after the label prior of each was divided out, as other rows taught it. It asks all candidates about the
same few rows first, then only the better half of them about more, until the rows that are left would hardly change who
wins, or there are none left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core._labels import LabelSet
from calibrant.core._prediction import FloatArray, Outcome, Prediction
from calibrant.core._rows import Example
from calibrant.heads._fit import cross_fitted
from calibrant.metrics._classification import AnsweredLabels, classification_summary
from calibrant.metrics._structure import answer_summary
from calibrant.optimization._prompt_parts import CandidateTexts

FIRST: Final = 20
"""Rows of the first stage of a race."""

BETTER: Final = 0.5
"""Standard errors by which a candidate must be better than the seed at the end of a race."""

_GROWTH: Final = 1.5  # rows of a stage over those of the one before
_MOST: Final = 240  # rows of the last stage: what so many cannot tell apart is alike
_UNLIKELY: Final = 0.1  # chance of being taken at the last row, below which a candidate is out
_LIKELY: Final = 0.98  # chance of that above which it has won
_LOST_EARLY: Final = 0.06  # standard errors that a stage before the last costs in power
_UNEXPLAINED: Final = 0.1  # share of probability that every label gets an even part of


@dataclass(frozen=True, kw_only=True)
class RowScores:
    """Accuracy and macro F1 of a candidate on rows without a transport error.

    Attributes
    ----------
    accuracy, macro_f1 : float or None
        Share of right answers, and mean F1 over all labels, in [0, 1]; None without rows.
    credit : float or None
        Mean part of the answers that is right, in [0, 1], where an answer can be nearly right; None elsewhere.
    answered_labels : AnsweredLabels or None
        Numbers of the labels that were answered; None without rows.
    """

    accuracy: float | None
    macro_f1: float | None
    credit: float | None
    answered_labels: AnsweredLabels | None


@dataclass(frozen=True, kw_only=True)
class ValidatedCandidate(RowScores):
    """Candidate with its figures on validation rows.

    Attributes
    ----------
    candidate : mapping of str to str
        Its component texts.
    score : float
        Mean score, in [0, 1]: what GEPA climbs.
    rows : int or None
        Validation rows that it was asked about; None where every candidate was asked about all.
    log_loss : float or None
        Loss that a race compares (`CandidateStanding.losses`), mean over these rows, in nats; None without a race.
    screened_loss : float or None
        The same on the rows that every candidate was asked about, which chooses who is raced; None without one.
    origin : str or None
        Which of the prompts that the task gives beside its own this is, such as ``other prompt 1``; None for the
        seed and for proposals.

    Examples
    --------
    >>> prompt = ValidatedCandidate(
    ...     candidate={"system_prompt": "Sort the payment."}, score=0.8, accuracy=0.75, macro_f1=0.7, credit=None,
    ...     answered_labels=None,
    ... )
    >>> prompt.accuracy
    0.75
    """

    candidate: CandidateTexts
    score: float
    rows: int | None = None
    log_loss: float | None = None
    screened_loss: float | None = None
    origin: str | None = None


class ValidationLog:
    """Observer that keeps the predictions on all validation rows, by candidate.

    What a search saw is what its scores are made of: a row that failed may be answered when it is asked again.

    Parameters
    ----------
    examples : sequence of Example
        The validation rows.
    """

    def __init__(self, examples: Sequence[Example]) -> None:
        self._inputs = [example.input for example in examples]
        self._predictions: dict[frozenset[tuple[str, str]], Sequence[Prediction]] = {}

    def observe(
        self,
        candidate: CandidateTexts,
        rows: Sequence[Mapping[str, object]],
        predictions: Sequence[Prediction],
    ) -> None:
        """Keep the predictions if they are about all validation rows."""
        if [row["input"] for row in rows] == self._inputs:
            self._predictions[frozenset(candidate.items())] = predictions

    def predictions(self, candidate: CandidateTexts) -> Sequence[Prediction]:
        """Return the predictions of a validated candidate, in the order of the rows."""
        return self._predictions[frozenset(candidate.items())]


def answered_rows(
    examples: Sequence[Example], predictions: Sequence[Prediction]
) -> list[tuple[Example, Prediction]]:
    """Return the rows that did not fail with a transport error, with their predictions."""
    pairs = zip(examples, predictions, strict=True)
    return [pair for pair in pairs if pair[1].outcome is not Outcome.ERROR]


def credits_of(answered: Sequence[tuple[Example, Prediction]], labels: LabelSet) -> list[float]:
    """Return the credit of each answered row; an empty list for plain labels (credit is accuracy)."""
    if labels.is_plain:
        return []
    return [labels.credit(prediction, example.answer) for example, prediction in answered]


def row_scores(answered: Sequence[tuple[Example, Prediction]], *, labels: LabelSet) -> RowScores:
    """Return accuracy and macro F1 on the rows of `answered_rows`."""
    truth = [row.answer for row, _ in answered]
    given = [prediction.label for _, prediction in answered]
    summary = answer_summary(labels, truth, given)
    credit = credits_of(answered, labels)
    return RowScores(
        accuracy=sum(map(eq, truth, given)) / len(truth) if truth else None,
        macro_f1=None if summary is None else summary.macro_f1,
        credit=sum(credit) / len(credit) if credit else None,
        answered_labels=None if summary is None else summary.answered_labels,
    )


@dataclass(frozen=True, kw_only=True)
class HeadChoice:
    """Comparison of the best two candidates of a race, each with a head fitted on validation rows.

    Attributes
    ----------
    raced, other : int
        Positions of the race's winner and of the second among the validated candidates.
    rows : int
        Validation rows that both heads learned from; each row is judged by a head that other rows taught.
    raced_log_loss, other_log_loss : float
        Mean log loss on these rows, in nats.
    raced_accuracy, other_accuracy : float
        On these rows, in [0, 1].
    chosen : int
        Position of the candidate that is kept: the second, if with the heads it beats the winner as a race ends.
    """

    raced: int
    other: int
    rows: int
    raced_log_loss: float
    other_log_loss: float
    raced_accuracy: float
    other_accuracy: float
    chosen: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Validated candidates and the position of the best one.

    Attributes
    ----------
    validated : tuple of ValidatedCandidate
        The seed first.
    chosen : int
        Position of the best one.
    second : int or None
        Position of the one that came second in a race; None without one.
    by_head : HeadChoice or None
        Comparison of these two with their heads; None if they were not compared.
    """

    validated: tuple[ValidatedCandidate, ...]
    chosen: int
    second: int | None = None
    by_head: HeadChoice | None = None

    @property
    def seed(self) -> ValidatedCandidate:
        """The seed, with its figures."""
        return self.validated[0]

    @property
    def best(self) -> ValidatedCandidate:
        """The best candidate, with its figures."""
        return self.validated[self.chosen]


def choose(validated: Sequence[ValidatedCandidate]) -> Choice:
    """Choose the best candidate; the seed unless another one is an improvement.

    An improvement is better than the seed in score, in accuracy and in macro F1: a higher score alone may come
    from more confidence in the same answers, and a higher accuracy from answering the most frequent label alone. Where
    an answer can be nearly right its credit takes the place of accuracy, and macro F1, which knows right answers only,
    must not fall. Of several improvements the one with the highest score is best.
    """
    seed = validated[0]
    better = [position for position, candidate in enumerate(validated) if _is_improvement(candidate, seed)]
    best = max(better, key=lambda position: (validated[position].score, -position), default=0)
    return Choice(validated=tuple(validated), chosen=best)


def _is_improvement(candidate: ValidatedCandidate, seed: ValidatedCandidate) -> bool:
    if candidate.accuracy is None or candidate.macro_f1 is None or candidate.score <= seed.score:
        return False
    if candidate.credit is None:
        return candidate.accuracy > (seed.accuracy or 0.0) and candidate.macro_f1 > (seed.macro_f1 or 0.0)
    return candidate.credit > (seed.credit or 0.0) and candidate.macro_f1 >= (seed.macro_f1 or 0.0)


@dataclass(frozen=True, kw_only=True)
class CandidateStanding:
    """Losses, accuracy and macro F1 of a candidate on some rows.

    Attributes
    ----------
    losses : ndarray of shape (n,)
        Minus the log-likelihood of the true labels, in nats; NaN for a row that was not answered. A tenth of the
        probability is spread evenly over the labels first, so that a confident error, which may be a wrong label in the
        data, does not outweigh everything else.
    accuracy, macro_f1 : float
        Of the labels that are most probable without the label prior, in [0, 1], on the rows that were answered.
    """

    losses: FloatArray
    accuracy: float
    macro_f1: float

    @property
    def loss(self) -> float:
        """Mean loss; infinite without an answered row."""
        known = self.losses[~np.isnan(self.losses)]
        if len(known):
            return float(known.mean())
        return math.inf


def standing(
    logprobs: ArrayLike, answers: ArrayLike, *, answered: ArrayLike, labels: LabelSet
) -> CandidateStanding:
    """Return losses and figures of a candidate's predictions, corrected for the label prior.

    Parameters
    ----------
    logprobs : array-like of shape (n, L)
        Natural logarithms.
    answers : array-like of int, shape (n,)
        Positions of the true labels.
    answered : array-like of bool, shape (n,)
        False for rows that failed with a transport error.
    labels : LabelSet
        The labels.
    """
    known = np.asarray(answered, dtype=np.bool_)
    truth = np.asarray(answers, dtype=np.intp)
    losses = np.full(len(known), np.nan)
    if not known.any():
        return CandidateStanding(losses=losses, accuracy=0.0, macro_f1=0.0)
    right = truth[known]
    answered_logprobs = np.asarray(logprobs, dtype=np.float64)[known]
    corrected = cross_fitted(answered_logprobs, right, labels=labels)
    likelihoods = np.exp(corrected[np.arange(len(right)), right])
    losses[known] = -np.log((1.0 - _UNEXPLAINED) * likelihoods + _UNEXPLAINED / len(labels))
    best = corrected.argmax(axis=1)
    true_labels = [labels.labels[place] for place in right]
    best_labels = [labels.labels[place] for place in best]
    summary = classification_summary(true_labels, best_labels, labels=labels)
    return CandidateStanding(losses=losses, accuracy=float((best == right).mean()), macro_f1=summary.macro_f1)


def race(
    n_candidates: int,
    stand: Callable[[int, int], CandidateStanding],
    *,
    rows: int,
    affordable: Callable[[Sequence[int], int], bool] = lambda _candidates, _rows: True,
) -> int:
    """Race candidates on growing sets of rows; return the best one's position, 0 for the seed.

    Parameters
    ----------
    n_candidates : int
        Candidates beside the seed; their positions are 1 to `n_candidates`, the most promising first.
    stand : callable
        ``(position, n) -> CandidateStanding`` on the first n rows; asks what was not asked.
    rows : int
        Rows there are.
    affordable : callable, optional
        ``(positions, n) -> bool``: whether all these may be asked about the first n rows. Candidates that cannot be,
        from the last on, are out.

    References
    ----------
    .. [1] O. Maron, A. W. Moore (1994), Hoeffding races. NIPS 6.
    .. [2] K. Jamieson, A. Talwalkar (2016), Non-stochastic best arm identification and hyperparameter optimization.
    .. [3] D. J. Spiegelhalter, L. S. Freedman, P. R. Blackburn (1986), Monitoring clinical trials: conditional or
       predictive power? Controlled Clinical Trials 7.
    """
    remaining = list(range(1, n_candidates + 1))
    standings: dict[int, CandidateStanding] = {}
    stages = _stages(rows)
    for n in stages:
        paid = list(remaining)
        while paid and not affordable([0, *paid], n):
            paid.pop()
        if not paid:
            break
        standings = {position: stand(position, n) for position in (0, *paid)}
        seed = standings[0]
        ranked = sorted(paid, key=lambda position: (standings[position].loss, position))
        chances = {position: _chance(gain(seed, standings[position]), n / stages[-1]) for position in ranked}
        better_half = ranked[: (len(ranked) + 1) // 2]
        remaining = [position for position in better_half if chances[position] >= _UNLIKELY]
        if len(remaining) == 1:
            (last,) = remaining
            if chances[last] > _LIKELY and not _less_accurate(standings[last], seed):
                return last
    if not standings or not remaining:
        return 0
    best = remaining[0]
    if beats(standings[best], standings[0], errors=BETTER):
        return best
    return 0


def beats(candidate: CandidateStanding, other: CandidateStanding, *, errors: float) -> bool:
    """Return True if a candidate gains more than `errors` standard errors, without loss of accuracy or F1."""
    return gain(other, candidate) > errors and not _less_accurate(candidate, other)


def _less_accurate(candidate: CandidateStanding, other: CandidateStanding) -> bool:
    return candidate.accuracy < other.accuracy or candidate.macro_f1 < other.macro_f1


def _chance(errors: float, share: float) -> float:
    """Return the probability that a candidate beats the seed at the last row (predictive power).

    Parameters
    ----------
    errors : float
        Its gain so far in standard errors.
    share : float
        Rows asked over rows up to the last one, in (0, 1].

    Notes
    -----
    Given the gain z so far, and with any true gain as likely as another before, the gain at the last row is normal in
    its standard errors, with mean z / sqrt(share) and variance (1 - share) / share.
    """
    if share >= 1.0:
        return float(errors > BETTER)
    return NormalDist().cdf((errors - BETTER * math.sqrt(share)) / math.sqrt(1.0 - share))


def race_calls(n_candidates: int, rows: int) -> int:
    """Return the maximum number of calls of a race."""
    calls = asked_rows = 0
    remaining = n_candidates
    for n in _stages(rows):
        calls += (remaining + 1) * (n - asked_rows)
        asked_rows = n
        remaining = (remaining + 1) // 2
    return calls


def detectable_gain(rows: int) -> float:
    """Return the accuracy gain, in [0, 1], that a race detects with a power of 0.8.

    By the normal approximation, where two candidates differ on a quarter of the rows: the square root of 0.25 / n is
    the standard error of the difference, 0.84 the quantile of four in five. A good candidate may be out early: what
    makes up for it was simulated, for 20 to 240 rows.
    """
    errors = BETTER + 0.84 + _LOST_EARLY * (len(_stages(rows)) - 1)
    return min(1.0, errors * math.sqrt(0.25 / min(rows, _MOST)))


def _stages(rows: int) -> list[int]:
    """Return the cumulative number of rows at the end of each stage."""
    last = min(rows, _MOST)
    ends: list[int] = []
    n = float(FIRST)
    while n < last:
        ends.append(round(n))
        n *= _GROWTH
    return [*ends, last] if last else []


def gain(base: CandidateStanding, other: CandidateStanding) -> float:
    """Return the mean paired gain of `other` over `base`, in standard errors."""
    gains = base.losses - other.losses
    gains = gains[~np.isnan(gains)]
    if len(gains) < 2:
        return 0.0
    mean = float(gains.mean())
    error = float(gains.std(ddof=1)) / math.sqrt(len(gains))
    if abs(mean) < 1e-9:  # of rounding
        return 0.0
    if error < 1e-12:
        return math.copysign(math.inf, mean)
    return mean / error
