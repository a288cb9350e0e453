"""Tests of the page of a review in a real browser: keyboard alone, hostile texts, sizes, colours, and its promise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from calibrant.serving import Review, create_review_app
from command_line import write_rows
from headless import Browser
from review_page import answers_in

pytestmark = pytest.mark.browser

SECONDS = 30
LABELS = ("cat", "dog", "owl")
MANY = tuple(f"label {n:02}" for n in range(40))
PLANTED = (
    "<script>window.hit = 1</script>",
    "</script><script>window.hit = 2</script>",
    "<img src=x onerror='window.hit = 3'>",
    '"><svg onload="window.hit = 4"></svg>',
    "</pre></main></body><iframe srcdoc='<script>parent.hit = 5</script>'></iframe>",
    "javascript:window.hit=6 ${window.hit = 7} {{ 7 * 7 }}",
)
Serve = Callable[[FastAPI], Any]
Opened = Callable[..., Review]


def rows_of(n: int, labels: tuple[str, ...] = LABELS, **changes: Any) -> list[dict[str, Any]]:
    """Return rows with rising confidence in the first label."""
    return [
        {
            "input": f"{'odd' if place % 7 == 0 else 'plain'} text {place}",
            "label": labels[0],
            "answer": None,
            "confidence": 0.5 + 0.5 * place / n,
            "probabilities": {label: 0.5 / (k + 1) for k, label in enumerate(labels)},
            **changes,
        }
        for place in range(n)
    ]


@pytest.fixture
def opened(tmp_path: Path, serve: Serve, browser: Browser) -> Iterator[Opened]:
    """Return a function that opens the page of rows in the browser."""

    def open_page(rows: list[dict[str, Any]], *, promise: dict[str, Any] | None = None) -> Review:
        review = entered.enter_context(Review.opened(write_rows(tmp_path / "p.jsonl", rows)))
        if promise is not None:
            review.certify(**promise)
        running = serve(create_review_app(review, token="t"))
        browser.open(f"http://127.0.0.1:{running.port}/?token=t")
        shows(browser, "document.getElementById('text').textContent")
        return review

    with ExitStack() as entered:
        yield open_page
    browser.emulate()


def shows(browser: Browser, script: str, wanted: Any = None) -> Any:
    """Return the value of an expression once it is true, or equal to what is wanted."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        found = browser.run(script)
        if found == wanted or (wanted is None and found):
            return found
        time.sleep(0.01)
    pytest.fail(f"{script} is {found!r}, not {wanted!r}")


def press(browser: Browser, key: str) -> None:
    """Press a key that may write a character."""
    browser.press(key, text={"Enter": "\r"}.get(key, key if len(key) == 1 else ""))


def answered(browser: Browser, n: int) -> None:
    """Wait until the page tells of `n` answers."""
    shows(browser, "document.getElementById('progress').textContent.split(' ')[0]", str(n))


def test_a_hundred_decisions_with_the_keyboard_alone(
    browser: Browser, opened: Opened, tmp_path: Path
) -> None:
    """Numbers, Enter, dash, arrows and undo decide on a hundred rows; each is on disk before the next is shown."""
    opened(rows_of(120))
    path, expected, text = tmp_path / "answers.csv", {}, "document.getElementById('text').textContent"
    for n in range(100):
        row = int(browser.run(text).split()[-1])
        key = ("1", "2", "3", "Enter", "-")[n % 5]
        expected[row] = {"1": "cat", "2": "dog", "3": "owl", "Enter": "cat", "-": "-"}[key]
        press(browser, key)
        answered(browser, n + 1)
        assert answers_in(path) == expected
        assert int(browser.run(text).split()[-1]) not in expected
    last = row
    press(browser, "u")
    answered(browser, 99)
    assert int(browser.run(text).split()[-1]) == last
    assert answers_in(path) == {row: answer for row, answer in expected.items() if row != last}
    press(browser, "ArrowLeft")
    shows(browser, "document.querySelector('[aria-pressed=true] .name')?.textContent.trim()", "cat predicted")
    press(browser, "2")  # a decision may be changed
    shows(browser, text, f"{'odd' if last % 7 == 0 else 'plain'} text {last}")
    assert list(answers_in(path).values()).count("dog") == 21
    silent(browser)


