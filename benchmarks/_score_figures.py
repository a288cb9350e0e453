"""Figures of the scoreboard, each resampled over draws of labelled rows and over test rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from _better_figures import Draws
from _contenders import Answered
from _decision_sets import Array
from bench_decisions import Places, brier_rows

from calibrant.calibration import certify_threshold

RESAMPLES: Final = 1_000
BINS: Final = 15
TARGET: Final = 0.9
DELTA: Final = 0.05
"""Of the certificates; the default of `calibrant calibrate`."""


class Resampled:
    """Figures of answers to the same test rows, all resampled alike.

    Parameters
    ----------
    name : str
        The set; seeds the resampling, so that it does not depend on the sets beside it.
    truth : ndarray of int, shape (n,)
        Positions of the true labels.
    n_draws : int
        Draws of labelled rows.
    n_resamples : int, default 1,000
        Resamples.
    """

    def __init__(self, name: str, truth: Places, *, n_draws: int, n_resamples: int = RESAMPLES) -> None:
        rng = np.random.default_rng(list(name.encode()))
        self.truth = truth
        self._rows = _counts(rng, len(truth), n_resamples)
        self._draws = _counts(rng, n_draws, n_resamples) / n_draws
        # Half of the test rows certify, another half in each draw; the other half is accepted or not.
        self._certifies = np.array(
            [_half(len(truth), np.random.default_rng(draw)) for draw in range(n_draws)]
        )
        self._harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, len(truth) + 1))])

    def accuracy(self, answers: Sequence[Answered]) -> Draws:
        """Return the share of right labels."""
        return self._mean(self._right(answers))

    def brier(self, answers: Sequence[Answered]) -> Draws:
        """Return the halved Brier score."""
        return self._mean(np.array([brier_rows(one.shares, self.truth) for one in answers]))

    def ece(self, answers: Sequence[Answered]) -> Draws:
        """Return the expected calibration error of the confidence, in 15 bins of equal width, closed on the right."""
        return self._by_draw(self._ece, [one.confidence for one in answers], self._right(answers))

    def aurc(self, answers: Sequence[Answered], scores: Sequence[Array] | None = None) -> Draws:
        """Return the area under the curve of risk and coverage, by the confidence or by other scores of the rows."""
        ranked = [one.confidence for one in answers] if scores is None else scores
        return self._by_draw(self._aurc, ranked, self._right(answers))

    def kept(self, answers: Sequence[Answered]) -> tuple[Draws, float]:
        """Return the share that a certificate accepts, and the share of right labels among all accepted rows."""
        right = self._right(answers)
        accepted = np.array(
            [
                _accepted(one.confidence, was_right, certifies)
                for one, was_right, certifies in zip(answers, right, self._certifies, strict=True)
            ]
        )
        judged = ~self._certifies
        share: Draws = self._mean(accepted & judged) / self._mean(judged)
        n_accepted = int((accepted & judged).sum())
        return share, float((right * accepted * judged).sum() / n_accepted) if n_accepted else float("nan")

    def _right(self, answers: Sequence[Answered]) -> Array:
        return np.array([(one.labels == self.truth).astype(float) for one in answers])

    def _mean(self, values: Array) -> Draws:
        """Return the mean of values of shape (draws, n)."""
        found: Draws = ((self._draws @ values) * self._rows).sum(axis=1) / len(self.truth)
        return found

    def _by_draw(
        self, figure: Callable[[Array, Array], Draws], scores: Sequence[Array], right: Array
    ) -> Draws:
        by_draw = [figure(*pair) for pair in zip(scores, right, strict=True)]
        found: Draws = (self._draws.T * np.array(by_draw)).sum(axis=0)
        return found

    def _ece(self, confidence: Array, right: Array) -> Draws:
        place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
        gaps = np.zeros((len(right), BINS))
        gaps[np.arange(len(right)), place] = confidence - right
        found: Draws = np.abs(self._rows @ gaps).sum(axis=1) / len(right)
        return found

    def _aurc(self, scores: Array, right: Array) -> Draws:
        """Return the mean, over k, of the expected share of errors among the first k rows, ties in random order.

        With E errors among the N rows before m tied ones, whose share of errors is r, these add the sum over j = 1..m
        of (E + j r) / (N + j) = m r + (E - r N) (H(N + m) - H(N)), H the harmonic numbers.
        """
        order = np.argsort(-scores, kind="stable")
        starts = np.flatnonzero(np.diff(scores[order], prepend=np.inf))
        counts = self._rows[:, order]
        tied = np.add.reduceat(counts, starts, axis=1)
        errors = np.add.reduceat(counts * (1.0 - right[order]), starts, axis=1)
        behind = np.cumsum(tied, axis=1)
        before = behind - tied
        errors_before = np.cumsum(errors, axis=1) - errors
        share = np.divide(errors, tied, out=np.zeros_like(errors), where=tied > 0)
        spread = self._harmonic[behind.astype(int)] - self._harmonic[before.astype(int)]
        found: Draws = (errors + (errors_before - share * before) * spread).sum(axis=1) / len(right)
        return found


def _counts(rng: np.random.Generator, n: int, n_resamples: int) -> Array:
    """Return how often each of n things counts, shape (1 + resamples, n): once first, then as drawn."""
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=n_resamples)
    return np.vstack([np.ones(n), drawn])


def _half(n: int, rng: np.random.Generator) -> np.ndarray:
    mask = np.zeros(n, dtype=bool)
    mask[rng.permutation(n)[: n // 2]] = True
    return mask


def _accepted(confidence: Array, right: Array, certifies: np.ndarray) -> np.ndarray:
    """Return which rows reach the threshold that some of them certify."""
    threshold = certify_threshold(
        confidence[certifies], right[certifies], target_accuracy=TARGET, delta=DELTA
    ).threshold
    if threshold is None:
        return np.zeros(len(right), dtype=bool)
    return confidence >= threshold
