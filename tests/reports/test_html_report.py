"""Tests of ``report.html``: its figures, its escaping, and its work without a network."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrant.cli import app
from calibrant.core import ConfigurationError, DataError, Example, StateError
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import Classifier
from calibrant.metrics import expected_calibration_error, paired_comparison, wilson_interval
from calibrant.reports import write_report
from calibrant.testing import FakeClient
from search_records import score, search_record, validated

EVIL = '<script>alert("x")</script>&amp;'
ESCAPED = "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;&amp;amp;"
WriteRun = Callable[..., Path]


def metrics_record(**changes: Any) -> dict[str, Any]:
    """Return a metrics.json as the page reads it."""
    about = {"schema_version": 1, "kind": "evaluation", "task": "animals", "model": "fake"}
    return {**about, "complete": True, **changes}


def baseline(name: str, accuracy: float, **changes: Any) -> dict[str, Any]:
    """Return the record of a baseline's score."""
    ends = {"estimate": accuracy, "lower": accuracy - 0.1, "upper": accuracy + 0.1, "level": 0.95}
    labels = {"answered": 1, "total": 2, "present": 2, "found": 1, "share": 0.5, "collapsed": False}
    return {"name": name, "accuracy": ends, "macro_f1": accuracy / 2, "answered_labels": labels, **changes}


BESIDE = {
    "rows": 1200,
    "labelled_rows": 2400,
    "scores": [baseline("model", 0.8), baseline("majority", 0.4), baseline("TF-IDF", 0.7)],
    "against_text": None,
    "verdict": "The model adds +0.100.",
}


def row(
    text: str, answer: str | None, label: str | None, confidence: float | None, **changes: Any
) -> dict[str, Any]:
    """Return a line of an evaluation's predictions.jsonl."""
    return {
        "index": 0,
        "input": text,
        "answer": answer,
        "correct": None if answer is None else answer == label,
        "label": label,
        "confidence": confidence,
        "outcome": "ok" if label else "unparsed",
        "reason": "" if label else "answered 'cow'",
        "probabilities": None,
        "label_mass": None,
        "unresolved_mass": None,
        "space": None,
        "model": "fake",
        "attempts": 1,
        "latency_seconds": 0.25,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "cost": 0.001,
        **changes,
    }


RULE = {"threshold": 0.8, "coverage": 0.5, "accuracy_lower_bound": 0.91, "target_accuracy": 0.9, "delta": 0.1}
ROWS = [
    row("meow", "cat", "cat", 0.9),
    row("growl", "dog", "cat", 0.7),
    row("bark", "dog", "cat", 0.95),
    row("moo", "dog", None, None),
    row("lost", "dog", None, None, outcome="error", reason="broken"),
    row("unlabelled", None, "cat", 0.99),
]
SEARCH_ROWS = [
    *({**line, "prompt": "best"} for line in ROWS[:5]),
    row("meow", "cat", "dog", 0.9, prompt="seed"),
    row("bark", "dog", "cat", 0.95, prompt="seed"),
]


def numbered(rows: Sequence[Any]) -> bytes:
    """Return the lines of rows, each with its place among those of its prompt as index."""
    lines, places = [], Counter[str]()
    for line in rows:
        prompt = line.get("prompt", "")
        lines.append(json.dumps({**line, "index": places[prompt]}) + "\n")
        places[prompt] += 1
    return "".join(lines).encode()


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Return a function that writes a run's directory by hand."""

    def write(
        rows: Sequence[Any] | bytes = ROWS, name: str = "run", **files: Mapping[str, Any] | str
    ) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        data = rows if isinstance(rows, bytes) else numbered(rows)
        (directory / "predictions.jsonl").write_bytes(data)
        for stem, content in (files or {"metrics": metrics_record()}).items():
            text = content if isinstance(content, str) else json.dumps({"schema_version": 1, **content})
            (directory / f"{stem}.json").write_text(text)
        return directory

    return write


class Page(HTMLParser):
    """The elements of a page with their attributes, and the cells of its tables."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self._cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the element."""
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        """End the cell."""
        self._cell = self._cell and tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        """Add text to the cell."""
        if self._cell:
            self.tables[-1][-1][-1] += data

    def table(self, *heads: str) -> list[list[str]]:
        """Return the first table whose head begins with these cells, without the head."""
        found = next(table for table in self.tables if table[0][: len(heads)] == list(heads))
        return [[cell.strip() for cell in cells] for cells in found[1:]]


