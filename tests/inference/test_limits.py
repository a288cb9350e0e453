"""Tests of the gate of calls: concurrency, rates, budgets and deadlines."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.clients._failures import RateState
from calibrant.core import (
    ConfigurationError,
    LimitReachedError,
    Limits,
    Outcome,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    Stop,
    Usage,
)
from calibrant.inference import Classifier, RetryPolicy
from calibrant.inference._limits import Gate, rate_limit_waits
from calibrant.testing import FakeClient

LABELS = ("cat", "dog")
BUSY = RateLimitError("slow down", provider="p", status=429, retryable=True)


class Time:
    """Clock that moves only while something sleeps on it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Advance the clock without waiting."""
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def gate(clock: Time | None = None, **limits: Any) -> Gate:
    """Return a gate on a test clock."""
    clock = clock or Time()
    return Gate(Limits(**limits), clock=clock, sleep=clock.sleep)


def classifier(client: Any, **options: Any) -> Classifier:
    """Return a classifier that does not wait between attempts."""
    settings: dict[str, Any] = {"field": "category", "retry": RetryPolicy(initial_seconds=0), **options}
    return Classifier(model=client, labels=LABELS, **settings)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"concurrency": 2.5},
        {"max_cost": -1},
        {"max_tokens": 0},
        {"call_seconds": float("nan")},
        {"run_seconds": float("inf")},
        {"requests_per_minute": "many"},
        {"max_requests": True},
    ],
    ids=str,
)
def test_invalid_limit_is_refused(wrong: dict[str, Any]) -> None:
    """A limit that is not a positive number raises ConfigurationError with its name and value."""
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigurationError, match=rf"{name}.* got {value!r}"):
        Limits(**wrong)


def test_calls_wait_in_order() -> None:
    """Calls beyond the limit wait, first come, first served."""
    shared, began = gate(concurrency=3), []

    async def call(number: int) -> None:
        epoch = await shared.enter()
        began.append(number)
        await asyncio.sleep(0.001)
        shared.leave(epoch)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call(number)) for number in range(9)]
            await asyncio.sleep(0)
            assert began == [0, 1, 2]
        assert all(task.done() for task in tasks)

    asyncio.run(run())
    assert (began, shared.requests) == (list(range(9)), 9)


def test_try_enter_never_waits() -> None:
    """`try_enter` returns None while all places are taken, others wait, or a pause lasts."""

    async def run() -> None:
        clock = Time()
        narrow = gate(clock, concurrency=2)
        first, second = narrow.try_enter(), narrow.try_enter()
        assert first is not None
        assert second is not None
        assert narrow.try_enter() is None
        waiting = asyncio.create_task(narrow.enter())
        await asyncio.sleep(0)
        narrow.leave(first)
        narrow.leave(await waiting)
        assert narrow.requests == 3
        narrow.leave(second, pause=5.0)
        assert narrow.try_enter() is None
        clock.now += 5.0
        assert narrow.try_enter() is not None

    asyncio.run(run())


def test_overload_halves_the_calls() -> None:
    """An overload halves the allowed calls once; each successful round adds one, up to the limit."""
    shared = gate(concurrency=8)

    async def run() -> list[float]:
        epochs = [await shared.enter() for _ in range(8)]
        for epoch in epochs:
            shared.leave(epoch, BUSY)
        seen = [shared.allowed]
        for _ in range(8):
            round_ = [await shared.enter() for _ in range(int(shared.allowed))]
            for epoch in round_:
                shared.leave(epoch)
            seen.append(shared.allowed)
        return seen

    seen = asyncio.run(run())
    assert seen[0] == 4.0
    assert all(0.6 <= later - before <= 1.1 for before, later in itertools.pairwise(seen[:4]))
    assert seen[-1] == 8.0


def test_other_faults_keep_the_calls() -> None:
    """Faults other than an overload do not lower the number of calls."""
    shared = gate(concurrency=8)

    async def run() -> None:
        for error in (ProviderError("reset", provider="p", retryable=True), ValueError("x")):
            shared.leave(await shared.enter(), error)

    asyncio.run(run())
    assert shared.allowed == 8.0


def test_at_least_one_call_is_always_allowed() -> None:
    """Repeated overloads leave one call."""
    shared = gate(concurrency=4)

    async def run() -> None:
        for _ in range(10):
            shared.leave(await shared.enter(), BUSY)

    asyncio.run(run())
    assert shared.allowed == 1.0


def test_retry_after_holds_for_every_call() -> None:
    """A Retry-After delays all calls, not only the repeated one."""
    clock = Time()
    shared = gate(clock, concurrency=4)

    async def run() -> None:
        shared.leave(await shared.enter(), BUSY, pause=7.0)
        shared.leave(await shared.enter())
        shared.leave(await shared.enter())

    asyncio.run(run())
    assert clock.slept == [pytest.approx(7.0)]


def test_exhausted_allowance_delays_calls() -> None:
    """Calls wait until a used-up allowance resets, but at most a minute."""
    clock = Time()
    shared = gate(clock, concurrency=4)

    async def run() -> None:
        for state in (
            None,
            RateState(remaining_requests=1, reset_requests_seconds=9.0),
            RateState(remaining_requests=0),
            RateState(remaining_requests=3, remaining_tokens=0, reset_tokens_seconds=2.5),
            RateState(remaining_requests=0, reset_requests_seconds=86400.0),
        ):
            shared.leave(await shared.enter())
            shared.heard(state)
        await shared.enter()

    asyncio.run(run())
    assert clock.slept == [pytest.approx(2.5), pytest.approx(60.0)], (
        "no longer than a minute on its word alone"
    )


@pytest.mark.parametrize("scoring", ["decode", "auto"])
def test_rate_headers_reach_the_gate(scoring: Any) -> None:
    """Rate headers of an answer delay the next call, those of the answer that shows log-probabilities too."""
    client = FakeClient(LABELS, {}, default="cat")

    class Telling(FakeClient):
        async def complete(self, request: Any) -> object:
            response: Any = await client.complete(request)
            headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "100ms"}
            return {**response, "_hidden_params": {"additional_headers": headers}}

    made = classifier(Telling(LABELS, {}), concurrency=1, scoring=scoring)
    begin = time.perf_counter()
    made.classify_many(["a", "b", "c"])
    assert time.perf_counter() - begin >= 0.2


@given(per_minute=st.integers(30, 3000), calls=st.integers(2, 60))
def test_rate_holds_over_every_interval(per_minute: int, calls: int) -> None:
    """In any interval the calls exceed the rate by at most one second's number of calls."""
    clock = Time()
    shared = gate(clock, concurrency=100, requests_per_minute=per_minute)

    async def run() -> list[float]:
        began = []
        for _ in range(calls):
            shared.leave(await shared.enter())
            began.append(clock.now - 100.0)
        return began

    began = asyncio.run(run())
    for number, moment in enumerate(began):
        assert number <= max(1.0, per_minute / 60) + moment * per_minute / 60 + 1e-6
    assert began[-1] <= calls * 60 / per_minute, "and no slower"


