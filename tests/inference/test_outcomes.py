"""Whose fault a bad row is: the model's, the server's, or everyone's."""

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


class Patience:
    """A retry policy that notes how long it would have slept."""

    def __init__(self, attempts: int = 3) -> None:
        self.waits: list[float] = []
        self.policy = RetryPolicy(attempts=attempts, sleep=self.sleep, jitter=lambda: 1.0)

    async def sleep(self, seconds: float) -> None:
        """Note, and return at once."""
        self.waits.append(seconds)


def response(content: object, *, finish_reason: str = "stop", refusal: str | None = None) -> dict[str, Any]:
    """Return a raw answer without log-probabilities."""
    message = {"role": "assistant", "content": content, "refusal": refusal}
    return {"choices": [{"finish_reason": finish_reason, "message": message}]}


def classify(answer: Answer, *, attempts: int = 3, **changes: Any) -> tuple[Prediction, FakeClient]:
    """Return what becomes of one row under one answer, and the client that was asked."""
    client = FakeClient(LABELS, {"text": answer})
    classifier = Classifier(
        model=client, labels=LABELS, field="category", retry=Patience(attempts).policy, **changes
    )
    return classifier.classify("text"), client


def with_evidence(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return an answer whose label's token was changed."""
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
def test_a_label_is_kept_where_its_evidence_is_none(
    change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    """Without a confidence, and with the reason; asked again, in case it was an accident."""
    prediction, client = classify(with_evidence(change))
    assert (prediction.label, prediction.outcome) == ("cat", Outcome.OK)
    assert (prediction.confidence, prediction.distribution) == (None, None)
    assert prediction.reason == f"no confidence: {reason}"
    assert len(client.requests) == 2
    prediction, _ = classify([with_evidence(change), ("cat", 0.9)])
    assert (prediction.confidence, prediction.reason) == (pytest.approx(0.9), "")
    silent, _ = classify(with_evidence(change), space="none")
    assert silent.reason == ""


def test_what_nobody_asked_for_needs_no_reason() -> None:
    """An answer without log-probabilities is one like every other."""
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
def test_an_unusable_answer_is_the_models_fault(answer: Answer, reason: str) -> None:
    """Unparsed, with the reason; asking again would cost money and change nothing."""
    prediction, client = classify(answer)
    assert (prediction.outcome, prediction.label, prediction.confidence) == (Outcome.UNPARSED, None, None)
    assert re.search(reason, prediction.reason)
    assert (prediction.attempts, len(client.requests)) == (1, 1)


@pytest.mark.parametrize("spelling", ["CAT", " cat ", "Cat\\n"])
def test_the_models_spelling_of_a_label_is_accepted(spelling: str) -> None:
    """Case and surrounding space carry no meaning; the task's spelling comes back."""
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
def test_a_refusal_is_an_answer(answer: Answer, reason: str) -> None:
    """It is the prompt's business, and repeating the question is no use."""
    prediction, client = classify(answer)
    assert (prediction.outcome, prediction.label, prediction.reason) == (Outcome.REFUSAL, None, reason)
    assert len(client.requests) == 1


# --- the server's answer ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(response(""), "the response holds no text and no refusal", id="empty"),
        pytest.param(response(" \n"), "the response holds no text and no refusal", id="blank"),
        pytest.param(response(None), "the response holds no text and no refusal", id="null"),
        pytest.param({"choices": []}, "broken response: Expected at least one answer", id="no-choice"),
        pytest.param(
            {"choices": None, "error": "overloaded"}, "broken response: .*overloaded", id="error-body"
        ),
    ],
)
def test_a_broken_response_is_the_servers_fault_and_tried_again(answer: Answer, reason: str) -> None:
    """It says nothing about the prompt."""
    prediction, client = classify(answer)
    assert (prediction.outcome, prediction.label) == (Outcome.ERROR, None)
    assert re.search(reason, prediction.reason)
    assert (prediction.attempts, len(client.requests)) == (3, 3)


