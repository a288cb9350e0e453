"""``report.html``: honest, escaped, and readable without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import StateError
from calibrant.reports import write_report

EVIL = '<script>alert("x")</script>&amp;'
WriteRun = Callable[..., Path]


def score(prompt: str, **changes: Any) -> dict[str, Any]:
    """Return the record of a prompt's score."""
    interval = {"lower": 0.3, "upper": 0.9, "level": 0.95, "estimate": 0.625, "median": None}
    return {
        "prompt": prompt,
        "validation_score": 0.71,
        "rows": 4,
        "outcomes": {"ok": 3, "unparsed": 1},
        "accuracy": interval,
        "mean_probability": 0.812,
        **changes,
    }


def run_record(**changes: Any) -> dict[str, Any]:
    """Return the content of a result.json."""
    return {
        "schema_version": 1,
        "kind": "optimization",
        "task": "animals",
        "model": "fake",
        "seed": 3,
        "proposer": "exemplar",
        "seed_prompt": score("Which animal?\nAnswer."),
        "best_prompt": score("Which animal?\nLook closely."),
        "best_candidate": {"system_prompt": "Which animal?\nLook closely."},
        "improved": True,
        "comparison": {
            "difference": 0.25,
            "interval": {"lower": 0.05, "upper": 0.45, "level": 0.95, "estimate": 0.25, "median": None},
            "p_value": 0.031,
            "n": 4,
        },
        "metric_calls": 120,
        "proposals": 5,
        "accepted": 2,
        "completions": 118,
        "completions_without_logprobs": 0,
        "cost": None,
        "seconds": 12.0,
        **changes,
    }


def row(
    text: str, answer: str, label: str | None, confidence: float | None, **changes: Any
) -> dict[str, Any]:
    """Return a line of predictions.jsonl."""
    return {
        "row": 0,
        "prompt": "best",
        "input": text,
        "answer": answer,
        "correct": answer == label,
        "label": label,
        "confidence": confidence,
        "outcome": "ok" if label else "unparsed",
        "reason": "" if label else "answered 'cow'",
        **changes,
    }


ROWS = [
    row("meow", "cat", "cat", 0.9),
    row("growl", "dog", "cat", 0.7),
    row("bark", "dog", "cat", 0.95),
    row("moo", "dog", None, None),
    row("lost", "dog", None, None, outcome="error", reason="broken"),
    row("seen by the seed prompt only", "cat", "dog", 0.99, prompt="seed"),
]


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Return a function that writes a finished run directory by hand."""

    def write(result: Mapping[str, Any] | str | None = None, rows: list[Any] | str | None = None) -> Path:
        result = run_record() if result is None else result
        text = result if isinstance(result, str) else json.dumps(result)
        lines = ROWS if rows is None else rows
        (tmp_path / "result.json").write_text(text)
        (tmp_path / "predictions.jsonl").write_text(
            lines if isinstance(lines, str) else "".join(json.dumps(line) + "\n" for line in lines)
        )
        return tmp_path

    return write


class Page(HTMLParser):
    """What a browser sees: elements with their attributes, and the text of cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the element."""
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        """Leave the element."""
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        """Collect the text of cells."""
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data


def page_of(directory: Path) -> tuple[str, Page]:
    """Write the report and return its source and what a browser sees."""
    path = write_report(directory)
    assert path == directory / "report.html"
    html = path.read_text(encoding="utf-8")
    return html, Page(html)


# --- what it says -------------------------------------------------------------------------------


def test_the_numbers_of_the_run_stand_in_the_page(write_run: WriteRun) -> None:
    """Both prompts with accuracy, interval, probability, validation score and outcomes."""
    html, page = page_of(write_run())
    scores = ["0.625", "0.300 to 0.900", "0.812", "0.710", "3 ok, 1 unparsed"]
    assert page.tables[0][1:] == [["seed", *scores], ["best", *scores]]
    text = " ".join(re.sub(r"<[^>]+>", "", html).split())
    assert "fake, proposer exemplar, seed 3. 120 calls in the search, 2 of 5 proposals accepted." in text
    assert (
        "Best minus seed: +0.250 accuracy, 95 % interval +0.050 to +0.450, exact McNemar p = 0.031, 4 paired rows."
        in text
    )


def test_the_prompts_are_compared_line_by_line(write_run: WriteRun) -> None:
    """What stayed, what went and what came."""
    html, _ = page_of(write_run())
    assert re.findall(r'<span class="(\w+)">(.*?)</span>', html) == [
        ("same", "Which animal?"),
        ("removed", "Answer."),
        ("added", "Look closely."),
    ]


def test_the_confusion_table_counts_the_best_prompts_rows(write_run: WriteRun) -> None:
    """True label by row, given label by column, the last column for rows without a label."""
    _, page = page_of(write_run())
    assert page.tables[1] == [["", "cat", "dog", "none"], ["cat", "1", "0", "0"], ["dog", "2", "0", "2"]]


def test_wrong_answers_come_surest_first(write_run: WriteRun) -> None:
    """Rows the server failed on are nobody's wrong answer."""
    _, page = page_of(write_run())
    assert page.tables[2][1:] == [
        ["bark", "dog", "cat", "0.950"],
        ["growl", "dog", "cat", "0.700"],
        ["moo", "dog", "unparsed (answered 'cow')", "-"],
    ]


