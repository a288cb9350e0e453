"""Summary of a comparison in Markdown, for the page that a build server shows of a job."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from calibrant.cli._tables import with_interval
from calibrant.core._prediction import FloatArray
from calibrant.metrics._remarks import dollars
from calibrant.runs._rows import UNKNOWN, SavedRows

if TYPE_CHECKING:
    from calibrant.evaluation._compare import RunComparison, RunDifference

_MOST_ROWS: Final = 20
_LONGEST: Final = 100  # characters of a text
_CREDIT: Final = {1: "right", 0: "wrong", UNKNOWN: "unknown"}


def append_summary(
    path: Path, saved: Sequence[SavedRows], found: RunComparison, sentences: Iterable[str]
) -> None:
    """Append a comparison to a file: the runs, their differences, sentences on gates, and rows that changed."""
    lines = ["", "", "### calibrant compare", "", *_runs_table(saved, found), *_differences_table(found)]
    for sentence in sentences:
        lines += ["", f"<p>{_cell(sentence)}</p>"]
    for other, difference in zip(saved[1:], found.differences, strict=True):
        lines += _changes_table(saved[0], other, difference)
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _cell(text: str) -> str:
    """Return a text as HTML that shows it and nothing else.

    A block of HTML is not read as Markdown up to its end or an empty line, which a text without line breaks cannot
    make; inside of ``code`` neither people nor issues nor addresses become links.
    """
    shown = "".join(character if character.isprintable() else " " for character in text)
    return f"<code>{html.escape(' '.join(shown.split()))}</code>"


def _text_cell(text: str | None) -> str:
    if text is None:
        return "-"
    return _cell(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table of HTML; cells are HTML already."""
    lines = ["<table>", "<tr>" + "".join(f"<th>{name}</th>" for name in header) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return [*lines, "</table>"]


def _runs_table(saved: Sequence[SavedRows], found: RunComparison) -> list[str]:
    table = []
    for run, rows in zip(found.runs, saved, strict=True):
        counts = (f"{run.rows:,}", f"{run.errors:,}")
        table.append([_cell(run.name), *counts, with_interval(run.accuracy), _cost(rows.cost)])
    return _table(["run", "rows", "errors", "accuracy (95 %)", "cost"], table)


def _cost(costs: FloatArray) -> str:
    """Return the sum of costs; a dash where one is unknown."""
    total = float(costs.sum())
    return dollars(None if np.isnan(total) else total)


def _differences_table(found: RunComparison) -> list[str]:
    rows = [
        [
            _cell(one.name),
            _cell(one.baseline),
            with_interval(one.comparison.interval, "+.3f"),
            f"{one.comparison.n:,}",
            f"{one.comparison.p_value:.3g}",
        ]
        for one in found.differences
    ]
    return ["", *_table(["run", "against", "accuracy difference (95 %)", "rows", "p"], rows)]


def _changed_places(first: SavedRows, other: SavedRows) -> tuple[list[int], list[int]]:
    """Return the places in two runs of the rows that they answer differently: answers lost, then won, then others."""
    _, ours, theirs = np.intersect1d(first.index, other.index, assume_unique=True, return_indices=True)
    changed: list[tuple[int, int, int]] = []  # rank of the change, and the places
    for a, b in zip(ours.tolist(), theirs.tolist(), strict=True):
        if first.failed[a] or other.failed[b]:
            continue
        before = first.correct[a]
        after = other.correct[b]
        loss = 0 if UNKNOWN in (before, after) else int(before) - int(after)
        if loss or first.labels[a] != other.labels[b]:
            rank = {1: 0, -1: 1}.get(loss, 2)
            changed.append((rank, a, b))
    changed.sort(key=itemgetter(0))
    return [a for _, a, _ in changed], [b for _, _, b in changed]


def _changes_table(first: SavedRows, other: SavedRows, difference: RunDifference) -> list[str]:
    before, after = _changed_places(first, other)
    if not before:
        return ["", f"<p>{_cell(difference.name)}: no row has another answer.</p>"]
    places = before[:_MOST_ROWS]
    ordered = sorted(places)
    texts = dict(zip(ordered, first.rows(ordered), strict=True))
    rows = [
        [
            f"{_CREDIT[int(first.correct[place])]} → {_CREDIT[int(other.correct[partner])]}",
            _text_cell(texts[place].input),
            _text_cell(first.answers[place]),
            _text_cell(first.labels[place] or first.outcomes[place].value),
            _text_cell(other.labels[partner] or other.outcomes[partner].value),
        ]
        for place, partner in zip(places, after, strict=False)
    ]
    count = len(before)
    shown = f", {_MOST_ROWS} of them here" if count > _MOST_ROWS else ""
    title = f"<p>{_cell(difference.name)}: rows with another answer: {count:,}{shown}.</p>"
    header = ["change", "text", "true label", _cell(difference.baseline), _cell(difference.name)]
    return ["", title, "", *_table(header, rows)]
