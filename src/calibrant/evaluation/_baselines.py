"""Baselines of a finished evaluation, on a bounded sample of its rows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np

from calibrant.core._errors import StateError
from calibrant.core._files import read_json_object
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._prediction import Outcome
from calibrant.core._rows import Example
from calibrant.heads._compared import BaselineComparison, compare_with_baselines
from calibrant.runs._directory import METRICS, PREDICTIONS, write_json
from calibrant.runs._records import RowFile, read_row

# 20,000 rows of 225 characters and 4 labels take 21 s of one core to learn from and 11 s to judge on; the interval of a
# difference on 5,000 rows is about 0.02 wide.
_LEARNED: Final = 10_000
_JUDGED: Final = 5_000
_CHARACTERS: Final = 500  # of a row, on average
_SEED: Final = 0

_Raw = TypeVar("_Raw")


class _DrawnRow(NamedTuple):
    """A sampled row with its predicted label."""

    example: Example
    label: str | None = None


def add_baselines(directory: Path, labelled: Iterable[Example], *, labels: LabelSet) -> BaselineComparison:
    """Compare a finished evaluation with baselines, and store the comparison in ``metrics.json``.

    Of many rows some are drawn with a fixed seed: at most 10,000 to learn from and 5,000 to judge on, fewer where they
    are longer than 500 characters on average.

    Parameters
    ----------
    directory : Path
        Output directory of the evaluation.
    labelled : iterable of Example
        Rows to learn from, answers spelled as in `labels`. Those with the text of a judged row are left out.
    labels : LabelSet
        The labels; an answer is one of them.

    Raises
    ------
    DataError
        A labelled row is broken.
    StateError
        A file of the directory is damaged or cannot be written.
    """
    predictions, metrics = directory / PREDICTIONS, directory / METRICS
    record = read_json_object(
        metrics, remedy="delete it and run the same command again, which asks nothing twice"
    )
    try:
        judged = _drawn_rows(RowFile(predictions).lines(), _answered_row, most=_JUDGED)
    except (StateError, ValueError) as error:
        raise StateError(
            f"{predictions}: expected the rows of a finished run ({error}): restore the file."
        ) from error
    texts = {normalise_label(row.example.input) for row in judged}
    learned = _drawn_rows(
        labelled,
        lambda example: None if normalise_label(example.input) in texts else _DrawnRow(example),
        most=_LEARNED,
    )
    found = compare_with_baselines(
        [row.example for row in judged],
        [row.label for row in judged],
        [row.example for row in learned],
        labels=labels,
    )
    write_json(metrics, {**record, "baselines": found.to_record()})
    return found


def _answered_row(line: bytes) -> _DrawnRow | None:
    """Return the row of a line; None after a transport error."""
    row = read_row(line)
    if row.outcome is Outcome.ERROR or row.input is None or row.answer is None:
        return None
    return _DrawnRow(Example(input=row.input, answer=row.answer), row.label)


def _drawn_rows(
    rows: Iterable[_Raw], read: Callable[[_Raw], _DrawnRow | None], *, most: int
) -> list[_DrawnRow]:
    """Sample rows in one pass, in input order, by their smallest random numbers.

    Only rows that may stay are read.
    """
    rng = np.random.default_rng(_SEED)
    kept: list[tuple[float, int, _DrawnRow]] = []  # a heap; the largest random number, negated, comes first
    bound, characters = 1.0, 0
    for place, raw in enumerate(rows):
        number = rng.random()
        if number >= bound or (row := read(raw)) is None:
            continue
        heapq.heappush(kept, (-number, place, row))
        characters += len(row.example.input)
        while len(kept) > most or characters > most * _CHARACTERS:
            largest, _, dropped = heapq.heappop(kept)
            bound, characters = -largest, characters - len(dropped.example.input)
    return [row for _, _, row in sorted(kept, key=lambda one: one[1])]
