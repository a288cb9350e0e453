"""Tests of `BatchEvaluator`: rows in order, denominators, files, and runs that continue."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import (
    CalibrantError,
    CompletionRequest,
    ConfigurationError,
    DataError,
    DataSource,
    Example,
    LabelSet,
    Limits,
    ProviderError,
    StateError,
    Stop,
)
from calibrant.evaluation import BatchEvaluator, Dataset, EvaluationProgress
from calibrant.inference import Classifier, RetryPolicy
from calibrant.metrics import brier_score, classification_summary, expected_calibration_error, wilson_interval
from calibrant.testing import FakeClient, MemoryJournal, fake_response
from command_line import lasting_rows, prediction_rows
from fault_server import FaultServer

LABELS = ["cat", "dog"]


def knows(text: str) -> Any:
    """Know what meows and barks; fail, refuse or answer nonsense where the text says so."""
    if "down" in text:
        raise ProviderError("HTTP 503, try later.", provider="fake", status=503)
    if "babble" in text:
        return "horse"
    return ("cat", 0.9) if "meow" in text else ("dog", 0.8)


def rows(count: int, word: str = "meow") -> list[Example]:
    """Return rows of which the model gets every fifth wrong."""
    return [
        Example(input=f"{number} {word}", answer="dog" if number % 5 == 4 else "cat")
        for number in range(count)
    ]


def classifier(client: FakeClient, **options: Any) -> Classifier:
    """Return a classifier that does not retry."""
    return Classifier(model=client, labels=LABELS, field="category", retry=RetryPolicy(attempts=1), **options)


@pytest.fixture
def client() -> FakeClient:
    """Return a model that answers by `knows`."""
    return FakeClient(LABELS, knows)


@pytest.fixture
def evaluator(client: FakeClient) -> BatchEvaluator:
    """Return an evaluator of the model."""
    return BatchEvaluator(classifier(client))


# --- numbers ------------------------------------------------------------------------------------


def test_numbers_equal_those_of_the_metrics_package() -> None:
    """Accuracy, macro F1, ECE and Brier score equal those of the metrics package."""
    client = FakeClient(LABELS, knows, latency=0.002)
    examples = [*rows(40), *rows(25, "woof"), Example(input="babble", answer="cat")]
    result = BatchEvaluator(classifier(client), concurrency=7).evaluate(examples)
    assert [p.label for p in result.predictions] == ["cat"] * 40 + ["dog"] * 25 + [None]
    truth = [example.answer for example in examples]
    predicted = [p.label for p in result.predictions]
    summary = classification_summary(truth, predicted, labels=LABELS)
    confidence = [p.confidence for p in result.predictions if p.label]
    right = [p.label == t for p, t in zip(result.predictions, truth, strict=True) if p.label]
    found = result.metrics
    assert found.macro_f1 == pytest.approx(summary.macro_f1)
    assert dict(found.per_label) == dict(summary.per_label)
    assert found.accuracy == wilson_interval(round(summary.accuracy * 66), 66)
    assert found.ece == pytest.approx(expected_calibration_error(confidence, right))
    assert found.brier == pytest.approx(brier_score(confidence, right))
    assert (found.rows_with_confidence, client.max_in_flight) == (65, 7)


def test_failed_rows_count_in_one_denominator(client: FakeClient) -> None:
    """A row with a transport error counts among all rows, and not among the answered rows."""
    examples = [Example(input=text, answer="cat") for text in ("meow", "a woof", "down", "babble")]
    found = BatchEvaluator(classifier(client)).evaluate(examples).metrics
    record = found.to_record()
    assert found.outcomes == {"ok": 2, "error": 1, "refusal": 0, "unparsed": 1}
    assert (record["accuracy"]["correct"], record["accuracy"]["rows"]) == (1, 4)
    assert record["accuracy"]["denominator"] == "all rows"
    assert (record["accuracy_answered"]["correct"], record["accuracy_answered"]["rows"]) == (1, 3)
    assert record["accuracy_answered"]["denominator"] == "rows whose outcome is not error"
    assert found.errors == {"HTTP 503, try later.": 1}
    assert found.complete


def test_cost_counts_paid_rows_alone(tmp_path: Path) -> None:
    """A row without a call costs nothing, and a row without a price is counted."""
    down = ProviderError("HTTP 503", provider="fake", status=503, retryable=True)
    answer: Any = fake_response("cat", LABELS, [0.9, 0.1])
    unpriced = {**answer, "usage": {"prompt_tokens": 7, "completion_tokens": 0}}
    paid = {
        **answer,
        "usage": {"prompt_tokens": 10, "completion_tokens": 2},
        "_hidden_params": {"response_cost": 0.5},
    }
    client = FakeClient(LABELS, {"paid": paid, "known": paid, "late": [down, down, unpriced]})
    retry = RetryPolicy(initial_seconds=0.0)
    model = Classifier(model=client, labels=LABELS, field="category", retry=retry, journal=MemoryJournal())
    model.classify("known")
    texts = [Example(input=text, answer="cat") for text in ("paid", "known", "late")]
    found = BatchEvaluator(model).evaluate(texts, out=tmp_path / "out").metrics
    assert (found.cost, found.unpriced_rows, found.rows_from_cache, found.calls) == (0.5, 1, 1, 4)
    assert (found.prompt_tokens, found.completion_tokens) == (17, 2)
    assert found.rows_per_second == pytest.approx(found.rows / found.seconds)


@pytest.mark.parametrize(
    ("faults", "counts"),
    [
        (["HTTP 503 after 1.25 s", "HTTP 503 after 17 s", "HTTP 500 after 1 s"], [2, 1]),
        (["Nothing at http://127.0.0.1:9: row 1", "Nothing at http://127.0.0.1:8: row 2"], [1, 1]),
        (["".join(chr(97 + int(digit)) for digit in str(number)) for number in range(400)], None),
    ],
)
def test_kinds_of_errors_are_few(faults: list[str], counts: list[int] | None, tmp_path: Path) -> None:
    """Errors that differ in numbers, but in no address, are one kind, and at most 21 kinds are kept."""

    def fails(text: str) -> Any:
        if text == "meow":
            return "cat"
        raise ProviderError(text, provider="m")

    evaluator = BatchEvaluator(classifier(FakeClient(LABELS, fails)))
    # Answered rows between the faults keep the run from being given up.
    texts = [Example(input=text, answer="cat") for fault in faults for text in (fault, "meow")]
    errors = evaluator.evaluate(texts, out=tmp_path / "out").metrics.errors
    assert sum(errors.values()) == len(faults)
    assert len(errors) <= 21
    assert counts is None or sorted(errors.values(), reverse=True) == counts


def test_an_iterator_is_read_as_rows_are_begun(client: FakeClient) -> None:
    """An iterator is read while rows are answered, not before."""
    asked_at_the_end = []

    def stream() -> Iterator[Example]:
        yield from rows(5000)
        asked_at_the_end.append(len(client.requests))

    found = BatchEvaluator(classifier(client), concurrency=4).evaluate(stream()).metrics
    assert (found.rows, found.rows_expected, found.complete) == (5000, None, True)
    assert asked_at_the_end[0] > 3000


def test_equal_rows_are_asked_once_and_counted_each(tmp_path: Path) -> None:
    """Rows with equal texts share one call, and each counts as a row."""
    client = FakeClient(LABELS, knows, latency=0.01)
    examples = [Example(input="meow", answer=answer) for answer in ("cat", "dog", "cat", "cat")]
    found = BatchEvaluator(classifier(client)).evaluate(examples, out=tmp_path).metrics
    assert len(client.requests) == found.calls == 1
    assert (found.rows, found.correct, found.rows_from_cache) == (4, 3, 3)
    assert [row["correct"] for row in prediction_rows(tmp_path)] == [True, False, True, True]


def test_an_unknown_answer_is_found_before_anything_is_paid(client: FakeClient) -> None:
    """An answer outside the labels raises DataError with the row's number, before any call."""
    with pytest.raises(DataError, match=r"row 3: answer 'horse' is not one of the 2 labels"):
        BatchEvaluator(classifier(client)).evaluate([*rows(2), Example(input="x", answer="horse")])
    with pytest.raises(DataError, match="at least one row"):
        BatchEvaluator(classifier(client)).evaluate([])
    assert client.requests == []


