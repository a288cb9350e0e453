"""Choice of the best prompt of a search by validation rows: by a score or by a race.

A race compares prompts by the log-likelihood of the true labels after the label prior of each was divided out, as other
rows taught it. It asks all prompts about the same few rows first, then only the better half of them about more, until
the rows that are left would hardly change who wins, or there are none left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._rows import Example
from calibrant.heads._fit import cross_fitted
from calibrant.metrics._classification import AnsweredLabels, classification_summary
from calibrant.metrics._composite import answer_summary

FIRST: Final = 20
"""Rows of the first stage of a race."""

BETTER: Final = 0.5
"""Standard errors by which a prompt must be better at the end of a race."""

_GROWTH: Final = 1.5  # rows of a stage over those of the one before
_MOST: Final = 240  # rows of the last stage: what so many cannot tell apart is alike
_UNLIKELY: Final = 0.1  # chance of being taken at the last row, below which a prompt is out
_LIKELY: Final = 0.98  # chance of that above which it has won
_LOST_EARLY: Final = 0.06  # standard errors that a stage before the last costs in power
_UNEXPLAINED: Final = 0.1  # share of probability that every label gets an even part of

_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RowScores:
    """Accuracy and macro F1 of a prompt on rows without a transport error.

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
class ValidatedPrompt(RowScores):
    """Prompt with its figures on validation rows.

    Attributes
    ----------
    candidate : mapping of str to str
        Its component texts.
    score : float
        Mean score, in [0, 1]: what GEPA climbs.
    rows : int or None
        Validation rows that it was asked about; None where every prompt was asked about all.
    log_loss : float or None
        Loss that a race compares (`PromptStanding.losses`), mean over these rows, in nats; None without a race.
    screened_loss : float or None
        The same on the rows that every prompt was asked about, which chooses who enters the race; None without one.
    origin : str or None
        Which of the prompts that the task gives beside its own this is, such as ``other prompt 1``; None for the task's
        own and for proposals.

    Examples
    --------
    >>> prompt = ValidatedPrompt(
    ...     candidate={"system_prompt": "Sort the payment."}, score=0.8, accuracy=0.75, macro_f1=0.7, credit=None,
    ...     answered_labels=None,
    ... )
    >>> prompt.accuracy
    0.75
    """

    candidate: Mapping[str, str]
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
        candidate: Mapping[str, str],
        rows: Sequence[Mapping[str, object]],
        predictions: Sequence[Prediction],
    ) -> None:
        """Keep the predictions if they are about all validation rows."""
        if [row["input"] for row in rows] == self._inputs:
            self._predictions[frozenset(candidate.items())] = predictions

    def predictions(self, candidate: Mapping[str, str]) -> Sequence[Prediction]:
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
    if type(labels) is LabelSet:
        return []
    return [labels.credit(prediction, example.answer) for example, prediction in answered]


