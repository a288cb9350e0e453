"""Tests of counts in the words that commands print."""

from __future__ import annotations

import pytest

from calibrant.core._reported import counted


@pytest.mark.parametrize(
    ("count", "words", "text"),
    [
        (0, ("row",), "0 rows"),
        (1, ("row",), "1 row"),
        (2, ("row",), "2 rows"),
        (12_345, ("row",), "12,345 rows"),
        (1.0, ("second",), "1 second"),
        (30.0, ("second",), "30 seconds"),
        (0.5, ("second",), "0.5 seconds"),
        (1, ("row waits", "rows wait"), "1 row waits"),
        (3, ("row waits", "rows wait"), "3 rows wait"),
    ],
)
def test_one_thing_alone_is_singular(count: float, words: tuple[str, ...], text: str) -> None:
    """One thing has its noun in the singular, every other number of them the plural."""
    assert counted(count, *words) == text