def test_wrong_answers_are_limited_to_the_surest_hundred(write_run: WriteRun) -> None:
    """A page of ten thousand rows helps nobody."""
    rows = [row(f"text {number}", "cat", "dog", number / 200) for number in range(150)]
    _, page = page_of(write_run(rows=rows))
    texts = [cells[0] for cells in page.tables[2][1:]]
    assert texts == [f"text {number}" for number in range(149, 49, -1)]


def test_a_run_without_a_better_prompt_says_so(write_run: WriteRun) -> None:
    """And shows no difference of a prompt from itself."""
    same = score("Which animal?")
    html, _ = page_of(write_run(run_record(seed_prompt=same, best_prompt=same, improved=False)))
    assert "No prompt was better than the seed prompt on the validation rows." in html
    assert "Best minus seed" not in html


def test_what_is_not_known_is_a_dash(write_run: WriteRun) -> None:
    """No answer at all, no log-probabilities, no wrong answer; a known cost is shown."""
    unknown = score("p", accuracy=None, mean_probability=None)
    directory = write_run(
        run_record(seed_prompt=unknown, best_prompt=unknown, comparison=None, cost=0.5), rows=[]
    )
    html, page = page_of(directory)
    assert page.tables[0][1] == ["seed", "-", "-", "-", "0.710", "3 ok, 1 unparsed"]
    assert page.tables[2][1:] == [["None."]]
    assert "$0.5000" in html


def test_a_report_is_replaced_by_the_next(write_run: WriteRun) -> None:
    """Writing it again is harmless and leaves no other file."""
    directory = write_run()
    first, _ = page_of(directory)
    second, _ = page_of(directory)
    assert first == second
    assert {path.name for path in directory.iterdir()} == {"result.json", "predictions.jsonl", "report.html"}


# --- what it must not do ------------------------------------------------------------------------


def test_nothing_of_the_users_becomes_markup(write_run: WriteRun) -> None:
    """Texts, labels, prompts, names and reasons are data."""
    result = run_record(
        task=EVIL,
        model=EVIL,
        proposer=EVIL,
        seed_prompt=score(f"seed {EVIL}", outcomes={EVIL: 4}),
        best_prompt=score(f"best {EVIL}"),
    )
    rows = [
        row(f"text {EVIL}", f"true {EVIL}", f"given {EVIL}", 0.9),
        row("x", f"true {EVIL}", None, None, reason=EVIL),
    ]
    html, page = page_of(write_run(result, rows))
    assert "<script" not in html.lower()
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "iframe", "object", "embed"})
    cells = [cell for table in page.tables for cells in table for cell in cells]
    for text in (f"text {EVIL}", f"true {EVIL}", f"given {EVIL}", f"4 {EVIL}"):
        assert text in cells  # shown as written, once unescaped by the browser
    assert html.count("&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;&amp;amp;") >= 8


def test_the_page_loads_nothing(write_run: WriteRun) -> None:
    """It opens from a disk without a network and tells nobody that it was opened."""
    html, page = page_of(write_run())
    loading = {"src", "href", "srcset", "data", "action", "poster", "background"}
    assert [attributes for _, attributes in page.tags if loading & attributes.keys()] == []
    assert "http:" not in html
    assert "https:" not in html
    assert "url(" not in html
    assert "@import" not in html


@pytest.mark.parametrize("missing", ["result.json", "predictions.jsonl"])
def test_an_unfinished_run_is_refused(write_run: WriteRun, missing: str) -> None:
    """The message names the file; no page is left that looks finished."""
    directory = write_run()
    (directory / missing).unlink()
    with pytest.raises(StateError, match=missing.replace(".", r"\.")):
        write_report(directory)
    assert not (directory / "report.html").exists()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("", "expected the result of a finished run"),
        ('{"schema_version": 1', "expected the result of a finished run"),
        ("[]", "expected schema version 1, got None"),
        ({"task": "animals"}, "expected schema version 1, got None"),
        (run_record(schema_version=2), "expected schema version 1, got 2: use the calibrant that wrote it"),
        ({"schema_version": 1}, r"expected a complete run, .*KeyError\('seed_prompt'\)"),
        ({**run_record(), "seed_prompt": None}, "expected a complete run"),
        (
            {key: value for key, value in run_record().items() if key != "proposer"},
            "complete run, .*proposer",
        ),
    ],
)
def test_a_result_of_another_kind_is_refused(
    write_run: WriteRun, result: Mapping[str, Any] | str, message: str
) -> None:
    """Cut off, of another version, or without what the page shows."""
    directory = write_run(result)
    with pytest.raises(StateError, match=message):
        write_report(directory)
    assert not (directory / "report.html").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"prompt": "be', r"predictions\.jsonl: expected one prediction per line"),
        ('"text"\n', "expected a complete run"),
        ([{"prompt": "best"}], r"complete run, .*KeyError\('answer'\)"),
        ([{"input": "meow"}], r"complete run, .*KeyError\('prompt'\)"),
    ],
)
def test_damaged_predictions_are_refused(write_run: WriteRun, rows: list[Any] | str, message: str) -> None:
    """A kill while they were written, or another program's file."""
    with pytest.raises(StateError, match=message):
        write_report(write_run(rows=rows))