def test_token_rate_delays_the_next_call() -> None:
    """Tokens are charged with the answer, and delay the next call."""
    clock = Time()
    shared = gate(clock, tokens_per_minute=600)

    async def run() -> None:
        shared.leave(await shared.enter())
        shared.charge(Usage(prompt_tokens=100, completion_tokens=10))
        shared.leave(await shared.enter())

    asyncio.run(run())
    assert clock.now - 100.0 == pytest.approx(10.0, abs=0.01), "110 tokens less the 10 of the first second"


def test_cancelled_call_passes_its_turn() -> None:
    """A cancelled call gives its turn to the next waiting call."""
    shared = gate(concurrency=1)

    async def run() -> None:
        epoch = await shared.enter()
        first, second = (asyncio.ensure_future(shared.enter()) for _ in range(2))
        await asyncio.sleep(0)
        shared.leave(epoch)
        first.cancel()
        done, waiting = await asyncio.wait([first, second], timeout=1)
        assert (done, waiting) == ({first, second}, set())
        assert first.cancelled()
        assert not second.cancelled()
        assert shared.requests == 2, "the first holder and the one behind the cancelled call"

    asyncio.run(run())


def test_call_deadline_is_retried() -> None:
    """A call beyond its deadline fails and is retried."""
    client = FakeClient(LABELS, {}, default="cat", latency=0.2)
    (row,) = classifier(client, limits=Limits(call_seconds=0.01)).classify_many(["t"])
    assert (row.outcome, row.attempts) == (Outcome.ERROR, 6)
    assert "no complete answer within 0.01 seconds" in row.reason