def row_scores(answered: Sequence[tuple[Example, Prediction]], *, labels: LabelSet) -> RowScores:
    """Return accuracy and macro F1 on the rows of `answered_rows`."""
    truth, given = [row.answer for row, _ in answered], [prediction.label for _, prediction in answered]
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
    """Comparison of the best two prompts of a race, each with a head fitted on validation rows.

    Attributes
    ----------
    raced, other : int
        Places of the race's winner and of its runner-up among the validated prompts.
    rows : int
        Validation rows that both heads learned from; each row is judged by a head that other rows taught.
    raced_log_loss, other_log_loss : float
        Mean log loss on these rows, in nats.
    raced_accuracy, other_accuracy : float
        On these rows, in [0, 1].
    chosen : int
        Place of the prompt that is kept: the runner-up, if with the heads it beats the winner as at the end of a race.
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
    """Validated prompts and the position of the best one.

    Attributes
    ----------
    validated : tuple of ValidatedPrompt
        The seed prompt first.
    chosen : int
        Place of the best one.
    runner_up : int or None
        Place of the one that came second in a race; None without one.
    by_head : HeadChoice or None
        Comparison of these two with their heads; None if they were not compared.
    """

    validated: tuple[ValidatedPrompt, ...]
    chosen: int
    runner_up: int | None = None
    by_head: HeadChoice | None = None

    @property
    def seed(self) -> ValidatedPrompt:
        """The seed prompt, with its figures."""
        return self.validated[0]

    @property
    def best(self) -> ValidatedPrompt:
        """The best prompt, with its figures."""
        return self.validated[self.chosen]


def choose(validated: Sequence[ValidatedPrompt]) -> Choice:
    """Choose the best prompt; the seed prompt unless another one is an improvement.

    An improvement is better than the seed prompt in score, in accuracy and in macro F1: a higher score alone may come
    from more confidence in the same answers, and a higher accuracy from answering the most frequent label alone. Where
    an answer can be nearly right its credit takes the place of accuracy, and macro F1, which knows right answers only,
    must not fall. Of several improvements the one with the highest score is best.
    """
    seed = validated[0]
    better = [place for place, found in enumerate(validated) if _is_improvement(found, seed)]
    best = max(better, key=lambda place: (validated[place].score, -place), default=0)
    return Choice(validated=tuple(validated), chosen=best)


def _is_improvement(found: ValidatedPrompt, seed: ValidatedPrompt) -> bool:
    if found.accuracy is None or found.macro_f1 is None or found.score <= seed.score:
        return False
    if found.credit is None:
        return found.accuracy > (seed.accuracy or 0.0) and found.macro_f1 > (seed.macro_f1 or 0.0)
    return found.credit > (seed.credit or 0.0) and found.macro_f1 >= (seed.macro_f1 or 0.0)


@dataclass(frozen=True, kw_only=True)
class PromptStanding:
    """Losses, accuracy and macro F1 of a prompt on some rows.

    Attributes
    ----------
    losses : ndarray of shape (n,)
        Minus the log-likelihood of the true labels, in nats; NaN for a row that was not answered. A tenth of the
        probability is spread evenly over the labels first, so that a confident error, which may be a wrong label in the
        data, does not outweigh everything else.
    accuracy, macro_f1 : float
        Of the labels that are most probable without the label prior, in [0, 1], on the rows that were answered.
    """

    losses: _Floats
    accuracy: float
    macro_f1: float

    @property
    def loss(self) -> float:
        """Mean loss; infinite without an answered row."""
        known = self.losses[~np.isnan(self.losses)]
        return float(known.mean()) if len(known) else math.inf


def standing(
    logprobs: ArrayLike, answers: ArrayLike, *, answered: ArrayLike, labels: LabelSet
) -> PromptStanding:
    """Return losses and figures of a prompt's predictions, corrected for the label prior.

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
    known, truth = np.asarray(answered, dtype=np.bool_), np.asarray(answers, dtype=np.intp)
    losses = np.full(len(known), np.nan)
    if not known.any():
        return PromptStanding(losses=losses, accuracy=0.0, macro_f1=0.0)
    right = truth[known]
    found = cross_fitted(np.asarray(logprobs, dtype=np.float64)[known], right, labels=labels)
    even = np.exp(found[np.arange(len(right)), right])
    losses[known] = -np.log((1.0 - _UNEXPLAINED) * even + _UNEXPLAINED / len(labels))
    best = found.argmax(axis=1)
    summary = classification_summary(
        [labels.labels[place] for place in right], [labels.labels[place] for place in best], labels=labels
    )
    return PromptStanding(losses=losses, accuracy=float((best == right).mean()), macro_f1=summary.macro_f1)


