"""Tests of the automatic choice: decoding, or stated confidence where a model hides its log-probabilities."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from calibrant import BatchEvaluator, Classifier, Example, Task, load
from calibrant.cascade import Cascade
from calibrant.core import Limits, LogprobSpace, LogprobsUnsupportedError, Outcome, ProviderError, Stop
from calibrant.inference import RetryPolicy
from calibrant.testing import FakeClient, MemoryJournal, fake_model
from calibrant.tuned import Tuned
from command_line import command
from distributions import distribution_of
from fault_server import FaultServer

LABELS = ["cat", "dog"]
REFUSED = LogprobsUnsupportedError("unknown option logprobs", provider="fake", status=400)
ROWS = [Example(input=f"{n} meow", answer="cat") for n in range(4)]
TEXTS = [row.input for row in ROWS]


class Hiding(FakeClient):
    """Fake model without log-probabilities, which refuses to be asked for them or says nothing."""

    def __init__(self, *, refuses: bool = False, **settings: Any) -> None:
        super().__init__(LABELS, {}, default="cat", **settings)
        self.refuses = refuses

    async def complete(self, request: Any) -> object:
        """Answer without tokens, and with a percentage if one is asked for."""
        response: Any = await super().complete(request)
        if self.refuses and request.top_logprobs:
            raise REFUSED
        answer = {"category": "cat"}
        if "confidence" in request.messages[0]["content"]:
            answer["confidence"] = "80"
        message = {"role": "assistant", "content": json.dumps(answer)}
        return {**response, "choices": [{"finish_reason": "stop", "message": message}]}


def opened(model: Any, **changes: Any) -> Classifier:
    """Return a classifier on a model by name."""
    arguments = {"labels": LABELS, "field": "category", "prompt": "Which animal?", **changes}
    return Classifier(model=model, retry=RetryPolicy(attempts=2, initial_seconds=0), **arguments)


@pytest.mark.parametrize("refuses", [False, True])
def test_hidden_logprobs_cost_one_call(refuses: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A model that hides them is asked once in vain, for all classifiers on it; then three times a row."""
    fake = Hiding(refuses=refuses, name=f"fake/hides-{refuses}")
    with fake_model(fake.name, fake):
        classifier = opened(fake.name)
        rows = classifier.classify_many(TEXTS)
        assert len(fake.requests) == 1 + 3 * 4
        assert {distribution_of(row).space for row in rows} == {LogprobSpace.FUSED}
        assert classifier.describe()["method"]["scoring"] == "fused"
        assert classifier.with_prompt("Other.").fingerprint().space is LogprobSpace.FUSED
        assert classifier.meter.requests == 13
        opened(fake.name, scoring="auto", samples=2).classify("0 meow")
        assert len(fake.requests) == 13 + 2
    assert f"{fake.name} gives no log-probabilities: 3 calls a row, fused." in caplog.text


def test_given_logprobs_cost_no_call() -> None:
    """A model that gives them is asked once a row, under the keys that decoding has."""
    fake = FakeClient(LABELS, {"meow": ("cat", 0.9)})
    journal, other = MemoryJournal(), MemoryJournal()
    with fake_model("fake/gives", fake):
        found = opened("fake/gives", journal=journal).classify_many(TEXTS)
        assert len(fake.requests) == 4
        again = opened("fake/gives", scoring="decode", journal=other).classify_many(TEXTS)
    assert [row.confidence for row in found] == [row.confidence for row in again] == [pytest.approx(0.9)] * 4
    assert [row.attempts for row in found] == [1] * 4
    assert journal.keys() == other.keys()


def test_a_journal_saves_the_call() -> None:
    """A stored answer with a confidence shows that the model gives log-probabilities."""
    fake, journal = FakeClient(LABELS, {"meow": ("cat", 0.9)}), MemoryJournal()
    opened(fake, journal=journal).classify("0 meow")
    with fake_model("fake/stored", lambda *_, **__: Hiding(name="fake")):
        assert opened("fake/stored", journal=journal).classify("0 meow").confidence == pytest.approx(0.9)


def test_clients_decode_unless_told() -> None:
    """A client that hides them gives answers without a confidence, unless the choice is asked for."""
    assert opened(Hiding()).classify("meow").confidence is None
    assert opened(Hiding(), scoring="auto").classify("meow").confidence == pytest.approx(80.5 / 101)


@pytest.mark.parametrize("further", [0, 1, 4])
def test_a_broken_first_answer_counts_for_its_row(further: int) -> None:
    """The call that says nothing about the model is the row's, with its tokens."""
    message = {"role": "assistant", "content": ""}
    broken = {"choices": [{"finish_reason": "stop", "message": message}], "usage": {"prompt_tokens": 10}}
    answers = [broken] * (1 + further) + [("cat", 0.9)]
    prediction = opened(FakeClient(LABELS, {"meow": answers}), scoring="auto").classify("meow")
    calls = min(2 + further, 3)
    assert prediction.attempts == calls
    assert prediction.usage.prompt_tokens == 10 * min(1 + further, 3)


