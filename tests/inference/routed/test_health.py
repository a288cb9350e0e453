"""Tests of the circuit breaker: its opening, its cooldowns and its recovery."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core import ConfigurationError, ProviderError, ProviderTimeoutError, RateLimitError
from calibrant.inference.routed._provider import Breaker, Turn

DOWN = ProviderError("is down", provider="a", status=503, retryable=True)
WRONG_KEY = ProviderError("wrong key", provider="a", status=401)
NO_CREDIT = RateLimitError("no credit", provider="a", status=429, retryable=False)


def limited(seconds: float | None) -> RateLimitError:
    """Return a rate limit with its retry time."""
    return RateLimitError("slow down", provider="a", status=429, retryable=True, retry_after=seconds)


def begun(breaker: Breaker, *, forced: bool = False) -> Turn:
    """Return a call that the breaker allowed to begin."""
    turn = breaker.begin(forced=forced)
    assert turn is not None
    return turn


def fail(breaker: Breaker, error: ProviderError = DOWN) -> None:
    """Make a call that fails."""
    breaker.failed(begun(breaker), error)


def succeed(breaker: Breaker) -> bool:
    """Make a call that is answered, and return True if the provider recovers with it."""
    return breaker.succeeded(begun(breaker))


def left_out(clock: Any, error: ProviderError = DOWN, **options: Any) -> Breaker:
    """Return a breaker that was opened by failures."""
    breaker = Breaker(clock=clock, **options)
    while breaker.admits:
        fail(breaker, error)
    return breaker


def test_three_failures_in_a_row_open_the_breaker(clock: Any) -> None:
    """Three failures in a row open the breaker; two do not, and a success resets the count."""
    breaker = Breaker(clock=clock)
    for _ in range(3):
        fail(breaker)
        fail(breaker)
        assert breaker.admits
        assert not succeed(breaker)
    for _ in range(3):
        fail(breaker)
    assert not breaker.admits
    assert breaker.remaining == 5.0
    assert breaker.last_failure is DOWN


def test_cooldowns_end_on_time(clock: Any) -> None:
    """The breaker stays open until the last moment of the cooldown; then one call may begin."""
    breaker = left_out(clock)
    clock.tick(4.999)
    assert not breaker.admits
    assert not breaker.due
    clock.tick(0.001)
    assert breaker.due
    assert breaker.remaining == 0.0


def test_one_call_probes_after_a_cooldown(clock: Any) -> None:
    """During the probe no other call begins; after its success the breaker is closed."""
    breaker = left_out(clock)
    clock.tick(5)
    probe = begun(breaker)
    assert probe.probe
    assert not breaker.due
    assert breaker.begin() is None
    assert breaker.succeeded(probe)
    assert not succeed(breaker)  # which is no recovery any more
    assert breaker.last_failure is None


def test_failed_probes_double_the_cooldown(clock: Any) -> None:
    """Failed probes double the cooldown from 5 up to 300 seconds, and a recovery resets it."""
    breaker = left_out(clock)
    found = []
    for _ in range(8):
        found.append(breaker.remaining)
        clock.tick(breaker.remaining)
        fail(breaker)
    assert found == [5, 10, 20, 40, 80, 160, 300, 300]
    clock.tick(300)
    assert succeed(breaker)
    for _ in range(3):
        fail(breaker)
    assert breaker.remaining == 5


def test_released_probes_make_room_for_another(clock: Any) -> None:
    """After a probe is released, another call may probe at once."""
    breaker = left_out(clock)
    clock.tick(5)
    probe = begun(breaker)
    breaker.released(probe)
    assert breaker.due
    assert succeed(breaker)


def test_calls_that_were_under_way_do_not_count(clock: Any) -> None:
    """Calls that began before the cooldown neither double it nor end it."""
    breaker = Breaker(clock=clock)
    turns = [begun(breaker) for _ in range(10)]
    for turn in turns[:8]:
        breaker.failed(turn, DOWN)
    assert breaker.remaining == 5
    assert not breaker.succeeded(turns[8])
    assert breaker.remaining == 5
    clock.tick(5)
    probe = begun(breaker)
    breaker.failed(turns[9], DOWN)  # late, while the probe is under way
    assert breaker.begin() is None
    assert breaker.succeeded(probe)


def test_one_rate_limit_names_its_cooldown(clock: Any) -> None:
    """A rate limit with a time opens the breaker; without a time it counts as one failure."""
    breaker = left_out(clock, limited(17))
    assert (breaker.remaining, breaker.named_seconds) == (17, 17)
    clock.tick(17)
    fail(breaker, limited(None))
    assert (breaker.remaining, breaker.named_seconds) == (10, None)


def test_absurd_retry_after_counts_as_an_hour(clock: Any) -> None:
    """A Retry-After of a billion seconds sets a cooldown of one hour."""
    assert left_out(clock, limited(1e9)).remaining == 3600


def test_late_rate_limits_only_prolong_the_cooldown(clock: Any) -> None:
    """A later rate limit prolongs the cooldown only if it names a longer time."""
    breaker = Breaker(clock=clock)
    turns = [begun(breaker) for _ in range(3)]
    for turn, seconds, remaining in zip(turns, (10, 30, 20), (10, 30, 30), strict=True):
        breaker.failed(turn, limited(seconds))
        assert breaker.remaining == remaining


def test_a_late_rate_limit_names_the_time(clock: Any) -> None:
    """A rate limit during a cooldown sets `named_seconds`."""
    breaker = Breaker(clock=clock, allowed_failures=1)
    turns = [begun(breaker) for _ in range(2)]
    for turn, error in zip(turns, (DOWN, limited(30)), strict=True):
        breaker.failed(turn, error)
    assert breaker.named_seconds == 30


def test_released_forced_calls_leave_the_probe(clock: Any) -> None:
    """A released forced call does not end the probe."""
    breaker = left_out(clock)
    clock.tick(5)
    probe, forced = begun(breaker), begun(breaker, forced=True)
    breaker.released(forced)
    assert breaker.begin() is None
    breaker.released(probe)
    assert breaker.begin() is not None


@pytest.mark.parametrize("error", [WRONG_KEY, NO_CREDIT], ids=["wrong key", "no credit"])
def test_lasting_faults_cool_down_five_minutes(clock: Any, error: ProviderError) -> None:
    """A lasting fault opens the breaker for five minutes."""
    breaker = Breaker(clock=clock)
    fail(breaker, error)
    assert (breaker.remaining, breaker.named_seconds) == (300, None)


def test_used_up_allowances_need_no_probe(clock: Any) -> None:
    """After the pause of a used-up allowance all calls may begin, and no success is a recovery."""
    breaker = Breaker(clock=clock)
    breaker.pause(7)
    breaker.pause(2)
    assert breaker.remaining == breaker.named_seconds == 7
    assert breaker.begin() is None
    clock.tick(7)
    assert not breaker.due
    assert breaker.begin() is not None
    assert not succeed(breaker)
    breaker.pause(1e6)
    assert breaker.remaining == 60


def test_a_forced_call_takes_part(clock: Any) -> None:
    """A forced failure does not prolong the cooldown, and a forced success closes the breaker."""
    breaker = left_out(clock)
    forced = [begun(breaker, forced=True) for _ in range(3)]
    for turn in forced[:2]:
        breaker.failed(turn, DOWN)
    assert breaker.remaining == 5
    clock.now += 5
    probe = begun(breaker)
    assert probe.probe
    breaker.failed(probe, DOWN)
    assert breaker.remaining == 10
    again = begun(breaker, forced=True)
    assert breaker.succeeded(again)
    assert breaker.admits


@pytest.mark.parametrize("options", [{"allowed_failures": 0}, {"cooldown_seconds": 0.0}], ids=str)
def test_numbers_out_of_range_are_refused(options: dict[str, Any]) -> None:
    """A number out of its range raises ConfigurationError with its name."""
    with pytest.raises(ConfigurationError, match=list(options)[-1]):
        Breaker(**options)


STEPS = st.lists(
    st.sampled_from(["begin", "force", "succeed", "fail", "limit", "release", "wait"]), max_size=60
)


@given(STEPS)
def test_a_provider_never_stays_left_out_for_ever(steps: list[str]) -> None:
    """After any history, exactly one call is admitted after the wait, and its success admits all."""
    now = [0.0]
    breaker = Breaker(clock=lambda: now[0])
    under_way: list[Any] = []
    ends: dict[str, Callable[[Any], Any]] = {
        "succeed": breaker.succeeded,
        "fail": lambda turn: breaker.failed(turn, ProviderTimeoutError("late", provider="a", retryable=True)),
        "limit": lambda turn: breaker.failed(turn, limited(3)),
        "release": breaker.released,
    }
    for step in steps:
        if step in {"begin", "force"}:
            turn = breaker.begin(forced=step == "force")
            under_way += [] if turn is None else [turn]
        elif step == "wait":
            now[0] += 4
        elif under_way:
            ends[step](under_way.pop(0))
        assert 0 <= breaker.remaining <= 300
    for turn in under_way:
        breaker.released(turn)
    now[0] += 300
    assert breaker.admits
    turn = begun(breaker)
    breaker.succeeded(turn)
    assert all(breaker.begin() is not None for _ in itertools.repeat(None, 3))
