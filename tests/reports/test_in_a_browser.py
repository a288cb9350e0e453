"""Tests of the page in a real browser: charts, keyboard, colours, and planted markup."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from calibrant.reports import write_report
from headless import Browser
from search_records import score, search_record, validated

pytestmark = pytest.mark.browser

PLANTED = (
    "<script>window.hit = 1</script>",
    "</script><script>window.hit = 2</script>",
    "<img src=x onerror='window.hit = 3'>",
    '"><svg onload="window.hit = 4"></svg>',
    "</style></title></textarea></pre></td></table><script>window.hit = 5</script>",
    "{{ 7 * 7 }} ${window.hit = 6} javascript:window.hit=7",
    "&lt;script&gt;window.hit = 8&lt;/script&gt; <!-- <script>",
    "<iframe srcdoc='<script>parent.hit = 9</script>'></iframe><base href='http://127.0.0.1:9/'>",
)


def line(number: int, **changes: Any) -> dict[str, Any]:
    """Return a row with evenly spread confidence; a tenth of the rows is wrong."""
    confidence = (number * 37 % 1000) / 1000
    answer = "cat" if number % 2 else "dog"
    wrong = (number * 7919 % 997) / 997 > confidence
    return {
        "index": number,
        "input": f"animal number {number}",
        "answer": answer,
        "label": ("dog" if number % 2 else "cat") if wrong else answer,
        "confidence": confidence,
        "outcome": "ok",
        "reason": "",
        "correct": not wrong,
        **dict.fromkeys(("probabilities", "label_mass", "unresolved_mass", "space", "model")),
        **dict.fromkeys(("prompt_tokens", "completion_tokens"), 0),
        "attempts": 1,
        "latency_seconds": 0.05 + hashlib.sha256(str(number).encode()).digest()[0] / 100,
        "cost": 0.0001,
        **changes,
    }


def write_run(directory: Path, rows: list[dict[str, Any]], **record: Any) -> Path:
    """Write the directory of an evaluation, or of a search if the record has prompts."""
    directory.mkdir()
    (directory / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    about = {"schema_version": 1, "task": "animals", "model": "fake", **record}
    (directory / ("result.json" if "seed_prompt" in record else "metrics.json")).write_text(json.dumps(about))
    return directory


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of one run with a certified rule."""
    directory = write_run(tmp_path_factory.mktemp("one") / "run", [line(number) for number in range(400)])
    rule = {
        "threshold": 0.8,
        "coverage": 0.2,
        "accuracy_lower_bound": 0.9,
        "target_accuracy": 0.8,
        "delta": 0.1,
    }
    (directory / "calibration.json").write_text(json.dumps({"schema_version": 1, "certified": rule}))
    return write_report(directory)