def test_threads_share_the_question() -> None:
    """Classifiers in several threads ask once between them."""
    fake = Hiding(latency=0.05)
    with fake_model("fake/threads", fake), ThreadPoolExecutor(4) as pool:
        classifiers = [opened("fake/threads") for _ in range(4)]
        list(pool.map(lambda pair: pair[0].classify(pair[1]), zip(classifiers, TEXTS, strict=True)))
    assert len(fake.requests) == 1 + 4 * 3


def test_failures_are_the_rows() -> None:
    """A failed first call says nothing, and its row is asked about again; one that all would meet ends the run."""
    slow = ProviderError("broken", provider="fake", status=400)
    fake = FakeClient(LABELS, {"0 meow": slow, "meow": ("cat", 0.9)})
    with fake_model("fake/fails", fake):
        found = opened("fake/fails").classify_many(TEXTS)
    assert [row.outcome for row in found] == [Outcome.ERROR] + [Outcome.OK] * 3
    assert len(fake.requests) == 5
    denied = FakeClient(LABELS, {}, default=ProviderError("no key", provider="fake", status=401))
    with fake_model("fake/denied", denied), pytest.raises(ProviderError, match="no key"):
        opened("fake/denied").classify_many(TEXTS)
    assert len(denied.requests) == 1


def test_the_finding_is_kept_on_disk(calibrant_home: Path) -> None:
    """A later classifier knows the finding from disk for 30 days, by name and address, until the model is examined."""
    with FaultServer(LABELS, faults=["no_logprobs"] * 40, hides_logprobs=True) as server:
        options = {"api_base": server.api_base}

        def classify() -> int:
            before = server.probes
            with opened("hosted_vllm/hides", options=options) as classifier:
                assert classifier.classify("0 meow").attempts == 3
                assert classifier.meter.requests == 3 + server.probes - before
            return server.probes - before

        assert [classify(), classify()] == [1, 0]
        (record,) = calibrant_home.rglob("*.probe.json")
        long_ago = time.time() - 31 * 86_400
        os.utime(record, (long_ago, long_ago))
        assert [classify(), classify()] == [1, 0]
        assert command("doctor")("hosted_vllm/hides", "--api-base", server.api_base).exit_code == 1
        assert not record.exists()


