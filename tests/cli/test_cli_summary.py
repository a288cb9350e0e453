"""Tests of ``calibrant compare --summary``: a Markdown page that no text can change."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from command_line import command, done, recorded_rows, write_rows

run = command("compare")

# Markup, links, mentions, and ways out of a cell, a code span or a block of HTML.
HOSTILE = (
    "</code></td></table>\n\n# owned\n\n<script>alert(1)</script>",
    "`` ` ``` | cell \\| **bold** [link](https://evil.example) ![image](https://evil.example/a.png)",
    "@octocat see #12, owner/repo#3, https://evil.example and www.evil.example or a@evil.example",
    "\r\n\r\n\x85\u2028\u2029\x0b\x0c# heading\u202e \x1b[31m <!-- <![CDATA[ &lt;b&gt; \ud800",
)


def write(path: Path, labels: Sequence[str], **changes: Any) -> Path:
    """Write a run that answers the labels, where the true one is always cat."""
    rows = recorded_rows([label == "cat" for label in labels], repeat(0.8))
    return write_rows(
        path, [{**row, "label": label, **changes} for row, label in zip(rows, labels, strict=True)]
    )


def cells(page: str) -> list[list[str]]:
    """Return the rows of all tables, as the texts that a browser shows."""
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    return [
        [html.unescape(re.sub(r"</?code>", "", cell)) for cell in re.findall(r"<t[dh]>(.*?)</t[dh]>", row)]
        for row in rows
    ]


def test_it_shows_runs_difference_gate_and_changed_rows(tmp_path: Path) -> None:
    """The page is appended; lost answers come first, then won ones, then others."""
    a = write(tmp_path / "a", ["cow", "cat", "cow", "cat"], cost=0.25)
    b = write(tmp_path / "b", ["dog", "cat", "cat", "dog"])
    file = tmp_path / "summary.md"
    file.write_text("before")
    printed = done(run(a, b, "--no-worse", "--summary", file)).stdout
    page = file.read_text()
    assert page.startswith("before\n\n### calibrant compare\n")
    found = cells(page)
    assert [str(a), "4", "0", "0.500 (0.150 to 0.850)", "$1.0000"] in found
    assert [str(b), "4", "0", "0.500 (0.150 to 0.850)", "-"] in found
    assert any(row[:2] == [str(b), str(a)] and row[3:] == ["4", "1"] for row in found)
    assert found[-3:] == [
        ["right → wrong", "text 3", "cat", "cat", "dog"],
        ["wrong → right", "text 2", "cat", "cow", "cat"],
        ["wrong → wrong", "text 0", "cat", "cow", "dog"],
    ]
    (sentence,) = [line for line in printed.splitlines() if "undecided, which passes" in line]
    assert f"<p><code>{html.escape(sentence)}</code></p>" in page


def test_long_texts_and_many_rows_are_cut(tmp_path: Path) -> None:
    """A text has at most 100 characters, and there are at most 20 rows of all."""
    text = "x" * 101
    a = write(tmp_path / "a", ["cat"] * 25, input=text)
    b = write(tmp_path / "b", ["cat"] * 2 + ["dog"] * 23, input=text)
    file = tmp_path / "summary.md"
    assert run(a, b, "--no-worse", "--summary", file).exit_code == 3
    page = file.read_text()
    assert [row[1] for row in cells(page) if row[0].startswith("right")] == ["x" * 100 + "…"] * 20
    assert "rows with another answer: 23, 20 of them here" in page


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_a_text(tmp_path: Path, text: str) -> None:
    """Whatever stands in a text or a label, the page has the same markup, and no line that ends a block of HTML."""

    def skeleton(shown: str) -> tuple[str, list[str]]:
        file = tmp_path / "summary.md"
        file.unlink(missing_ok=True)
        a = write(tmp_path / "a", ["cat", "cat"], input=shown)
        b = write(tmp_path / "b", ["cat", shown], input=shown, outcome="ok", correct=False)
        done(run(a, b, "--summary", file))
        page = file.read_text()
        return re.sub(r"<code>[^<>]*</code>", "<code></code>", page), page.splitlines()

    plain, plain_lines = skeleton("plain")
    hostile, hostile_lines = skeleton(text)
    assert hostile == plain
    assert len(hostile_lines) == len(plain_lines)
    assert all(line.isprintable() for line in hostile_lines)
    parsed = MarkdownIt("commonmark").enable("table").parse("\n".join(hostile_lines))
    assert {token.type for token in parsed} == {"heading_open", "inline", "heading_close", "html_block"}
    assert [token.content for token in parsed if token.type == "inline"] == ["calibrant compare"]


def test_equal_answers_are_told(tmp_path: Path) -> None:
    """Where no answer changed, the page says so; rows that failed in either run are not listed."""
    a, b = write(tmp_path / "a", ["cat", "dog"]), tmp_path / "b"
    write_rows(b, recorded_rows([True, None], repeat(0.8)))
    file = tmp_path / "summary.md"
    done(run(a, b, "--summary", file))
    assert "no row has another answer" in file.read_text()