def test_answers_are_compared_as_the_label_set_spells_them(client: FakeClient) -> None:
    """Case and spaces around an answer do not matter."""
    found = BatchEvaluator(classifier(client)).evaluate([Example(input="meow", answer=" CAT ")]).metrics
    assert found.correct == 1


def test_the_classifier_keeps_its_limits_and_its_journal(client: FakeClient) -> None:
    """The classifier given keeps its limits, journal and counts, and stays open."""
    own = classifier(client, concurrency=3)
    BatchEvaluator(own, cache=MemoryJournal(), limits=Limits(max_requests=10)).evaluate(rows(5))
    assert (own.limits, own.journal, own.meter.requests) == (Limits(concurrency=3), None, 0)
    assert not client.closed


# --- files --------------------------------------------------------------------------------------


def test_the_directory_holds_rows_numbers_and_manifest(client: FakeClient, tmp_path: Path) -> None:
    """The directory holds predictions.jsonl, metrics.json and run.json, and no journal."""
    out = tmp_path / "new" / "out"
    result = BatchEvaluator(classifier(client, prompt="Which?")).evaluate(
        rows(300), out=out, about={"task": "animals"}
    )
    assert result.predictions == ()
    found = prediction_rows(out)
    assert [row["index"] for row in found] == list(range(300))
    assert [row["input"] for row in found] == [example.input for example in rows(300)]
    assert found[4]["correct"] is False
    assert found[0]["probabilities"] == pytest.approx({"cat": 0.9, "dog": 0.1})
    assert json.loads((out / "metrics.json").read_text()) == {
        **json.loads(json.dumps(result.metrics.to_record())),
        "task": "animals",
        "model": "fake",
    }
    run = json.loads((out / "run.json").read_text())
    assert (run["prompt"], run["task"], run["data"]["rows"]) == ("Which?", "animals", 300)
    assert {path.name for path in out.iterdir()} == {".lock", "predictions.jsonl", "metrics.json", "run.json"}