def test_a_run_and_its_bundle_hold_one_space(tmp_path: Path) -> None:
    """A run records the space and the calls; its bundle asks the same without finding out again."""
    fake = Hiding(name="fake/run")
    task = Task(name="pets", labels=LABELS, field="category", prompt="Which animal?")
    with fake_model("fake/run", fake):
        found = BatchEvaluator(Classifier.from_task(task, model="fake/run")).evaluate(
            ROWS, out=tmp_path / "run"
        )
        assert found.metrics.calls == 1 + 3 * 4
        Tuned.from_run(tmp_path / "run", task=task, model="fake/run").save(tmp_path / "bundle")
        lines = (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()
        assert {json.loads(line)["space"] for line in lines} == {"fused"}
    other = Hiding(name="fake/run")
    with fake_model("fake/run", other), load(tmp_path / "bundle") as classifier:
        assert other.requests == []
        classifier.classify("meow")
    assert len(other.requests) == 3


def test_budgets_count_all_calls() -> None:
    """A budget of calls ends a run before a row that it cannot pay for."""
    fake = Hiding()
    with fake_model("fake/budget", fake):
        evaluator = BatchEvaluator(opened("fake/budget"), limits=Limits(max_requests=7, concurrency=1))
        found = evaluator.evaluate(ROWS)
    assert found.metrics.rows == 2
    assert len(fake.requests) == 7


def test_a_run_stays_as_it_began(tmp_path: Path, calibrant_home: Path) -> None:
    """A run with rows goes on as they were answered, whatever is known of the model by then, and asks nothing more."""
    with FaultServer(LABELS) as server:
        options = {"api_base": server.api_base}
        for rows in (ROWS[:2], ROWS, ROWS):
            with opened("hosted_vllm/any", options=options) as classifier:
                BatchEvaluator(classifier).evaluate(rows, out=tmp_path / "run")
            (record,) = calibrant_home.rglob("*.probe.json")
            record.write_text(record.read_text().replace("true", "false"))
    assert sum(server.counts.values()) == 4


def test_stored_answers_that_are_no_label_save_the_call() -> None:
    """A stored answer that is no label counts as one with log-probabilities."""
    fake, journal = FakeClient(LABELS, {"meow": "cow"}), MemoryJournal()
    opened(fake, journal=journal).classify("0 meow")
    with fake_model("fake/cow", lambda *_, **__: Hiding(name="fake")):
        assert opened("fake/cow", journal=journal).classify("0 meow").outcome is Outcome.UNPARSED


def test_limits_end_the_first_call(tmp_path: Path) -> None:
    """A deadline ends a run that finds out how the model is asked, and a stop requested before asks nothing."""
    stop = Stop()
    stop.request("changed my mind")
    with (
        FaultServer(LABELS, latency=5.0) as server,
        opened("hosted_vllm/hangs", options={"api_base": server.api_base}) as classifier,
    ):
        stopped = BatchEvaluator(classifier).evaluate(ROWS, out=tmp_path / "stopped", stop=stop)
        assert (stopped.metrics.stopped, server.probes) == ("changed my mind", 0)
        slow = BatchEvaluator(classifier, limits=Limits(run_seconds=0.1))
        late = slow.evaluate(ROWS, out=tmp_path / "late").metrics
    assert (late.stopped, late.rows) == ("The deadline of 0.1 seconds has passed", 0)
    assert (server.probes, server.counts) == (1, {})


def test_heads_say_how_the_model_is_asked(
    tmp_path: Path, write_task: Callable[..., Path], calibrant_home: Path
) -> None:
    """A task with a head opens without a call: the head was learned in one space."""
    with FaultServer(LABELS) as server:
        own = f'[model]\nname = "hosted_vllm/any"\napi_base = "{server.api_base}"\n'
        with Classifier.from_task(Task.from_file(write_task(extra=own))) as fitted:
            head = fitted.fit([f"{n} {LABELS[n % 2]}" for n in range(20)], LABELS * 10).head
            assert head is not None
            head.save(tmp_path / "head.json", fingerprint=fitted.fingerprint())
        shutil.rmtree(calibrant_home)
        task = Task.from_file(write_task(extra=own + '[head]\nfile = "head.json"\n'))
        with Classifier.from_task(task) as classifier:
            assert classifier.head is not None
    assert sum(server.counts.values()) == 20


@pytest.mark.parametrize(("scoring", "expected"), [(None, "decode"), ("auto", "fused")])
def test_members_of_cascades_decode_unless_told(scoring: Any, expected: str) -> None:
    """A cascade's model decodes whatever an earlier run has found, unless the choice is asked for."""
    with FaultServer(LABELS, faults={"no_logprobs": 1.0}, hides_logprobs=True) as server:
        options = {"api_base": server.api_base}
        with opened("hosted_vllm/hides", options=options) as classifier:
            assert classifier.classify("0 meow").attempts == 3
        with opened("hosted_vllm/hides", options=options, scoring=scoring) as one:
            cascade = Cascade([one, opened(Hiding())], method="label_probability")
            assert cascade.describe()["method"]["models"][0]["method"]["scoring"] == expected


def test_threads_share_the_probe() -> None:
    """Classifiers of one server in several threads make one probe between them, and none of them counts it as a row."""
    with (
        FaultServer(LABELS, faults={"no_logprobs": 1.0}, hides_logprobs=True, latency=0.05) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        options = {"api_base": server.api_base}
        classifiers = [opened("hosted_vllm/threads", options=options) for _ in range(4)]
        rows = list(pool.map(lambda pair: pair[0].classify(pair[1]), zip(classifiers, TEXTS, strict=True)))
        for classifier in classifiers:
            classifier.close()
    assert server.probes == 1
    assert [row.attempts for row in rows] == [3] * 4


def test_a_fault_of_all_calls_ends_the_probe(calibrant_home: Path) -> None:
    """A key that is refused ends the run before its first row; nothing is kept."""
    with FaultServer(LABELS, api_key="right") as server:
        options = {"api_base": server.api_base, "api_key": "wrong"}
        with (
            opened("hosted_vllm/any", options=options) as classifier,
            pytest.raises(ProviderError, match="401"),
        ):
            classifier.classify_many(TEXTS)
        assert server.refused == {401: 1}
        with opened("hosted_vllm/any", options={**options, "api_key": "right"}) as classifier:
            assert classifier.classify("0 meow").confidence is not None
    assert len(list(calibrant_home.rglob("*.probe.json"))) == 1


def test_a_failed_probe_decides_nothing(calibrant_home: Path) -> None:
    """Where the probe fails in passing, rows are asked for log-probabilities, and the next classifier tries again."""
    refusals = iter([503, 503])
    with FaultServer(LABELS, hides_logprobs=True, on_probe=lambda: next(refusals, None)) as server:
        options = {"api_base": server.api_base}
        with opened("hosted_vllm/any", options=options) as classifier:
            assert classifier.classify("0 meow").confidence is not None
            assert not list(calibrant_home.rglob("*.probe.json"))
        with opened("hosted_vllm/any", options=options) as classifier:
            classifier.classify("0 meow")
            assert classifier.scoring == "fused"
