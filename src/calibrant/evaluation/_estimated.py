"""Estimates about all rows of a labelled file, from true labels that are kept in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from calibrant.calibration._estimates import (
    DifferenceEstimate,
    Estimate,
    PileEstimate,
    estimate,
    estimate_difference,
    rows_drawn,
)
from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._files import SCHEMA_VERSION
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import JsonObject
from calibrant.core._structures import NO, YES
from calibrant.evaluation._asked import NO_LABEL, AnswerFile, LabelSource, ask, probability_of
from calibrant.metrics._intervals import interval_record
from calibrant.runs._directory import make_folder, write_json
from calibrant.runs._rows import SavedRows

ESTIMATE: Final = "estimate.json"
_FEWEST: Final = 2  # labels that show any variation


@dataclass(frozen=True, kw_only=True, eq=False)
class EstimatedRows:
    """Saved rows with estimates about them; or with neither, until there are two labels.

    Attributes
    ----------
    rows : SavedRows
        The rows.
    other : SavedRows or None
        Other predictions of the same rows, that these are compared with.
    pile : PileEstimate or None
        Shares, accuracy and macro F1; None where predictions are compared.
    difference : DifferenceEstimate or None
        Accuracy of the rows minus that of the other ones.
    labels_used : int
        Labels that the estimates are made of.
    waiting : int
        Rows that wait for the answer of a person.
    agreement_with : str or None
        Model whose labels were asked for: accuracy is agreement with it, not being right.
    holds_several : bool
        True if an answer holds several labels: shares are of single labels, accuracy is of whole answers, and macro F1,
        which would be of whole answers too, says nothing.
    """

    rows: SavedRows
    other: SavedRows | None
    pile: PileEstimate | None
    difference: DifferenceEstimate | None
    labels_used: int
    waiting: int
    agreement_with: str | None = None
    holds_several: bool

    def to_record(self) -> JsonObject:
        """Return the estimates as JSON values, as ``estimate.json`` holds them."""
        record: JsonObject = {
            "schema_version": SCHEMA_VERSION,
            "kind": "estimate",
            "source": self.rows.name,
            "rows": len(self.rows),
            "labels_used": self.labels_used,
            "waiting": self.waiting,
            "agreement_with": self.agreement_with,
        }
        if self.pile is not None:
            record |= {
                "shares": {
                    label: _values(found) | {"predicted": self.pile.predicted[label]}
                    for label, found in self.pile.shares.items()
                },
                "accuracy": _values(self.pile.accuracy),
                "macro_f1": None if self.holds_several else _values(self.pile.macro_f1),
                "without_label": self.pile.without_label,
            }
        if self.other is not None:
            record["against"] = self.other.name
        if self.difference is not None:
            record |= {
                "difference": _values(self.difference),
                "rows_apart": self.difference.rows_apart,
            }
        return record

    def write(self, out: Path) -> None:
        """Write ``estimate.json``."""
        make_folder(out)
        write_json(out / ESTIMATE, self.to_record())


def _values(found: Estimate) -> dict[str, float]:
    return {**interval_record(found.interval), "plain_labels": found.plain_labels}


def estimate_saved(
    rows: SavedRows,
    file: AnswerFile,
    *,
    answer: LabelSource | None,
    budget: int,
    other: SavedRows | None,
) -> EstimatedRows:
    """Estimate numbers about saved rows from the true labels of some; see `calibrant.calibration.estimate`.

    Every answer is in the file before the next row is asked about, and none is asked for twice: `certify` draws rows in
    the same order, and one file serves both.

    Parameters
    ----------
    rows : SavedRows
        Rows with their predicted labels.
    file : AnswerFile
        Keeps the answers.
    answer : callable or None
        Returns the true label of a text; by default a person is asked: all rows are added to the file, and whoever has
        filled in some of them calls again. The rows from the first on that have answers count.
    budget : int
        Rows to label.
    other : SavedRows or None
        Other predictions of the same rows: how much more often these ones are right is estimated instead, from rows
        for which both differ.

    Raises
    ------
    ConfigurationError
        The budget is out of range, or no row has a label.
    DataError
        An answer is no label, or the other rows are not the same.
    """
    if not any(label is not None for label in rows.labels):
        raise ConfigurationError(
            f"Expected rows with a predicted label in {rows.name}, got none: label them first."
        )
    if not _FEWEST <= budget <= len(rows):
        raise ConfigurationError(
            f"Expected a budget from {_FEWEST} to the {len(rows):,} rows of {rows.name}, got {budget:,}: each row is "
            "labelled once at most."
        )
    drawn = rows_drawn(rows.index.tolist(), len(rows))
    places: list[int] = []
    if other is not None:
        places = _same_rows(rows, other)
        drawn = [row for row in drawn if rows.labels[row] != other.labels[places[row]]]
    wanted = drawn[:budget]
    if other is not None:
        _check_texts(rows, other, file, wanted, places)
    _fill(file, rows, wanted, answer)
    known = list(takewhile(file.answers.get, wanted))
    n_known = len(known)
    is_enough = n_known >= min(_FEWEST, len(wanted))
    pile = None
    difference = None
    if is_enough and other is None:
        pile = _estimated(rows, file, n_known)
    elif is_enough and other is not None:
        difference = _compared(rows, other, places, file, n_known)
    return EstimatedRows(
        rows=rows,
        other=other,
        pile=pile,
        difference=difference,
        labels_used=n_known,
        waiting=sum(not file.answers.get(row) for row in wanted),
        holds_several=rows.legal_labels is not None and rows.legal_labels.holds_several,
    )


def _fill(file: AnswerFile, rows: SavedRows, wanted: list[int], answer: LabelSource | None) -> None:
    """Ask for the answers that are missing, or add their rows to the file for a person."""
    missing = [row for row in wanted if not file.answers.get(row)]
    if answer is None:
        if missing:
            file.answers |= dict.fromkeys(missing, "")
            file.write(rows)
        return
    for row in missing:
        ask(answer, file, rows, row)


def _truth(file: AnswerFile) -> Callable[[int], str | None]:
    return lambda row: None if file.answers[row] == NO_LABEL else file.answers[row]


def _compared(
    rows: SavedRows, other: SavedRows, places: list[int], file: AnswerFile, n_known: int
) -> DifferenceEstimate:
    """Return the difference of two predictions by the first `n_known` rows on which they differ."""
    return estimate_difference(
        rows.labels,
        [other.labels[place] for place in places],
        ask=_truth(file),
        budget=max(n_known, _FEWEST),
        confidences=(rows.confidence, other.confidence[places]),
        inputs=rows.index.tolist(),
    )


def _estimated(rows: SavedRows, file: AnswerFile, n_known: int) -> PileEstimate:
    """Return shares, accuracy and macro F1 by the first `n_known` rows that are drawn."""
    names = rows.index.tolist()
    answers = [file.answers[row] for row in rows_drawn(names, n_known)]
    labels = _labels(rows, answers)
    found = estimate(
        rows.labels,
        _probabilities(rows, labels),
        ask=_truth(file),
        budget=n_known,
        labels=labels,
        inputs=names,
    )
    legal = rows.legal_labels
    if legal is None or not legal.holds_several:
        return found
    return _with_single_labels(found, rows, file, legal)


def _with_single_labels(
    found: PileEstimate, rows: SavedRows, file: AnswerFile, legal: LabelSet
) -> PileEstimate:
    """Return estimates with the shares of rows that have each single label, in place of those of whole answers."""
    predicted = [frozenset[str]() if label is None else legal.decisions(label) for label in rows.labels]
    truth = _truth(file)

    def labels_of(row: int) -> frozenset[str]:
        answer = truth(row)
        return frozenset() if answer is None else legal.decisions(answer)

    def asking_for(name: str) -> Callable[[int], str | None]:
        return lambda row: YES if name in labels_of(row) else NO

    drawn = rows_drawn(rows.index.tolist(), found.labels_used)
    shares = {}
    counts = {}
    for name in sorted(frozenset().union(*predicted, *map(labels_of, drawn))):
        own = estimate(
            [YES if name in labels else NO for labels in predicted],
            ask=asking_for(name),
            budget=found.labels_used,
            labels=[NO, YES],
            inputs=rows.index.tolist(),
        )
        shares[name] = own.shares[YES]
        counts[name] = own.predicted[YES]
    return replace(found, shares=shares, predicted=counts)


def _labels(rows: SavedRows, answers: list[str]) -> list[str]:
    """Return the label set, and after it labels that occur beyond."""
    seen = {label for label in (*rows.labels, *answers) if label is not None}
    known = rows.label_set or ()
    return [*known, *sorted(seen.difference(known, [NO_LABEL]))]


def _probabilities(rows: SavedRows, labels: list[str]) -> ArrayLike:
    """Return the probability of each label of each row where the rows have them, and the confidences otherwise."""
    if rows.label_set is None:
        return rows.confidence
    found = np.full((len(rows), len(labels)), np.nan)
    for place, row in enumerate(rows.rows()):
        given = row.values.get("probabilities")
        found[place] = [probability_of(given, label) for label in labels]
    return found


def _same_rows(rows: SavedRows, other: SavedRows) -> list[int]:
    """Return the places of the rows in the other ones."""
    place_of = {int(index): place for place, index in enumerate(other.index)}
    places = [place_of.get(int(index), -1) for index in rows.index]
    if len(place_of) != len(places) or -1 in places:
        raise DataError(
            f"expected predictions of the {len(rows):,} rows of {rows.name}, got {len(other):,} rows, "
            f"{sum(place >= 0 for place in places):,} of them with the same index: compare predictions of one file.",
            path=other.path,
        )
    return places


def _check_texts(
    rows: SavedRows, other: SavedRows, file: AnswerFile, wanted: list[int], places: list[int]
) -> None:
    mine = file.texts_of(wanted, rows)
    order = sorted(wanted, key=places.__getitem__)
    theirs = other.rows([places[row] for row in order])
    for row, found in zip(order, theirs, strict=True):
        if (found.input or "").split() != mine[row].split():
            raise DataError(
                f"expected the text of row {int(rows.index[row])} of {rows.name}, got another one: compare predictions "
                "of one file.",
                path=other.path,
            )
