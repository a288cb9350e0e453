"""Figures of the report page, computed from arrays; `_charts` and `_html` render them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration._scaling import held_out_answer_probability
from calibrant.core._prediction import Interval, Outcome
from calibrant.metrics._classification import ClassificationSummary
from calibrant.metrics._confidence import aurc, auroc_interval, brier_score, expected_calibration_error
from calibrant.metrics._intervals import (
    PairedComparison,
    paired_comparison,
    paired_mean_interval,
    wilson_interval,
)
from calibrant.metrics._remarks import confidence_remarks, zero_width_remark
from calibrant.metrics._structure import CompositeMetrics, StructureFigure, structure_metrics
from calibrant.reports._rows import PromptRows, read_distributions
from calibrant.runs._rows import UNKNOWN

RELIABILITY_BINS: Final = 15
CONFIDENCE_BINS: Final = 20
LATENCY_BINS: Final = 24
CURVE_POINTS: Final = 200
RESAMPLES: Final = 1000
HeadlineFigure: TypeAlias = StructureFigure
MOST_NUMBERS: Final = 4_000_000  # probabilities in memory, 32 MB: of more rows, as many as fit are ranked


class Bin(NamedTuple):
    """Rows of similar confidence.

    Attributes
    ----------
    lower, upper : float
        Ends of the bin, in [0, 1]; the upper one belongs to it.
    rows : int
        Number of rows, at least 1.
    confidence : float
        Their mean confidence.
    accuracy : Interval
        Share of right rows, with Wilson's 95 % interval.
    """

    lower: float
    upper: float
    rows: int
    confidence: float
    accuracy: Interval


class Bar(NamedTuple):
    """Bar of a histogram: the numbers of right and wrong rows between two values.

    Attributes
    ----------
    lower, upper : float
        The values; the upper one belongs to it.
    right, wrong : int
        Rows; a histogram without that distinction counts all as `right`.
    """

    lower: float
    upper: float
    right: int
    wrong: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class RiskCoverage:
    """Risk-coverage curve: the error rate among the rows that each threshold accepts.

    Attributes
    ----------
    threshold, coverage, risk : ndarray of float, shape (k,)
        Lowest accepted confidence, share of rows accepted, share of wrong rows among those; coverage grows.
    """

    threshold: NDArray[np.float64]
    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Mistakes:
    """Wrong rows, ranked for review.

    Attributes
    ----------
    rows : tuple of int
        Places of the rows shown.
    wrong : int
        Wrong rows in all.
    answer_probability : ndarray of float, shape (n,), or None
        Probability of each row's true label, learned from the other rows; NaN if unknown. None if the rows are
        ranked by confidence instead.
    unranked : str
        Reason against ranking by `answer_probability`; empty if ranked by it, or if an answer holds several labels.
    """

    rows: tuple[int, ...]
    wrong: int
    answer_probability: NDArray[np.float64] | None = None
    unranked: str = ""


def headline(rows: PromptRows, table: ClassificationSummary | None) -> list[HeadlineFigure]:
    """Return the numbers of a run; those without data have the value None."""
    right, judged = int((rows.correct == 1).sum()), int(rows.judged.sum())
    labelled = int((rows.answer != UNKNOWN).sum())
    about = "answered rows" if rows.composite is None else "answered rows; all parts right"
    figures = [_share("accuracy", right, judged, about)]
    if labelled != judged:
        figures.append(_share("accuracy, failed rows counted as wrong", right, labelled, "labelled rows"))
    figures += [_macro_f1(table)] if rows.composite is None else _of_parts(rows.composite)
    figures += _labels_answered(rows, table)
    if rows.structure is not None and table is not None:
        found = structure_metrics(rows.structure, table.confusion, table.other)
        figures += [] if found is None else found.figures()
    confidence, correct = rows.confidence[rows.scored], rows.correct[rows.scored].astype(np.float64)
    about = f"{len(correct):,} rows with a confidence; 0 is best"
    ece, brier, area = (
        measure(confidence, correct) if len(correct) else None
        for measure in (expected_calibration_error, brier_score, aurc)
    )
    spread = paired_mean_interval((confidence - correct) ** 2) if len(correct) > 1 else None
    ranking = confidence_auroc(rows)
    pairs = "pairs of a right and a wrong row of which the right one is surer; 0.5 is chance, 1 is best"
    figures += [
        HeadlineFigure("calibration error (ECE)", about, ece),
        HeadlineFigure("Brier score", about, brier, spread),
        HeadlineFigure("AUROC", pairs, None if ranking is None else ranking.estimate, ranking),
        HeadlineFigure("AURC", about, area),
    ]
    # A width of 0 is explained.
    notes = [zero_width_remark(figure.interval) for figure in figures]
    return [
        figure._replace(about=f"{figure.about}; {note}") if note else figure
        for figure, note in zip(figures, notes, strict=True)
    ]


def collapse_warning(rows: PromptRows, table: ClassificationSummary | None) -> str:
    """Return a warning if the model answers fewer than half of the labels that occur; else an empty text."""
    summary = rows.composite or table
    return "" if summary is None else summary.answered_labels.warning


def _labels_answered(rows: PromptRows, table: ClassificationSummary | None) -> list[HeadlineFigure]:
    summary = rows.composite or table
    if summary is None:
        return []
    found = summary.answered_labels
    about = f"{found.found:,} of the {found.present:,} labels that occur in these rows; {found} labels in all"
    return [HeadlineFigure("labels answered", about, found.found / found.present if found.present else None)]


def _of_parts(found: CompositeMetrics) -> list[HeadlineFigure]:
    """Return the headline figures of answers with several labels, over all their parts."""
    about = f"{found.rows:,} answered rows"
    size = f"{len(found.per_label):,} labels, {about}"
    f1 = [HeadlineFigure("micro F1", size, found.micro_f1), HeadlineFigure("macro F1", size, found.macro_f1)]
    if found.kind == "fields":
        return [HeadlineFigure("credit", f"mean of all fields, {about}", found.credit), *f1]
    return [
        HeadlineFigure("Jaccard index", f"mean of {about}", found.jaccard),
        HeadlineFigure("F1 of rows", f"mean of {about}", found.samples_f1),
        HeadlineFigure("Hamming loss", f"{size}; 0 is best", found.hamming_loss),
        *f1,
    ]


def _share(name: str, right: int, n: int, of: str) -> HeadlineFigure:
    found = wilson_interval(right, n) if n else None
    return HeadlineFigure(name, f"{right:,} of {n:,} {of}", found.estimate if found else None, found)


def _macro_f1(table: ClassificationSummary | None) -> HeadlineFigure:
    """Return macro F1 with its bootstrap interval over rows."""
    if table is None:
        return HeadlineFigure("macro F1", "0 answered rows", None)
    cells = np.hstack([table.confusion, table.other[:, None]])
    size = len(table.labels)
    draws = max(50, min(RESAMPLES, 20_000_000 // cells.size))
    filled = np.flatnonzero(cells)
    counts = np.random.default_rng(0).multinomial(table.n, cells.ravel()[filled] / table.n, size=draws)
    rows, columns = np.divmod(filled, size + 1)
    truth, given, hits = (np.zeros((draws, size)) for _ in range(3))
    for cell, (row, column) in enumerate(zip(rows, columns, strict=True)):
        truth[:, row] += counts[:, cell]
        if column < size:
            given[:, column] += counts[:, cell]
        if row == column:
            hits[:, row] += counts[:, cell]
    f1 = (2 * hits / np.maximum(truth + given, 1)).mean(axis=1)
    lower, upper = np.quantile(f1, [0.025, 0.975])
    interval = Interval(lower=float(lower), upper=float(upper), level=0.95, estimate=table.macro_f1)
    about = f"{size:,} labels, {table.n:,} answered rows"
    return HeadlineFigure("macro F1", about, table.macro_f1, interval)


def confusion(rows: PromptRows) -> ClassificationSummary | None:
    """Return the confusion counts of judged rows; None without any, or if answers hold several labels."""
    judged, size = rows.judged, len(rows.labels)
    if rows.composite is not None or not judged.any():
        return None  # a confusion matrix of whole answers would be too large to read
    given = np.where(rows.label[judged] == UNKNOWN, size, rows.label[judged])
    cells = np.bincount(rows.answer[judged] * (size + 1) + given, minlength=size * (size + 1))
    table = cells.reshape(size, size + 1)
    return ClassificationSummary.from_counts(rows.labels, table[:, :-1], table[:, -1])


def reliability_bins(rows: PromptRows) -> list[Bin]:
    """Return the non-empty confidence bins of equal width that the calibration error uses."""
    confidence, correct = rows.confidence[rows.scored], rows.correct[rows.scored]
    edges = np.linspace(0.0, 1.0, RELIABILITY_BINS + 1)
    place = _places(confidence, edges)
    count = np.bincount(place, minlength=RELIABILITY_BINS)
    right = np.bincount(place, weights=correct, minlength=RELIABILITY_BINS)
    total = np.bincount(place, weights=confidence, minlength=RELIABILITY_BINS)
    return [
        Bin(
            lower=float(edges[i]),
            upper=float(edges[i + 1]),
            rows=int(count[i]),
            confidence=float(total[i] / count[i]),
            accuracy=wilson_interval(int(right[i]), int(count[i])),
        )
        for i in np.flatnonzero(count)
    ]


def confidence_bars(rows: PromptRows) -> list[Bar]:
    """Return the counts of right and wrong rows by confidence, in bins of equal width."""
    edges = np.linspace(0.0, 1.0, CONFIDENCE_BINS + 1)
    right, wrong = (
        _counts(rows.confidence[rows.scored & (rows.correct == value)], edges) for value in (1, 0)
    )
    return _bars(edges, right, wrong)


def latency_bars(rows: PromptRows) -> list[Bar]:
    """Return the counts of rows by latency, in bins of equal logarithmic width; empty without latencies."""
    seconds = rows.latency[~np.isnan(rows.latency)]
    seconds = seconds[seconds > 0.0]
    if len(seconds) == 0:
        return []
    low, high = float(seconds.min()), float(seconds.max())
    edges = np.geomspace(low, max(high, low * 1.1), LATENCY_BINS + 1)
    edges[0], edges[-1] = low, max(high, edges[-1])  # rounding must not lose the ends
    counts = _counts(seconds, edges)
    return _bars(edges, counts, np.zeros_like(counts))


def _places(values: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the index of each value's bin; the upper end of a bin belongs to it."""
    places: NDArray[np.intp] = np.clip(np.searchsorted(edges, values, side="left") - 1, 0, len(edges) - 2)
    return places