def test_a_complete_run_asks_nothing(client: FakeClient, evaluator: BatchEvaluator, tmp_path: Path) -> None:
    """Repeating a complete run makes no call and changes no file."""
    first = evaluator.evaluate(rows(10), out=tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    second = evaluator.evaluate(rows(10), out=tmp_path / "out")
    assert len(client.requests) == 10
    assert (second.metrics.session_rows, second.metrics.accuracy) == (0, first.metrics.accuracy)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("cut", [0, 1, 40, 100_000], ids=["nothing", "a byte", "half a line", "all"])
def test_torn_files_go_on(client: FakeClient, evaluator: BatchEvaluator, tmp_path: Path, cut: int) -> None:
    """A run continues from a torn file: every row is there once, in order, as in a whole run."""
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    evaluator.evaluate(rows(30), out=whole)
    stop = Stop()
    asked = len(client.requests)

    def end(progress: EvaluationProgress) -> None:
        if progress.session_rows:
            stop.request("enough")

    stop.request("at once")
    evaluator.evaluate(rows(30), out=torn, stop=stop, on_progress=end)
    assert len(client.requests) == asked
    data = (whole / "predictions.jsonl").read_bytes()
    (torn / "predictions.jsonl").write_bytes(data[: len(data) - cut] if cut < len(data) else b"")
    kept = (torn / "predictions.jsonl").read_bytes().count(b"\n")
    result = evaluator.evaluate(rows(30), out=torn)
    assert lasting_rows(torn) == lasting_rows(whole)
    assert len(client.requests) - asked == 30 - kept == result.metrics.session_rows
    assert (result.metrics.rows, result.metrics.complete) == (30, True)


def test_misplaced_lines_are_refused(client: FakeClient, evaluator: BatchEvaluator, tmp_path: Path) -> None:
    """Lines in another order, and lines that are no JSON, raise StateError."""
    evaluator.evaluate(rows(5), out=tmp_path)
    path = tmp_path / "predictions.jsonl"
    found = path.read_text().splitlines(keepends=True)
    path.write_text("".join([found[0], found[2], found[1], *found[3:]]))
    with pytest.raises(StateError, match=r"predictions\.jsonl:2: expected the row with index 1, got index 2"):
        evaluator.evaluate(rows(5), out=tmp_path)
    path.write_text("".join([found[0], "not JSON\n", *found[2:]]))
    with pytest.raises(StateError, match=r"predictions\.jsonl:2: expected the line of a row"):
        evaluator.evaluate(rows(5), out=tmp_path)
    assert len(client.requests) == 5


def test_a_changed_prompt_is_refused(client: FakeClient, tmp_path: Path) -> None:
    """Another prompt raises StateError with both prompts and the remedy."""
    BatchEvaluator(classifier(client, prompt="Which?")).evaluate(rows(3), out=tmp_path)
    with pytest.raises(
        StateError, match=r'differs in prompt \("Which\?" then, "What\?" now\): choose a new directory'
    ):
        BatchEvaluator(classifier(client, prompt="What?")).evaluate(rows(3), out=tmp_path)
    assert len(client.requests) == 3


def test_options_are_stored_as_digests(client: FakeClient, tmp_path: Path) -> None:
    """A run.json holds the digest of an option; another value raises StateError."""
    options = {"nonce": "whatever-it-is", "seed": 3}
    BatchEvaluator(classifier(client, options=options)).evaluate(rows(3), out=tmp_path)
    assert "whatever-it-is" not in (tmp_path / "run.json").read_text()
    BatchEvaluator(classifier(client, options=options)).evaluate(rows(5), out=tmp_path)
    changed = classifier(client, options={**options, "nonce": "another-one"})
    with pytest.raises(StateError, match="differs in options"):
        BatchEvaluator(changed).evaluate(rows(5), out=tmp_path)
    assert len(client.requests) == 5


def test_inputs_may_only_grow(client: FakeClient, evaluator: BatchEvaluator, tmp_path: Path) -> None:
    """Changed or fewer rows raise StateError; further rows are answered."""
    evaluator.evaluate(rows(3), out=tmp_path)
    changed = rows(3)
    changed[1] = replace(changed[1], input="another meow")
    with pytest.raises(StateError, match=r":2: was evaluated on another text, answer or context than row 2"):
        evaluator.evaluate(changed, out=tmp_path)
    with pytest.raises(StateError, match="holds more rows than the 2 that the input has now"):
        evaluator.evaluate(rows(2), out=tmp_path)
    assert evaluator.evaluate(rows(7), out=tmp_path).metrics.rows == 7
    assert len(client.requests) == 7


def removed(out: Path) -> None:
    """Remove all files; a file written meanwhile may keep the folder."""
    shutil.rmtree(out, ignore_errors=True)


def moved(out: Path) -> None:
    """Rename the directory."""
    out.rename(out.with_name("elsewhere"))


def replaced(out: Path) -> None:
    """Put another directory in the place of the run's."""
    moved(out)
    out.mkdir()
    (out / "predictions.jsonl").touch()


@pytest.mark.parametrize("stopped", ["", "after the rows under way", "at once"])
@pytest.mark.parametrize("happening", [removed, moved, replaced])
def test_a_lost_directory_ends_the_run(
    tmp_path: Path, happening: Callable[[Path], None], stopped: str
) -> None:
    """A directory that is moved or removed raises CalibrantError, and nothing in its place is called complete."""
    out = tmp_path / "out"
    stop = Stop()

    def rule(text: str) -> Any:
        if text.startswith("20 "):
            happening(out)
        if stopped and text.startswith("30 "):
            stop.request("interrupted", at_once=stopped == "at once")
        return knows(text)

    client = FakeClient(LABELS, rule, latency=0.001)
    evaluator = BatchEvaluator(classifier(client), concurrency=4)
    with pytest.raises(CalibrantError, match="moved or removed during the run") as caught:
        evaluator.evaluate(rows(60), out=out, stop=stop)
    assert not isinstance(caught.value, StateError)  # nothing is wrong with the input
    assert not (out / "metrics.json").exists()
    assert not (out / "journal.sqlite").exists()


def test_a_fault_outranks_a_lost_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fault of the provider is raised instead of the lost directory, which is logged."""
    out = tmp_path / "out"

    def rule(_text: str) -> Any:
        removed(out)
        raise ProviderError("the key is wrong.", provider="fake", status=401)

    with pytest.raises(ProviderError, match="the key is wrong"):
        BatchEvaluator(classifier(FakeClient(LABELS, rule)), concurrency=1).evaluate(rows(8), out=out)
    assert "moved or removed during the run" in caplog.text


def test_an_iterator_cannot_go_to_a_directory(tmp_path: Path) -> None:
    """An iterator with an output directory raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="can be read twice"):
        BatchEvaluator(classifier(FakeClient(LABELS, knows))).evaluate(iter(rows(2)), out=tmp_path)


