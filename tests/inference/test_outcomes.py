"""Tests of outcomes of rows: faults of the model, of the server, and of every call."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from calibrant.core import (
    ConfigurationError,
    Outcome,
    Prediction,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from calibrant.inference import Classifier, RetryPolicy
from calibrant.testing import Answer, FakeClient, fake_response

LABELS = ["cat", "dog"]
DOWN = ProviderError("down", provider="fake", retryable=True)


class Patience:
    """Retry policy that records its waits."""

    def __init__(self, attempts: int = 3) -> None:
        self.waits: list[float] = []
        self.policy = RetryPolicy(attempts=attempts, sleep=self.sleep, jitter=lambda: 1.0)

    async def sleep(self, seconds: float) -> None:
        """Record the wait and return at once."""
        self.waits.append(seconds)


def response(content: object, *, finish_reason: str = "stop", refusal: str | None = None) -> dict[str, Any]:
    """Return a raw answer without log-probabilities."""
    message = {"role": "assistant", "content": content, "refusal": refusal}
    return {"choices": [{"finish_reason": finish_reason, "message": message}]}


def classify(answer: Answer, *, attempts: int = 3, **changes: Any) -> tuple[Prediction, FakeClient]:
    """Return the prediction of one row with this answer, and the client."""
    client = FakeClient(LABELS, {"text": answer})
    classifier = Classifier(
        model=client, labels=LABELS, field="category", retry=Patience(attempts).policy, **changes
    )
    return classifier.classify("text"), client


def with_evidence(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return an answer whose label token was changed."""
    found = fake_response("cat", LABELS, {"cat": 0.9, "dog": 0.1})
    token = next(one for one in found["choices"][0]["logprobs"]["content"] if one["token"].startswith("cat"))
    change(token)
    return found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda token: token.update(
                top_logprobs=[
                    {"token": text, "bytes": list(text.encode()), "logprob": -0.01} for text in "abcd"
                ]
            ),
            "the probabilities listed at one token add up to 4.86",
        ),
        (
            lambda token: token.update(logprob=-math.inf),
            "the token 'cat\"' was written, with the log-probability -Infinity",
        ),
        (
            lambda token: token.update(logprob=None),
            "a log-probability is missing or is no number of at most 0",
        ),
    ],
    ids=["more than 1", "impossible", "null"],
)
def test_unusable_evidence_keeps_the_label(change: Callable[[dict[str, Any]], object], reason: str) -> None:
    """Unusable log-probabilities leave the label without confidence, with a reason, after one retry."""
    prediction, client = classify(with_evidence(change))
    assert (prediction.label, prediction.outcome) == ("cat", Outcome.OK)
    assert (prediction.confidence, prediction.distribution) == (None, None)
    assert (prediction.reason, len(client.requests)) == (f"no confidence: {reason}", 2)
    prediction, _ = classify([with_evidence(change), ("cat", 0.9)])
    assert (prediction.confidence, prediction.reason) == (pytest.approx(0.9), "")
    silent, _ = classify(with_evidence(change), space="none")
    assert silent.reason == ""


def test_missing_logprobs_need_no_reason() -> None:
    """An answer without log-probabilities has an empty reason."""
    prediction, _ = classify(response('{"category": "cat"}'))
    assert (prediction.label, prediction.confidence, prediction.reason) == ("cat", None, "")


# --- the model's answer -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(response("It is a cat."), "JSON", id="prose"),
        pytest.param(
            response('{"category": "cat", "category": "dog"}'), "got 'category' 2 times", id="a key twice"
        ),
        pytest.param(
            response('{"category": "cow"}'), "answered 'cow', which is not one of the labels", id="enum"
        ),
        pytest.param(response('{"category": 5}'), "answered 5, which is not one of the labels", id="number"),
        pytest.param(response('{"category": ["cat"]}'), "label|text|cat", id="list"),
        pytest.param(response('{"animal": "cat"}'), "category", id="other-key"),
        pytest.param(
            response('{"category": "ca', finish_reason="length"),
            "^cut off by the length limit: ",
            id="cut-off",
        ),
        pytest.param(
            response("", finish_reason="length"),
            "^cut off by the length limit before the answer began$",
            id="cut-off-before-it-began",
        ),
    ],
)
def test_unusable_answers_are_unparsed(answer: Answer, reason: str) -> None:
    """Unusable answers are unparsed, with a reason and without a retry."""
    prediction, client = classify(answer)
    assert (prediction.outcome, prediction.label, prediction.confidence) == (Outcome.UNPARSED, None, None)
    assert re.search(reason, prediction.reason)
    assert (prediction.attempts, len(client.requests)) == (1, 1)