def page_of(*directories: Path, out: Path | None = None) -> tuple[str, Page]:
    """Write the report, and return its source and its parsed page."""
    html = write_report(*directories, out=out).read_text(encoding="utf-8")
    return html, Page(html)


def plain(html: str) -> str:
    """Return the text of the page on one line."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


# --- what it says -------------------------------------------------------------------------------


def test_the_headline_has_intervals_and_denominators(write_run: WriteRun) -> None:
    """Each figure at the top has its interval and its denominator."""
    _, page = page_of(write_run())
    answered, labelled = wilson_interval(1, 4), wilson_interval(1, 5)
    ece = expected_calibration_error([0.9, 0.7, 0.95], [1, 0, 0])
    found = {cells[0]: cells[1:] for cells in page.table("what", "value")}
    ends = [f"{one.lower:.3f} to {one.upper:.3f}" for one in (answered, labelled)]
    assert found["accuracy"] == ["0.250", ends[0], "1 of 4 answered rows"]
    failed_are_wrong = found["accuracy, failed rows counted as wrong"]
    assert failed_are_wrong == ["0.200", ends[1], "1 of 5 labelled rows"]
    assert found["calibration error (ECE)"][0] == f"{ece:.3f}"
    assert found["AUROC"][0] == "0.500"  # 0.9 lies between 0.7 and 0.95


def test_an_interval_stays_where_a_score_can_be(write_run: WriteRun) -> None:
    """The interval of a Brier score begins at 0 where nearly all rows are right and sure."""
    rows = [row(str(n), "cat", "cat" if n else "dog", 0.999) for n in range(40)]
    _, page = page_of(write_run(rows))
    found = {cells[0]: cells[1:] for cells in page.table("what", "value")}
    assert found["Brier score"][1].startswith("0.000 to ")


def test_an_interval_of_width_0_says_why(write_run: WriteRun) -> None:
    """An interval of width 0 is explained if all rows came out alike."""
    _, page = page_of(write_run([row(str(i), "cat", "cat", 0.9) for i in range(20)]))
    found = {cells[0]: cells[1:] for cells in page.table("what", "value")}
    for name in ("macro F1", "Brier score"):
        assert found[name][2].endswith("; width 0 because all rows came out alike, as the next ones need not")
    assert "width 0" not in found["accuracy"][2]


def test_the_numbers_are_those_of_the_evaluation(tmp_path: Path) -> None:
    """The figures equal those of the evaluation, also with a label that no row has."""
    texts = [f"{kind} {number}" for number in range(20) for kind in ("meow", "woof")]
    examples = [Example(input=text, answer="cat" if "meow" in text else "dog") for text in texts]
    fake = FakeClient(
        ["cat", "dog", "cow"],
        {**{f"meow {n}": ("dog", 0.6) for n in (3, 11)}, "meow": ("cat", 0.9), "woof": ("dog", 0.8)},
    )
    classifier = Classifier(model=fake, labels=["cat", "dog", "cow"], field="category", prompt="Which?")
    evaluator = BatchEvaluator(classifier, cache=None)
    found = evaluator.evaluate(examples, out=tmp_path / "run", about={"task": "animals"}).metrics
    html, page = page_of(tmp_path / "run")
    values = {cells[0]: cells[1] for cells in page.table("what", "value")}
    assert found.accuracy is not None
    assert found.ece is not None
    assert found.brier is not None
    assert found.macro_f1 is not None
    assert 0.0 < found.macro_f1 < 2 / 3  # the cow counts
    assert values["accuracy"] == f"{found.accuracy.estimate:.3f}"
    assert values["macro F1"] == f"{found.macro_f1:.3f}"
    assert values["calibration error (ECE)"] == f"{found.ece:.3f}"
    assert values["Brier score"] == f"{found.brier:.3f}"
    assert "it is not finished" not in html


@pytest.mark.slow
def test_the_macro_f1_interval_holds_its_level(write_run: WriteRun) -> None:
    """In at least 52 of 60 samples the interval of macro F1 holds the known value."""
    rng = np.random.default_rng(5)
    held = 0
    for sample in range(60):
        truth = rng.integers(0, 2, 150)
        given = np.where(rng.random(150) < 0.8, truth, 1 - truth)
        rows = [row(str(i), "ab"[t], "ab"[g], 0.9) for i, (t, g) in enumerate(zip(truth, given, strict=True))]
        _, page = page_of(write_run(rows, name=f"sample{sample}"))
        interval = next(cells[2] for cells in page.table("what", "value") if cells[0] == "macro F1")
        lower, upper = map(float, interval.split(" to "))
        held += lower <= 0.8 <= upper
    assert held >= 52


def test_the_macro_f1_interval_of_many_labels_holds_its_estimate(write_run: WriteRun) -> None:
    """With two rows a label, labels that a resample lacks do not lower the interval below the value itself."""
    names = [f"label{n}" for n in range(60)]
    rows = [row(f"{n}", names[n % 60], names[(n + (n % 9 == 0)) % 60], 0.9) for n in range(120)]
    _, page = page_of(write_run(rows))
    _, value, interval = next(cells for cells in page.table("what", "value") if cells[0] == "macro F1")[:3]
    lower, upper = map(float, interval.split(" to "))
    assert lower < float(value) < upper


def test_the_confusion_table_counts_answered_rows(write_run: WriteRun) -> None:
    """The confusion table counts answered rows; its last column counts rows without a label."""
    _, page = page_of(write_run())
    assert page.table("", "cat") == [["cat", "1", "0", "0"], ["dog", "2", "0", "1"]]


def test_rows_that_only_say_whether_they_are_right_have_a_page(tmp_path: Path) -> None:
    """Predictions without labels and texts are judged; there is no table of confusions."""
    lines = [json.dumps({"correct": row % 4 > 0, "confidence": 0.5}) for row in range(40)]
    (tmp_path / "predictions.jsonl").write_text("\n".join(lines) + "\n")
    page = write_report(tmp_path).read_text()
    assert "30 of 40" in page


def test_of_many_labels_those_with_most_mistakes_are_shown(write_run: WriteRun) -> None:
    """Of many labels the 20 with the most mistakes are shown, and the rest is counted."""
    rows = [row(str(i), f"l{i:02}", f"l{i:02}", 0.9) for i in range(30)]
    rows += [row(f"wrong {i}", "l29", "l28", 0.9) for i in range(3)]
    html, page = page_of(write_run(rows))
    table = next(table for table in page.tables if table[0][0] == "" and "l29" in table[0])
    assert len(table) == 21
    assert table[-1][0] == "l29"
    assert table[-1][-3:] == ["3", "1", "0"]
    assert "10 more are left out of this table" in plain(html)
    assert page.table("true label", "given") == [["l29", "l28", "3"]]


def test_mistakes_come_surest_first(write_run: WriteRun) -> None:
    """Mistakes are listed by falling confidence, and rows that failed are not listed."""
    _, page = page_of(write_run())
    assert page.table("row", "text") == [
        ["3", "bark", "dog", "cat", "0.9500", ""],
        ["2", "growl", "dog", "cat", "0.7000", ""],
        ["4", "moo", "dog", "unparsed", "-", "answered 'cow'"],
    ]


def test_mistakes_name_file_line_and_id(write_run: WriteRun) -> None:
    """A mistake is named by the file and line that its row comes from, and by its id there."""
    _, page = page_of(write_run([row("bark", "dog", "cat", 0.95, source="rows.csv:77", id="K-007")]))
    assert page.table("row", "text")[0][0] == "rows.csv:77id K-007"


def test_labels_without_a_row_count(write_run: WriteRun) -> None:
    """Of a search, labels that no test row has count in macro F1 and among all labels, as in its own record."""
    record = search_record(label_set=["cat", "dog", "emu"])
    html, page = page_of(write_run(SEARCH_ROWS, result=record))
    figures = {cells[0]: cells for cells in page.table("what", "value")}
    assert figures["macro F1"][3].startswith("3 labels")
    assert "1 of 3 labels in all" in figures["labels answered"][3]
    assert "emu" in plain(html)


@pytest.mark.parametrize(
    ("model", "text"), [("local/smollm2-135m", "none: the model runs here"), ("x", "no price is known")]
)
def test_an_embedded_model_costs_nothing(write_run: WriteRun, model: str, text: str) -> None:
    """Where no price is known, the page says if that is because the model runs here."""
    rows = [{**line, "cost": None} for line in ROWS]
    html, _ = page_of(write_run(rows, metrics=metrics_record(model=model)))
    assert f"<dt>cost of these rows</dt><dd>{text}</dd>" in html


def ranked_rows(n: int = 120, *, flipped: int = 7) -> list[dict[str, Any]]:
    """Return rows of a good classifier, surer when right; one row has a wrong true label.

    Where it is wrong it takes a cow for a dog; only the flipped row is a cat that it surely calls a cow.
    """
    rows = []
    for number in range(n):
        truth = ("cat", "dog", "cow")[number % 3]
        is_confused = truth == "cow" and number % 4 == 0
        label, sure = ("dog", 0.7) if is_confused else (truth, 0.99 - number / 1000)
        if number == flipped:
            truth, label, sure = "cat", "cow", 0.9
        rest = (1.0 - sure) / 2
        shares = {name: sure if name == label else rest for name in ("cat", "dog", "cow")}
        rows.append(row(f"text {number}", truth, label, sure, probabilities=shares))
    return rows


def test_the_least_probable_true_label_comes_first(write_run: WriteRun) -> None:
    """Rows are listed by the probability of their true label, the lowest first."""
    html, page = page_of(write_run(ranked_rows()))
    shown = page.table("row", "text")
    assert "Look at these first" in plain(html)
    assert shown[0][:4] == ["8", "text 7", "cat", "cow"]
    probabilities = [float(cells[5]) for cells in shown]
    assert probabilities == sorted(probabilities)
    assert probabilities[0] < 0.5 * probabilities[1]
    assert "mislabelled" not in html


@pytest.mark.parametrize("share", [-9e-7, 1.0 + 9e-7])
def test_a_probability_that_rounding_took_out_of_range_counts(write_run: WriteRun, share: float) -> None:
    """It is an end of [0, 1]."""
    pages = []
    for probability in (share, min(max(share, 0.0), 1.0)):
        rows = ranked_rows()
        rows[7]["probabilities"]["dog"] = probability
        pages.append(page_of(write_run(rows, f"run {probability}"))[1].table("row", "text"))
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "None"), (True, "True"), ("0.5", "'0.5'"), (-0.01, "-0.01"), (2, "2")]
)
def test_what_is_no_probability_of_a_label_is_refused(write_run: WriteRun, value: Any, shown: str) -> None:
    """The message has the file, the value and the row."""
    rows = ranked_rows()
    rows[7]["probabilities"]["dog"] = value
    expected = rf"predictions\.jsonl:8: expected a probability in \[0, 1\], got {shown}: correct"
    with pytest.raises(DataError, match=expected):
        write_report(write_run(rows))


def test_a_useless_confidence_ranks_no_rows(write_run: WriteRun) -> None:
    """If confidence does not rank, mistakes come by confidence, and the page says why."""
    rows = [row(str(i), "cat", "dog" if i % 2 else "cat", 0.9 if i % 2 else 0.6) for i in range(40)]
    html, page = page_of(write_run(rows))
    text = plain(html)
    assert "Look at these first" not in text
    assert "the confidence is not shown to tell right from wrong answers (AUROC 0.000, 0.000 to " in text
    assert len(page.table("row", "text")[0]) == 6
    assert "Confidence ranks backwards: in 100% of all pairs" in text


def test_rows_are_not_ranked_by_a_collapsed_model(write_run: WriteRun) -> None:
    """If the model answers fewer than half of the labels, rows are not ranked, and the page says why."""
    rows = [
        row(str(i), "abcde"[i % 5], "ab"[i % 5 > 0], 0.95 if i % 5 < 2 else 0.6 + i / 1000)
        for i in range(100)
    ]
    html, _ = page_of(write_run(rows))
    assert "the model answers 2 of the 5 labels that occur in these rows" in plain(html)


def test_low_label_mass_is_said_above_the_numbers(write_run: WriteRun) -> None:
    """Low label mass is reported above the figures; rows that failed do not count."""
    mass = {"label_mass": 0.3, "space": "raw", "unresolved_mass": 0.1}
    rows = [
        row("a", "cat", "cat", 0.9, **mass),
        row("b", "cat", "cat", 0.9, **mass | {"unresolved_mass": 0.2}),
        row("c", "cat", "cat", 0.9, **mass | {"space": "masked"}),
        row("d", "cat", "cat", 0.9, label_mass=0.4, unresolved_mass=0.0, space="exact"),
        row("e", "cat", None, None, outcome="error"),
    ]
    html, _ = page_of(write_run(rows))
    assert "The model wanted to write something else on 2 of 4 rows (label mass below 0.5)" in plain(html)
    html, _ = page_of(write_run(name="without"))
    assert "something else" not in html


def test_mistakes_are_limited_and_the_limit_is_stated(write_run: WriteRun) -> None:
    """At most 200 mistakes are listed, the surest first, and the page says so."""
    rows = [row(f"text {number}" + "x" * 9000, "cat", "dog", number / 400) for number in range(300)]
    html, page = page_of(write_run(rows))
    shown = page.table("row", "text")
    assert [int(cells[0]) for cells in shown] == list(range(300, 100, -1))
    assert "300 rows are wrong" in plain(html)
    assert "Shown are 200, the surest first." in plain(html)
    assert len(html) < 300_000


def test_a_certified_rule_is_drawn_where_there_is_one(write_run: WriteRun) -> None:
    """A certified threshold is drawn; without one the page has a warning."""
    calibration = {"certified": RULE, "rows": 2000, "source": "runs/other"}
    html, page = page_of(write_run(metrics=metrics_record(), calibration=calibration))
    assert "of the rows it was found on (2,000 rows of runs/other)" in plain(html)
    assert [attributes for tag, attributes in page.tags if attributes.get("class") == "certified"] != []
    assert (
        "Certified: of the answers with a confidence of 0.8 or more, at least 90 % are right, with probability 0.9."
        in plain(html)
    )
    html, _ = page_of(write_run(name="without"))
    assert 'class="certified"' not in html
    assert "a threshold read off here is not a guarantee" in html


def test_cost_and_latency_are_stated(write_run: WriteRun) -> None:
    """Cost and latency are stated without the rows that needed no call."""
    rows = [
        *(row(str(i), "cat", "cat", 0.9, latency_seconds=(i + 1) / 10, cost=0.002) for i in range(9)),
        row("known", "cat", "cat", 0.9, attempts=0, latency_seconds=99.0, cost=5.0),
    ]
    html, _ = page_of(write_run(rows, metrics=metrics_record(calls=11, cost=0.03)))
    text = plain(html)
    assert "$0.0180, $2.0000 for 1,000 rows; 9 rows with a price" in text
    assert "cost of the whole run $0.0300" in text
    assert "median 0.5 s, 90 % within 0.82 s" in text
    assert "calls 11" in text


# --- searches and several runs ------------------------------------------------------------------


def test_a_search_shows_both_prompts_and_their_difference(write_run: WriteRun) -> None:
    """A search's page shows the lines that differ between the prompts, and the difference."""
    html, page = page_of(write_run(SEARCH_ROWS, result=search_record()))
    assert re.findall(r'<span class="(same|added|removed)">(.*?)</span>', html) == [
        ("same", "  Which animal?"),
        ("removed", "- Answer."),
        ("added", "+ Look closely."),
    ]
    assert "120 rows asked in the search, 5 prompts proposed and 2 of them promising" in html
    found = paired_comparison([0, 0], [1, 0])
    ends = f"{found.interval.lower:+.3f} to {found.interval.upper:+.3f}"
    assert page.table("run", "minus") == [
        ["run, best prompt", "run, first prompt", "+0.500", ends, "1", "2", "1", "0"]
    ]