def test_a_lambda_cannot_go_to_a_directory(tmp_path: Path) -> None:
    """A lambda as model raises ConfigurationError with a directory, and works without one."""
    model = FakeClient(LABELS, knows).as_callable()
    own = Classifier(model=lambda messages: model(messages), labels=LABELS, field="category")  # noqa: PLW0108
    with pytest.raises(ConfigurationError, match="a function with a name of its own"):
        BatchEvaluator(own).evaluate(rows(2), out=tmp_path)
    assert BatchEvaluator(own).evaluate(rows(2)).metrics.correct == 2


# --- interruptions ------------------------------------------------------------------------------


def test_only_failed_rows_are_asked_again(tmp_path: Path) -> None:
    """A rerun asks only the failed rows, and writes them to their places."""
    down = {"3 meow", "7 meow", "299 meow"}
    client = FakeClient(
        LABELS, lambda text: ProviderError("gone", provider="fake") if text in down else ("cat", 0.9)
    )
    evaluator = BatchEvaluator(classifier(client))
    first = evaluator.evaluate(rows(600), out=tmp_path)
    assert (first.metrics.outcomes["error"], first.metrics.complete) == (3, True)
    down.remove("7 meow")
    second = evaluator.evaluate(rows(600), out=tmp_path)
    assert len(client.requests) == 603
    assert (second.metrics.rows, second.metrics.outcomes["error"], second.metrics.session_rows) == (600, 2, 3)
    down.clear()
    third = evaluator.evaluate(rows(600), out=tmp_path)
    assert len(client.requests) == 605
    assert third.metrics.outcomes == {"ok": 600, "error": 0, "refusal": 0, "unparsed": 0}
    fresh = BatchEvaluator(classifier(client)).evaluate(rows(600), out=tmp_path / "fresh")
    assert lasting_rows(tmp_path) == lasting_rows(tmp_path / "fresh")
    assert third.metrics.brier == pytest.approx(fresh.metrics.brier)
    assert third.metrics.macro_f1 == fresh.metrics.macro_f1


