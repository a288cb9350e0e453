"""Tests of stored jobs at a provider's batch interface: they are read and continued.

All were submitted from the first test rows with `submit_batch`, six rows a file, to the `BatchServer` that was then
running; its address is in ``batch.json``. ``job``, with a label prior, was collected, retried for the first row of
each file, collected again and exported to ``bundle-of-job``. ``job-half``, with a head of the rung ``vector``, was
collected when the first of three batches had ended. ``job-cut`` lost the answer to the call that made its second batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import calibrant
from batch_server import KEY, BatchServer
from calibrant.calibration import LabelPriorCorrection
from calibrant.core import Example
from calibrant.evaluation import (
    Polling,
    batch_status,
    collect_batch,
    load_predictions,
    retry_batch,
    submit_batch,
)
from calibrant.inference import Classifier, RetryPolicy
from calibrant.tuned import Tuned
from stored_files import content, rows

SOON = Polling(seconds=0.01, timeout_seconds=30)


async def at_once(_seconds: float) -> None:
    """Replace the wait between looks by nothing."""


ONCE = RetryPolicy(sleep=at_once, attempts=1)
# The server gives what meows 0.9 for cat, and what barks 0.8 for dog; the label prior is 0.7 and 0.3.
CORRECTED = {
    "meow": ("cat", 0.9 / 0.7 / (0.9 / 0.7 + 0.1 / 0.3)),
    "woof": ("dog", 0.8 / 0.3 / (0.2 / 0.7 + 0.8 / 0.3)),
}
AS_SCORED = {"meow": ("cat", 0.9), "woof": ("dog", 0.8)}
FINISHED = {"meow": ("cat", 0.94076500016106), "woof": ("dog", 0.9750933903261975)}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the provider's key in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def server() -> Iterator[BatchServer]:
    """Return a provider whose batches have ended."""
    found = BatchServer()
    found.states = ["completed"]
    yield found
    found.stop()


def moved(job: Path, server: BatchServer) -> Path:
    """Return a job whose provider has a new address, and remembers its requests."""
    server.remember(job)
    text = (job / "batch.json").read_text(encoding="utf-8")
    address = content(job / "batch.json")["connection"]["api_base"]
    (job / "batch.json").write_text(text.replace(address, server.url), encoding="utf-8")
    return job


def said(job: Path) -> list[tuple[str, float]]:
    """Return label and confidence of every row."""
    return [(row["label"], row["confidence"]) for row in rows(job)]


def expected(job: Path, answers: dict[str, tuple[str, float]]) -> list[Any]:
    """Return the expected label and confidence of every row of a job."""
    found = [answers[row["input"].split()[-1]] for row in rows(job)]
    return [(label, pytest.approx(confidence)) for label, confidence in found]


def test_a_collected_job_is_joined_again_without_a_call(stored: Path) -> None:
    """A collected job without predictions.jsonl writes the same file again, without a call."""
    before = (stored / "job" / "predictions.jsonl").read_bytes()
    (stored / "job" / "predictions.jsonl").unlink()
    report = collect_batch(stored / "job", retry=ONCE)
    assert (stored / "job" / "predictions.jsonl").read_bytes() == before
    assert said(stored / "job") == expected(stored / "job", CORRECTED)
    assert report.outcomes == {"ok": 12}
    assert [part.requests for part in report.parts] == [6, 6, 2]
    attempts = [json.loads(line)["attempts"] for line in before.splitlines()]
    assert attempts == [2, 1, 1, 1, 1, 1] * 2
    assert retry_batch(stored / "job", retry=ONCE).submitted == 0


def test_a_finished_job_is_known_to_be_the_same(stored: Path) -> None:
    """Submitting the stored job again submits nothing."""
    address = content(stored / "job" / "batch.json")["connection"]["api_base"]
    classifier = Classifier(
        model="openai/tiny",
        labels=["cat", "dog"],
        field="category",
        prompt="Which animal?",
        options={"api_base": address},
    )
    classifier.prior_correction = LabelPriorCorrection.load(
        stored / "job" / "label_prior.json", fingerprint=classifier.fingerprint()
    )
    lines = (stored / "test.jsonl").read_text(encoding="utf-8").splitlines()
    given = [json.loads(line) for line in lines[:12]]
    again = submit_batch(
        classifier,
        [Example(input=row["input"], answer=row["answer"]) for row in given],
        out=stored / "job",
        retry=ONCE,
    )
    assert (again.submitted, again.rows) == (0, 12)


def test_a_job_is_read_as_a_run(stored: Path) -> None:
    """The job's predictions load with their fingerprint, and its export has the old figures."""
    found = load_predictions(stored / "job")
    assert found.fingerprint is not None
    assert (found.fingerprint.model, found.fingerprint.labels) == ("openai/tiny", ("cat", "dog"))
    bundle = Tuned.from_run(stored / "job").save(stored / "again")
    before = Tuned.load(stored / "bundle-of-job")
    assert bundle.fingerprint == before.fingerprint
    assert {figure.name: figure.estimate for figure in bundle.figures} == {
        figure.name: figure.estimate for figure in before.figures
    }


def test_the_bundle_of_a_job_asks_what_the_job_asked(
    stored: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's bundle gives the job's labels and confidences, and sends its requests."""
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    with calibrant.load(stored / "bundle-of-job") as classifier:
        found = classifier.classify_many([row["input"] for row in rows(stored / "job")])
    assert [(one.label, one.confidence) for one in found] == [
        (label, pytest.approx(confidence)) for label, confidence in said(stored / "job")
    ]
    lines = (stored / "job" / "batch-requests-0001.jsonl").read_text(encoding="utf-8").splitlines()
    sent = [json.loads(line)["body"] for line in lines]
    texts = {body["messages"][-1]["content"]: body for body in server.chats}
    assert [texts[body["messages"][-1]["content"]] for body in sent] == sent


def test_a_job_that_was_half_collected_is_collected(stored: Path, server: BatchServer) -> None:
    """A half collected job fetches only the other batches, and applies the head to all rows."""
    job = moved(stored / "job-half", server)
    assert [part.status for part in batch_status(job).parts] == ["completed"] * 3
    server.calls.clear()
    report = collect_batch(job, wait=SOON, retry=ONCE)
    assert report.outcomes == {"ok": 18}
    assert server.calls == ["content", "content"]
    assert said(job) == expected(job, FINISHED)


def test_a_submission_that_was_cut_off_goes_on(stored: Path, server: BatchServer) -> None:
    """A submission that was cut off finds its lost batch, and makes only the third one."""
    job = moved(stored / "job-cut", server)
    assert retry_batch(job, retry=ONCE).submitted == 2
    assert {step: server.calls.count(step) for step in ("list", "upload", "create")} == {
        "list": 1,
        "upload": 1,
        "create": 1,
    }
    assert collect_batch(job, wait=SOON, retry=ONCE).outcomes == {"ok": 18}
    assert said(job) == expected(job, AS_SCORED)
