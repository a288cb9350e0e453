"""Tests of moving averages of success and latency."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core import StateError
from calibrant.routing import EMARouter, Observation

NAMES = ["a", "b", "c"]


def seen(provider: str, *, success: bool = True, seconds: float = 0.5, **more: Any) -> Observation:
    """Return the observation of one call."""
    return Observation(provider=provider, success=success, latency_seconds=seconds, **more)


def values(router: EMARouter, provider: str) -> dict[str, float]:
    """Return the numbers in a provider's standing."""
    return dict(next(one.values for one in router.standings() if one.provider == provider))


observations = st.lists(
    st.builds(
        lambda provider, success, limited, seconds, penalty, recovered: seen(
            provider,
            success=success,
            seconds=seconds,
            rate_limited=limited and not success,
            penalty=penalty,
            recovered=recovered and success,
        ),
        st.sampled_from(NAMES),
        st.booleans(),
        st.booleans(),
        st.floats(0.0, 60.0),
        st.floats(0.0, 1.0),
        st.booleans(),
    ),
    max_size=60,
)


def test_unused_providers_keep_their_start() -> None:
    """A provider without calls has success 1, half a second, no penalty and the score 0.95."""
    start = {"success": 1.0, "latency_seconds": 0.5, "penalty": 0.0, "score": 0.95}
    router = EMARouter(NAMES)
    for _ in range(25):
        router.record(seen("a", success=False))
    assert values(router, "b") == pytest.approx(start, abs=1e-15)
    router.restore(router.snapshot())
    assert values(router, "b") == pytest.approx(start, abs=1e-15)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_averages_weigh_what_came_by_its_age(alpha: float) -> None:
    """The newest value has weight alpha, and each older one (1 - alpha) times the weight before."""
    rng = np.random.default_rng(1)
    seconds, penalties = rng.uniform(0, 3, 40), rng.uniform(0, 1, 40)
    router = EMARouter(NAMES, alpha=alpha)
    for second, penalty in zip(seconds, penalties, strict=True):
        router.record(seen("b", seconds=float(second), penalty=float(penalty)))
    weights = alpha * (1 - alpha) ** np.arange(40)[::-1]
    rest = (1 - alpha) ** 40
    found = values(router, "b")
    latency, penalty = weights[1:] @ seconds[1:] + (weights[0] + rest) * seconds[0], weights @ penalties
    assert found["latency_seconds"] == pytest.approx(latency)
    assert found["penalty"] == pytest.approx(penalty)
    assert found["success"] == pytest.approx(1.0)
    assert found["score"] == pytest.approx(1.0 - latency / 10 - penalty)


@pytest.mark.parametrize("limited", [False, True])
def test_rate_limits_count_as_failures(limited: bool) -> None:
    """Each of three failures or rate limits multiplies the success by 0.9."""
    router = EMARouter(NAMES)
    for _ in range(3):
        router.record(seen("a", success=False, rate_limited=limited))
    assert values(router, "a")["success"] == pytest.approx(0.9**3)


def test_the_first_latency_stands_for_itself() -> None:
    """The first latency replaces the initial guess of half a second, except after a failure."""
    router = EMARouter(NAMES)
    router.record(seen("a", seconds=0.02))
    assert values(router, "a")["latency_seconds"] == 0.02
    router.record(seen("b", success=False, seconds=0.02))
    router.record(seen("b", seconds=0.02))
    assert values(router, "b")["latency_seconds"] == pytest.approx(0.9 * 0.5 + 0.1 * 0.02)


def test_slow_failures_raise_the_latency() -> None:
    """A refused connection leaves the latency, a timeout raises it."""
    router = EMARouter(NAMES)
    router.record(seen("a", success=False, seconds=0.001))
    assert values(router, "a")["latency_seconds"] == 0.5
    router.record(seen("a", success=False, seconds=30.0))
    assert values(router, "a")["latency_seconds"] == pytest.approx(0.9 * 0.5 + 0.1 * 30.0)