def race(
    n_challengers: int,
    stand: Callable[[int, int], PromptStanding],
    *,
    rows: int,
    affordable: Callable[[Sequence[int], int], bool] = lambda _entrants, _rows: True,
) -> int:
    """Race prompts on growing sets of rows; return the best one's position, 0 for the seed prompt.

    Parameters
    ----------
    n_challengers : int
        Prompts beside the seed prompt; their places are 1 to `n_challengers`, the most promising first.
    stand : callable
        ``(place, n) -> PromptStanding`` on the first n rows; asks what was not asked.
    rows : int
        Rows there are.
    affordable : callable, optional
        ``(places, n) -> bool``: whether all these may be asked about the first n rows. Who cannot be, from the last
        on, is out.

    References
    ----------
    .. [1] O. Maron, A. W. Moore (1994), Hoeffding races. NIPS 6.
    .. [2] K. Jamieson, A. Talwalkar (2016), Non-stochastic best arm identification and hyperparameter optimization.
    .. [3] D. J. Spiegelhalter, L. S. Freedman, P. R. Blackburn (1986), Monitoring clinical trials: conditional or
       predictive power? Controlled Clinical Trials 7.
    """
    alive, found, done = list(range(1, n_challengers + 1)), dict[int, PromptStanding](), 0
    stages = _stages(rows)
    for n in stages:
        entrants = list(alive)
        while entrants and not affordable([0, *entrants], n):
            entrants.pop()
        if not entrants:
            break
        alive = entrants
        found, done = {place: stand(place, n) for place in (0, *alive)}, n
        seed = found[0]
        alive.sort(key=lambda place: (found[place].loss, place))
        chances = {place: _chance(gain(seed, found[place]), n / stages[-1]) for place in alive}
        alive = [place for place in alive[: (len(alive) + 1) // 2] if chances[place] >= _UNLIKELY]
        if len(alive) == 1 and chances[alive[0]] > _LIKELY and not _less_accurate(found[alive[0]], seed):
            return alive[0]
    if not done or not alive:
        return 0
    return alive[0] if beats(found[alive[0]], found[0], errors=BETTER) else 0


def beats(one: PromptStanding, other: PromptStanding, *, errors: float) -> bool:
    """Return True if `one` gains more than `errors` standard errors, without loss of accuracy or F1."""
    return gain(other, one) > errors and not _less_accurate(one, other)


def _less_accurate(one: PromptStanding, other: PromptStanding) -> bool:
    return one.accuracy < other.accuracy or one.macro_f1 < other.macro_f1


def _chance(errors: float, share: float) -> float:
    """Return the probability that a prompt beats the seed prompt at the last row (predictive power).

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


def race_calls(n_challengers: int, rows: int) -> int:
    """Return the maximum number of calls of a race."""
    calls, before, alive = 0, 0, n_challengers
    for n in _stages(rows):
        calls, before, alive = calls + (alive + 1) * (n - before), n, (alive + 1) // 2
    return calls


def detectable_gain(rows: int) -> float:
    """Return the accuracy gain, in [0, 1], that a race detects with a power of 0.8.

    By the normal approximation, where two prompts differ on a quarter of the rows: the square root of 0.25 / n is the
    standard error of the difference, 0.84 the quantile of four in five. A good prompt may be out early: what makes up
    for it was simulated, for 20 to 240 rows.
    """
    errors = BETTER + 0.84 + _LOST_EARLY * (len(_stages(rows)) - 1)
    return min(1.0, errors * math.sqrt(0.25 / min(rows, _MOST)))


def _stages(rows: int) -> list[int]:
    """Return the cumulative number of rows at the end of each stage."""
    last, found, n = min(rows, _MOST), [], float(FIRST)
    while n < last:
        found.append(round(n))
        n *= _GROWTH
    return [*found, last] if last else []


def gain(one: PromptStanding, other: PromptStanding) -> float:
    """Return the mean paired gain of `other` over `one`, in standard errors."""
    each = one.losses - other.losses
    each = each[~np.isnan(each)]
    if len(each) < 2:
        return 0.0
    error, mean = float(each.std(ddof=1)) / math.sqrt(len(each)), float(each.mean())
    if abs(mean) < 1e-9:  # of rounding
        return 0.0
    return math.copysign(math.inf, mean) if error < 1e-12 and mean else mean / max(error, 1e-12)