def silent(browser: Browser, page: Path) -> None:
    """Fail if the page requested anything else, or logged an error."""
    browser.run("new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 50)))")
    asked = [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
    assert asked == [page.resolve().as_uri()]
    assert browser.happened("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []


def test_charts_are_drawn(browser: Browser, page: Path) -> None:
    """Four charts are drawn, each with a title, a description and marks inside its frame."""
    browser.emulate()
    browser.open(page)
    charts = browser.run(
        """Array.from(document.querySelectorAll("svg[role=img]"), (svg) => ({
            width: svg.getBoundingClientRect().width, height: svg.getBoundingClientRect().height,
            named: svg.getAttribute("aria-labelledby").split(" ").map((id) => document.getElementById(id).textContent),
            marks: svg.querySelectorAll("circle.point, rect, polyline").length,
            outside: Array.from(svg.querySelectorAll("*")).filter((part) => part.getBBox && !part.closest("defs"))
                .filter((part) => { const box = part.getBBox();
                    return box.x < -1 || box.y < -1 || box.x + box.width > 461 || box.y + box.height > 321; }).length,
            colour: getComputedStyle(svg.querySelector(".point, .right, .curve")).fill
                + getComputedStyle(svg.querySelector(".point, .right, .curve")).stroke,
        }))"""
    )
    assert [chart["named"][0] for chart in charts] == [
        "Reliability diagram",
        "Confidence of right and wrong answers",
        "Risk-coverage curve",
        "Latency",
    ]
    for chart in charts:
        assert chart["width"] > 300
        assert chart["height"] > 200
        assert len(chart["named"][1]) > 30
        assert chart["marks"] >= 1
        assert chart["outside"] == 0
        assert "rgb(0, 114, 178)" in chart["colour"]
    assert browser.run("document.querySelectorAll('.certified').length") == 1
    silent(browser, page)


def test_the_table_is_filtered_by_text(browser: Browser, page: Path) -> None:
    """The filter keeps the rows with every word, and the page announces their number."""
    browser.open(page)
    count = (
        "Array.from(document.querySelectorAll('.mistakes tbody tr')).filter((row) => row.offsetHeight > 0)"
    )
    total = browser.run(f"{count}.length")
    assert total == browser.run("document.querySelectorAll('.mistakes tbody tr').length") > 20
    browser.run("document.querySelector('input[type=search]').focus()")
    browser.send("Input.insertText", text="NUMBER 13")
    texts = browser.run(f"{count}.map((row) => row.textContent)")
    assert 0 < len(texts) < total
    assert all("number" in text and "13" in text for text in texts)
    status = "document.querySelector('[role=status]').textContent"
    assert browser.run(status) == f"{len(texts)} of {total} rows"
    silent(browser, page)


def test_the_page_can_be_used_with_the_keyboard_alone(browser: Browser, page: Path) -> None:
    """The Tab key reaches search and headers; Enter sorts, and the order is announced."""
    browser.open(page)
    browser.run("document.querySelector('input[type=search]').focus()")
    browser.press("Tab")
    browser.press("Tab")
    assert browser.run("document.activeElement.textContent") == "row"
    for order in ("ascending", "descending"):
        browser.press("Enter", text="\r")
        assert browser.run("document.activeElement.closest('th').getAttribute('aria-sort')") == order
        numbers = browser.run(
            "Array.from(document.querySelectorAll('.mistakes tbody tr'), (row) => Number(row.cells[0].textContent))"
        )
        assert numbers == sorted(numbers, reverse=order == "descending")
    assert browser.run("document.querySelectorAll('th[aria-sort]').length") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_is_readable_everywhere(browser: Browser, page: Path, scheme: str, width: int) -> None:
    """Text has a contrast of 4.5, marks of 3, and only tables scroll sideways."""
    browser.emulate(scheme=scheme, width=width)
    browser.open(page)
    contrast = browser.run(
        """(() => {
            const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
                .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
                .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
            const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            const style = (name) => getComputedStyle(document.querySelector(name));
            const card = light(style("figure").backgroundColor);
            return [style("body").color, style(".note").color, style(".chart text").fill, style(".point").fill,
                style(".chart .wrong").fill, style(".certified").fill].map((colour) => ratio(light(colour), card));
        })()"""
    )
    assert min(contrast[:3]) >= 4.5
    assert min(contrast[3:]) >= 3.0
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    browser.emulate()


def test_mistakes_are_read_on_a_phone(browser: Browser, page: Path) -> None:
    """At 400 pixels the text of a mistake takes the width of the page, and nothing of it lies outside."""
    browser.emulate(width=400)
    browser.open(page)
    assert browser.run("document.querySelector('.mistakes .text').getBoundingClientRect().width") > 300
    assert browser.run("document.querySelector('.mistakes').getBoundingClientRect().right <= 400")
    browser.emulate()


def test_print_shows_every_number_and_no_control(browser: Browser, page: Path) -> None:
    """Printing hides the controls, opens all closed parts, and closes these again."""
    browser.emulate(media="print", width=794)
    browser.open(page)
    assert browser.run("getComputedStyle(document.querySelector('.controls')).display") == "none"
    closed = "document.querySelectorAll('details:not([open])').length"
    before = browser.run(closed)
    assert before >= 4
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.run(closed) == 0
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert browser.run(closed) == before
    browser.emulate()


def test_planted_markup_stays_text(browser: Browser, tmp_path: Path) -> None:
    """Markup in inputs, labels, reasons, prompts and names is shown as text."""
    rows = [
        line(
            number,
            input=f"in {evil}",
            answer=f"true {evil}",
            label=evil,
            reason=evil,
            correct=False,
            prompt=prompt,
        )
        for number, evil in enumerate(PLANTED)
        for prompt in ("seed", "best")
    ]
    everything = "\n".join(PLANTED)
    search = search_record(
        proposer=everything,
        seed_prompt=score(everything),
        best_prompt=score(f"better\n{everything}"),
        validated=[validated(0.2, 0.4, 0.3), {**validated(0.3, 0.5, 0.4), "origin": everything}],
    )
    runs = [
        write_run(tmp_path / "one", rows, **{**search, "task": everything, "model": everything}),
        write_run(tmp_path / "two <script>window.hit = 10<", rows[:2]),
    ]
    page = write_report(*runs)
    browser.open(page)
    assert browser.run("window.hit === undefined")
    assert browser.run("document.querySelectorAll('script').length") == 1
    assert browser.run("document.querySelectorAll('img, iframe, base, [onload], [onerror]').length") == 0
    cells = browser.run(
        "Array.from(document.querySelectorAll('.mistakes .text'), (cell) => cell.textContent)"
    )
    assert {f"in {evil}" for evil in PLANTED} <= set(cells)
    silent(browser, page)


def test_the_page_may_not_connect_even_if_script_ran(browser: Browser, page: Path) -> None:
    """The page's policy blocks inline handlers, requests and evaluation of text."""
    browser.open(page)
    browser.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit = 1\">')")
    assert browser.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'stopped')") == "stopped"
    browser.run("new Promise((resolve) => setTimeout(resolve, 50))")
    assert browser.run("window.hit === undefined")
    asked = {
        event["requestId"]: event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")
    }
    stopped = [
        event["requestId"]
        for event in browser.happened("Network.loadingFailed")
        if event.get("blockedReason") == "csp"
    ]
    sent = [url for number, url in asked.items() if number not in stopped]
    assert sent == [page.resolve().as_uri()]
