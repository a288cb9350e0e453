"""Race between prompts by paired differences and successive halving, on few rows.

Prompts are compared by the log-likelihood of the true labels after the label prior of each was divided out, as other
rows taught it. A race asks all prompts about the same few rows first, then only the better half of them about more,
until the rows that are left would hardly change who wins, or there are none left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._labels import LabelSet
from calibrant.heads._fit import cross_fitted
from calibrant.metrics._classification import classification_summary

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
class PromptStanding:
    """Losses and figures of a prompt on some rows.

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
    """Return the standing of a prompt's distributions, corrected for the label prior.

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
    """Return the position of the best prompt; 0, the seed prompt, unless it is beaten.

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
    """Return True if one prompt is better by enough standard errors, without loss of accuracy or F1."""
    return gain(other, one) > errors and not _less_accurate(one, other)


def _less_accurate(one: PromptStanding, other: PromptStanding) -> bool:
    return one.accuracy < other.accuracy or one.macro_f1 < other.macro_f1


def _chance(errors: float, share: float) -> float:
    """Return the chance that a prompt is taken at the last row, in [0, 1]: the predictive power.

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
    """Return the accuracy gain detected with a power of 0.8, in [0, 1].

    By the normal approximation, where two prompts differ on a quarter of the rows: the square root of 0.25 / n is the
    standard error of the difference, 0.84 the quantile of four in five. A good prompt may be out early: what makes up
    for it was simulated, for 20 to 240 rows.
    """
    errors = BETTER + 0.84 + _LOST_EARLY * (len(_stages(rows)) - 1)
    return min(1.0, errors * math.sqrt(0.25 / min(rows, _MOST)))


def _stages(rows: int) -> list[int]:
    """Return the number of rows up to the end of each stage."""
    last, found, n = min(rows, _MOST), [], float(FIRST)
    while n < last:
        found.append(round(n))
        n *= _GROWTH
    return [*found, last] if last else []


def gain(one: PromptStanding, other: PromptStanding) -> float:
    """Return the mean paired gain of the other prompt in standard errors; positive if it is better."""
    each = one.losses - other.losses
    each = each[~np.isnan(each)]
    if len(each) < 2:
        return 0.0
    error, mean = float(each.std(ddof=1)) / math.sqrt(len(each)), float(each.mean())
    if abs(mean) < 1e-9:  # of rounding
        return 0.0
    return math.copysign(math.inf, mean) if error < 1e-12 and mean else mean / max(error, 1e-12)