def test_client_timeout_is_unchanged() -> None:
    """A timeout raised by the client keeps its message."""
    own = ProviderTimeoutError("too slow", provider="p")
    client = FakeClient(LABELS, lambda _text: own)
    (row,) = classifier(client, limits=Limits(call_seconds=5)).classify_many(["t"])
    assert row.reason == "p: too slow"


def test_run_deadline_ends_the_run() -> None:
    """At the deadline answered rows are delivered and rows in flight are cancelled."""

    class Hangs(FakeClient):
        async def complete(self, request: Any) -> object:
            found = await super().complete(request)
            await asyncio.sleep(60 if request.messages[-1]["content"] == "3" else 0)
            return found

    client, rows = Hangs(LABELS, {}, default="cat"), list[int]()
    made = classifier(client, limits=Limits(concurrency=1, run_seconds=0.5))
    reason = asyncio.run(
        made.feed(map(made.query, map(str, range(1000))), lambda index, _: rows.append(index))
    )
    assert reason == "The deadline of 0.5 seconds has passed"
    assert (rows, len(client.requests)) == ([0, 1, 2], 4)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"max_requests": 7}, "max_requests of 7 calls"),
        ({"max_tokens": 100}, "max_tokens of 100 tokens"),
        ({"max_cost": 0.5}, "max_cost of 0.5 US dollars"),
    ],
)
def test_budget_ends_the_run_in_time(budget: dict[str, Any], message: str) -> None:
    """A budget ends the run with LimitReachedError after 3 to 8 of 100 rows."""
    client = _Priced(LABELS, {}, default="cat", latency=0.001)
    made = classifier(client, limits=Limits(concurrency=2, **budget))
    with pytest.raises(LimitReachedError, match=message):
        made.classify_many([str(number) for number in range(100)])
    assert 3 <= len(client.requests) <= 8


@pytest.mark.parametrize("budget", [{"max_requests": 20}, {"max_tokens": 500}])
@pytest.mark.parametrize("scoring", ["decode", "sampled"])
def test_budgets_wait_for_what_a_row_takes(budget: dict[str, Any], scoring: str) -> None:
    """Where a row takes several calls, no more rows are begun than the budget pays: 500 tokens are 20 calls."""
    client = _Priced(LABELS, {}, default="cat", latency=0.001)
    made = classifier(client, limits=Limits(concurrency=50, **budget), scoring=scoring)
    with pytest.raises(LimitReachedError, match="is used up"):
        made.classify_many([str(number) for number in range(100)])
    assert 15 <= len(client.requests) <= 30


def test_cost_budget_waits_for_a_price() -> None:
    """The first row runs alone to find out what a row costs, and no more rows than are finished go on together."""
    client = _Priced(LABELS, {}, default="cat", latency=0.005)
    made = classifier(client, limits=Limits(concurrency=50, max_cost=0.5))
    with pytest.raises(LimitReachedError, match="max_cost"):
        made.classify_many([str(number) for number in range(100)])
    assert (len(client.requests), client.max_in_flight) == (5, 2)


def test_sufficient_budget_ends_nothing() -> None:
    """With a sufficient budget all rows are answered."""
    client = _Priced(LABELS, {}, default="cat")
    limits = Limits(max_requests=11, max_tokens=1000, max_cost=10.0, run_seconds=60)
    assert len(classifier(client, limits=limits).classify_many([str(n) for n in range(10)])) == 10


def test_cost_budget_needs_prices() -> None:
    """A cost budget raises LimitReachedError for a model without a price."""
    client = FakeClient(LABELS, {}, default="cat")
    with pytest.raises(LimitReachedError, match="input_cost_per_token"):
        classifier(client, limits=Limits(max_cost=1.0, concurrency=8)).classify_many(["a", "b", "c"])
    assert len(client.requests) == 1