def test_an_empty_answer_may_be_followed_by_a_good_one() -> None:
    """Which then counts, with the calls it took."""
    prediction, _ = classify([response(""), "cat"])
    assert (prediction.outcome, prediction.label, prediction.attempts) == (Outcome.OK, "cat", 2)


# --- calls that fail ----------------------------------------------------------------------------


def test_passing_faults_are_retried_with_patience() -> None:
    """Waits double, and a server that names a time is obeyed, by the other calls too: only that time is slept here."""
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


def test_a_fault_that_does_not_pass_is_a_row_error() -> None:
    """With the number of calls made and what the last one said."""
    prediction, client = classify(ProviderError("overloaded", provider="fake", status=503, retryable=True))
    assert (prediction.outcome, prediction.label, prediction.confidence) == (Outcome.ERROR, None, None)
    assert prediction.reason == "fake: overloaded"
    assert (prediction.attempts, len(client.requests)) == (3, 3)


def test_a_fault_that_cannot_pass_is_not_retried() -> None:
    """A request the provider calls wrong stays wrong."""
    prediction, client = classify(ProviderError("bad request", provider="fake", status=400))
    assert (prediction.outcome, prediction.attempts, len(client.requests)) == (Outcome.ERROR, 1, 1)


def test_one_bad_row_does_not_touch_the_others() -> None:
    """Failures are data."""
    client = FakeClient(
        LABELS, {"bad": ProviderError("broken", provider="fake", status=500)}, default=("dog", 0.8)
    )
    classifier = Classifier(model=client, labels=LABELS, field="category")
    outcomes = [p.outcome for p in classifier.classify_many(["a", "bad", "b", "bad", "c"])]
    assert outcomes == [Outcome.OK, Outcome.ERROR, Outcome.OK, Outcome.ERROR, Outcome.OK]


def test_latency_covers_the_whole_row() -> None:
    """Retries included."""
    client = FakeClient(LABELS, {"text": [response(""), "cat"]}, latency=0.02)
    classifier = Classifier(model=client, labels=LABELS, field="category", retry=Patience().policy)
    assert 0.04 <= classifier.classify("text").latency_seconds < 5


# --- faults every call would meet ---------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_bad_key_raises_at_once(status: int) -> None:
    """A thousand rows must not fail one by one for the same reason."""
    fault = ProviderError("no", provider="fake", status=status, hint="Check the API key.")
    client = FakeClient(LABELS, {}, default=fault)
    classifier = Classifier(model=client, labels=LABELS, field="category", concurrency=1)
    with pytest.raises(ProviderError, match=r"fake: no Check the API key\.") as caught:
        classifier.classify_many(["a", "b", "c", "d"])
    assert caught.value is fault
    assert len(client.requests) == 1


def test_a_bad_key_stops_the_calls_in_flight() -> None:
    """One error comes out, plain: no group, no traceback of the workers."""
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


def test_after_a_success_the_same_fault_is_a_row_error() -> None:
    """The key works, so it is not the key: what was paid for is not thrown away."""
    fault = ProviderError("no", provider="fake", status=401)
    client = FakeClient(LABELS, {}, default="cat", failures={1: fault, 4: fault})
    classifier = Classifier(model=client, labels=LABELS, field="category", concurrency=1)
    first = [prediction.outcome for prediction in classifier.classify_many(["a", "b", "c"])]
    assert first == [Outcome.OK, Outcome.ERROR, Outcome.OK]
    later = [prediction.outcome for prediction in classifier.classify_many(["d", "e"])]
    assert later == [Outcome.OK, Outcome.ERROR]


def test_a_configuration_error_raises_whenever_it_comes() -> None:
    """The client says that it cannot be used this way."""
    client = FakeClient(LABELS, {"a": "cat"})
    classifier = Classifier(model=client, labels=LABELS, field="category", concurrency=1)
    with pytest.raises(ConfigurationError, match="knows no answer to 'b'"):
        classifier.classify_many(["a", "b", "c"])
    assert len(client.requests) == 2