def _counts(values: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.bincount(_places(values, edges), minlength=len(edges) - 1)
    return counts


def _bars(edges: NDArray[np.float64], right: NDArray[np.int64], wrong: NDArray[np.int64]) -> list[Bar]:
    columns = (edges[:-1], edges[1:], right, wrong)
    return [Bar(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]


def risk_coverage(rows: PromptRows) -> RiskCoverage | None:
    """Return the risk-coverage curve, thinned evenly in coverage; None if no row has a confidence."""
    confidence, correct = rows.confidence[rows.scored], rows.correct[rows.scored]
    if len(correct) == 0:
        return None
    threshold, group, size = np.unique(confidence, return_inverse=True, return_counts=True)
    wrong = np.bincount(group, weights=1.0 - correct)
    accepted = np.cumsum(size[::-1])
    risk = np.cumsum(wrong[::-1]) / accepted
    coverage = accepted / len(correct)
    chosen = np.unique(np.searchsorted(coverage, np.linspace(coverage[0], 1.0, CURVE_POINTS)))
    chosen = chosen[chosen < len(coverage)]
    return RiskCoverage(threshold=threshold[::-1][chosen], coverage=coverage[chosen], risk=risk[chosen])


def mistakes(rows: PromptRows, limit: int, table: ClassificationSummary | None) -> Mistakes:
    """Return at most `limit` wrong rows, in the order in which to review them.

    The probabilities are those of `held_out_answer_probability`. The surest rows come first instead if confidence
    does not separate right from wrong rows, or if the model answers fewer than half of the labels. Rows without a
    confidence come last.

    Parameters
    ----------
    rows : PromptRows
        All rows.
    limit : int
        Largest number of rows to return.
    table : ClassificationSummary or None
        Confusion counts; None if answers hold several labels, which are not ranked.
    """
    places = np.flatnonzero(rows.correct == 0)
    sureness = np.where(np.isnan(rows.confidence), -1.0, rows.confidence)
    order = places[np.argsort(-sureness[places], kind="stable")]
    unranked = _why_unranked(rows, table)
    if table is None or unranked:
        return Mistakes(rows=tuple(order[:limit].tolist()), wrong=len(places), unranked=unranked)
    ranked = np.flatnonzero(rows.scored & (rows.label != UNKNOWN))
    most = max(2, MOST_NUMBERS // len(rows.labels))
    if len(ranked) > most:
        ranked = np.sort(np.random.default_rng(0).choice(ranked, most, replace=False))
    distributions = np.log(np.maximum(read_distributions(rows, ranked), 1e-12))
    probability = np.full(len(rows), np.nan)
    probability[ranked] = held_out_answer_probability(distributions, rows.answer[ranked])
    order = order[np.argsort(np.nan_to_num(probability[order], nan=2.0), kind="stable")]
    return Mistakes(rows=tuple(order[:limit].tolist()), wrong=len(places), answer_probability=probability)


def _why_unranked(rows: PromptRows, table: ClassificationSummary | None) -> str:
    """Return the reason why suspected label errors cannot be ranked; an empty text if they can."""
    if table is None:
        return ""
    found = confidence_auroc(rows)
    if found is None or found.lower <= 0.5:
        figures = (
            "" if found is None else f" (AUROC {found.estimate:.3f}, {found.lower:.3f} to {found.upper:.3f})"
        )
        return f"the confidence is not shown to tell right from wrong answers{figures}"
    labels = table.answered_labels
    if labels.collapsed:
        return f"the model answers {labels.found:,} of the {labels.present:,} labels that occur in these rows"
    return ""


def confidence_auroc(rows: PromptRows) -> Interval | None:
    """Return the AUROC of confidence for right against wrong rows; None if all are right or all wrong."""
    confidence, correct = rows.confidence[rows.scored], rows.correct[rows.scored]
    return auroc_interval(confidence, correct) if 0 < correct.sum() < len(correct) else None


def remarks(rows: PromptRows) -> list[str]:
    """Return the caveats about the confidences, as sentences."""
    answered = len(rows) - rows.outcomes.get(Outcome.ERROR.value, 0)
    auroc = confidence_auroc(rows)
    return confidence_remarks(
        auroc, rows=answered, rows_with_low_label_mass=rows.saved.rows_with_low_label_mass
    )


def compare(base: PromptRows, other: PromptRows) -> PairedComparison | None:
    """Compare accuracy on the judged rows that both have in common; return None if there are none."""
    _, a, b = np.intersect1d(base.key[base.judged], other.key[other.judged], return_indices=True)
    if len(a) == 0:
        return None
    return paired_comparison(base.correct[base.judged][a], other.correct[other.judged][b])