def test_a_search_without_a_better_prompt_says_so(write_run: WriteRun) -> None:
    """If no prompt was better, the page says so and compares no prompts."""
    record = search_record(improved=False, chosen=0, validated=[validated(0.2, 0.4, 0.3)])
    html, page = page_of(write_run(SEARCH_ROWS, result=record))
    kept = "No prompt was better than the seed prompt on the validation rows: the seed prompt is kept."
    assert kept in html
    assert all(table[0][:2] != ["run", "minus"] for table in page.tables)


def test_a_search_states_its_choice(write_run: WriteRun) -> None:
    """The choice on the validation rows is stated even if the test rows contradict it."""
    comparison = {"difference": -0.2, "n": 4, "interval": {"lower": -0.3, "upper": -0.1}}
    record = search_record(improved=False, comparison=comparison)
    html, page = page_of(write_run(SEARCH_ROWS, result=record))
    assert "score 0.200 -&gt; 0.300, accuracy 0.400 -&gt; 0.500, macro F1 0.300 -&gt; 0.400." in html
    assert "No improvement: on the test rows the best prompt is worse than the seed prompt alone" in html
    assert "Validation score" not in html
    assert page.table("run", "minus")


def test_an_evaluation_shows_baselines_and_the_verdict(write_run: WriteRun) -> None:
    """The page shows baselines with their verdict and their numbers of rows."""
    html, page = page_of(write_run(metrics=metrics_record(baselines=BESIDE)))
    assert page.table("who") == [
        ["model", "0.800", "0.700 to 0.900", "0.400", "1 of 2"],
        ["majority", "0.400", "0.300 to 0.500", "0.200", "1 of 2"],
        ["TF-IDF", "0.700", "0.600 to 0.800", "0.350", "1 of 2"],
    ]
    assert "on 1,200 answered rows; baselines learned from 2,400 labelled rows" in plain(html)
    assert "<p>The model adds +0.100.</p>" in html