@pytest.mark.parametrize("spelling", ["CAT", " cat ", "Cat\\n"])
def test_label_spelling_is_normalised(spelling: str) -> None:
    """Case and surrounding space of a label are ignored."""
    prediction, _ = classify(response(f'{{"category": "{spelling}"}}'))
    assert (prediction.outcome, prediction.label) == (Outcome.OK, "cat")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (response(None, refusal="I will not."), "I will not."),
        (response("", finish_reason="content_filter"), "stopped by the provider's content filter"),
        (
            response('{"category": "cat"}', finish_reason="content_filter"),
            "stopped by the provider's content filter",
        ),
    ],
)
def test_refusals_are_not_retried(answer: Answer, reason: str) -> None:
    """A refusal is an outcome of its own and is not retried."""
    prediction, client = classify(answer)
    assert (prediction.outcome, prediction.label, prediction.reason) == (Outcome.REFUSAL, None, reason)
    assert len(client.requests) == 1


# --- the server's answer ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(response(""), "broken response: it holds no text and no refusal", id="empty"),
        pytest.param(response(" \n"), "broken response: it holds no text and no refusal", id="blank"),
        pytest.param(response(None), "broken response: it holds no text and no refusal", id="null"),
        pytest.param({"choices": []}, "broken response: Expected at least one answer", id="no-choice"),
        pytest.param(
            {"choices": None, "error": "overloaded"}, "broken response: .*overloaded", id="error-body"
        ),
    ],
)
def test_broken_responses_are_retried(answer: Answer, reason: str) -> None:
    """A broken response is retried, and then an error."""
    prediction, client = classify(answer)
    assert (prediction.outcome, prediction.label) == (Outcome.ERROR, None)
    assert re.search(reason, prediction.reason)
    assert (prediction.attempts, len(client.requests)) == (3, 3)


def test_retry_after_an_empty_answer() -> None:
    """A good answer after an empty one counts, with both attempts."""
    prediction, _ = classify([response(""), "cat"])
    assert (prediction.outcome, prediction.label, prediction.attempts) == (Outcome.OK, "cat", 2)


@pytest.mark.parametrize(
    ("answers", "paid"), [([], 30), (["cat"], 10), ([DOWN, "cat"], 10), ([DOWN, DOWN], 10)]
)
def test_broken_answers_are_paid_for(answers: list[Answer], paid: int) -> None:
    """The tokens of a broken answer count for its row, whatever comes of the next calls."""
    broken = {**response(""), "usage": {"prompt_tokens": 10}}
    prediction, _ = classify([broken, *answers] if answers else broken)
    assert prediction.usage.prompt_tokens == paid


# --- calls that fail ----------------------------------------------------------------------------


def test_retry_waits_double() -> None:
    """Waits double, and a Retry-After replaces a wait."""
    patience = Patience(attempts=4)
    faults: list[Answer] = [
        ProviderTimeoutError("late", provider="fake", retryable=True),
        RateLimitError("slow down", provider="fake", status=429, retryable=True, retry_after=1.25),
        ProviderError("overloaded", provider="fake", status=503, retryable=True),
    ]
    client = FakeClient(LABELS, {"text": [*faults, "cat"]})
    classifier = Classifier(model=client, labels=LABELS, field="category", retry=patience.policy)
    prediction = classifier.classify("text")
    assert (prediction.outcome, prediction.label, prediction.attempts) == (Outcome.OK, "cat", 4)
    assert patience.waits == [0.5, 1.25, 2.0]


