"""Figures of bench_better.py, each with its bootstrap, and the bars they are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
METRICS = ("accuracy", "macro F1", "Brier")
Comparison = tuple[str, str]
COMPARISONS: tuple[Comparison, ...] = (
    ("accuracy", "exact"),
    ("accuracy", "text"),
    ("accuracy", "gepa"),
    ("macro F1", "exact"),
    ("macro F1", "text"),
    ("Brier", "exact"),
    ("Brier", "prior"),
    ("Brier", "rung"),
)
LEAST_ABOVE_GEPA = 0.15  # accuracy, mean of the tasks
MOST_BELOW = 0.02  # macro F1, on any task

Draws = NDArray[np.float64]
"""A figure, shape (1 + RESAMPLES,): of the test rows, then of rows drawn from them with replacement."""


class Said(Protocol):
    """What one side said of the test rows; see `bench_better.Side`."""

    said: list[list[int]]
    brier: list[list[float]]


class Figures:
    """Figures of a task's sides on the same drawn rows, those of a row drawn together over seeds.

    Parameters
    ----------
    name : str
        The task; seeds the draws, so that they do not depend on the tasks beside it.
    truth : sequence of int
        Positions of the true labels.
    n_labels : int
        Labels.
    """

    def __init__(self, name: str, truth: Sequence[int], n_labels: int) -> None:
        n = len(truth)
        drawn = np.random.default_rng(list(name.encode())).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
        self._weights = np.vstack([np.ones(n), drawn]) / n
        self._truth, self._n_labels = np.array(truth), n_labels

    def of(self, side: Said, metric: str, *, seeds: int | None = None) -> Draws:
        """Return a figure, mean over the first `seeds` seeds, by default all."""
        if metric == "Brier":
            return self._mean(np.array(side.brier[:seeds]).mean(axis=0))
        said = [np.array(one) for one in side.said[:seeds]]
        if metric == "accuracy":
            return self._mean(np.mean([one == self._truth for one in said], axis=0))
        return np.asarray(np.mean([self._macro_f1(one) for one in said], axis=0))

    def difference(self, sides: Mapping[str, Said], metric: str, other: str) -> Draws:
        """Return the figure of `fitted` minus that of another side, over the seeds that both have."""
        seeds = min(len(sides[name].said) for name in ("fitted", other))
        first, second = (self.of(sides[name], metric, seeds=seeds) for name in ("fitted", other))
        return first - second

    def _macro_f1(self, said: NDArray[np.intp]) -> Draws:
        labels = np.arange(self._n_labels)
        true, given = (self._truth[:, None] == labels), (said[:, None] == labels)
        both = self._mean(true & given)
        either = self._mean(true) + self._mean(given)
        return np.asarray(np.divide(2 * both, either, out=np.zeros_like(both), where=either > 0).mean(axis=1))

    def _mean(self, values: NDArray[Any]) -> Draws:
        return np.asarray(self._weights @ values)


def show(figure: Draws, *, sign: str = "") -> str:
    """Return a figure with its 95 % interval."""
    low, high = interval(figure)
    return f"{figure[0]:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})"


def interval(figure: Draws) -> tuple[float, float]:
    """Return the 95 % interval."""
    low, high = np.quantile(figure[1:], [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Bar:
    """A bar and how it went."""

    text: str
    figure: str
    is_met: bool

    def __str__(self) -> str:
        return f"{'met' if self.is_met else 'missed':7} {self.text}: {self.figure}"


def verdict(found: Mapping[Comparison, Mapping[str, Draws]]) -> list[Bar]:
    """Return the bars on differences, by metric and side and then by task; those without figures are left out."""
    bars = []
    above = found.get(("accuracy", "gepa"))
    if above:
        mean = np.mean(list(above.values()), axis=0)
        text = f"accuracy of fitted - gepa, mean of the tasks, at least +{LEAST_ABOVE_GEPA}"
        bars.append(Bar(text, show(mean, sign="+"), bool(mean[0] >= LEAST_ABOVE_GEPA)))
    for other in ("prior", "rung"):
        text = f"Brier of fitted - {other}, on every task at most 0"
        bars.append(_worst(found["Brier", other], text, is_good=_is_no_higher, sign=-1))
    for other in ("text", "exact"):
        text = f"macro F1 of fitted - {other}, on every task at least -{MOST_BELOW} and not significantly below 0"
        bars.append(_worst(found["macro F1", other], text, is_good=_is_not_below, sign=1))
    return bars


def _worst(tasks: Mapping[str, Draws], text: str, *, is_good: Callable[[Draws], bool], sign: int) -> Bar:
    """Return a bar on every task, with the figure of the worst; a larger `sign` times the figure is better."""
    worst = min(tasks, key=lambda name: sign * tasks[name][0])
    missed = [name for name, figure in tasks.items() if not is_good(figure)]
    figure = f"worst {worst} {show(tasks[worst], sign='+')}"
    return Bar(text, figure + (f"; missed on {', '.join(missed)}" if missed else ""), not missed)


def _is_no_higher(figure: Draws) -> bool:
    return bool(figure[0] <= 1e-9)  # rounding


def _is_not_below(figure: Draws) -> bool:
    return bool(figure[0] >= -MOST_BELOW and interval(figure)[1] >= 0)