def test_a_search_shows_its_head_beside_baselines(write_run: WriteRun) -> None:
    """A search's page shows its head and the baselines; an unknown number of labels is a dash."""
    unknown = baseline("TF-IDF", 0.7, answered_labels=None)
    found = score("p", outcomes={"ok": 3, "error": 1}, **baseline("", 0.8))
    baselines = [baseline("majority", 0.4), unknown]
    final = {"score": found, "baselines": baselines, "verdict": "Nothing certain.", "against_seed": None}
    html, page = page_of(write_run(SEARCH_ROWS, result=search_record(final=final)))
    assert [[line[0], line[1], line[-1]] for line in page.table("who")] == [
        ["best prompt with its head", "0.800", "1 of 2"],
        ["majority", "0.400", "1 of 2"],
        ["TF-IDF", "0.700", "-"],
    ]
    assert "on 3 answered test rows" in plain(html)
    assert "Nothing certain." in html


def test_where_nothing_was_compared_the_verdict_stands_alone(write_run: WriteRun) -> None:
    """A verdict without scores is shown without a table."""
    nothing = {**BESIDE, "scores": [], "verdict": "No row was answered."}
    html, page = page_of(write_run(metrics=metrics_record(baselines=nothing)))
    assert "No row was answered." in html
    assert not any(table[0][0] == "who" for table in page.tables)