def silent(browser: Browser) -> None:
    """Fail if the page asked anybody else, or logged an error."""
    origin = browser.run("location.origin")
    asked = [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
    assert all(url.startswith(f"{origin}/") for url in asked), asked
    assert "token" not in browser.run("location.href")
    assert browser.happened("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []


def test_many_labels_are_found_by_typing(browser: Browser, opened: Opened, tmp_path: Path) -> None:
    """Of more than nine labels the likeliest have numbers; typing finds the others, and Enter takes the first."""
    opened(rows_of(5, MANY))
    assert browser.run("document.querySelectorAll('#labels button').length") == 10
    press(browser, "l")
    browser.send("Input.insertText", text="33")
    shows(browser, "document.querySelector('#labels .name').textContent.trim()", "label 33")
    press(browser, "Enter")
    answered(browser, 1)
    assert answers_in(tmp_path / "answers.csv") == {0: "label 33"}
    press(browser, "2")  # the field is left: numbers decide again
    answered(browser, 2)
    assert answers_in(tmp_path / "answers.csv")[1] == "label 01"


def test_search_and_filters_choose_the_rows(browser: Browser, opened: Opened) -> None:
    """A slash searches the texts, f goes to the next filter, and an escape leaves the field."""
    rows = rows_of(30)
    rows[20]["accepted"] = False
    opened(rows)
    pressed = "document.querySelector('#filters [aria-pressed=true]').textContent"
    assert browser.run(pressed) == "what matters"
    text = "document.getElementById('text').textContent"
    assert browser.run(text) == "plain text 20"
    press(browser, "f")
    shows(browser, pressed, "to review")
    press(browser, "f")
    shows(browser, pressed, "all")
    shows(browser, text, "odd text 0")
    press(browser, "/")
    browser.send("Input.insertText", text="odd 14")
    shows(browser, text, "odd text 14")
    press(browser, "Escape")
    press(browser, "2")
    shows(browser, "document.querySelector('[aria-pressed=true] .name')?.textContent.trim()", "dog")
    silent(browser)


def test_likely_mislabelled_rows_come_first(browser: Browser, opened: Opened) -> None:
    """Rows with true labels have a filter for wrong ones, which shows both labels."""
    rows = rows_of(40, answer="cat")
    rows[30]["answer"] = "dog"
    opened(rows)
    button = "[...document.querySelectorAll('#filters button')].find((one) => one.textContent == 'likely mislabelled')"
    shows(browser, f"{button} !== undefined")
    browser.run(f"{button}.click()")
    shows(browser, "document.getElementById('text').textContent", "plain text 30")
    names = "[...document.querySelectorAll('#labels .name')].map((one) => one.textContent.trim()).join()"
    assert browser.run(names) == "cat predicted,dog given,owl,no label fits"
    silent(browser)


def test_the_promise_grows_with_the_answers(browser: Browser, opened: Opened, tmp_path: Path) -> None:
    """The page asks for the rows of the promise, shows how many labels are missing, and then what is certified."""
    review = opened(rows_of(300), promise={"target": 0.6, "budget": 60})
    used = "document.getElementById('promise').dataset.used"
    shows(browser, used, "0")
    note = browser.run("document.querySelector('#promise .note').textContent")
    fewest = int(note.split("0 labels count. ")[1].split(" more")[0])
    n = 0
    while browser.run("document.querySelector('#labels button') !== null"):
        press(browser, "2" if n == 3 else "Enter")
        n += 1
        shows(browser, used, str(n))  # every answer counts, as the rows come in the order of the promise
    assert n > fewest
    assert "No more answers are needed" in browser.run("document.getElementById('about').textContent")
    sentence = shows(
        browser, "(document.querySelector('#promise p').textContent.match(/.*are accepted.*/) ?? [''])[0]"
    )
    found = review.promise()
    assert found is not None
    assert found["sentence"] == sentence
    assert (tmp_path / "certificate.json").exists()
    silent(browser)


def test_hostile_texts_stay_text(browser: Browser, opened: Opened) -> None:
    """Markup in texts, labels, reasons, models and names is shown as text, and nothing of it runs."""
    evil = "\n".join(PLANTED)
    step = {"model": evil, "verdict": evil, "label": evil, "confidence": 0.5, "reason": evil}
    changes = dict.fromkeys(("id", "context", "source", "reason"), evil) | {"steps": [step, step]}
    rows = [row | {"input": text} for row, text in zip(rows_of(6, PLANTED, **changes), PLANTED, strict=True)]
    opened(rows)
    for text in PLANTED:
        shows(browser, "document.getElementById('text').textContent", text)
        press(browser, "ArrowRight")
    assert browser.run("document.querySelector('#steps td').textContent") == evil
    assert browser.run("document.getElementById('about').textContent.includes('<script>window.hit = 1')")
    press(browser, "1")
    answered(browser, 1)
    assert browser.run("window.hit === undefined")
    assert browser.run("document.querySelectorAll('script').length") == 1
    assert browser.run("document.querySelectorAll('iframe, img, svg, [onload], [onerror]').length") == 0
    silent(browser)


def test_the_page_may_load_and_run_nothing_else(browser: Browser, opened: Opened) -> None:
    """The policy stops markup from strings, requests to others, and scripts that a text would bring."""
    opened(rows_of(3))
    assert (
        browser.run(
            "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'set'; } catch { return 'stopped'; } })()"
        )
        == "stopped"
    )
    assert browser.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'stopped')") == "stopped"
    assert browser.run(
        """(() => {
            const script = document.createElement('script');
            script.append('window.hit = 1');
            document.body.append(script);
            return window.hit === undefined;
        })()"""
    )


def test_a_text_of_a_megabyte_is_cut(browser: Browser, opened: Opened) -> None:
    """The beginning is shown, a button shows the rest, and the next row is there at once."""
    rows = rows_of(3)
    rows[0]["input"] = "long " * 200_000
    opened(rows)
    length = "document.getElementById('text').textContent.length"
    assert browser.run(length) == 5_000
    assert browser.run("document.getElementById('whole').textContent") == "Show all 1,000,000 characters"
    browser.run("document.getElementById('whole').click()")
    shows(browser, length, 1_000_000)
    assert browser.run("document.getElementById('text').getBoundingClientRect().height < window.innerHeight")
    press(browser, "Enter")
    shows(browser, "document.getElementById('text').textContent", "plain text 1")


def test_a_lost_server_is_told(browser: Browser, opened: Opened, tmp_path: Path) -> None:
    """A decision that cannot be saved leaves its row where it is, and says so."""
    opened(rows_of(3))
    (tmp_path / "answers.csv").mkdir()
    press(browser, "2")
    problem = shows(
        browser,
        "!document.getElementById('problem').hidden && document.getElementById('problem').textContent",
    )
    assert "cannot be written" in problem
    assert browser.run("document.getElementById('text').textContent") == "odd text 0"
    answered(browser, 0)


def test_without_javascript_a_sentence_says_so(browser: Browser, opened: Opened) -> None:
    """A browser without JavaScript is told what is missing, and what to do instead."""
    opened(rows_of(3))
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(browser.run("location.href"))
        assert "This page needs JavaScript" in browser.run("document.body.innerText")
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_the_page_is_readable_everywhere(browser: Browser, opened: Opened, scheme: str, width: int) -> None:
    """Text has a contrast of 4.5, bars of 3, nothing lies outside the window, and the focus is seen."""
    browser.emulate(scheme=scheme, width=width)
    rows = rows_of(60, tuple(f"a label with a long name of many words number {n}" for n in range(8)))
    opened(rows, promise={"target": 0.6, "budget": 60})
    shows(browser, "!document.getElementById('promise').hidden")
    contrast = browser.run(
        """(() => {
            const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
                .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
                .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
            const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            const style = (name) => getComputedStyle(document.querySelector(name));
            const back = light(style("body").backgroundColor);
            return [style("body").color, style("#about").color, style("#labels small").color,
                style("#queue button").color, style("#labels .predicted .bar span").backgroundColor,
            ].map((colour) => ratio(light(colour), back));
        })()"""
    )
    assert min(contrast[:4]) >= 4.5
    assert contrast[4] >= 3.0
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.run(
        "[...document.querySelectorAll('button, input')].every("
        "(one) => one.getBoundingClientRect().right <= window.innerWidth)"
    )
    browser.press("Tab")
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    silent(browser)
