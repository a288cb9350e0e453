"""The gate: how many calls, how fast, and how much in all."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.clients._rates import RateState
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
    """A clock that moves when someone sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Sleep in no time."""
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def gate(clock: Time | None = None, **limits: Any) -> Gate:
    """Return a gate on that clock."""
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
def test_a_limit_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    """With its name and what came."""
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigurationError, match=rf"{name}.* got {value!r}"):
        Limits(**wrong)


def test_no_more_calls_than_allowed_are_in_flight() -> None:
    """The others wait, first come, first served."""
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
    assert began == list(range(9))
    assert shared.requests == 9


def test_a_place_is_taken_at_once_or_not_at_all() -> None:
    """Whoever does not wait gets none while all are taken, others wait in line, or no call may begin yet."""

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


def test_an_overloaded_provider_gets_half_and_then_one_more_a_round() -> None:
    """One cut for all calls that were in flight; back up to the limit, and not beyond."""
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


def test_a_fault_of_one_call_is_no_overload() -> None:
    """A reset or a broken body says nothing about how much is too much."""
    shared = gate(concurrency=8)

    async def run() -> None:
        for error in (ProviderError("reset", provider="p", retryable=True), ValueError("x")):
            shared.leave(await shared.enter(), error)

    asyncio.run(run())
    assert shared.allowed == 8.0


def test_at_least_one_call_is_always_allowed() -> None:
    """However often the provider complains."""
    shared = gate(concurrency=4)

    async def run() -> None:
        for _ in range(10):
            shared.leave(await shared.enter(), BUSY)

    asyncio.run(run())
    assert shared.allowed == 1.0


def test_retry_after_holds_for_every_call() -> None:
    """Not for the one that was told alone."""
    clock = Time()
    shared = gate(clock, concurrency=4)

    async def run() -> None:
        shared.leave(await shared.enter(), BUSY, pause=7.0)
        shared.leave(await shared.enter())
        shared.leave(await shared.enter())

    asyncio.run(run())
    assert clock.slept == [pytest.approx(7.0)]


def test_an_allowance_that_is_used_up_is_waited_for() -> None:
    """Before the provider has to refuse a call; one that is left is none to wait for."""
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


def test_rate_headers_of_answers_reach_the_gate() -> None:
    """Whatever the provider, they hold the next call back."""
    client = FakeClient(LABELS, {}, default="cat")

    class Telling(FakeClient):
        async def complete(self, request: Any) -> object:
            response: Any = await client.complete(request)
            headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "100ms"}
            return {**response, "_hidden_params": {"additional_headers": headers}}

    made = classifier(Telling(LABELS, {}), concurrency=1)
    begin = time.perf_counter()
    made.classify_many(["a", "b", "c"])
    assert time.perf_counter() - begin >= 0.2


@given(per_minute=st.integers(30, 3000), calls=st.integers(2, 60))
def test_a_rate_is_kept_over_every_stretch(per_minute: int, calls: int) -> None:
    """No more than the rate allows, apart from the first second's worth."""
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


def test_tokens_a_minute_hold_the_next_calls_back() -> None:
    """Charged when a row is answered: the row after it waits until they have flowed in again."""
    clock = Time()
    shared = gate(clock, tokens_per_minute=600)

    async def run() -> None:
        shared.leave(await shared.enter())
        shared.charge(Usage(prompt_tokens=100, completion_tokens=10))
        shared.leave(await shared.enter())

    asyncio.run(run())
    assert clock.now - 100.0 == pytest.approx(10.0, abs=0.01), "110 tokens less the 10 of the first second"


def test_a_waiting_call_that_is_cancelled_passes_its_turn_on() -> None:
    """Otherwise the one behind it would wait for ever."""
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


def test_a_call_that_takes_too_long_has_failed() -> None:
    """And is tried again like any passing fault."""
    client = FakeClient(LABELS, {}, default="cat", latency=0.2)
    (row,) = classifier(client, limits=Limits(call_seconds=0.01)).classify_many(["t"])
    assert row.outcome is Outcome.ERROR
    assert row.attempts == 6
    assert "no complete answer within 0.01 seconds" in row.reason