@pytest.mark.parametrize("budget", [{"max_cost": 1.0}, {"max_tokens": 50}])
def test_budgets_need_answers_that_name_their_tokens(budget: dict[str, Any]) -> None:
    """Answers without usage were paid for: a budget that cannot be kept ends the run after the first of them."""

    class Silent(FakeClient):
        async def complete(self, request: Any) -> object:
            found: Any = await super().complete(request)
            return {name: value for name, value in dict(found).items() if name != "usage"}

    client = Silent(LABELS, {}, default="cat")
    with pytest.raises(LimitReachedError, match="do not say how many tokens"):
        classifier(client, limits=Limits(**budget)).classify_many(["a", "b", "c"])
    assert len(client.requests) == 1


def test_stop_finishes_rows_in_flight() -> None:
    """A stop delivers every row that was begun, in order."""
    client, stop, rows = FakeClient(LABELS, {}, default="cat", latency=0.005), Stop(), []

    def listen(index: int, _prediction: object) -> None:
        rows.append(index)
        if index == 5:
            stop.request("enough")

    made = classifier(client, concurrency=3)
    reason = asyncio.run(made.feed(map(made.query, map(str, itertools.count())), listen, stop=stop))
    assert (reason, rows) == ("enough", list(range(len(client.requests))))
    assert 6 <= len(rows) <= 9


class _Priced(FakeClient):
    """Model whose every answer takes 25 tokens and 10 cents."""

    async def complete(self, request: Any) -> object:
        response: Any = await super().complete(request)
        return {
            **response,
            "usage": {"prompt_tokens": 20, "completion_tokens": 5},
            "_hidden_params": {"response_cost": 0.1},
        }


def test_pace_replaces_the_buckets() -> None:
    """`pace` replaces the bucket of every rate with a limit; calls wait for it and are charged to it."""
    clock = Time()
    asked: list[tuple[str, float]] = []
    told: list[float] = []

    class Elsewhere:
        def wait(self, now: float) -> float:
            return max(0.0, 105.0 - now)

        def take(self, amount: float) -> None:
            told.append(amount)

    def bucket(name: str, per_minute: float) -> Elsewhere:
        asked.append((name, per_minute))
        return Elsewhere()

    found = gate(clock, tokens_per_minute=600)
    found.pace(bucket)
    assert asked == [("tokens_per_minute", 600)]
    asyncio.run(found.enter())
    assert clock.now == pytest.approx(105)
    found.charge(Usage(prompt_tokens=3, completion_tokens=4))
    assert told == [7]


# --- engines in this process, and what is waited for ----------------------------------------------


class InProcess(FakeClient):
    """Model that computes in this process."""

    in_process = True


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 4),
        ({"concurrency": 7}, 7),
        ({"limits": Limits(max_requests=99)}, 4),
        ({"limits": Limits(concurrency=6)}, 6),
    ],
)
def test_engine_in_process_runs_four_rows(settings: dict[str, Any], most: int) -> None:
    """An engine in this process runs four rows at a time unless a setting says otherwise."""
    client = InProcess(LABELS, {}, default="cat", latency=0.001)
    classifier(client, **settings).classify_many(list(map(str, range(20))))
    assert client.max_in_flight == most


def test_on_pause_reports_the_wait() -> None:
    """`on_pause` is called for a Retry-After and a used-up allowance, and the waits end in time."""
    clock, told = Time(), []
    found = Gate(provider="p", clock=clock, sleep=clock.sleep)
    found.on_pause = lambda: told.append(rate_limit_waits([found]))
    assert rate_limit_waits([found]) == {}

    async def fail() -> None:
        found.leave(await found.enter(), BUSY, pause=20.0)

    asyncio.run(fail())
    clock.now += 5
    assert rate_limit_waits([found]) == {"p": 15.0}
    found.heard(RateState(remaining_requests=0, reset_requests_seconds=86400.0))
    assert told == [{"p": 20.0}, {"p": 60.0}]
    clock.now += 60
    assert rate_limit_waits([found]) == {}