def test_a_collapsed_classifier_is_warned_of_and_counted(write_run: WriteRun) -> None:
    """A collapsed classifier has a warning at the top, and its number of labels in the table."""
    rows = [row(str(i), label, "a", 0.9) for i, label in enumerate("abcdabcd")]
    html, page = page_of(write_run(rows, metrics=metrics_record(per_label={name: {} for name in "abcde"})))
    remark = '<p class="remark" role="note">Collapsed: of the 4 labels that occur in these rows only 1 were'
    assert remark in html
    found = {cells[0]: cells[1:] for cells in page.table("what", "value")}
    assert found["labels answered"] == [
        "0.250",
        "-",
        "1 of the 4 labels that occur in these rows; 1 of 5 labels in all",
    ]
    rows = [row(str(i), label, label, 0.9) for i, label in enumerate("abcd")]
    html, _ = page_of(write_run(rows, name="other"))
    assert "Collapsed" not in html


def test_runs_are_compared_on_shared_rows(write_run: WriteRun, tmp_path: Path) -> None:
    """Runs are compared on rows with equal text and true label, in any order."""
    texts = [*range(30), 0, 0]
    first = [row(f"t{i}", "a", "b" if i < 20 else "a", 0.8) for i in texts]
    second = [row(f"t{i}", "a", "b" if i < 5 else "a", 0.8) for i in reversed(texts)]
    second.append(row("only here", "a", "a", 0.8))
    second.append(row("t29", "b", "b", 0.8))  # another true label: another row
    directories = [write_run(first, name="one"), write_run(second, name="two")]
    _, page = page_of(*directories, out=tmp_path / "both.html")
    assert (tmp_path / "both.html").exists()
    assert not (directories[0] / "report.html").exists()
    cells = page.table("run", "minus")[0]
    assert cells[:3] == ["two", "one", f"{15 / 32:+.3f}"]
    assert cells[5:] == ["32", "15", "0"]


