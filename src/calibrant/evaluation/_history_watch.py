"""Drift of new predictions against the history of a tuned classifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core._prediction import Prediction
from calibrant.evaluation._drift import Drift, measure_drift
from calibrant.heads._tuned import Decision, Tuned

_SAMPLE: Final = 1000  # confidences compared
_PERMUTATIONS: Final = 9_999
_COUNTS: Final = (
    10_000_000  # counts drawn in all, a second or two: fewer permutations of more than 1,000 labels
)
_CHUNK: Final = 1 << 18  # counts drawn at once
_P_VALUE: Final = 0.01
_LEAST: Final = 0.05  # distances below it are no news, however many rows show them


@dataclass(frozen=True, kw_only=True)
class HistoryDrift:
    """Distances of labels and confidence from the history.

    Attributes
    ----------
    rows, history : int
        Labels compared: new ones, and those of the history. A row may have several.
    shares : mapping of str to (float, float)
        Share of each label in the history and now.
    label_distance : float
        Total variation distance of these shares, in [0, 1].
    label_p_value : float
        Share of permutations (and the rows as they are) at least as far apart: 9,999, of more than 1,000 labels fewer.
    confidence : Drift
        Kolmogorov-Smirnov distance of the confidences, of at most 1,000 rows drawn with a fixed seed.
    """

    rows: int
    history: int
    shares: Mapping[str, tuple[float, float]]
    label_distance: float
    label_p_value: float
    confidence: Drift

    @property
    def labels_drifted(self) -> bool:
        """True if the labels are no longer distributed as in the history."""
        return self.label_p_value < _P_VALUE and self.label_distance >= _LEAST

    @property
    def confidence_drifted(self) -> bool:
        """True if the confidence is no longer distributed as in the history."""
        found = self.confidence
        return (
            found.statistic is not None
            and found.p_value is not None
            and found.p_value < _P_VALUE
            and found.statistic >= _LEAST
        )

    def to_record(self) -> dict[str, Any]:
        """Return the distances as JSON values."""
        flags = {"labels_drifted": self.labels_drifted, "confidence_drifted": self.confidence_drifted}
        return {**asdict(self), **flags}

    def labels_line(self) -> str:
        """Return a line on the labels."""
        moved = sorted(self.shares.items(), key=lambda item: -abs(item[1][1] - item[1][0]))[:3]
        shown = ", ".join(f"{name} {100 * now:.1f} % after {100 * then:.1f} %" for name, (then, now) in moved)
        return (
            f"{_word(drifted=self.labels_drifted)} of the labels against {self.history:,} of the run: distance "
            f"{self.label_distance:.3f}, p = {self.label_p_value:.2g}; {shown}"
        )

    def confidence_line(self) -> str:
        """Return a line on the confidence."""
        found = self.confidence
        numbers = "too few rows"
        if None not in (found.statistic, found.p_value, found.mean, found.history_mean):
            numbers = (
                f"distance {found.statistic:.3f}, p = {found.p_value:.2g}; mean {found.mean:.3f} after "
                f"{found.history_mean:.3f}"
            )
        return f"{_word(drifted=self.confidence_drifted)} of the confidence: {numbers}"


def _word(*, drifted: bool) -> str:
    return "warning: drift" if drifted else "no drift"


class HistoryWatch:
    """Decisions of a tuned classifier, comparing labels and confidence with its history on the way.

    Parameters
    ----------
    tuned : Tuned
        Decides, and has a history of at least one row.
    """

    def __init__(self, tuned: Tuned) -> None:
        self._tuned = tuned
        self._labels = Counter[str]()
        self._confidence = np.empty(0)
        self._keys = np.empty(0)  # random: values with the least ones are a uniform sample
        self._rng = np.random.default_rng(0)

    def decide_many(self, predictions: Sequence[Prediction]) -> Sequence[Decision]:
        """Return the decisions of `Tuned.decide_many`, and remember the predictions."""
        labels = self._tuned.labels
        for found in predictions:
            if found.label is not None:
                self._labels.update(labels.decisions(found.label))
        given = [found.confidence for found in predictions if found.confidence is not None]
        values, keys = np.append(self._confidence, given), np.append(self._keys, self._rng.random(len(given)))
        kept = np.argsort(keys)[:_SAMPLE]
        self._confidence, self._keys = values[kept], keys[kept]
        return self._tuned.decide_many(predictions)

    def drift(self) -> HistoryDrift:
        """Return the drift of all predictions decided on so far."""
        history = self._tuned.history
        names = sorted({*self._labels, *history.labels})
        table = np.array([[found.get(name, 0) for name in names] for found in (history.labels, self._labels)])
        then, now = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
        return HistoryDrift(
            rows=int(table[1].sum()),
            history=int(table[0].sum()),
            shares={name: (float(a), float(b)) for name, a, b in zip(names, then, now, strict=True)},
            label_distance=float(np.abs(now - then).sum() / 2),
            label_p_value=_same_labels(table, self._rng),
            confidence=measure_drift(self._confidence, np.array(history.confidence), rng=self._rng),
        )


def _same_labels(table: NDArray[np.int64], rng: np.random.Generator) -> float:
    """Return the p-value of a permutation test with the total variation distance.

    `table` of shape (2, labels) holds counts. Under the null hypothesis one row, given all sums, is drawn from the
    multivariate hypergeometric distribution.
    """
    whole, total, new = table.sum(axis=0), int(table.sum()), int(table[1].sum())
    if new in {0, total}:
        return 1.0
    # Whole numbers, so that equal distances stay equal.
    observed = np.abs(table[1] * total - whole * new).sum()
    further, step = 0, max(1, _CHUNK // len(whole))
    permutations = min(_PERMUTATIONS, max(_PERMUTATIONS // 10, _COUNTS // len(whole)))
    for start in range(0, permutations, step):
        size = min(step, permutations - start)
        drawn = rng.multivariate_hypergeometric(whole, new, size=size, method="marginals")
        further += int((np.abs(drawn * total - whole * new).sum(axis=1) >= observed).sum())
    return (further + 1) / (permutations + 1)
