"""Tests of jobs at a provider's batch interface: no row is lost or submitted twice."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.calibration import LabelPriorCorrection
from calibrant.core import (
    CalibrantError,
    Client,
    CompletionRequest,
    ConfigurationError,
    Example,
    Field,
    FieldLabels,
    MultiLabels,
    Prediction,
    ProviderError,
    Query,
    StateError,
)
from calibrant.evaluation import (
    BatchLimits,
    BatchReport,
    Polling,
    batch_status,
    collect_batch,
    retry_batch,
    submit_batch,
)
from calibrant.heads import Head, fit_head
from calibrant.inference import (
    Classifier,
    DemonstrationIndex,
    ModelAbilities,
    RetryPolicy,
    open_client,
    open_embedding_model,
)
from calibrant.testing import FakeClient, fake_response
from command_line import prediction_rows
from embedding_server import TOKENS, EmbeddingServer
from synonyms import KNOWN, install_model2vec

KEY = "sk-planted-0123456789abcdef"
ROWS = [
    Example(input=f"{number} {word}", answer=answer)
    for number in range(3)
    for word, answer in (("meow", "cat"), ("woof", "dog"))
]
TWO_A_FILE = BatchLimits(requests=2)
SOON = Polling(seconds=0.01, timeout_seconds=30)


async def at_once(_seconds: float) -> None:
    """Replace the wait between looks by nothing."""


RETRY = RetryPolicy(sleep=at_once)
ONCE = RetryPolicy(sleep=at_once, attempts=1)


def classifier(prompt: str = "Which animal?", **options: Any) -> Classifier:
    """Return a classifier whose provider is the loopback one."""
    return Classifier(
        model="openai/tiny", labels=["cat", "dog"], field="category", prompt=prompt, options=options
    )


def live(server: Any, **options: Any) -> Sequence[Prediction]:
    """Return the predictions of calls outside a batch."""
    client = open_client("openai/tiny", options={"api_base": server.url}, scoring="exact")
    settings = {"labels": ["cat", "dog"], "field": "category", "prompt": "Which animal?", **options}
    own = Classifier(model=client, scoring="decode", **settings)
    return own.classify_many([row.input for row in ROWS])


def submit(
    out: Path, *, rows: list[Example] = ROWS, retry: RetryPolicy = RETRY, **options: Any
) -> BatchReport:
    """Submit the rows, two in a file."""
    return submit_batch(classifier(**options), rows, out=out, limits=TWO_A_FILE, retry=retry)


def collect(out: Path) -> BatchReport:
    """Collect the job and wait for all batches."""
    return collect_batch(out, wait=SOON, retry=RETRY)


def outcomes(out: Path) -> list[str]:
    """Return how the rows ended."""
    return [record["outcome"] for record in prediction_rows(out)]


async def _complete_all(client: Client, requests: Sequence[CompletionRequest]) -> None:
    """Send the requests one after the other."""
    for request in requests:
        await client.complete(request)


class Passing:
    """Rows that are made when they are wanted; counts how many live at the same time, at most."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Example]] = []
        self.most = 0

    def __iter__(self) -> Iterator[Example]:
        for number in range(50):
            row = Example(input=f"{number} meow", answer="")
            self.made.append(weakref.ref(row))
            self.most = max(self.most, sum(one() is not None for one in self.made))
            yield row


@pytest.mark.usefixtures("server")
def test_rows_pass_one_by_one(tmp_path: Path) -> None:
    """Rows that can be read again are never all in memory; those of an iterator are submitted, too."""
    rows = Passing()
    assert submit_batch(classifier(), rows, out=tmp_path / "rows", retry=RETRY).rows == 50
    assert rows.most <= 3
    assert submit_batch(classifier(), iter(rows), out=tmp_path / "iterator", retry=RETRY).rows == 50


def test_a_request_is_what_a_live_call_sends(server: Any, tmp_path: Path) -> None:
    """The body of a batch's request equals the body of a call outside a batch."""
    given = classifier(max_tokens=20, seed=None, timeout=9, api_key=KEY)
    submit_batch(given, ROWS, out=tmp_path, retry=RETRY)
    live = open_client("openai/tiny", options={"api_base": server.url}, scoring="exact")
    queries = [Query(prompt=given.prompt, text=row.input) for row in ROWS]
    asyncio.run(_complete_all(live, [given.request(query) for query in queries]))
    live.close()
    (batch,) = server.batches.values()
    sent = server.requests(batch)
    assert [line["body"] for line in sent] == sorted(
        server.chats, key=lambda body: body["messages"][1]["content"][0]
    )
    assert {line["url"] for line in sent} == {"/v1/chat/completions"}
    assert {line["method"] for line in sent} == {"POST"}
    body = sent[0]["body"]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("tiny", 0, 20)
    assert "timeout" not in body
    assert "seed" not in body
    assert body["messages"] == [
        {"role": "system", "content": "Which animal?"},
        {"role": "user", "content": "0 meow"},
    ]