def test_several_comparisons_are_adjusted_for_their_number(write_run: WriteRun, tmp_path: Path) -> None:
    """Several comparisons have p-values adjusted by Holm's method."""
    runs = [[row(f"t{i}", "a", "a" if i < right else "b", 0.8) for i in range(12)] for right in (0, 9, 6)]
    names = ("one", "two", "three")
    directories = [write_run(found, name=name) for found, name in zip(runs, names, strict=True)]
    html, page = page_of(*directories, out=tmp_path / "all.html")
    assert "The adjusted p-value allows for 2 comparisons (Holm)." in html
    plain_p = {9: 2 / 2**9, 6: 2 / 2**6}
    cells = page.table("run", "minus")
    assert [line[4:6] for line in cells] == [
        [f"{plain_p[9]:.3g}", f"{2 * plain_p[9]:.3g}"],
        [f"{plain_p[6]:.3g}", f"{plain_p[6]:.3g}"],
    ]


def test_runs_without_a_common_row_are_not_compared(write_run: WriteRun) -> None:
    """Runs without a row in common are not compared, and the table says so."""
    _, page = page_of(write_run(name="one"), write_run([row("else", "cat", "cat", 0.5)], name="two"))
    assert page.table("run", "minus") == [["two", "one", "no row in common"]]


