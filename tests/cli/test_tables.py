"""Tests of plain tables and amounts of money."""

from __future__ import annotations

import sys

import pytest

from calibrant.cli._tables import aligned, dollars, print_output


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
    """Amounts below a ten-thousandth of a dollar keep their digits, and an unknown amount is a dash."""
    assert dollars(cost) == text


def test_a_table_wraps_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are wrapped to a narrow terminal's width, and stay unwrapped elsewhere."""
    rows = [["name", "one", "two"], ["first", "1", "22"], ["second", "long " * 20, "a\nb"]]
    wide = aligned(rows)
    assert wide[:2] == ["name    one" + " " * 99 + "two", "first   1" + " " * 101 + "22"]
    assert wide[2].endswith("long   a b")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    narrow = aligned(rows)
    assert max(map(len, narrow)) <= 40
    assert sum(line.count("long") for line in narrow) == 20


def test_sentences_break_between_words_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line wider than the terminal is broken between words, and is left as it is elsewhere."""
    line = "The test rows show no difference: 0.0 / 58 rows, and a long-hyphened-word at the end."
    print_output({}, [line, "short"], as_json=False)
    assert capsys.readouterr().out == f"{line}\nshort\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    print_output({}, [line, "short"], as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(lines) == f"{line} short"
