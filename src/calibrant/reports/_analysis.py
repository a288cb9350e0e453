"""Rows of a run as the report shows them, and its figures, computed from arrays; `_charts` and `_html` render them."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core._labels import LabelSet, as_label_set
from calibrant.core._prediction import (
    BoolArray,
    FloatArray,
    IndexArray,
    IntegerArray,
    Interval,
    Outcome,
)
from calibrant.core._reported import counted, is_number
from calibrant.core._structures import part_of
from calibrant.metrics._classification import ClassificationSummary
from calibrant.metrics._confidence import (
    aurc,
    auroc_interval,
    bin_places,
    brier_score,
    expected_calibration_error,
)
from calibrant.metrics._intervals import (
    PairedComparison,
    paired_comparison,
    paired_mean_interval,
    wilson_interval,
)
from calibrant.metrics._remarks import confidence_remarks, zero_width_remark
from calibrant.metrics._structure import (
    CompositeMetrics,
    CompositeTally,
    StructureFigure,
    structure_metrics,
)
from calibrant.runs._rows import UNKNOWN, SavedRow, SavedRows, saved_parts

if TYPE_CHECKING:
    from calibrant.metrics._cascade import CascadeMetrics, CascadeTally


RELIABILITY_BINS: Final = 15
CONFIDENCE_BINS: Final = 20
LATENCY_BINS: Final = 24
CURVE_POINTS: Final = 200
RESAMPLES: Final = 1000
MOST_NUMBERS: Final = 4_000_000  # probabilities in memory, 32 MB: of more rows, as many as fit are ranked
_ROUNDING: Final = 1e-6
_OF_SET: Final = {
    ("yes", "yes"): "right",
    ("no", "yes"): "missed",
    ("yes", "no"): "added",
    ("no", "no"): "",
}
_TEXT: Final = 600  # characters of an input or a reason that are shown


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

    threshold: FloatArray
    coverage: FloatArray
    risk: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Mistakes:
    """Wrong rows, ranked for review.

    Attributes
    ----------
    rows : tuple of int
        IndexArray of the rows shown.
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
    answer_probability: FloatArray | None = None
    unranked: str = ""