def test_a_timeout_of_the_clients_own_is_left_as_it_is() -> None:
    """Only the deadline that was set here is translated."""
    own = ProviderTimeoutError("too slow", provider="p")
    client = FakeClient(LABELS, lambda _text: own)
    (row,) = classifier(client, limits=Limits(call_seconds=5)).classify_many(["t"])
    assert row.reason == "p: too slow"


def test_the_deadline_of_a_run_ends_it() -> None:
    """Rows that were answered are delivered, those under way are given up."""

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
def test_a_budget_ends_the_run_near_its_end(budget: dict[str, Any], message: str) -> None:
    """Rows under way are counted in beforehand, and what was answered is said."""
    client = _Priced(LABELS, {}, default="cat", latency=0.001)
    made = classifier(client, limits=Limits(concurrency=2, **budget))
    with pytest.raises(LimitReachedError, match=message):
        made.classify_many([str(number) for number in range(100)])
    assert 3 <= len(client.requests) <= 8


def test_a_budget_of_money_holds_from_the_first_row_on() -> None:
    """However many calls may be in flight: the first one tells what a row costs."""
    client = _Priced(LABELS, {}, default="cat", latency=0.005)
    made = classifier(client, limits=Limits(concurrency=50, max_cost=0.5))
    with pytest.raises(LimitReachedError, match="max_cost"):
        made.classify_many([str(number) for number in range(100)])
    assert len(client.requests) == 5


def test_a_budget_that_lasts_ends_nothing() -> None:
    """All rows are answered."""
    client = _Priced(LABELS, {}, default="cat")
    limits = Limits(max_requests=11, max_tokens=1000, max_cost=10.0, run_seconds=60)
    assert len(classifier(client, limits=limits).classify_many([str(n) for n in range(10)])) == 10


def test_a_budget_of_money_needs_prices() -> None:
    """Otherwise it would be exceeded in silence."""
    client = FakeClient(LABELS, {}, default="cat")
    with pytest.raises(LimitReachedError, match="input_cost_per_token"):
        classifier(client, limits=Limits(max_cost=1.0, concurrency=8)).classify_many(["a", "b", "c"])
    assert len(client.requests) == 1


def test_stop_ends_a_run_after_the_rows_under_way() -> None:
    """Everything begun is delivered, in order."""
    client, stop, rows = FakeClient(LABELS, {}, default="cat", latency=0.005), Stop(), []

    def listen(index: int, _prediction: object) -> None:
        rows.append(index)
        if index == 5:
            stop.request("enough")

    made = classifier(client, concurrency=3)
    reason = asyncio.run(made.feed(map(made.query, map(str, itertools.count())), listen, stop=stop))
    assert reason == "enough"
    assert rows == list(range(len(client.requests)))
    assert 6 <= len(rows) <= 9


class _Priced(FakeClient):
    """Every answer takes 25 tokens and 10 cents."""

    async def complete(self, request: Any) -> object:
        response: Any = await super().complete(request)
        return {
            **response,
            "usage": {"prompt_tokens": 20, "completion_tokens": 5},
            "_hidden_params": {"response_cost": 0.1},
        }


def test_rates_may_be_kept_elsewhere() -> None:
    """By a bucket for each rate that has a limit; calls wait for it, and it is told what they take."""
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
    """A model that computes in this process."""

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
def test_an_engine_in_this_process_has_four_rows_in_flight(settings: dict[str, Any], most: int) -> None:
    """Unless a setting says another number."""
    client = InProcess(LABELS, {}, default="cat", latency=0.001)
    classifier(client, **settings).classify_many(list(map(str, range(20))))
    assert client.max_in_flight == most


def test_a_pause_is_told_with_its_time() -> None:
    """By Retry-After and by an allowance that is used up; it ends with its time."""
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
