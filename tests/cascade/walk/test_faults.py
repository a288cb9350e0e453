"""Tests of a cascade of servers of which one fails in every known way."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.cascade import Cascade
from calibrant.core import Limits, Outcome, Verdict
from calibrant.inference import RetryPolicy
from fault_server import Fault

LABELS = ["cat", "dog"]
FAULTS: list[tuple[str | Fault, Outcome | None]] = [
    ("500", Outcome.ERROR),
    (Fault("rate_limit", seconds=0.0), Outcome.ERROR),
    ("context_length", Outcome.UNPARSED),
    ("reset_after_headers", Outcome.ERROR),
    (Fault("hang", seconds=5.0), Outcome.ERROR),
    ("refusal", Outcome.REFUSAL),
    ("length", Outcome.UNPARSED),
    ("no_logprobs", None),
    ("nan_logprobs", None),
    ("positive_logprobs", None),
]


@pytest.mark.parametrize(("fault", "outcome"), FAULTS, ids=lambda value: str(getattr(value, "kind", value)))
def test_the_next_server_answers_after_any_fault(
    serve: Any, told: Any, fault: str | Fault, outcome: Outcome | None
) -> None:
    """The large model answers after any fault of the first, and every request is counted."""
    once = {"limits": Limits(call_seconds=1.0), "retry": RetryPolicy(attempts=1)}
    bad, first = serve("small", answers={"t": ("cat", 0.9)}, faults=lambda _n, _body: fault, **once)
    good, second = serve("large", answers={"t": ("dog", 0.95)}, **once)
    found = Cascade([first, second], method=told()).classify("t")
    assert (found.label, found.confidence, found.accepted) == ("dog", pytest.approx(0.95), True)
    step = found.steps[0]
    if outcome is None:
        assert (step.verdict, step.outcome, step.label) == (Verdict.NO_EVIDENCE, Outcome.OK, "cat")
    else:
        assert (step.verdict, step.outcome, step.label) == (Verdict.FAILED, outcome, None)
        assert step.reason
    assert found.attempts == 2 == sum(bad.counts.values()) + sum(good.counts.values())
    assert found.usage.prompt_tokens == sum(step.usage.prompt_tokens for step in found.steps) > 0
    assert Cascade([second, first], method=told(), threshold=0.99).classify("t").label == "dog"


def test_retries_of_a_server_are_counted(serve: Any, told: Any) -> None:
    """Two faults and an answer count as three calls."""
    server, patient = serve("small", answers={"t": ("cat", 0.9)}, faults=["500", "503"])
    found = Cascade([patient], method=told()).classify("t")
    assert (found.label, found.attempts, server.counts["t"]) == ("cat", 3, 3)
