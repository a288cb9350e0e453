"""Figures of bench_better.py, each with its bootstrap over labelled draws and test rows."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

RESAMPLES: Final = 4_000
METRICS: Final = ("accuracy", "macro F1", "Brier")

Shares = NDArray[np.float64]
"""What a side says, shape (draws, rows, labels): probabilities."""
Draws = NDArray[np.float64]
"""A figure, shape (1 + RESAMPLES,): as measured, then resampled."""


class Figures:
    """Figures of a task's sides, all resampled alike: draws of labelled rows, and test rows within them.

    Parameters
    ----------
    name : str
        The task; seeds the resampling, so that it does not depend on the tasks beside it.
    truth : ndarray of int, shape (rows,)
        Positions of the true labels.
    n_labels : int
        Labels.
    n_draws : int
        Draws of labelled rows.
    """

    def __init__(self, name: str, truth: NDArray[np.intp], *, n_labels: int, n_draws: int) -> None:
        rng = np.random.default_rng(list(name.encode()))
        self._rows = _weights(rng, len(truth))
        self._draws = _weights(rng, n_draws)
        self._truth, self._n_labels = truth, n_labels

    def of(self, shares: Shares, metric: str) -> Draws:
        """Return a figure, mean over the draws."""
        if metric == "Brier":
            gap = shares.copy()
            gap[:, np.arange(len(self._truth)), self._truth] -= 1.0
            return self._mean(0.5 * (gap**2).sum(axis=2))
        answers = shares.argmax(axis=2)
        if metric == "accuracy":
            return self._mean((answers == self._truth).astype(float))
        by_draw = np.array([self._macro_f1(one) for one in answers])
        found: Draws = (self._draws.T * by_draw).sum(axis=0)
        return found

    def _macro_f1(self, answers: NDArray[np.intp]) -> Draws:
        labels = np.arange(self._n_labels)
        true, given = self._truth[:, None] == labels, answers[:, None] == labels
        both = self._rows @ (true & given)
        either = self._rows @ (true.astype(float) + given)
        scores = np.divide(2 * both, either, out=np.zeros_like(both), where=either > 0)
        found: Draws = scores.mean(axis=1)
        return found

    def _mean(self, values: NDArray[np.float64]) -> Draws:
        """Return the mean of values, shape (draws, rows)."""
        found: Draws = ((self._draws @ values) * self._rows).sum(axis=1)
        return found


def _weights(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Return shares of n things, shape (1 + RESAMPLES, n): equal first, then as drawn with replacement."""
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    return np.vstack([np.ones(n), drawn]) / n


def show(figure: Draws, *, sign: str = "") -> str:
    """Return a figure with its 95 % interval."""
    low, high = interval(figure)
    return f"{figure[0]:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})"


def interval(figure: Draws) -> tuple[float, float]:
    """Return the 95 % interval."""
    low, high = np.quantile(figure[1:], [0.025, 0.975])
    return float(low), float(high)


def gain(gains: NDArray[np.float64], name: str) -> Draws:
    """Return the mean of gains, shape (draws, rows), resampled over both."""
    rng = np.random.default_rng(list(name.encode()))
    rows, draws = _weights(rng, gains.shape[1]), _weights(rng, len(gains))
    found: Draws = ((draws @ gains) * rows).sum(axis=1)
    return found
