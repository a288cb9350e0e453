"""Rows of ``predictions.jsonl`` as arrays; texts stay in the file until they are shown."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core._composite import CompositeLabels, part_of
from calibrant.core._errors import DataError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Outcome
from calibrant.core._run_rows import UNKNOWN, RunRow
from calibrant.metrics._cascade import CascadeMetrics, CascadeTally
from calibrant.metrics._composite import CompositeMetrics, CompositeTally, GivenPart
from calibrant.runs._records import RowFile

_ROUNDING: Final = 1e-6
_OF_SET: Final = {("yes", "yes"): "right", ("no", "yes"): "missed", ("yes", "no"): "added", ("no", "no"): ""}
_TEXT: Final = 600  # characters of an input or a reason that are shown
# One row in 49 bytes.
_ROW: Final = struct.Struct("<iibddd8sq")
_COLUMNS: Final = np.dtype(
    {
        "names": ["answer", "label", "correct", "confidence", "latency", "cost", "key", "offset"],
        "formats": ["<i4", "<i4", "i1", "<f8", "<f8", "<f8", "<u8", "<i8"],
    }
)


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptRows:
    """The rows of one prompt.

    Attributes
    ----------
    path : Path
        The file.
    labels : tuple of str
        Labels that occur, or are known to the run: sorted, or in the order of `structure`.
    answer, label : ndarray of int, shape (n,)
        Places in `labels` of the true and the given label; -1 where there is none.
    correct : ndarray of int, shape (n,)
        1 right, 0 wrong, -1 where the row failed or its true label is not known.
    confidence : ndarray of float, shape (n,)
        In the given label, in [0, 1]; NaN where it is not known.
    latency, cost : ndarray of float, shape (n,)
        Seconds, and US dollars; NaN if no call was made or the value is unknown.
    key : ndarray of uint64, shape (n,)
        Equal for rows of the same text and true label; the second of two equal rows has another.
    offset : ndarray of int, shape (n,)
        Begin of the line in the file, in bytes.
    outcomes : mapping of str to int
        Rows by outcome.
    low_label_mass : int
        Rows on which the model would rather have written something else than any label.
    torn : bool
        True if the last line was cut off, and left out.
    cascade : CascadeMetrics or None
        Contributions of a cascade's models; None for a single model.
    composite : CompositeMetrics or None
        Metrics of the parts of answers with several labels, whose `labels` are whole answers; None if an answer is
        one label.
    structure : LabelSet or None
        The labels, where they stand on a scale or in a tree.
    """

    path: Path
    labels: tuple[str, ...]
    answer: NDArray[np.int64]
    label: NDArray[np.int64]
    correct: NDArray[np.int64]
    confidence: NDArray[np.float64]
    latency: NDArray[np.float64]
    cost: NDArray[np.float64]
    key: NDArray[np.uint64]
    offset: NDArray[np.int64]
    outcomes: Mapping[str, int]
    low_label_mass: int
    torn: bool
    cascade: CascadeMetrics | None = None
    composite: CompositeMetrics | None = None
    structure: LabelSet | None = None

    def __len__(self) -> int:
        return len(self.answer)

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


class _Columns:
    """Growing columns of rows, before they become arrays."""

    def __init__(self, labels: Iterable[str], structure: LabelSet | None) -> None:
        self.composite = CompositeTally(structure) if isinstance(structure, CompositeLabels) else None
        self.packed = bytearray()
        self.low_label_mass = 0
        self.outcomes: Counter[str] = Counter()
        self.cascade = CascadeTally()
        known = labels if self.composite is None else ()
        self.places = {label: place for place, label in enumerate(known)}

    def add(self, row: RunRow, offset: int) -> None:
        """Add a row to the columns.

        Raises
        ------
        KeyError, TypeError, ValueError
            The record lacks a value that the page shows; the columns are unchanged then.
        """
        record, answer, label = row.values, row.answer, row.label
        if row.input is None or "label" not in record:
            raise KeyError("input" if row.input is None else "label")
        known = answer is not None and row.outcome is not Outcome.ERROR
        if steps := record.get("steps"):
            self.cascade.add(
                steps, accepted=record.get("accepted"), correct=answer == label if known else None
            )
        if self.composite is not None and known and answer is not None:
            self.composite.add(
                answer,
                label,
                [
                    GivenPart(part["name"], part["label"], part["confidence"])
                    for part in record.get("parts", ())
                ],
            )
        digest = hashlib.blake2b(f"{row.input}\0{answer}".encode("utf-8", "surrogatepass"), digest_size=8)
        asked = record.get("attempts", 1) != 0
        self.packed += _ROW.pack(
            self._place(answer),
            self._place(label),
            int(answer == label) if known else UNKNOWN,
            row.confidence if row.outcome is Outcome.OK else math.nan,
            row.latency_seconds if asked else math.nan,
            row.cost if asked else math.nan,
            digest.digest(),
            offset,
        )
        self.low_label_mass += row.has_low_label_mass
        self.outcomes[row.outcome.value] += 1

    def _place(self, label: str | None) -> int:
        return UNKNOWN if label is None else self.places.setdefault(label, len(self.places))

    def rows(self, path: Path, *, torn: bool, structure: LabelSet | None) -> PromptRows:
        """Return the collected rows as arrays; labels are sorted unless `structure` gives their order."""
        if self.composite is not None or (structure is not None and self.places.keys() > set(structure)):
            structure = None
        labels = tuple(sorted(self.places)) if structure is None else structure.labels
        # One extra place at the end: the index -1 (no label) reads it.
        order = np.full(len(labels) + 1, UNKNOWN, dtype=np.int64)
        for new, label in enumerate(labels):
            order[self.places[label]] = new
        table = np.frombuffer(self.packed, dtype=_COLUMNS)
        columns = {name: np.array(table[name]) for name in table.dtype.names or ()}
        columns |= {name: order[columns[name]] for name in ("answer", "label")}
        columns["key"] = _distinct(columns["key"])
        return PromptRows(
            path=path,
            labels=labels,
            **columns,
            outcomes=dict(self.outcomes),
            low_label_mass=self.low_label_mass,
            torn=torn,
            cascade=self.cascade.metrics(),
            composite=None if self.composite is None else self.composite.metrics(),
            structure=structure,
        )


def read_rows(
    path: Path, *, finished: bool, labels: Iterable[str] = (), structure: LabelSet | None = None
) -> dict[str, PromptRows]:
    """Return the rows by prompt name: ``seed`` and ``best`` of a search, an empty name of an evaluation.

    Parameters
    ----------
    path : Path
        ``predictions.jsonl``.
    finished : bool
        True if the run ended; else the last line may be cut off, and is then left out.
    labels : iterable of str, optional
        Labels that count even where no row has them.
    structure : LabelSet, optional
        The labels where they have a structure, or an answer holds several; instead of `labels`.

    Raises
    ------
    StateError
        The file is missing or cannot be read.
    DataError
        A line is broken; names file and line.
    """
    known = dict.fromkeys(labels if structure is None else structure)
    columns: defaultdict[str, _Columns] = defaultdict(lambda: _Columns(known, structure))
    file = RowFile(path, finished=finished)
    for number, (offset, row) in enumerate(file.rows(), start=1):
        try:
            columns[row.prompt].add(row, offset)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise file.broken(error, line=number) from error
    return {name: found.rows(path, torn=file.torn, structure=structure) for name, found in columns.items()}


def read_texts(
    rows: PromptRows, chosen: Sequence[int], answer_probability: NDArray[np.float64] | None = None
) -> list[RowTexts]:
    """Return the texts of the rows at these positions, in order."""
    found = []
    several = rows.composite is not None
    spoken = _spoken if several else str
    records = RowFile(rows.path).records_at(rows.offset[list(chosen)].tolist())
    for place, record in zip(chosen, records, strict=True):
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
        Places of rows that have a label and a confidence.

    Raises
    ------
    DataError
        A probability is none; names file and line.
    """
    rest = (1.0 - rows.confidence[chosen]) / (len(rows.labels) - 1)
    found = np.repeat(rest[:, None], len(rows.labels), axis=1)
    found[np.arange(len(chosen)), rows.label[chosen]] = rows.confidence[chosen]
    place = {label: i for i, label in enumerate(rows.labels)}
    records = RowFile(rows.path).records_at(rows.offset[chosen].tolist())
    for row, record in enumerate(records):
        try:
            for label, probability in _probabilities(record).items():
                if label in place:
                    found[row, place[label]] = _probability(probability)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"expected the probabilities of a row's labels, got others ({error}): run the evaluation again in a "
                f"new directory (row {int(chosen[row]) + 1} of its prompt).",
                path=rows.path,
            ) from error
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


def _probabilities(record: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the distribution of a row by label; empty where there is none."""
    distribution = record.get("distribution")
    if distribution is not None:
        return dict(zip(distribution["labels"], map(math.exp, distribution["logprobs"]), strict=True))
    return record.get("probabilities") or {}


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
