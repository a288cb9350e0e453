"""Rows of a run as the report shows them; texts stay in the file until they are shown."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core._labels import LabelSet, as_label_set
from calibrant.core._prediction import Outcome
from calibrant.core._structures import part_of
from calibrant.metrics._structure import CompositeMetrics, CompositeTally, GivenPart
from calibrant.runs._rows import UNKNOWN, SavedRow, SavedRows

if TYPE_CHECKING:
    from calibrant.metrics._cascade import CascadeMetrics, CascadeTally

_ROUNDING: Final = 1e-6
_OF_SET: Final = {("yes", "yes"): "right", ("no", "yes"): "missed", ("yes", "no"): "added", ("no", "no"): ""}
_TEXT: Final = 600  # characters of an input or a reason that are shown


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
        Places in `labels` of the true and the given label; -1 where there is none.
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
    answer: NDArray[np.int64]
    label: NDArray[np.int64]
    correct: NDArray[np.int8]
    confidence: NDArray[np.float64]
    latency: NDArray[np.float64]
    cost: NDArray[np.float64]
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
    def judged(self) -> NDArray[np.bool_]:
        """Rows that are right or wrong, shape (n,)."""
        judged: NDArray[np.bool_] = self.correct != UNKNOWN
        return judged

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Rows that are right or wrong, and have a confidence, shape (n,)."""
        scored: NDArray[np.bool_] = self.judged & ~np.isnan(self.confidence)
        return scored


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
    parts: tuple[PartText, ...] = ()
    answer_probability: float | None = None


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
    values, answer = row.values, row.answer
    known = answer is not None and row.outcome is not Outcome.ERROR
    steps = values.get("steps")
    if steps:
        correct = answer == row.label if known else None
        cascade.add(steps, accepted=values.get("accepted"), correct=correct)
    if composite is not None and known and answer is not None:
        parts = values.get("parts", ())
        given = [GivenPart(part["name"], part["label"], part["confidence"]) for part in parts]
        composite.add(answer, row.label, given)


def read_texts(
    rows: PromptRows, chosen: Sequence[int], answer_probability: NDArray[np.float64] | None = None
) -> list[RowTexts]:
    """Return the texts of the rows at these positions, in order.

    Raises
    ------
    DataError
        A row has no text.
    """
    found = []
    several = rows.composite is not None
    spoken = _spoken if several else str
    records = dict(zip(sorted(chosen), rows.saved.rows(chosen), strict=True))
    for place in chosen:
        record = records[place].values
        found.append(
            RowTexts(
                source=str(record.get("source") or int(place) + 1),
                row_id=_shown_text(str(record.get("id") or "")),
                input=_shown_text(record["input"]),
                answer=_shown_text(spoken(record["answer"])),
                given=_shown_text(record["outcome"] if record["label"] is None else spoken(record["label"])),
                reason=_shown_text(record.get("reason") or ""),
                confidence=float(rows.confidence[place]),
                answer_probability=None if answer_probability is None else answer_probability[place],
                parts=tuple(_part_texts(record)) if several else (),
            )
        )
    return found


def read_distributions(rows: PromptRows, chosen: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the label probabilities of the chosen rows, shape (k, L); they need not sum to 1.

    A row with a confidence but no distribution spreads the remaining probability evenly over the other labels.

    Parameters
    ----------
    rows : PromptRows
        Rows whose answers are single labels, at least two different ones.
    chosen : ndarray of int, shape (k,)
        Places of rows that have a label and a confidence, in ascending order.

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
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -_ROUNDING <= value <= 1.0 + _ROUNDING
    ):
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
        name, label, truth = part["name"], part["label"], part_of(record["answer"], part["name"])
        verdict = _OF_SET.get((label, str(truth))) if record["answer"].startswith("[") else None
        if verdict == "":
            continue
        if verdict is not None:
            text = f"{verdict} {name}"
        else:
            text = f"{name}: {label}" if label == truth else f"{name}: {label}, not {truth}"
        confidence = math.nan if part["confidence"] is None else float(part["confidence"])
        yield PartText(text=text, is_right=label == truth, confidence=confidence)


def _shown_text(text: str) -> str:
    return text if len(text) <= _TEXT else text[:_TEXT] + " …"


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