# --- unfinished, empty and broken ---------------------------------------------------------------


def test_an_unfinished_run_is_reported_as_such(write_run: WriteRun) -> None:
    """A run without metrics.json is reported as unfinished, and a cut last line is mentioned."""
    data = numbered(ROWS[:3]) + b'{"index": 3, "inp'
    html, _ = page_of(write_run(data, run={"task": "animals", "model": "fake"}))
    assert "it is not finished. What follows is about the 3 rows that are there so far." in plain(html)
    assert "The last line of predictions.jsonl is cut off and was left out." in html
    assert "<title>animals: fake: calibrant report</title>" in html


def test_a_run_that_ended_early_says_why(write_run: WriteRun) -> None:
    """A run that ended early is reported with its reason and its number of rows."""
    html, _ = page_of(write_run(metrics=metrics_record(complete=False, stopped="budget", rows_expected=900)))
    assert "This run ended early (budget): 6 of 900 rows are there." in plain(html)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([row("x", "cat", "cat", None)], id="no-confidence"),
        pytest.param([row("x", "cat", None, None, outcome="error")], id="all-failed"),
        pytest.param([row("x", None, "cat", 0.5)], id="no-true-label"),
        pytest.param([row("x", "cat", "cat", 1.0)] * 3, id="all-right-and-equal"),
        pytest.param([row("x", "cat", "dog", 0.0)], id="one-wrong-row"),
        pytest.param([row("x", "cat", "cat", 1.0 + 1e-9)], id="above-one-by-rounding"),
        pytest.param([row("x", "cat", "cat", 0.5, latency_seconds=0.0, cost=None)], id="no-time-no-price"),
    ],
)
def test_one_sided_rows_make_no_nan(write_run: WriteRun, rows: list[Any]) -> None:
    """The page of one-sided rows has no NaN and no infinity."""
    html, _ = page_of(write_run(rows))
    assert "nan" not in plain(html.split("<script>")[0].split("</style>")[1]).lower()
    assert not re.search(r'="-?(nan|inf)', html)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"input": "meo', "Invalid control"),
        ('"text"', "expected a JSON object, got 'text'"),
        (json.dumps(row("x", "cat", "cat", 1.5)), "confidence to be a probability"),
    ],
)
def test_a_broken_line_is_named(write_run: WriteRun, line: str, message: str) -> None:
    """A broken line raises DataError with file and line, and no page is written."""
    directory = write_run(f"{json.dumps(ROWS[0])}\n{line}\n".encode())
    with pytest.raises(DataError, match=rf"predictions\.jsonl:2: .*{message}"):
        write_report(directory)
    assert not (directory / "report.html").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"metrics": ""}, r"metrics\.json: expected a JSON object"),
        ({"metrics": {"schema_version": None}}, "expected schema version 1, got None"),
        ({"result": search_record(schema_version=2)}, "got 2: use the calibrant that wrote it"),
        ({"result": {"schema_version": 1}}, r"expected a complete result .*seed_prompt"),
        ({"result": search_record(best_prompt=score("p", validation_score="high"))}, "expected a complete"),
        ({"metrics": metrics_record(baselines={"rows": 3})}, r"metrics\.json: expected complete baselines"),
        (
            {"result": search_record(final={"verdict": "", "against_seed": None})},
            r"result\.json: expected complete baselines",
        ),
        ({"calibration": {"certified": {"threshold": 0.5}}}, "certified rule that is complete"),
        ({"calibration": {"certified": {**RULE, "threshold": 2.0}}}, r"values in \[0, 1\]"),
    ],
)
def test_a_damaged_record_is_refused(write_run: WriteRun, files: dict[str, Any], message: str) -> None:
    """A damaged metrics.json or result.json raises StateError, and no page is written."""
    directory = write_run(SEARCH_ROWS, **files)
    with pytest.raises(StateError, match=message):
        write_report(directory)
    assert not (directory / "report.html").exists()