def test_a_stopped_retry_keeps_other_failures(client: FakeClient, tmp_path: Path) -> None:
    """A rerun that is stopped keeps all rows, failed ones included."""
    examples = [Example(input=f"{n} {'down' if n % 4 == 3 else 'meow'}", answer="cat") for n in range(40)]
    BatchEvaluator(classifier(client)).evaluate(examples, out=tmp_path)
    before = lasting_rows(tmp_path)
    stop = Stop()
    stop.request("at once")
    found = BatchEvaluator(classifier(client)).evaluate(examples, out=tmp_path, stop=stop).metrics
    assert lasting_rows(tmp_path) == before
    assert (found.rows, found.outcomes["error"], found.outcomes["ok"]) == (40, 10, 30)
    assert not (tmp_path / ".predictions.jsonl.new").exists()


def test_a_budget_ends_the_run(client: FakeClient, tmp_path: Path) -> None:
    """A used-up budget stops the run with its reason; the next run answers the other rows."""
    limited = BatchEvaluator(classifier(client), concurrency=2, limits=Limits(max_requests=10))
    found = limited.evaluate(rows(30), out=tmp_path).metrics
    assert found.stopped == "The budget max_requests of 10 calls is used up"
    assert not found.complete
    assert 10 <= found.rows < 15
    assert (tmp_path / "journal.sqlite").exists()
    record = json.loads((tmp_path / "metrics.json").read_text())
    assert (record["complete"], record["rows"], record["rows_expected"]) == (False, found.rows, 30)
    assert BatchEvaluator(classifier(client)).evaluate(rows(30), out=tmp_path).metrics.complete
    assert len(client.requests) == 30
    assert not (tmp_path / "journal.sqlite").exists()


def test_answers_behind_a_slow_row_are_kept(tmp_path: Path) -> None:
    """Answers behind a slow row are kept in the journal; the next run repeats no call, and counts all as its own."""
    slow = threading.Event()

    def model(messages: list[dict[str, str]]) -> object:
        if messages[-1]["content"] == "0 meow" and not slow.is_set():
            slow.wait(2.0)
        return fake(messages)

    client = FakeClient(LABELS, knows)
    fake = client.as_callable()
    own = Classifier(model=model, labels=LABELS, field="category", concurrency=8)
    found = BatchEvaluator(own, limits=Limits(run_seconds=0.4)).evaluate(rows(20), out=tmp_path).metrics
    slow.set()
    assert "deadline" in found.stopped
    assert found.rows == 0
    asked = len(client.requests)
    assert asked >= 19
    resumed = BatchEvaluator(own).evaluate(rows(20), out=tmp_path).metrics
    assert (resumed.rows, resumed.rows_from_cache, resumed.calls) == (20, 0, 20)
    texts = [request.messages[-1]["content"] for request in client.requests]
    assert all(texts.count(example.input) == 1 for example in rows(20)[1:])
    own.close()


def test_a_systemic_fault_ends_the_run(client: FakeClient, tmp_path: Path) -> None:
    """A refused key raises one ProviderError, and metrics.json holds the reason."""
    cache = MemoryJournal()
    BatchEvaluator(classifier(client), cache=cache).evaluate(rows(5), out=tmp_path / "first")
    broken = FakeClient(
        LABELS,
        lambda _: ProviderError("no such key.", provider="fake", status=401, hint="Check the API key."),
    )
    with pytest.raises(ProviderError, match="Check the API key"):
        BatchEvaluator(classifier(broken), cache=cache).evaluate(rows(100), out=tmp_path / "second")
    assert len(broken.requests) <= 64
    record = json.loads((tmp_path / "second" / "metrics.json").read_text())
    assert "no such key" in record["stopped"]
    assert record["rows"] <= 5


def test_a_cache_by_url_is_shared_between_directories(client: FakeClient, tmp_path: Path) -> None:
    """A cache given by URL answers a second directory without a call."""
    place = f"sqlite:///{tmp_path}/cache.db"
    BatchEvaluator(classifier(client), cache=place).evaluate(rows(50), out=tmp_path / "a")
    found = BatchEvaluator(classifier(client), cache=place).evaluate(rows(50), out=tmp_path / "b").metrics
    assert len(client.requests) == 50
    assert (found.rows_from_cache, found.calls, found.prompt_tokens) == (50, 0, 0)
    assert lasting_rows(tmp_path / "a") == lasting_rows(tmp_path / "b")