def test_collected_predictions_are_those_of_live_calls(server: Any, tmp_path: Path) -> None:
    """Collected rows equal predictions outside a batch, in input order, over several files."""
    submit(tmp_path)
    report = collect(tmp_path)
    assert report.outcomes == {"ok": 6}
    assert (report.prompt_tokens, report.completion_tokens) == (42, 18)
    found = prediction_rows(tmp_path)
    assert [record["input"] for record in found] == [row.input for row in ROWS]
    assert [record["label"] for record in found] == [row.answer for row in ROWS]
    for record, prediction in zip(found, live(server), strict=True):
        assert prediction.distribution is not None
        assert record["confidence"] == prediction.confidence
        assert list(record["probabilities"].values()) == prediction.distribution.probabilities.tolist()
        assert (record["space"], record["cost"]) == ("masked", None)


def swapping(n: int = 40, *, with_features: bool = False) -> Head:
    """Return a head that answers dog where the model said cat, and cat for dog."""
    given = np.array([[0.9, 0.1], [0.2, 0.8]] * (n // 2))
    return fit_head(
        np.zeros((n, 2)) if with_features else np.log(given),
        [1, 0] * (n // 2),
        labels=["cat", "dog"],
        features=given if with_features else None,
    )


def test_collected_predictions_end_as_live_ones_do(server: Any, tmp_path: Path) -> None:
    """Label prior and head are applied to collected rows as to predictions outside a batch."""
    prior = LabelPriorCorrection().fit(np.log([[0.7, 0.3], [0.6, 0.4], [0.2, 0.8]] * 30))
    given = classifier()
    given.prior_correction, given.head = prior, swapping()
    submit_batch(given, ROWS, out=tmp_path, limits=TWO_A_FILE, retry=RETRY)
    collect(tmp_path)
    found = prediction_rows(tmp_path)
    expected = [(one.label, one.confidence) for one in live(server, prior_correction=prior, head=given.head)]
    assert [(one["label"], one["confidence"]) for one in found] == expected
    assert not any(one["correct"] for one in found)


def test_a_head_of_prompts_with_demonstrations_is_applied(server: Any, tmp_path: Path) -> None:
    """A head learned with demonstrations is applied, and the requests hold the demonstrations."""
    index = DemonstrationIndex(["it purrs", "it barks"], ["cat", "dog"], labels=["cat", "dog"])
    given = classifier().with_demonstrations(index, k=1)
    given.head = swapping()
    submit_batch(given, ROWS, out=tmp_path, limits=TWO_A_FILE, retry=RETRY)
    collect(tmp_path)
    sent = [line["body"] for batch in server.batches.values() for line in server.requests(batch)]
    assert all(body["messages"][0]["content"].count("Text: ") == 1 for body in sent)
    assert not any(one["correct"] for one in prediction_rows(tmp_path))


@pytest.mark.usefixtures("server")
def test_a_head_with_embeddings_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting opens the embedding model of the head, and another model raises an error."""
    install_model2vec(monkeypatch, {"here": 0})
    given = classifier()
    texts, answers = KNOWN
    given.head = fit_head(
        np.log(np.full((len(texts), 2), 0.5)),
        [("cat", "dog").index(answer) for answer in answers],
        labels=["cat", "dog"],
        texts=texts,
        embedding=open_embedding_model("model2vec:here"),
    )
    rows = [Example(input=word, answer=answer) for word, answer in (("kitty", "cat"), ("hound", "dog"))]
    submit_batch(given, rows, out=tmp_path, limits=TWO_A_FILE, retry=RETRY)
    install_model2vec(monkeypatch, {"here": 1})
    with pytest.raises(ConfigurationError, match="'model2vec:here' that the head was fitted with"):
        collect(tmp_path)
    install_model2vec(monkeypatch, {"here": 0})
    collect(tmp_path)
    assert all(one["correct"] for one in prediction_rows(tmp_path))


@pytest.mark.usefixtures("server")
def test_vectors_of_a_head_are_asked_for_together_and_counted(tmp_path: Path) -> None:
    """Collecting asks for the vectors of all rows in one call, and its tokens count those of the texts."""
    vectors = EmbeddingServer()
    given = classifier()
    given.head = fit_head(
        np.log(np.full((len(KNOWN[0]), 2), 0.5)),
        [("cat", "dog").index(answer) for answer in KNOWN[1]],
        labels=["cat", "dog"],
        texts=KNOWN[0],
        embedding=open_embedding_model(vectors.name),
    )
    rows = [Example(input=f"kitty {number}", answer="cat") for number in range(6)]
    submit_batch(given, rows, out=tmp_path / "with", limits=TWO_A_FILE, retry=RETRY)
    vectors.calls.clear()
    report = collect(tmp_path / "with")
    vectors.stop()
    submit_batch(classifier(), rows, out=tmp_path / "without", limits=TWO_A_FILE, retry=RETRY)
    without = collect(tmp_path / "without").prompt_tokens
    assert [len(call) for call in vectors.calls] == [1, 6]
    assert report.prompt_tokens == without + TOKENS * 7


def test_a_job_with_another_head_is_another_job(server: Any, tmp_path: Path) -> None:
    """The same head submits nothing again; another head, or none, raises StateError."""
    given = classifier()
    given.head = swapping()
    for _ in range(2):
        submit_batch(given, ROWS, out=tmp_path, limits=TWO_A_FILE, retry=RETRY)
    assert len(server.batches) == 3
    for other in (None, swapping(20)):
        given.head = other
        with pytest.raises(StateError, match="differs in corrections"):
            submit_batch(given, ROWS, out=tmp_path, limits=TWO_A_FILE, retry=RETRY)
    swapping(20).save(tmp_path / "head.json", fingerprint=given.fingerprint())
    with pytest.raises(StateError, match="got another"):
        collect(tmp_path)
    (tmp_path / "head.json").unlink()
    with pytest.raises(StateError, match=r"head\.json"):
        collect(tmp_path)
    assert not (tmp_path / "predictions.jsonl").exists()


def test_a_start_that_was_cut_off_is_begun_anew(server: Any, tmp_path: Path) -> None:
    """A head.json alone raises StateError; with batch-rows.jsonl beside it the job starts anew."""
    given = classifier()
    given.head = swapping()
    given.head.save(tmp_path / "head.json", fingerprint=given.fingerprint())
    with pytest.raises(StateError, match=r"got head\.json"):
        submit_batch(given, ROWS, out=tmp_path, retry=RETRY)
    (tmp_path / "batch-rows.jsonl").write_text("")
    submit_batch(given, ROWS, out=tmp_path, retry=RETRY)
    assert len(server.batches) == 1


def test_files_end_where_a_limit_would_be_passed(server: Any, tmp_path: Path) -> None:
    """A file ends before its limit of requests or bytes, and every row is sent once."""
    report = submit(tmp_path / "requests")
    assert [part.requests for part in report.parts] == [2, 2, 2]
    line = len(
        (tmp_path / "requests" / "batch-requests-0001.jsonl").read_bytes().splitlines(keepends=True)[0]
    )
    many = BatchLimits(bytes=line * 4)
    report = submit_batch(classifier(), ROWS, out=tmp_path / "bytes", limits=many, retry=RETRY)
    assert [part.requests for part in report.parts] == [4, 2]
    assert all(len(content) <= line * 4 for _, content in server.files.values())
    names = [
        request["custom_id"]
        for batch in list(server.batches.values())[3:]
        for request in server.requests(batch)
    ]
    assert len(set(names)) == len(names) == 6


@pytest.mark.parametrize("limits", [{"requests": 0}, {"requests": -5}, {"bytes": 0}, {"requests": 1.5}])
def test_limits_below_one_are_refused(limits: dict[str, Any]) -> None:
    """A request file holds at least one request and one byte."""
    with pytest.raises(
        ConfigurationError, match=f"{next(iter(limits))} to be a whole number of at least 1, got"
    ):
        BatchLimits(**limits)


def test_a_request_larger_than_a_file_is_refused(server: Any, tmp_path: Path) -> None:
    """A request above the byte limit raises StateError before any call."""
    with pytest.raises(StateError, match="at most 100 bytes, got one of"):
        submit_batch(classifier(), ROWS, out=tmp_path, limits=BatchLimits(bytes=100))
    assert server.calls == []


def test_submitting_again_does_nothing(server: Any, tmp_path: Path) -> None:
    """Submitting again makes no batch, before and after the job is collected."""
    assert submit(tmp_path).submitted == 3
    calls = list(server.calls)
    assert submit(tmp_path).submitted == 0
    collect(tmp_path)
    assert submit(tmp_path).submitted == 0
    assert (server.calls[: len(calls)], len(server.batches)) == (calls, 3)
    assert "list" not in server.calls


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompt": "Other?"}, "prompt"),
        ({"rows": ROWS[:5]}, "rows"),
        ({"max_tokens": 3}, "options"),
    ],
)
def test_another_job_is_refused(server: Any, tmp_path: Path, change: dict[str, Any], named: str) -> None:
    """A job with other settings raises StateError with the difference, and no batch is made."""
    submit(tmp_path)
    with pytest.raises(StateError, match=f"holds a job that differs in {named}:"):
        submit(tmp_path, **change)
    assert len(server.batches) == 3


class _Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("written", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(10))
def test_a_crash_at_any_save_submits_nothing_twice(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, *, written: bool
) -> None:
    """After a crash at any save, the same command submits every row exactly once."""
    replace, saves = Path.replace, []

    def crash(written_file: Path, target: Path) -> Path:
        saves.append(target.name == "batch.json")
        if saves[-1] and sum(saves) == at + 1:
            if written:
                replace(written_file, target)
            raise _Killed
        return replace(written_file, target)

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(_Killed):
        submit(tmp_path)
    monkeypatch.undo()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    submit(tmp_path)
    assert len(server.batches) == 3
    collect(tmp_path)
    assert outcomes(tmp_path) == ["ok"] * 6


@pytest.mark.parametrize("step", ["upload", "create"])
def test_kill_9_submits_nothing_twice(server: Any, tmp_path: Path, step: str) -> None:
    """After SIGKILL during a call, the same command submits no batch twice."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.stdin.readline()\n"
        "from pathlib import Path\n"
        "from calibrant.inference import Classifier; from calibrant.core import Example\n"
        "from calibrant.evaluation import BatchLimits, submit_batch\n"
        "words = (('meow', 'cat'), ('woof', 'dog'))\n"
        "rows = [Example(input=f'{n} {w}', answer=a) for n in range(3) for w, a in words]\n"
        "c = Classifier(model='openai/tiny', labels=['cat', 'dog'], field='category', prompt='Which animal?')\n"
        "submit_batch(c, rows, out=Path(sys.argv[2]), limits=BatchLimits(requests=2))\n"
    )
    source = str(Path(sys.modules["calibrant"].__file__ or "").parent.parent)
    server.faults[step] = [None, "kill"]
    process = subprocess.Popen(  # noqa: S603 (our own code)
        [sys.executable, "-c", code, source, str(tmp_path / "job")],
        stdin=subprocess.PIPE,
        env=os.environ.copy(),
    )
    server.victim = process.pid
    process.communicate(b"\n", timeout=60)
    assert process.returncode == -9
    submit(tmp_path / "job")
    assert len(server.batches) == 3
    assert ("list" in server.calls) == (step == "create")
    collect(tmp_path / "job")
    assert outcomes(tmp_path / "job") == ["ok"] * 6


def test_a_batch_with_a_lost_answer_is_looked_up(server: Any, tmp_path: Path) -> None:
    """A batch whose answer was lost is found by its name instead of made again."""
    submit(tmp_path / "other")
    server.faults["create"] = [None, "lost", "reset", 503]
    submit(tmp_path / "mine")
    assert len(server.batches) == 6
    assert server.calls.count("list") >= 2
    runs = [batch["metadata"]["calibrant_run"] for batch in server.batches.values()]
    assert len(set(runs[:3])) == len(set(runs[3:])) == 1
    assert [batch["metadata"]["calibrant_part"] for batch in server.batches.values()] == ["1", "2", "3"] * 2


def test_older_batches_are_not_searched(server: Any, tmp_path: Path) -> None:
    """The search for a lost batch stops at batches made days before the job, after one call."""
    for number in range(6):
        submit_batch(classifier(), ROWS, out=tmp_path / str(number), retry=RETRY)
    for batch in server.batches.values():
        batch["created_at"] -= 3 * 86_400
    server.faults["create"] = ["reset"]
    submit_batch(classifier(), ROWS, out=tmp_path / "mine", retry=RETRY)
    assert (server.calls.count("list"), len(server.batches)) == (1, 7)


def test_a_server_that_lists_nothing_is_not_asked_twice(server: Any, tmp_path: Path) -> None:
    """If the server lists no batches, a lost answer raises ProviderError, and no batch is made again."""
    server.faults = {"create": ["lost"], "list": [404] * 9}
    for _ in range(2):
        with pytest.raises(ProviderError, match="does not list batches"):
            submit(tmp_path)
    assert len(server.batches) == 1


def test_passing_faults_are_retried_at_every_step(server: Any, tmp_path: Path) -> None:
    """Failed uploads, creations, looks and downloads are retried, and no batch is made twice."""
    for step in ("upload", "create", "look", "content"):
        server.faults[step] = [503, "cut" if step == "content" else "lost", 429]
    submit(tmp_path)
    assert collect(tmp_path).outcomes == {"ok": 6}
    assert len(server.batches) == 3


def test_broken_looks_are_retried(server: Any, tmp_path: Path) -> None:
    """A look answered without the batch is repeated, as one without an answer is."""
    submit(tmp_path)
    server.faults["look"] = ["broken", "broken"]
    assert [part.batch_id for part in batch_status(tmp_path, retry=RETRY).parts] == list(server.batches)
    assert server.calls.count("look") == 5


def test_a_bad_key_ends_the_job_unseen(server: Any, tmp_path: Path) -> None:
    """A refused key raises ProviderError without the key after one call; the next start submits all."""
    server.faults["upload"] = [401]
    with pytest.raises(ProviderError, match="Check the API key") as caught:
        submit(tmp_path)
    assert KEY not in str(caught.value)
    assert server.calls == ["upload"]
    assert submit(tmp_path).submitted == 3


def test_two_commands_in_one_directory_exclude_each_other(server: Any, tmp_path: Path) -> None:
    """A second command in the directory raises StateError until the first one has ended, and no file is left."""
    submit(tmp_path)
    files = {path.name for path in tmp_path.iterdir()}
    looks: list[set[str]] = []

    def meanwhile(_: BatchReport) -> None:
        for command in (submit, collect):
            with pytest.raises(StateError, match="another command is at work"):
                command(tmp_path)
        looks.append({path.name for path in tmp_path.iterdir()} - files)

    collect_batch(tmp_path, wait=SOON, retry=RETRY, on_look=meanwhile)
    assert looks[0] == set()
    assert collect(tmp_path).outcomes == {"ok": 6}
    assert len(server.batches) == 3


def test_every_kind_of_line_becomes_its_outcome(server: Any, tmp_path: Path) -> None:
    """Every kind of answer line becomes the outcome and reason of its row."""
    rows = [Example(input=f"{number} meow", answer="cat") for number in range(9)]

    def answer(asked: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
        refusal = fake_response("cat")
        refusal["choices"][0]["message"] = {"role": "assistant", "content": None, "refusal": "I cannot."}
        bare = fake_response("cat", ["cat", "dog"], top_logprobs=0)
        context = {"error": {"message": "maximum context length is 9", "code": "context_length_exceeded"}}
        good = [
            server.right(asked[0]),
            server.answered(asked[1], 200, refusal),
            server.answered(asked[2], 200, fake_response("cow")),
            server.answered(asked[3], 200, bare),
            server.answered(asked[4], 200, "<html>"),
            '{"custom_id": "row-8", "response": {"status_code": 200, "bo',
            server.right(asked[0]),
            server.right({**asked[0], "custom_id": "row-99"}),
            server.right({**asked[0], "custom_id": None}),
            "[]",
            "",
        ]
        bad = [
            server.answered(asked[5], 400, context),
            server.answered(asked[6], 500, {"error": {"message": f"Bearer {KEY} broke"}}),
            server.failed(asked[7], "batch_expired", "This request could not be executed."),
            server.failed(asked[0], "x", "it has an answer"),
        ]
        return good, bad

    server.answer = answer
    submit_batch(classifier(), rows, out=tmp_path, retry=RETRY)
    report = collect(tmp_path)
    assert outcomes(tmp_path) == [
        "ok", "refusal", "unparsed", "ok", "error", "unparsed", "error", "error", "error",
    ]  # fmt: skip
    reasons = [record["reason"] for record in prediction_rows(tmp_path)]
    assert reasons[1] == "I cannot."
    assert "not one of the labels" in reasons[2]
    assert prediction_rows(tmp_path)[3]["confidence"] is None
    assert "broken response" in reasons[4]
    assert "maximum context length" in reasons[5]
    assert "broke" in reasons[6]
    assert reasons[7] == "expired: submit again (calibrant batch retry)"
    assert "returned no line for this row" in reasons[8]
    assert (report.broken, report.unknown, report.duplicates) == (2, 2, 2)
    assert report.outcomes == {"ok": 2, "refusal": 1, "unparsed": 2, "error": 4}


@pytest.mark.parametrize("ending", ["expired", "cancelled"])
def test_a_batch_that_ended_early_keeps_what_it_answered(server: Any, tmp_path: Path, ending: str) -> None:
    """A batch that ended early keeps its answers; its other rows say to submit again."""
    server.states = ["in_progress", ending]
    server.answer = lambda asked: ([server.right(asked[0])], [])
    submit(tmp_path)
    assert collect(tmp_path).outcomes == {"ok": 3, "error": 3}
    assert {record["reason"] for record in prediction_rows(tmp_path)[1::2]} == {
        f"{ending}: submit again (calibrant batch retry)"
    }


def test_a_batch_that_failed_gives_the_providers_reasons(server: Any, tmp_path: Path) -> None:
    """The reasons of a failed batch are in its rows and in its status."""
    server.states = ["validating", "failed"]
    server.errors = [{"code": "model_not_found", "message": "No model 'tiny'.", "line": 1}]
    submit(tmp_path)
    assert collect(tmp_path).outcomes == {"error": 6}
    assert {record["reason"] for record in prediction_rows(tmp_path)} == {
        "the batch failed: line 1: model_not_found: No model 'tiny'."
    }
    assert batch_status(tmp_path).parts[0].errors == ("line 1: model_not_found: No model 'tiny'.",)


def test_ended_batches_are_fetched_first(server: Any, tmp_path: Path) -> None:
    """Ended batches are fetched while others run, and predictions.jsonl waits for all of them."""
    server.states = ["completed"]
    submit(tmp_path, rows=ROWS)
    slow = list(server._left)[1]
    server._left[slow] = ["in_progress", "in_progress", "completed"]
    report = collect_batch(tmp_path, retry=RETRY)
    assert [part.status for part in report.parts] == ["completed", "in_progress", "completed"]
    assert [part.fetched for part in report.parts] == [True, False, True]
    assert (report.ended, report.predictions) == (False, None)
    assert not (tmp_path / "predictions.jsonl").exists()
    with pytest.raises(StateError, match="collect first"):
        retry_batch(tmp_path, retry=RETRY)
    seen: list[BatchReport] = []
    report = collect_batch(tmp_path, wait=SOON, retry=RETRY, on_look=seen.append)
    assert report.outcomes == {"ok": 6}
    assert [look.ended for look in seen] == [False, True]
    assert server.calls.count("content") == 3


def test_collecting_again_gives_the_same_file(server: Any, tmp_path: Path) -> None:
    """Collecting again writes the same file without a call."""
    submit(tmp_path)
    collect(tmp_path)
    first = (tmp_path / "predictions.jsonl").read_bytes()
    (tmp_path / "predictions.jsonl").unlink()
    calls = list(server.calls)
    collect(tmp_path)
    assert (tmp_path / "predictions.jsonl").read_bytes() == first
    assert server.calls == calls


def damage(file: Path, *, cut: bool) -> None:
    """Cut a file within its first line, or remove it."""
    if cut:
        os.truncate(file, 30)
    else:
        file.unlink()


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("again", [collect, lambda out: retry_batch(out, retry=RETRY)])
def test_a_lost_answer_file_is_fetched_again(
    server: Any, tmp_path: Path, *, cut: bool, again: Callable[[Path], BatchReport]
) -> None:
    """A fetched file that is missing or cut is fetched again, and no row is submitted twice."""
    submit(tmp_path)
    collect(tmp_path)
    first = (tmp_path / "predictions.jsonl").read_bytes()
    damage(tmp_path / "batch-answers-0002.jsonl", cut=cut)
    again(tmp_path)
    assert server.calls.count("content") == 4
    assert collect(tmp_path).outcomes == {"ok": 6}
    assert (tmp_path / "predictions.jsonl").read_bytes() == first
    assert len(server.batches) == 3


@pytest.mark.parametrize("cut", [True, False])
def test_a_lost_answer_file_overwrites_nothing(server: Any, tmp_path: Path, *, cut: bool) -> None:
    """Where a lost file cannot be fetched again, it is named, and the predictions stay."""
    submit(tmp_path)
    collect(tmp_path)
    first = (tmp_path / "predictions.jsonl").read_bytes()
    damage(tmp_path / "batch-answers-0002.jsonl", cut=cut)
    server.faults["content"] = [404] * 2
    with pytest.raises(StateError, match=r"batch-answers-0002\.jsonl: expected [\d,]+ bytes"):
        collect(tmp_path)
    with pytest.raises(StateError, match=r"cannot be fetched again .*: restore it"):
        retry_batch(tmp_path, retry=RETRY)
    assert (tmp_path / "predictions.jsonl").read_bytes() == first
    assert len(server.batches) == 3


def test_a_file_that_the_provider_deleted_is_named(server: Any, tmp_path: Path) -> None:
    """An answer file that is gone at the provider is named with its part, and a new --out is advised."""
    server.states = ["completed"]
    submit(tmp_path)
    server.faults["content"] = [404]
    with pytest.raises(
        ProviderError, match=r"no longer has the file file-\d+, .* answers of part 1\b"
    ) as raised:
        collect(tmp_path)
    assert "submit the rows with a new --out" in str(raised.value)
    assert "address" not in str(raised.value)


def test_waiting_ends_in_time_and_outlasts_an_outage(server: Any, tmp_path: Path) -> None:
    """A timeout ends the wait; a look is repeated up to the number of allowed failures."""
    server.states = ["in_progress"]
    submit(tmp_path)
    server.faults["look"] = [503, 503]
    report = collect_batch(tmp_path, wait=Polling(seconds=0.01, timeout_seconds=0.5), retry=ONCE)
    assert not report.ended
    server.faults["look"] = [503] * 9
    with pytest.raises(ProviderError):
        collect_batch(tmp_path, wait=Polling(seconds=0.01, failures=3), retry=ONCE)
    assert len(server.faults["look"]) == 6


def test_failed_rows_are_retried_as_they_were_asked(server: Any, tmp_path: Path) -> None:
    """A retry sends only failed rows, unchanged, and nothing is left to retry afterwards."""
    healthy = server.answer

    def half(asked: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
        return [server.right(asked[0])], [server.failed(asked[1], "server_error", "try again")]

    server.answer = half
    submit(tmp_path)
    assert collect(tmp_path).outcomes == {"ok": 3, "error": 3}
    server.answer = healthy
    server.faults["create"] = ["reset"]
    with pytest.raises(ProviderError):
        retry_batch(tmp_path, retry=ONCE)
    report = retry_batch(tmp_path, retry=RETRY)
    assert report.submitted == 1
    (again,) = list(server.batches.values())[3:]
    before = {
        line["custom_id"]: line
        for batch in list(server.batches.values())[:3]
        for line in server.requests(batch)
    }
    assert [line["custom_id"] for line in server.requests(again)] == ["row-1", "row-3", "row-5"]
    assert all(line == before[line["custom_id"]] for line in server.requests(again))
    with pytest.raises(StateError, match="collect first"):
        retry_batch(tmp_path, retry=RETRY)
    assert collect(tmp_path).outcomes == {"ok": 6}
    assert [record["attempts"] for record in prediction_rows(tmp_path)] == [1, 2] * 3
    assert retry_batch(tmp_path, retry=RETRY).submitted == 0
    assert submit(tmp_path).submitted == 0
    assert len(server.batches) == 4


def test_a_retry_that_was_cut_off_goes_on(server: Any, tmp_path: Path) -> None:
    """After a retry that failed, collect raises StateError, and the next retry submits the part."""
    server.states = ["failed"]
    submit(tmp_path)
    collect(tmp_path)
    server.faults["upload"] = [401]
    with pytest.raises(ProviderError):
        retry_batch(tmp_path, retry=RETRY)
    with pytest.raises(StateError, match="part 4 of 4 was not submitted"):
        collect(tmp_path)
    server.states = ["completed"]
    wide = retry_batch(tmp_path, retry=RETRY)
    assert wide.submitted == 1
    assert [part.requests for part in wide.parts] == [2, 2, 2, 6]
    assert collect(tmp_path).outcomes == {"ok": 6}
    assert len(server.batches) == 4


def test_the_key_is_sent_and_never_written(server: Any, tmp_path: Path) -> None:
    """The key is sent with every call, and is in no file of the job."""
    server.answer = lambda asked: (
        [server.right(asked[0])],
        [server.failed(asked[1], "server_error", f"key {KEY} is throttled")],
    )
    server.faults["look"] = [503]
    submit_batch(classifier(api_key=KEY), ROWS, out=tmp_path, limits=TWO_A_FILE, retry=RETRY)
    collect(tmp_path)
    assert server.authorizations == {f"Bearer {KEY}"}
    for path in tmp_path.iterdir():
        assert KEY.encode() not in path.read_bytes(), path
    assert "is throttled" in prediction_rows(tmp_path)[1]["reason"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: classifier(extra_headers={"Authorization": KEY}), "Expected no extra_headers"),
        (lambda: Classifier(model="mistral/tiny", labels=["a", "b"]), "got 'mistral/tiny'"),
        (lambda: Classifier(model=FakeClient(["a", "b"], {}), labels=["a", "b"]), "batch interface"),
        (
            lambda: classifier().with_abilities(ModelAbilities(gives_logprobs=False)),
            "got 3 calls a row for openai/tiny, which gives no log-probabilities.*scoring = 'decode'",
        ),
        (
            lambda: Classifier(model="openai/tiny", labels=["a", "b"], scoring="sampled"),
            "Expected a model that decodes, got Sampling",
        ),
        (lambda: classifier(api_base="http://user:secret@127.0.0.1:1/v1"), "without credentials"),
    ],
    ids=["headers", "provider", "client", "fused", "sampled", "credentials"],
)
def test_unfit_models_fail(server: Any, tmp_path: Path, make: Callable[[], Classifier], message: str) -> None:
    """An unsuitable model raises ConfigurationError before any request, and no secret is shown."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        submit_batch(make(), ROWS, out=tmp_path / "job")
    assert KEY not in str(caught.value)
    assert "secret@" not in str(caught.value)
    assert server.calls == []


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 1}', '{"version": 9, "parts": []}'])
def test_a_damaged_state_is_no_new_job(server: Any, tmp_path: Path, content: str) -> None:
    """A damaged batch.json raises StateError, and no batch is sent: the old ones may have been paid for."""
    submit(tmp_path)
    (tmp_path / "batch.json").write_text(content)
    with pytest.raises(StateError, match=r"batch\.json"):
        submit(tmp_path)
    assert len(server.batches) == 3


@pytest.mark.parametrize("of_part", [True, False])
def test_an_unknown_key_of_the_state_is_named(server: Any, tmp_path: Path, of_part: bool) -> None:
    """A key that saving the job would drop raises StateError with its name; nothing is asked or written."""
    submit(tmp_path)
    path = tmp_path / "batch.json"
    record = json.loads(path.read_text())
    changed = record["parts"][0] if of_part else record
    changed["tries"] = 2
    text = json.dumps(record)
    path.write_text(text)
    calls = len(server.calls)
    named = r"parts\.0\.tries" if of_part else "tries"
    with pytest.raises(
        StateError, match=rf"batch\.json: expected a batch job, .*\({named}: Unexpected keyword"
    ):
        batch_status(tmp_path)
    assert path.read_text() == text
    assert len(server.calls) == calls


def test_missing_rows_or_requests_are_named(server: Any, tmp_path: Path) -> None:
    """Missing rows or requests raise StateError, and no predictions.jsonl is written."""
    assert server.batches == {}
    submit(tmp_path)
    rows = tmp_path / "batch-rows.jsonl"
    whole = rows.read_text()
    rows.write_text("".join(whole.splitlines(keepends=True)[:4]))
    with pytest.raises(StateError, match="expected 6 rows, got 4"):
        collect(tmp_path)
    rows.write_text(whole)
    (tmp_path / "batch-requests-0002.jsonl").unlink()
    with pytest.raises(StateError, match=r"batch-requests-0002\.jsonl: not readable"):
        collect(tmp_path)
    assert not (tmp_path / "predictions.jsonl").exists()


@pytest.mark.parametrize(
    ("labels", "field", "answer"),
    [
        (MultiLabels(["cat", "dog"]), "animals[].kind", '["cat", "dog"]'),
        (
            FieldLabels(
                [
                    Field(name="kind", labels=["cat", "dog"], path="x.kind"),
                    Field(name="size", labels=["a", "b"]),
                ]
            ),
            "label",
            '{"kind": "dog", "size": "a"}',
        ),
    ],
)
def test_label_sets_are_read(server: Any, tmp_path: Path, labels: Any, field: str, answer: str) -> None:
    """Answers of several labels are collected with their confidence."""
    body = fake_response(answer, labels, field=field)
    server.answer = lambda requests: ([server.answered(request, 200, body) for request in requests], [])
    given = Classifier(model="openai/tiny", labels=labels, field=field)
    submit_batch(given, [Example(input="one", answer=answer)], out=tmp_path, retry=RETRY)
    collect(tmp_path)
    (found,) = prediction_rows(tmp_path)
    assert (found["outcome"], found["label"], found["correct"]) == ("ok", answer, True)
    assert found["confidence"] == pytest.approx(1.0)


@pytest.mark.parametrize("moment", ["look", "content"])
def test_the_job_of_a_moved_directory_is_collected_there(server: Any, tmp_path: Path, moment: str) -> None:
    """If the directory vanishes, an error says so, and a moved one is collected in its new place."""
    out, moved = tmp_path / "job", tmp_path / "elsewhere"
    submit(out)
    batches = len(server.batches)

    def vanish(report: BatchReport) -> None:
        if out.exists() and (moment == "look" or report.parts[0].fetched):
            out.rename(moved)

    with pytest.raises(CalibrantError, match="moved or removed during the run") as caught:
        collect_batch(out, wait=SOON, retry=RETRY, on_look=vanish)
    assert not isinstance(caught.value, StateError | ProviderError)
    assert not out.exists()
    collect(moved)
    assert outcomes(moved) == ["ok"] * len(ROWS)
    assert len(server.batches) == batches


@pytest.mark.usefixtures("server")
def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    """A directory with other files raises StateError, and keeps them."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StateError, match=r"got notes\.txt"):
        submit(tmp_path)
    assert [found.name for found in tmp_path.iterdir()] == ["notes.txt"]


def test_a_head_that_needs_features_has_no_batch(server: Any) -> None:
    """A head that reads features raises ConfigurationError."""
    assert server.batches == {}
    with pytest.raises(ConfigurationError, match="tells what it made of a text"):
        classifier().head = swapping(with_features=True)