def test_lasting_fault_is_a_row_error() -> None:
    """A lasting fault makes the row an error with the last reason and status, and all attempts."""
    prediction, client = classify(ProviderError("overloaded", provider="fake", status=503, retryable=True))
    assert prediction.status == 503
    assert (prediction.outcome, prediction.label, prediction.confidence) == (Outcome.ERROR, None, None)
    assert (prediction.reason, prediction.attempts, len(client.requests)) == ("fake: overloaded", 3, 3)


def test_permanent_fault_is_not_retried() -> None:
    """A fault that is not retryable takes one call."""
    prediction, client = classify(ProviderError("bad request", provider="fake", status=400))
    assert (prediction.outcome, prediction.attempts, len(client.requests)) == (Outcome.ERROR, 1, 1)


def test_failed_rows_leave_others_alone() -> None:
    """A failed row does not change the outcome of other rows."""
    client = FakeClient(
        LABELS, {"bad": ProviderError("broken", provider="fake", status=500)}, default=("dog", 0.8)
    )
    classifier = Classifier(model=client, labels=LABELS, field="category")
    outcomes = [p.outcome for p in classifier.classify_many(["a", "bad", "b", "bad", "c"])]
    assert outcomes == [Outcome.OK, Outcome.ERROR, Outcome.OK, Outcome.ERROR, Outcome.OK]


def test_latency_covers_the_whole_row() -> None:
    """The latency includes retries."""
    client = FakeClient(LABELS, {"text": [response(""), "cat"]}, latency=0.02)
    classifier = Classifier(model=client, labels=LABELS, field="category", retry=Patience().policy)
    assert classifier.classify("text").latency_seconds >= 0.04


# --- faults every call would meet ---------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 404])
def test_bad_key_raises_at_once(status: int) -> None:
    """A bad key raises ProviderError after the first call."""
    fault = ProviderError("no", provider="fake", status=status, hint="Check the API key.")
    client = FakeClient(LABELS, {}, default=fault)
    classifier = Classifier(model=client, labels=LABELS, field="category", concurrency=1)
    with pytest.raises(ProviderError, match=r"fake: no Check the API key\.") as caught:
        classifier.classify_many(["a", "b", "c", "d"])
    assert caught.value is fault
    assert len(client.requests) == 1


def test_bad_key_stops_calls_in_flight() -> None:
    """A bad key raises one plain ProviderError and stops the other calls."""
    client = FakeClient(
        LABELS,
        {},
        default="cat",
        failures={0: ProviderError("no", provider="fake", status=401)},
        latency=0.01,
    )
    classifier = Classifier(model=client, labels=LABELS, field="category", concurrency=4)
    with pytest.raises(ProviderError, match="fake: no"):
        classifier.classify_many([str(number) for number in range(100)])
    assert len(client.requests) < 20


def test_auth_fault_after_success_is_a_row_error() -> None:
    """After a success, an error with status 401 fails only its own row."""
    fault = ProviderError("no", provider="fake", status=401)
    client = FakeClient(LABELS, {}, default="cat", failures={1: fault, 4: fault})
    classifier = Classifier(model=client, labels=LABELS, field="category", concurrency=1)
    first = [prediction.outcome for prediction in classifier.classify_many(["a", "b", "c"])]
    assert first == [Outcome.OK, Outcome.ERROR, Outcome.OK]
    later = [prediction.outcome for prediction in classifier.classify_many(["d", "e"])]
    assert later == [Outcome.OK, Outcome.ERROR]


def test_configuration_error_always_raises() -> None:
    """A ConfigurationError of the client ends the run."""
    client = FakeClient(LABELS, {"a": "cat"})
    classifier = Classifier(model=client, labels=LABELS, field="category", concurrency=1)
    with pytest.raises(ConfigurationError, match="knows no answer to 'b'"):
        classifier.classify_many(["a", "b", "c"])
    assert len(client.requests) == 2
