"""Tests of retries of calls: retryable errors, waits and numbers of attempts."""

from __future__ import annotations

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
from calibrant.testing import FakeClient

LABELS = ["Food", "Rent"]
SLOW = ProviderTimeoutError("slow", provider="fake", retryable=True)


class Clock:
    def __init__(self) -> None:
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def run(answers: Any, *, jitter: Any = 1.0, **options: Any) -> tuple[Prediction, list[float], int]:
    """Return the prediction, the waits in seconds and the number of calls."""
    clock = Clock()
    client = FakeClient(LABELS, {"lunch": answers})
    policy = RetryPolicy(sleep=clock.sleep, jitter=lambda: jitter, **options)
    classifier = Classifier(model=client, labels=LABELS, field="category", retry=policy)
    return classifier.classify("lunch"), clock.waits, len(client.requests)


def test_a_first_answer_takes_one_attempt() -> None:
    """A first answer takes one attempt and no wait."""
    found, waits, calls = run(["Food"])
    assert (found.label, found.attempts, waits, calls) == ("Food", 1, [], 1)


def test_a_passing_fault_is_tried_again() -> None:
    """Two timeouts and then an answer are three attempts."""
    found, waits, calls = run([SLOW, SLOW, "Food"])
    assert (found.label, found.attempts, calls) == ("Food", 3, 3)
    assert waits == [0.5, 1.0]


def test_waits_double_up_to_the_maximum() -> None:
    """Waits double from 0.5 seconds up to the maximum."""
    _, waits, _ = run([SLOW], attempts=7, maximum_seconds=4.0)
    assert waits == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_jitter_halves_the_wait_at_most() -> None:
    """Random waits lie between half of the wait and the whole wait."""
    _, waits, _ = run([SLOW], jitter=0.0)
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0]


def test_the_last_error_counts_the_attempts() -> None:
    """A row that fails at last has the error's words, with the number of calls as `attempts`."""
    found, _, calls = run([SLOW])
    assert (found.outcome, found.reason) == (Outcome.ERROR, str(SLOW))
    assert found.attempts == calls == 6


def test_a_lasting_fault_is_not_tried_again() -> None:
    """A fault that is not retryable fails the row after one attempt."""
    found, waits, calls = run([ProviderError("bad request", provider="fake", status=400), "Food"])
    assert (found.outcome, found.attempts, waits, calls) == (Outcome.ERROR, 1, [], 1)
    assert "bad request" in found.reason


def test_honours_retry_after() -> None:
    """A Retry-After longer than the policy's wait is used."""
    limit = RateLimitError("slow down", provider="fake", retryable=True, retry_after=7.0)
    _, waits, _ = run([limit, SLOW, "Food"])
    assert waits == [7.0, 1.0]


def test_does_not_wait_for_an_hour() -> None:
    """A Retry-After above the maximum fails the row without another attempt."""
    limit = RateLimitError("tomorrow", provider="fake", retryable=True, retry_after=3600.0)
    found, waits, calls = run([limit, "Food"])
    assert (found.reason, waits, calls) == (str(limit), [], 1)


def test_other_exceptions_pass_at_once() -> None:
    """A ConfigurationError is raised after one call."""
    client = FakeClient(LABELS, {"lunch": [ConfigurationError("wrong")]})
    with pytest.raises(ConfigurationError, match="wrong"):
        Classifier(model=client, labels=LABELS, field="category").classify("lunch")
    assert len(client.requests) == 1


def test_the_default_policy_sleeps_for_real() -> None:
    """The default policy has six attempts, a first wait of at most 0.5 seconds, and a maximum of 20."""
    policy = RetryPolicy()
    assert (policy.attempts, policy.initial_seconds, policy.maximum_seconds) == (6, 0.5, 20.0)
    assert 0.25 <= policy.wait_seconds(1) <= 0.5


@pytest.mark.parametrize(
    "options", [{"attempts": 0}, {"initial_seconds": -1}, {"maximum_seconds": float("nan")}]
)
def test_parameters_out_of_range_raise_an_error(options: Any) -> None:
    """A parameter out of its range raises ConfigurationError at construction."""
    with pytest.raises(ConfigurationError, match="must be"):
        RetryPolicy(**options)
