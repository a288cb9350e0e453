"""Drift of values and labels against their history: distances with permutation tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import CalibrantError
from calibrant.core._prediction import Prediction
from calibrant.heads._tuned import Decision, Tuned

_PERMUTATIONS: Final = 9_999
_CHUNK: Final = 1 << 18  # elements permuted or counts drawn at once: they stay in the processor's cache

_SAMPLE: Final = 1000  # confidences compared
_COUNTS: Final = (
    10_000_000  # counts drawn in all, a second or two: fewer permutations of more than 1,000 labels
)
_P_VALUE: Final = 0.01
_LEAST: Final = 0.05  # distances below it are no news, however many rows show them


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Distance between new and earlier values, with its p-value.

    Attributes
    ----------
    values, history : int
        Numbers compared: new ones, and those of the history.
    mean, history_mean : float or None
        Their means; None of no values.
    statistic : float or None
        Two-sample Kolmogorov-Smirnov distance in [0, 1]: the largest difference of the two
        distribution functions. None where either side has fewer than two values.
    p_value : float or None
        Share of 9,999 permutations (and the values as they are) at least as far apart; exact up to
        that sampling, however many values are equal. It takes values for independent: use it on
        rows that the history has not seen.
    """

    values: int
    history: int
    mean: float | None
    history_mean: float | None
    statistic: float | None
    p_value: float | None


def measure_drift(
    values: NDArray[np.float64], history: NDArray[np.float64], *, rng: np.random.Generator
) -> Drift:
    """Compare `values` of shape (n,) with `history` of shape (m,): finite, a thousand each at most."""
    n = len(values)
    m = len(history)
    statistic = p_value = None
    if min(n, m) >= 2:
        pooled = np.concatenate([values, history])
        order = np.argsort(pooled)
        # Distribution functions are compared only behind the last of equal values.
        last = np.flatnonzero(np.append(np.diff(pooled[order]) != 0, True))
        new = order < n
        # Whole numbers, n m times the distance: equal distances stay equal.
        observed = int(_distances(new[np.newaxis], last)[0])
        further = 0
        step = max(1, _CHUNK // (n + m))
        for start in range(0, _PERMUTATIONS, step):
            size = min(step, _PERMUTATIONS - start)
            shuffled = rng.permuted(np.broadcast_to(new, (size, n + m)), axis=1)
            distances = _distances(shuffled, last)
            further += int((distances >= observed).sum())
        statistic = observed / (n * m)
        p_value = (further + 1) / (_PERMUTATIONS + 1)
    return Drift(
        values=n,
        history=m,
        mean=float(values.mean()) if n else None,
        history_mean=float(history.mean()) if m else None,
        statistic=statistic,
        p_value=p_value,
    )


def _distances(new: NDArray[np.bool_], last: NDArray[np.intp]) -> NDArray[np.int32]:
    """Return the distance times n times m, for each row of the mask `new` over sorted values.

    With c of the first k values new, the functions differ by c / n - (k - c) / m.
    """
    size = new.shape[1]
    n = int(new[0].sum())
    ours = np.cumsum(new, axis=1, dtype=np.int32)
    if len(last) < size:
        ours = ours[:, last]
    expected = ((last + 1) * n).astype(np.int32)
    distances: NDArray[np.int32] = np.abs(ours * size - expected).max(axis=1)
    return distances


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
        drift = self.confidence
        return (
            drift.statistic is not None
            and drift.p_value is not None
            and drift.p_value < _P_VALUE
            and drift.statistic >= _LEAST
        )

    @property
    def has_drifted(self) -> bool:
        """True if labels or confidence are no longer distributed as in the history."""
        return self.labels_drifted or self.confidence_drifted

    def to_record(self) -> dict[str, Any]:
        """Return the distances as JSON values."""
        flags = {"labels_drifted": self.labels_drifted, "confidence_drifted": self.confidence_drifted}
        return {**asdict(self), **flags}

    def labels_line(self) -> str:
        """Return a line on the labels."""
        moves = {name: abs(now - then) for name, (then, now) in self.shares.items()}
        shown = ", ".join(
            f"{name} {100 * self.shares[name][1]:.1f} % after {100 * self.shares[name][0]:.1f} %"
            for name in sorted(moves, key=lambda name: -moves[name])[:3]
        )
        return (
            f"{_word(drifted=self.labels_drifted)} of the labels against {self.history:,} of the run: distance "
            f"{self.label_distance:.3f}, p = {self.label_p_value:.2g}; {shown}"
        )

    def confidence_line(self) -> str:
        """Return a line on the confidence."""
        drift = self.confidence
        numbers = "too few rows"
        if None not in (drift.statistic, drift.p_value, drift.mean, drift.history_mean):
            numbers = (
                f"distance {drift.statistic:.3f}, p = {drift.p_value:.2g}; mean {drift.mean:.3f} after "
                f"{drift.history_mean:.3f}"
            )
        return f"{_word(drifted=self.confidence_drifted)} of the confidence: {numbers}"


def _word(*, drifted: bool) -> str:
    return "warning: drift" if drifted else "no drift"


@dataclass(kw_only=True)
class _Seen:
    """Predictions decided on so far: their labels, a uniform sample of confidences, and the drift once it is known."""

    labels: Counter[str] = field(default_factory=Counter)
    confidence: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    keys: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # the least ones are kept
    found: HistoryDrift | None = None


class HistoryWatch:
    """Decisions of a tuned classifier, comparing labels and confidence with its history on the way.

    Parameters
    ----------
    tuned : Tuned
        Decides.
    accept_drift : bool, default False
        True to accept answers of rows that are unlike the history, too.

    Attributes
    ----------
    reviews_all : bool
        True once rows that are unlike the history are no longer accepted.
    """

    def __init__(self, tuned: Tuned, *, accept_drift: bool = False) -> None:
        self.reviews_all = False
        self._accept_drift = accept_drift
        self._tuned = tuned
        self._seen = _Seen()
        self._rng = np.random.default_rng(0)

    def decide_many(self, predictions: Sequence[Prediction]) -> Sequence[Decision]:
        """Return the decisions of `Tuned.decide_many`, and remember the predictions."""
        self._seen.found = None
        labels = self._tuned.labels
        for prediction in predictions:
            if prediction.label is not None:
                self._seen.labels.update(labels.decisions(prediction.label))
        given = [prediction.confidence for prediction in predictions if prediction.confidence is not None]
        values = np.append(self._seen.confidence, given)
        keys = np.append(self._seen.keys, self._rng.random(len(given)))
        kept = np.argsort(keys)[:_SAMPLE]
        self._seen.confidence = values[kept]
        self._seen.keys = keys[kept]
        decisions = self._tuned.decide_many(predictions)
        if not self.reviews_all:
            return decisions
        return [replace(decision, accepted=decision.accepted and False) for decision in decisions]

    def decides_anew(self) -> bool:
        """Return True if all rows are to be decided on once more: they drifted, and none of them is accepted now.

        A certificate holds for rows like those it was found on, and no rule of this source has been tried on others.
        """
        if self.reviews_all or self._accept_drift or not self._has_drifted():
            return False
        self.reviews_all = True
        self._seen = _Seen()
        return True

    def _has_drifted(self) -> bool:
        try:
            found = self.drift()
        except CalibrantError:  # whoever asks for the drift later is told
            return False
        return found is not None and found.has_drifted

    def drift(self) -> HistoryDrift | None:
        """Return the drift of all predictions decided on so far; None without a history."""
        if self._seen.found is None:
            self._seen.found = self._drift()
        return self._seen.found

    def _drift(self) -> HistoryDrift | None:
        history = self._tuned.history
        if not history.rows:
            return None
        names = sorted({*self._seen.labels, *history.labels})
        earlier = [history.labels.get(name, 0) for name in names]
        later = [self._seen.labels.get(name, 0) for name in names]
        table = np.array([earlier, later])
        then, now = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
        pairs = zip(then.tolist(), now.tolist(), strict=True)
        return HistoryDrift(
            rows=sum(later),
            history=sum(earlier),
            shares=dict(zip(names, pairs, strict=True)),
            label_distance=float(np.abs(now - then).sum() / 2),
            label_p_value=_same_labels(table, self._rng),
            confidence=measure_drift(self._seen.confidence, np.array(history.confidence), rng=self._rng),
        )


def _same_labels(table: NDArray[np.int64], rng: np.random.Generator) -> float:
    """Return the p-value of a permutation test with the total variation distance.

    `table` of shape (2, labels) holds counts. Under the null hypothesis one row, given all sums, is drawn from the
    multivariate hypergeometric distribution.
    """
    whole = table.sum(axis=0)
    total = int(table.sum())
    new = int(table[1].sum())
    if new in {0, total}:
        return 1.0
    # Whole numbers, so that equal distances stay equal.
    observed = np.abs(table[1] * total - whole * new).sum()
    further = 0
    step = max(1, _CHUNK // len(whole))
    permutations = min(_PERMUTATIONS, max(_PERMUTATIONS // 10, _COUNTS // len(whole)))
    for start in range(0, permutations, step):
        size = min(step, permutations - start)
        drawn = rng.multivariate_hypergeometric(whole, new, size=size, method="marginals")
        distances = np.abs(drawn * total - whole * new).sum(axis=1)
        further += int((distances >= observed).sum())
    return (further + 1) / (permutations + 1)
