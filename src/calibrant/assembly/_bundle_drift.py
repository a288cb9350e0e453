"""Drift of new predictions against those of a bundle's run."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibrant.assembly._bundle import Bundle
from calibrant.core._composite import CompositeLabels
from calibrant.evaluation._drift import Drift, measure_drift
from calibrant.runs._directory import PREDICTIONS
from calibrant.runs._records import RowFile

_SAMPLE: Final = 1000  # confidences compared
_P_VALUE: Final = 0.01
_LEAST: Final = 0.05  # distances below it are no news, however many rows show them


@dataclass(frozen=True, kw_only=True)
class BundleDrift:
    """Distances of labels and confidence from the bundle's history.

    Attributes
    ----------
    rows, history : int
        Rows with a label: new ones, and those of the history.
    shares : mapping of str to (float, float)
        Share of each label in the history and now.
    label_distance : float
        Total variation distance of these shares, in [0, 1].
    label_p_value : float
        P-value of the chi-squared test that both are drawn alike.
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

    def lines(self) -> list[str]:
        """Return one line on the labels and one on the confidence."""
        moved = sorted(self.shares.items(), key=lambda item: -abs(item[1][1] - item[1][0]))[:3]
        shown = ", ".join(f"{name} {100 * now:.1f} % after {100 * then:.1f} %" for name, (then, now) in moved)
        found = self.confidence
        numbers = "too few rows"
        if None not in (found.statistic, found.p_value, found.mean, found.history_mean):
            numbers = (
                f"distance {found.statistic:.3f}, p = {found.p_value:.2g}; mean {found.mean:.3f} after "
                f"{found.history_mean:.3f}"
            )
        labels = f"distance {self.label_distance:.3f}, p = {self.label_p_value:.2g}; {shown}"
        return [
            f"{_word(drifted=self.labels_drifted)} of the labels against {self.history:,} rows: {labels}",
            f"{_word(drifted=self.confidence_drifted)} of the confidence: {numbers}",
        ]


def _word(*, drifted: bool) -> str:
    return "warning: drift" if drifted else "no drift"


def bundle_drift(bundle: Bundle, directory: Path) -> BundleDrift:
    """Return the drift of the predictions in a run's directory against the bundle's history.

    Parameters
    ----------
    bundle : Bundle
        Has a history of at least one row.
    directory : Path
        Directory of the run.
    """
    counts, confidence = Counter[str](), array("d")
    for _, row in RowFile(directory / PREDICTIONS, finished=False).rows():
        if row.label is not None:
            labels = bundle.labels
            counts.update(labels.decisions(row.label) if isinstance(labels, CompositeLabels) else [row.label])
        if row.confidence == row.confidence:
            confidence.append(row.confidence)
    rng = np.random.default_rng(0)
    values = np.array(confidence)
    if len(values) > _SAMPLE:
        values = rng.choice(values, _SAMPLE, replace=False)
    history = bundle.history.labels
    names = sorted({*counts, *history})
    table = np.array(
        [[found.get(name, 0) for name in names] for found in (history, counts)], dtype=np.float64
    )
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1.0)
    return BundleDrift(
        rows=int(table[1].sum()),
        history=int(table[0].sum()),
        shares={name: (float(then), float(now)) for name, then, now in zip(names, *shares, strict=True)},
        label_distance=float(np.abs(shares[1] - shares[0]).sum() / 2),
        label_p_value=_same_labels(table),
        confidence=measure_drift(values, np.array(bundle.history.confidence), rng=rng),
    )


def _same_labels(table: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Return the p-value of the chi-squared test of homogeneity for counts of shape (2, labels)."""
    if not table.sum(axis=1).all():
        return 1.0
    from scipy.stats import chi2_contingency  # noqa: PLC0415 (heavy)

    return float(chi2_contingency(table, correction=False).pvalue)