def test_full_disks_leave_no_gap(client: FakeClient, tmp_path: Path) -> None:
    """A write that fails raises StateError and leaves no gap; the next run answers the other rows."""
    resource = pytest.importorskip("resource")
    evaluator = BatchEvaluator(classifier(client), concurrency=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    long = [replace(row, input=row.input + " and more" * 400) for row in rows(2000)]
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (1_000_000, before[1])
    )  # bytes of a file; the journal has no texts
    try:
        with pytest.raises(StateError, match="cannot be written"):
            evaluator.evaluate(long, out=tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(client.requests) < 1000
    *kept, _ = (tmp_path / "out" / "predictions.jsonl").read_bytes().split(b"\n")
    assert [json.loads(line)["index"] for line in kept] == list(range(len(kept)))
    evaluator.evaluate(long, out=tmp_path / "out")
    assert [row["index"] for row in prediction_rows(tmp_path / "out")] == list(range(2000))
    assert len(client.requests) == 2000


# --- data files ---------------------------------------------------------------------------------


def test_files_are_read_lazily(client: FakeClient, evaluator: BatchEvaluator, tmp_path: Path) -> None:
    """Only as many rows as `limit` are read from a file."""
    path = tmp_path / "rows.csv"
    path.write_text(
        "input,answer\n" + "".join(f"{row.input},{row.answer}\n" for row in rows(20)) + "broken\n"
    )
    data = Dataset(source=DataSource(path=path), labels=LabelSet.of(LABELS), limit=12)
    found = evaluator.evaluate(data, out=tmp_path / "out").metrics
    assert found.rows == found.rows_expected == len(client.requests) == 12
    assert [row["input"] for row in prediction_rows(tmp_path / "out")] == [e.input for e in rows(12)]


def test_a_broken_row_is_reported_before_any_call(tmp_path: Path) -> None:
    """A broken row raises DataError with its line before any call, wherever it is in the file."""
    path = tmp_path / "rows.jsonl"
    records = [{"input": row.input, "answer": row.answer} for row in rows(2000)]
    path.write_text("\n".join(map(json.dumps, [*records, {"input": "meow"}])))
    client = FakeClient(LABELS, knows)
    data = Dataset(source=DataSource(path=path), labels=LabelSet.of(LABELS))
    with pytest.raises(DataError, match=r"rows\.jsonl:2001: expected text in 'answer'"):
        BatchEvaluator(classifier(client)).evaluate(data)
    assert client.requests == []
    with pytest.raises(ConfigurationError, match="at least 1 row"):
        Dataset(source=DataSource(path=path), labels=LabelSet.of(LABELS), limit=0)


# --- progress -----------------------------------------------------------------------------------


def test_progress_tells_of_rows_rate_errors_and_the_rest() -> None:
    """Progress holds rows, rows left, time left, errors and accuracy."""
    client = FakeClient(LABELS, knows, latency=0.1)
    seen: list[EvaluationProgress] = []
    examples = [*rows(9), Example(input="down", answer="cat")]
    BatchEvaluator(classifier(client), concurrency=2).evaluate(examples, on_progress=seen.append)
    middle, last = seen[0], seen[-1]
    assert 0 < middle.rows < 10
    assert middle.eta_seconds is not None
    assert middle.remaining == 10 - middle.rows
    assert (last.rows, last.rows_expected, last.remaining) == (10, 10, 0)
    assert last.errors == {"HTTP 503, try later.": 1}
    assert last.accuracy_answered == wilson_interval(8, 9)


def test_rows_behind_a_slow_one_count_and_are_kept(tmp_path: Path) -> None:
    """Progress counts answered rows in whatever order they come, and an interrupted run keeps all of them."""

    class SlowFirst(FakeClient):
        waits = True

        async def complete(self, request: CompletionRequest) -> object:
            if self.waits and request.messages[-1]["content"] == examples[0].input:
                await asyncio.Event().wait()
            return await super().complete(request)

    examples, stop, seen = rows(12), Stop(), []
    client = SlowFirst(LABELS, knows)

    def listen(progress: EvaluationProgress) -> None:
        seen.append(progress)
        if progress.rows == 11:
            stop.request("enough", at_once=True)

    run = tmp_path / "run"
    evaluator = BatchEvaluator(classifier(client), concurrency=3)
    found = evaluator.evaluate(examples, out=run, on_progress=listen, stop=stop)
    assert (found.metrics.rows, found.kept_rows) == (0, 11)
    assert seen[-1].remaining == 1
    assert seen[-1].eta_seconds is not None
    client.waits = False
    again = evaluator.evaluate(examples, out=run)
    assert prediction_rows(run)[0]["correct"]
    assert seen[-1].accuracy_answered == wilson_interval(again.metrics.correct - 1, 11)
    assert (again.metrics.rows, again.metrics.complete, len(client.requests)) == (12, True, 12)


# --- how long it will take ------------------------------------------------------------------------


def test_the_time_left_is_that_of_the_calls() -> None:
    """The time left is computed from calls, or from rows if no calls are counted."""
    progress = EvaluationProgress(
        rows=2, session_rows=2, remaining=98, seconds=60.0, calls=800, calls_of_rows=20, rows_called=2
    )
    assert progress.eta_seconds == pytest.approx((98 * 10 - 780) * 60.0 / 800)
    cached = EvaluationProgress(rows=50, session_rows=50, remaining=50, seconds=5.0)
    assert cached.eta_seconds == pytest.approx(5.0)


def test_progress_counts_calls_and_names_a_rate_limit() -> None:
    """Progress counts calls, that of the question before the first row too, and names the rate limit waited for."""
    seen: list[EvaluationProgress] = []
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "86400s"}
    stop = Stop()

    def listen(progress: EvaluationProgress) -> None:
        seen.append(progress)
        if progress.rate_limits:
            stop.request("seen", at_once=True)

    with FaultServer(LABELS, headers=headers) as server:
        options = {"api_base": server.api_base, "api_key": "k"}
        with Classifier(model="openai/m", labels=LABELS, field="category", options=options) as classifier:
            rows = [Example(input=f"{n} cat", answer=LABELS[0]) for n in range(100)]
            found = BatchEvaluator(classifier, concurrency=2).evaluate(rows, on_progress=listen, stop=stop)
    assert found.metrics.stopped == "seen"
    last = seen[-1]
    (waited,) = {name for progress in seen for name in progress.rate_limits}
    assert waited == "openai/m"
    assert all(0 < progress.rate_limits.get("openai/m", 1) <= 60 for progress in seen)
    assert last.calls - 1 == last.calls_of_rows == last.rows_called == last.rows


def test_two_runs_do_not_share_a_directory(tmp_path: Path) -> None:
    """A second run in the same directory raises StateError."""
    inside, go_on = threading.Event(), threading.Event()

    def waits(text: str) -> str:
        inside.set()
        assert go_on.wait(10)
        return "cat" if "meow" in text else "dog"

    model = FakeClient(LABELS, waits).as_callable()
    first = Classifier(model=model, labels=LABELS, field="category")
    thread = threading.Thread(target=lambda: BatchEvaluator(first).evaluate(rows(2), out=tmp_path))
    thread.start()
    try:
        assert inside.wait(10)
        with pytest.raises(StateError, match="another process is evaluating into this directory"):
            BatchEvaluator(first).evaluate(rows(2), out=tmp_path)
    finally:
        go_on.set()
        thread.join()
    assert len(prediction_rows(tmp_path)) == 2


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    """A directory with other files, and a file, raise StateError."""
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StateError, match="got other files: choose a new one"):
        BatchEvaluator(classifier(FakeClient(LABELS, knows))).evaluate(rows(1), out=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="got a file"):
        BatchEvaluator(classifier(FakeClient(LABELS, knows))).evaluate(rows(1), out=tmp_path / "file")