@given(before=observations, penalty=st.floats(0.01, 1.0), success=st.booleans())
def test_a_penalty_always_lowers_the_score(before: list[Observation], penalty: float, success: bool) -> None:
    """A penalty lowers every score, also a negative one."""
    with_it, without = EMARouter(NAMES), EMARouter(NAMES)
    for one in before:
        with_it.record(one)
        without.record(one)
    with_it.record(seen("a", success=success, seconds=40.0, penalty=penalty))
    without.record(seen("a", success=success, seconds=40.0))
    assert values(with_it, "a")["score"] < values(without, "a")["score"]


def test_providers_are_sorted_after_every_interval() -> None:
    """With an interval of 4 the fourth and the eighth observation sort the providers."""
    router = EMARouter(NAMES, reorder_interval=4)
    for number in range(8):
        assert router.order() == (NAMES if number < 4 else ["b", "c", "a"])
        router.record(seen("a" if number < 4 else "b", success=False))
    # Four failures each: equal scores stand as declared, behind the one that was never asked.
    assert router.order() == ["c", "a", "b"]


def test_an_interval_of_nought_never_sorts() -> None:
    """Neither observations nor a restored state change the order."""
    router = EMARouter(NAMES, reorder_interval=0)
    for _ in range(100):
        router.record(seen("a", success=False))
    assert router.order() == NAMES
    router.restore(router.snapshot())
    assert router.order() == NAMES


def test_restoring_begins_a_new_interval() -> None:
    """Observations from before the restart do not count towards the next sort."""
    router = EMARouter(NAMES, reorder_interval=3)
    for _ in range(2):
        router.record(seen("a", success=False))
    router.restore(None)
    for number in range(3):
        assert router.order() == NAMES, number
        router.record(seen("a", success=False))
    assert router.order() == ["b", "c", "a"]


def test_the_first_answer_after_an_outage_starts_afresh() -> None:
    """A provider that failed slowly and recovered comes first again after its first answer."""
    router = EMARouter(NAMES, reorder_interval=1)
    for _ in range(40):
        router.record(seen("a", success=False, seconds=30.0))
    for name in ("b", "c"):
        router.record(seen(name, seconds=0.6))
    assert router.order() == ["b", "c", "a"]
    router.record(seen("a", seconds=0.3, recovered=True))
    found = values(router, "a")
    assert found["success"] == 1.0
    assert found["latency_seconds"] == pytest.approx(0.9 * 0.5 + 0.1 * 0.3)
    assert router.order() == ["a", "b", "c"]


def test_recovered_providers_keep_their_latency() -> None:
    """A fast provider that recovers keeps its latency and comes before a slower one."""
    router = EMARouter(["a", "b"], reorder_interval=1)
    for _ in range(50):
        router.record(seen("a", seconds=0.01))
    for _ in range(5):
        router.record(seen("a", success=False, seconds=0.0))
        router.record(seen("b", seconds=0.2))
    assert router.order() == ["b", "a"]
    router.record(seen("a", seconds=0.01, recovered=True))
    assert router.order() == ["a", "b"]


def test_a_trial_that_failed_is_no_recovery() -> None:
    """A failed probe lowers the success like any other failure."""
    router = EMARouter(NAMES)
    for _ in range(10):
        router.record(seen("a", success=False))
    router.record(seen("a", success=False, recovered=True))
    assert values(router, "a")["success"] == pytest.approx(0.9**11)


@pytest.mark.parametrize(
    ("field", "value"),
    [("success", 1.1), ("latency_seconds", -0.1), ("penalty", -0.1), ("observations", 1.5)],
)
def test_stored_averages_have_ranges(field: str, value: float) -> None:
    """A stored value out of range raises StateError with its field, and the state stays as it was."""
    router = EMARouter(NAMES)
    router.record(seen("a", success=False))
    before = router.snapshot()
    damaged = json.loads(json.dumps(before))
    damaged["providers"]["b"][field] = value
    with pytest.raises(StateError, match=f"Expected {field} in the state of the provider 'b', got {value}"):
        router.restore(damaged)
    assert router.snapshot() == before