def test_a_directory_without_rows_is_refused(write_run: WriteRun, tmp_path: Path) -> None:
    """A directory without rows raises an error; the same directory twice, ConfigurationError."""
    with pytest.raises(StateError, match="expected the directory of a run"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(StateError, match=r"predictions\.jsonl: expected the predictions of a run"):
        write_report(tmp_path)
    with pytest.raises(DataError, match="expected at least one row"):
        write_report(write_run(b""))
    with pytest.raises(ConfigurationError, match="different directories"):
        write_report(tmp_path, tmp_path / "." / "")


# --- what it must not do ------------------------------------------------------------------------


def test_nothing_of_the_users_becomes_markup(write_run: WriteRun) -> None:
    """Markup in texts, labels, prompts, names and reasons is escaped; one script is in the page."""
    prompts = {"seed_prompt": score(f"seed {EVIL}"), "best_prompt": score(f"best {EVIL}")}
    rows = [
        row(f"text {EVIL}", f"true {EVIL}", f"given {EVIL}", 0.9, prompt="best"),
        row("x", f"true {EVIL}", None, None, reason=EVIL, prompt="best"),
    ]
    result = search_record(task=EVIL, model=EVIL, proposer=EVIL, **prompts)
    html, page = page_of(write_run(rows, name="evil", result=result))
    assert html.lower().count("<script") == 1
    assert {tag for tag, _ in page.tags}.isdisjoint({"iframe", "object", "embed", "img", "link"})
    cells = [cell for table in page.tables for cells in table for cell in cells]
    for text in (f"text {EVIL}", f"true {EVIL}", f"given {EVIL}"):
        assert text in cells  # shown as written, once unescaped by the browser
    assert html.count(ESCAPED) >= 8


def test_the_page_loads_nothing(write_run: WriteRun) -> None:
    """No element of the page loads anything, and the page's policy forbids connections."""
    html, page = page_of(write_run(name="one"), write_run(name="two"))
    loading = {"src", "srcset", "data", "action", "poster", "background"}
    assert [attributes for _, attributes in page.tags if loading & attributes.keys()] == []
    assert {attributes["href"] for _, attributes in page.tags if "href" in attributes} == {"#run1", "#run2"}
    assert not re.search(r"https?:|@import|url\((?!#)", html)
    policy = next(str(attributes["content"]) for _, attributes in page.tags if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_half_a_surrogate_pair_does_not_stop_a_report(write_run: WriteRun) -> None:
    """Half a surrogate pair is shown as "?"."""
    html, _ = page_of(write_run([row("sm\ud83dile", "cat", "dog", 0.9)]))
    assert "sm?ile" in html


# --- the command --------------------------------------------------------------------------------


def test_the_command_prints_where_the_page_is(write_run: WriteRun, tmp_path: Path) -> None:
    """The command prints the page's path, as text or as JSON."""
    directory = write_run()
    done = CliRunner().invoke(app, ["report", str(directory)])
    assert (done.exit_code, done.stdout) == (0, f"{directory / 'report.html'}\n")
    out = tmp_path / "elsewhere.html"
    done = CliRunner().invoke(app, ["report", str(directory), "--out", str(out), "--json"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"report": str(out)})
    assert out.read_bytes() == (directory / "report.html").read_bytes()


def test_the_command_opens_the_page_when_asked(write_run: WriteRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command opens a browser only with --open."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    directory = write_run()
    CliRunner().invoke(app, ["report", str(directory)])
    assert opened == []
    CliRunner().invoke(app, ["report", str(directory), "--open"])
    assert opened == [(directory / "report.html").as_uri()]


def test_the_command_fails_with_the_file_and_line(write_run: WriteRun, tmp_path: Path) -> None:
    """Bad input and an unwritable page exit with 2; the message names file and line."""
    directory = write_run(b"{}\n")
    done = CliRunner().invoke(app, ["report", str(directory)])
    assert done.exit_code == 2
    assert "predictions.jsonl:1: expected label, and answer where" in done.stderr
    (directory / "predictions.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    done = CliRunner().invoke(app, ["report", str(directory), "--out", str(tmp_path / "no" / "r.html")])
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr
