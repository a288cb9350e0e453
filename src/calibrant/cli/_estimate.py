"""``calibrant estimate``: shares of labels, accuracy and macro F1 of a labelled file, from a few true labels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from calibrant.calibration._estimates import Estimate, PileEstimate
from calibrant.cli._certify import answerer, answers_of
from calibrant.cli._tables import aligned, print_output
from calibrant.evaluation._estimated import EstimatedRows, estimate_saved
from calibrant.runs._rows import SavedRows

if TYPE_CHECKING:
    from calibrant.cli._commands import Estimate as Options
    from calibrant.evaluation._asked import AnswerFile


def estimate(options: Options) -> None:
    """Ask for the labels, write the files and print the estimates."""
    rows = SavedRows.load(options.predictions)
    other = None if options.against is None else SavedRows.load(options.against)
    file = answers_of(options, rows)
    with ExitStack() as stack:
        found = estimate_saved(
            rows, file, answer=answerer(options, stack), budget=options.budget, other=other
        )
    found.write(options.out)
    print_output(found.to_record(), _lines(found, options, file), as_json=options.as_json)


def _lines(found: EstimatedRows, options: Options, file: AnswerFile) -> Iterator[str]:
    given = f"{found.labels_used:,} labels used" if found.labels_used else "no label given yet"
    yield f"{found.rows.name}: {len(found.rows):,} rows; {given}"
    if found.pile is not None:
        yield from _pile_lines(found.pile, len(found.rows))
    if found.difference is not None and found.other is not None:
        yield from aligned(
            [
                ("", "estimate", "95 % interval", "plain sample"),
                ("accuracy more than the other", *_cells(found.difference, sign="+")),
            ]
        )
        yield f"The other: {found.other.name}; both predict the same for all rows but {found.difference.rows_apart:,}."
    if found.waiting:
        yield file.waiting_line(found.waiting)
    yield f"Files in {options.out}: estimate.json"


def _pile_lines(pile: PileEstimate, n: int) -> Iterator[str]:
    yield from aligned(
        [
            ("label", "share", "95 % interval", "predicted", "plain sample"),
            *(
                (label, *_cells(found, predicted=f"{pile.predicted[label] / n:.1%}"))
                for label, found in pile.shares.items()
            ),
            ("accuracy", *_cells(pile.accuracy, predicted="")),
            ("macro F1", *_cells(pile.macro_f1, predicted="", form=".3f")),
        ]
    )
    yield "plain sample: labels that an interval so narrow takes without the predictions."


def _cells(
    found: Estimate, *, predicted: str | None = None, form: str = ".1%", sign: str = ""
) -> tuple[str, ...]:
    interval = found.interval
    estimate, lower, upper = (
        format(end, sign + form) for end in (interval.estimate, interval.lower, interval.upper)
    )
    return (
        estimate,
        f"{lower} to {upper}",
        *(() if predicted is None else (predicted,)),
        f"{found.plain_labels:,}",
    )