def headline(rows: PromptRows, table: ClassificationSummary | None) -> list[StructureFigure]:
    """Return the numbers of a run; those without data have the value None."""
    right = int((rows.correct == 1).sum())
    judged = int(rows.judged.sum())
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
    confidence, correct = rows.scored_pairs
    about = f"{counted(len(correct), 'row')} with a confidence; 0 is best"
    ece, brier, area = (
        measure(confidence, correct) if len(correct) else None
        for measure in (expected_calibration_error, brier_score, aurc)
    )
    spread = None
    if len(correct) > 1:
        spread = paired_mean_interval((confidence - correct) ** 2)
        spread = replace(spread, lower=max(spread.lower, 0.0), upper=min(spread.upper, 1.0))
    ranking = confidence_auroc(rows)
    pairs = "pairs of a right and a wrong row of which the right one is surer; 0.5 is chance, 1 is best"
    figures += [
        StructureFigure("calibration error (ECE)", about, ece),
        StructureFigure("Brier score", about, brier, spread),
        StructureFigure("AUROC", pairs, None if ranking is None else ranking.estimate, ranking),
        StructureFigure("AURC", about, area),
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


def _labels_answered(rows: PromptRows, table: ClassificationSummary | None) -> list[StructureFigure]:
    summary = rows.composite or table
    if summary is None:
        return []
    found = summary.answered_labels
    about = f"{found.found:,} of the {found.present:,} labels that occur in these rows; {found} labels in all"
    return [StructureFigure("labels answered", about, found.found / found.present if found.present else None)]


def _of_parts(found: CompositeMetrics) -> list[StructureFigure]:
    """Return the headline figures of answers with several labels, over all their parts."""
    about = counted(found.rows, "answered row")
    size = f"{counted(len(found.per_label), 'label')}, {about}"
    f1 = [
        StructureFigure("micro F1", size, found.micro_f1),
        StructureFigure("macro F1", size, found.macro_f1),
    ]
    if found.kind == "fields":
        return [StructureFigure("credit", f"mean of all fields, {about}", found.credit), *f1]
    return [
        StructureFigure("Jaccard index", f"mean of {about}", found.jaccard),
        StructureFigure("F1 of rows", f"mean of {about}", found.samples_f1),
        StructureFigure("Hamming loss", f"{size}; 0 is best", found.hamming_loss),
        *f1,
    ]


def _share(name: str, right: int, n: int, of: str) -> StructureFigure:
    found = wilson_interval(right, n) if n else None
    return StructureFigure(name, f"{right:,} of {n:,} {of}", found.estimate if found else None, found)


def _macro_f1(table: ClassificationSummary | None) -> StructureFigure:
    """Return macro F1 with its bootstrap interval over rows, in which a label that a draw lacks is no mistake."""
    if table is None:
        return StructureFigure("macro F1", "0 answered rows", None)
    cells = np.hstack([table.confusion, table.other[:, None]])
    size = len(table.labels)
    draws = max(50, min(RESAMPLES, 20_000_000 // cells.size))
    filled = np.flatnonzero(cells)
    shares = cells.ravel()[filled] / table.n
    counts = np.random.default_rng(0).multinomial(table.n, shares, size=draws)
    rows, columns = np.divmod(filled, size + 1)
    truth, given, hits = (np.zeros((draws, size)) for _ in range(3))
    for cell, (row, column) in enumerate(zip(rows, columns, strict=True)):
        truth[:, row] += counts[:, cell]
        if column < size:
            given[:, column] += counts[:, cell]
        if row == column:
            hits[:, row] += counts[:, cell]
    # Draws have a lower F1 than the rows, as a label with few rows loses some: what they lose is given back.
    own = cells[:, :size]
    of_rows = _mean_f1(own.diagonal(), cells.sum(axis=1) + own.sum(axis=0))
    f1 = _mean_f1(hits, truth + given)
    lost = of_rows - f1.mean()
    lower, upper = np.quantile(f1, [0.025, 0.975]) + lost
    interval = Interval(
        lower=max(0.0, min(float(lower), table.macro_f1)),
        upper=min(1.0, max(float(upper), table.macro_f1)),
        level=0.95,
        estimate=table.macro_f1,
    )
    about = f"{counted(size, 'label')}, {counted(table.n, 'answered row')}"
    return StructureFigure("macro F1", about, table.macro_f1, interval)


def _mean_f1(hits: NDArray[Any], sizes: NDArray[Any]) -> FloatArray:
    """Return the mean F1 of the labels that occur, of true, given and right counts along the last axis."""
    f1 = 2 * hits / np.maximum(sizes, 1)
    n_labels = (sizes > 0).sum(axis=-1)
    found: FloatArray = f1.sum(axis=-1) / n_labels
    return found


def confusion(rows: PromptRows) -> ClassificationSummary | None:
    """Return the confusion counts of judged rows whose label is known; None without any, or of several labels."""
    judged = rows.judged & (rows.answer != UNKNOWN)
    size = len(rows.labels)
    if rows.composite is not None or not judged.any():
        return None  # a confusion matrix of whole answers would be too large to read
    given = np.where(rows.label[judged] == UNKNOWN, size, rows.label[judged])
    places = rows.answer[judged] * (size + 1) + given
    cells = np.bincount(places, minlength=size * (size + 1))
    table = cells.reshape(size, size + 1)
    return ClassificationSummary.from_counts(rows.labels, table[:, :-1], table[:, -1])


def reliability_bins(rows: PromptRows) -> list[Bin]:
    """Return the non-empty confidence bins of equal width that the calibration error uses."""
    confidence, correct = rows.scored_pairs
    edges = np.linspace(0.0, 1.0, RELIABILITY_BINS + 1)
    place = bin_places(confidence, edges)
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
    confidence, correct = rows.scored_pairs
    right = _counts(confidence[correct == 1], edges)
    wrong = _counts(confidence[correct == 0], edges)
    return _bars(edges, right, wrong)


def latency_bars(rows: PromptRows) -> list[Bar]:
    """Return the counts of rows by latency, in bins of equal logarithmic width; empty without latencies."""
    seconds = rows.latency[~np.isnan(rows.latency)]
    seconds = seconds[seconds > 0.0]
    if len(seconds) == 0:
        return []
    low = float(seconds.min())
    high = float(seconds.max())
    edges = np.geomspace(low, max(high, low * 1.1), LATENCY_BINS + 1)
    edges[0], edges[-1] = low, max(high, edges[-1])  # rounding must not lose the ends
    counts = _counts(seconds, edges)
    return _bars(edges, counts, np.zeros_like(counts))


def _counts(values: FloatArray, edges: FloatArray) -> IntegerArray:
    counts: IntegerArray = np.bincount(bin_places(values, edges), minlength=len(edges) - 1)
    return counts


def _bars(edges: FloatArray, right: IntegerArray, wrong: IntegerArray) -> list[Bar]:
    columns = (edges[:-1], edges[1:], right, wrong)
    return list(map(Bar, *(column.tolist() for column in columns)))


def risk_coverage(rows: PromptRows) -> RiskCoverage | None:
    """Return the risk-coverage curve, thinned evenly in coverage; None if no row has a confidence."""
    confidence, correct = rows.scored_pairs
    if len(correct) == 0:
        return None
    threshold, group, size = np.unique(confidence, return_inverse=True, return_counts=True)
    wrong = np.bincount(group, weights=1.0 - correct)
    accepted = np.cumsum(size[::-1])
    risk = np.cumsum(wrong[::-1]) / accepted
    coverage = accepted / len(correct)
    wanted = np.linspace(coverage[0], 1.0, CURVE_POINTS)
    chosen = np.unique(np.searchsorted(coverage, wanted))
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
    from calibrant.calibration._scaling import held_out_answer_probability  # noqa: PLC0415 (many runs have no ranks)

    probability[ranked] = held_out_answer_probability(distributions, rows.answer[ranked])
    unranked_last = np.nan_to_num(probability[order], nan=2.0)
    order = order[np.argsort(unranked_last, kind="stable")]
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
    confidence, correct = rows.scored_pairs
    if 0 < correct.sum() < len(correct):
        return auroc_interval(confidence, correct)
    return None


def remarks(rows: PromptRows) -> list[str]:
    """Return the caveats about the confidences, as sentences."""
    answered = len(rows) - rows.outcomes.get(Outcome.ERROR.value, 0)
    auroc = confidence_auroc(rows)
    return confidence_remarks(
        auroc, rows=answered, rows_with_low_label_mass=rows.saved.rows_with_low_label_mass
    )


def compare(base: PromptRows, other: PromptRows) -> PairedComparison | None:
    """Compare accuracy on the judged rows that both have in common; return None if there are none."""
    ours = base.key[base.judged]
    theirs = other.key[other.judged]
    _, a, b = np.intersect1d(ours, theirs, return_indices=True)
    if len(a) == 0:
        return None
    return paired_comparison(base.correct[base.judged][a], other.correct[other.judged][b])


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptRows:
    """The rows of one prompt.

    Attributes
    ----------
    saved : SavedRows
        The rows.
    labels : tuple of str
        Labels that occur, or are known to the run: sorted, or in the order of `structure`.
    answer, label : ndarray of int, shape (n,)
        IndexArray in `labels` of the true and the given label; -1 where there is none.
    correct : ndarray of int, shape (n,)
        1 right, 0 wrong, -1 where the row failed or its true label is not known.
    confidence : ndarray of float, shape (n,)
        In the given label, in [0, 1]; NaN where there is no label, or it is not known.
    latency, cost : ndarray of float, shape (n,)
        Seconds, and US dollars; NaN if no call was made or the value is unknown.
    cascade : CascadeMetrics or None
        Contributions of a cascade's models; None for a single model.
    composite : CompositeMetrics or None
        Metrics of the parts of answers with several labels, whose `labels` are whole answers; None if an answer is
        one label.
    structure : LabelSet or None
        The labels, where they stand on a scale or in a tree.
    """

    saved: SavedRows
    labels: tuple[str, ...]
    answer: IntegerArray
    label: IntegerArray
    correct: NDArray[np.int8]
    confidence: FloatArray
    latency: FloatArray
    cost: FloatArray
    cascade: CascadeMetrics | None = None
    composite: CompositeMetrics | None = None
    structure: LabelSet | None = None

    @classmethod
    def of(cls, saved: SavedRows, labels: LabelSet | Iterable[str] = ()) -> PromptRows:
        """Return saved rows for the report.

        Parameters
        ----------
        saved : SavedRows
            The rows.
        labels : LabelSet or iterable of str, optional
            Labels that count even where no row has them.

        Raises
        ------
        DataError
            A row lacks a value that the page shows.
        """
        cascade, composite = _tallies(saved, labels)
        occurring = {name for name in (*saved.answers, *saved.labels) if name is not None}
        # The labels of a composite set are parts of answers; here an answer is a label.
        known = set(labels) if composite is None else set[str]()
        label_set = as_label_set(labels)
        has_relation = not (label_set.is_plain or label_set.is_open or label_set.holds_several)
        structure = label_set if has_relation else None
        if structure is not None and not occurring <= known:
            structure = None
        names = tuple(sorted(known | occurring)) if structure is None else structure.labels
        place: dict[str | None, int] = {name: number for number, name in enumerate(names)}
        place[None] = UNKNOWN
        answered = np.array([outcome is Outcome.OK for outcome in saved.outcomes], dtype=np.bool_)
        return cls(
            saved=saved,
            labels=names,
            answer=np.array([place[name] for name in saved.answers], dtype=np.int64),
            label=np.array([place[name] for name in saved.labels], dtype=np.int64),
            correct=saved.correct,
            confidence=np.where(answered, saved.confidence, np.nan),
            latency=np.where(saved.called, saved.latency_seconds, np.nan),
            cost=np.where(saved.called, saved.cost, np.nan),
            cascade=cascade,
            composite=composite,
            structure=structure,
        )

    def __len__(self) -> int:
        return len(self.answer)

    @property
    def outcomes(self) -> Counter[str]:
        """Number of rows by outcome."""
        return Counter(outcome.value for outcome in self.saved.outcomes)

    @cached_property
    def key(self) -> NDArray[np.uint64]:
        """Keys that are equal for rows of the same text and true label; the second of two such rows has another."""
        keys = [_text_key(row) for row in self.saved.rows()]
        return _distinct(np.array(keys, dtype=np.uint64))

    @property
    def judged(self) -> BoolArray:
        """Rows that are right or wrong, shape (n,)."""
        judged: BoolArray = self.correct != UNKNOWN
        return judged

    @property
    def scored(self) -> BoolArray:
        """Rows that are right or wrong, and have a confidence, shape (n,)."""
        scored: BoolArray = self.judged & ~np.isnan(self.confidence)
        return scored

    @property
    def scored_pairs(self) -> tuple[FloatArray, FloatArray]:
        """Confidence and correctness of the scored rows."""
        return self.confidence[self.scored], self.correct[self.scored].astype(np.float64)


def _text_key(row: SavedRow) -> int:
    text = f"{row.input}\0{row.answer}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


@dataclass(frozen=True, kw_only=True)
class PartText:
    """One part of an answer as text, for the list of mistakes.

    Attributes
    ----------
    text : str
        The verdict on the part, in words.
    is_right : bool
        True if the part is right.
    confidence : float
        In the given value, in [0, 1]; NaN where it is unknown.
    """

    text: str
    is_right: bool
    confidence: float


@dataclass(frozen=True, kw_only=True)
class RowTexts:
    """One row as text, for the list of mistakes; long texts are cut.

    Attributes
    ----------
    source : str
        File and line of the row, such as ``rows.csv:77``; where they are unknown, its place among those of its prompt,
        from 1.
    row_id : str
        Its identifier in the file; empty where there is none.
    input, answer, given, reason : str
        The text, the true label, the given label (or else the outcome), the reason of a failure.
    confidence : float
        In [0, 1]; NaN where it is unknown.
    parts : tuple of PartText
        The parts of an answer that holds several labels, as far as they matter.
    answer_probability : float or None
        Probability of the true label, learned from the other rows; None where rows are not ranked by it.
    """

    source: str
    row_id: str
    input: str
    answer: str
    given: str
    reason: str
    confidence: float
    parts: tuple[PartText, ...]
    answer_probability: float | None


def _tallies(
    saved: SavedRows, labels: LabelSet | Iterable[str]
) -> tuple[CascadeMetrics | None, CompositeMetrics | None]:
    """Return the metrics of a cascade's models, and of answers with several labels, where the rows have them."""
    label_set = as_label_set(labels)
    composite = CompositeTally(label_set) if label_set.holds_several else None
    if composite is None and "steps" not in saved.fields:
        return None, None
    from calibrant.metrics._cascade import CascadeTally  # noqa: PLC0415 (of a cascade's rows)

    cascade = CascadeTally()
    for place, row in enumerate(saved.rows()):
        try:
            _count_row(row, cascade, composite)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise saved.invalid(place, f"expected the steps or parts of an answer ({error!r})") from error
    return cascade.metrics(), None if composite is None else composite.metrics()


def _count_row(row: SavedRow, cascade: CascadeTally, composite: CompositeTally | None) -> None:
    values = row.values
    answer = row.answer
    known = answer is not None and row.outcome is not Outcome.ERROR
    steps = values.get("steps")
    if steps:
        correct = answer == row.label if known else None
        cascade.add(steps, accepted=values.get("accepted"), correct=correct)
    if composite is not None and known and answer is not None:
        composite.add(answer, row.label, saved_parts(values))


def read_texts(
    rows: PromptRows, chosen: Sequence[int], answer_probability: FloatArray | None = None
) -> list[RowTexts]:
    """Return the texts of the rows at these positions, in order; empty where a row has none."""
    found = []
    several = rows.composite is not None
    records = dict(zip(sorted(chosen), rows.saved.rows(chosen), strict=True))
    for place in chosen:
        row = records[place]
        label = row.outcome.value if row.label is None else _spoken_label(row.label, several=several)
        found.append(
            RowTexts(
                source=str(row.values.get("source") or int(place) + 1),
                row_id=_shown_text(str(row.values.get("id") or "")),
                input=_shown_text(row.input or ""),
                answer=_shown_text(_spoken_label(row.answer, several=several)),
                given=_shown_text(label),
                reason=_shown_text(row.values.get("reason") or ""),
                confidence=float(rows.confidence[place]),
                answer_probability=None if answer_probability is None else answer_probability[place],
                parts=tuple(_part_texts(row.values)) if several else (),
            )
        )
    return found


def _spoken_label(label: str | None, *, several: bool) -> str:
    if label is None:  # a row of another program may say no more than whether it is right
        return ""
    return _spoken(label) if several else label


def read_distributions(rows: PromptRows, chosen: IndexArray) -> FloatArray:
    """Return the label probabilities of the chosen rows, shape (k, L); they need not sum to 1.

    A row with a confidence but no distribution spreads the remaining probability evenly over the other labels.

    Parameters
    ----------
    rows : PromptRows
        Rows whose answers are single labels, at least two different ones.
    chosen : ndarray of int, shape (k,)
        IndexArray of rows that have a label and a confidence, in ascending order.

    Raises
    ------
    DataError
        A probability is none; the message names file and line.
    """
    rest = (1.0 - rows.confidence[chosen]) / (len(rows.labels) - 1)
    found = np.repeat(rest[:, None], len(rows.labels), axis=1)
    found[np.arange(len(chosen)), rows.label[chosen]] = rows.confidence[chosen]
    place = {label: i for i, label in enumerate(rows.labels)}
    for number, row in enumerate(rows.saved.rows(chosen)):
        try:
            for label, probability in (row.values.get("probabilities") or {}).items():
                if label in place:
                    found[number, place[label]] = _probability(probability)
        except (AttributeError, ValueError) as error:
            raise rows.saved.invalid(int(chosen[number]), str(error)) from error
    return found


def _probability(value: object) -> float:
    """Return a probability in [0, 1], which rounding may have left a little."""
    if not is_number(value) or not -_ROUNDING <= value <= 1.0 + _ROUNDING:
        raise ValueError(f"expected a probability in [0, 1], got {value!r:.40}")
    return min(max(float(value), 0.0), 1.0)


def _spoken(answer: str) -> str:
    """Return a whole answer as readable text."""
    found = json.loads(answer)
    if isinstance(found, dict):
        return "; ".join(f"{name}: {label}" for name, label in found.items())
    return ", ".join(found) or "no label"


def _part_texts(record: Mapping[str, Any]) -> Iterator[PartText]:
    """Yield a verdict on each part of an answer, except for labels that are rightly left out."""
    for part in record.get("parts", ()):
        name = part["name"]
        label = part["label"]
        truth = part_of(record["answer"], part["name"])
        verdict = None
        if record["answer"].startswith("["):
            verdict = _OF_SET.get((label, str(truth)))
        if verdict == "":
            continue
        if verdict is not None:
            text = f"{verdict} {name}"
        else:
            text = f"{name}: {label}" if label == truth else f"{name}: {label}, not {truth}"
        confidence = math.nan if part["confidence"] is None else float(part["confidence"])
        yield PartText(text=text, is_right=label == truth, confidence=confidence)


def _shown_text(text: str) -> str:
    if len(text) <= _TEXT:
        return text
    return text[:_TEXT] + " …"


def _distinct(key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the keys with repeated ones replaced, in a reproducible way, so that all differ."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.searchsorted(ordered, ordered)
    repeat = (np.arange(len(key)) - first).astype(np.uint64)
    distinct = key.copy()
    distinct[order] += repeat * np.uint64(
        0x9E3779B97F4A7C15
    )  # wraps around; an odd constant keeps them apart
    return distinct
