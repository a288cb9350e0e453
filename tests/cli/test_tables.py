"""Plain tables and amounts of money."""

from __future__ import annotations

import sys

import pytest

from calibrant.cli._tables import aligned, dollars, fitted

ROWS = [["name", "one", "two", "three"], ["first", "1", "22", "333"], ["second", "4444", "5", "6"]]


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (None, "-"),
        (0.0, "$0"),
        (2.13e-6, "$0.0000021"),
        (9.99e-5, "$0.0001"),
        (1e-4, "$0.0001"),
        (0.0123, "$0.0123"),
        (12.0, "$12.0000"),
    ],
)
def test_small_amounts_are_not_nothing(cost: float | None, text: str) -> None:
    """Calls of small models cost millionths of a dollar."""
    assert dollars(cost) == text


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Print to a terminal of so many columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))


def test_a_table_that_fits_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last column; in a file every table does."""
    assert fitted(ROWS) == aligned(ROWS)
    on_terminal(monkeypatch, max(map(len, aligned(ROWS))))
    assert fitted(ROWS) == aligned(ROWS)


def test_columns_that_do_not_fit_stand_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the names again; one that fits nowhere is printed all the same."""
    on_terminal(monkeypatch, max(map(len, aligned(ROWS))) - 1)
    assert fitted(ROWS) == [
        *aligned([row[:3] for row in ROWS]),
        *aligned([[row[0], row[3]] for row in ROWS]),
    ]
    on_terminal(monkeypatch, 1)
    assert fitted(ROWS) == [
        line for place in (1, 2, 3) for line in aligned([[row[0], row[place]] for row in ROWS])
    ]
