"""Tests of the protocol of strategies: providers, observations, state and ladders."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrant.core import ConfigurationError, StateError
from calibrant.routing import (
    BanditRouter,
    CascadeRouter,
    EMARouter,
    FixedRouter,
    Ladder,
    Observation,
    Router,
    TaskRouter,
    ThompsonRouter,
    TriageRouter,
)

YES, NO = np.array([True, False])

calls = st.lists(
    st.builds(
        lambda provider, success, seconds, share, context: Observation(
            provider=provider,
            success=success,
            latency_seconds=seconds,
            rate_limited=not success and share > 0.5,
            quality=share,
            cost=seconds,
            penalty=share,
            recovered=success and share < 0.1,
            context=np.cos(context * np.arange(1.0, 65.0)),
        ),
        st.sampled_from("ab"),
        st.booleans(),
        st.floats(0.0, 60.0),
        st.floats(0.0, 1.0),
        st.integers(0, 5),
    ),
    max_size=20,
)


def triage(providers: Any, **options: Any) -> TriageRouter:
    """Return a router whose first provider serves simple requests."""
    return TriageRouter(providers, tiers={"simple": next(iter(providers), "nobody")}, **options)


ROUTERS: dict[str, Callable[..., Any]] = {
    "none": FixedRouter,
    "task": partial(TaskRouter, tasks={}),
    "ema": EMARouter,
    "thompson": ThompsonRouter,
    "bandit": BanditRouter,
    "cascade": CascadeRouter,
    "triage": triage,
}
CALL: dict[str, Any] = {"provider": "a", "success": True, "latency_seconds": 0.1}


@pytest.fixture(params=ROUTERS)
def strategy(request: pytest.FixtureRequest) -> str:
    """Return the name of a strategy."""
    return str(request.param)


@pytest.fixture
def make(strategy: str) -> Callable[..., Any]:
    """Return the factory of a strategy."""
    return ROUTERS[strategy]


def test_every_strategy_keeps_the_protocol(make: Any, strategy: str) -> None:
    """Every strategy orders all providers, learns from observations, and has standings."""
    router = make(providers=["b", "a", "c"], rng=np.random.default_rng(0))
    assert isinstance(router, Router)
    assert router.strategy == strategy
    assert router.providers == ("b", "a", "c")
    for number in range(30):
        order = router.order()
        assert sorted(order) == ["a", "b", "c"]
        router.record(Observation(provider=order[0], success=number % 3 > 0, latency_seconds=0.1))
    assert [standing.provider for standing in router.standings()] == ["b", "a", "c"]
    with pytest.raises(ConfigurationError, match="b, a, c"):
        router.record(Observation(provider="d", success=True, latency_seconds=0.1))


def test_equal_randomness_makes_equal_choices(make: Any) -> None:
    """Routers with equal seeds or generators make equal choices."""
    first, second, third = (
        make(["a", "b", "c", "d"], rng=rng) for rng in (5, np.int64(5), np.random.default_rng(5))
    )
    for _ in range(20):
        assert first.order() == second.order() == third.order()


def test_numpy_numbers_are_stored_as_json(make: Any) -> None:
    """Numpy's floats, whole numbers and truth values become plain JSON numbers in a snapshot."""
    router, plain = make(["a"]), make(["a"])
    numbers: dict[str, Any] = {"latency_seconds": 1, "cost": np.int32(1), "quality": np.float32(0.5)}
    shared: dict[str, Any] = {"provider": "a", "context": np.ones(64)}
    router.record(Observation(**shared, **numbers, success=YES, penalty=np.float16(0.25)))
    plain.record(
        Observation(**shared, latency_seconds=1.0, cost=1.0, quality=0.5, success=True, penalty=0.25)
    )
    assert json.dumps(router.snapshot()) == json.dumps(plain.snapshot())


@given(first=calls, second=calls)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_restored_routers_go_on_alike(make: Any, first: list[Any], second: list[Any]) -> None:
    """A router restored from a snapshot in JSON learns exactly as the original one."""
    one, other = make(["a", "b"], rng=0), make(["a", "b"], rng=0)
    for call in first:
        one.record(call)
    other.restore(json.loads(json.dumps(one.snapshot(), allow_nan=False)))
    for call in second:
        one.record(call)
        other.record(call)
    assert one.snapshot() == other.snapshot()


@pytest.mark.parametrize("kind", [EMARouter, ThompsonRouter])
def test_reliability_ignores_quality_and_cost(kind: Any) -> None:
    """Strategies that learn reliability ignore quality, cost and embedding of an observation."""
    plain, other = kind(["a"]), kind(["a"])
    plain.record(Observation(**CALL))
    other.record(Observation(**CALL, quality=0.0, cost=9.0, context=np.ones(64)))
    assert plain.snapshot() == other.snapshot()


@pytest.mark.parametrize(
    "damaged",
    [
        *("x", 3, [1], {"providers": {}}, {"version": 3, "strategy": "ema", "providers": {}}),
        *({"version": version, "strategy": "x", "providers": {}} for version in (1, 2)),
        *({"version": True, "strategy": "bandit"}, {"version": 2, "strategy": "bandit", "providers": 3}),
    ],
    ids=str,
)
def test_foreign_state_is_refused(make: Any, damaged: Any) -> None:
    """A state of another strategy raises StateError and changes nothing."""
    router = make(["a", "b"])
    router.record(Observation(**CALL))
    before = router.snapshot()
    with pytest.raises(StateError, match="Expected"):
        router.restore(damaged)
    assert router.snapshot() == before


def after_a_call(make: Any, providers: list[str]) -> Any:
    """Return a router that has learnt from one answer of its last provider."""
    router = make(providers)
    router.record(Observation(provider=providers[-1], success=True, latency_seconds=0.1, context=np.ones(64)))
    return router


@pytest.mark.parametrize("value", [None, "x", math.nan, True, "left out"])
def test_damaged_records_change_nothing(make: Any, value: object) -> None:
    """A damaged or missing field raises StateError with its name, and the state stays as it was."""
    router = after_a_call(make, ["a", "b"])
    before = router.snapshot()
    for field in before["providers"]["b"]:
        damaged = copy.deepcopy(before)
        damaged["providers"]["b"][field] = value
        if value == "left out":
            del damaged["providers"]["b"][field]
        with pytest.raises(StateError, match=rf"{field}.*'b'|'b'.*{field}"):
            router.restore(damaged)
        assert router.snapshot() == before
    with pytest.raises(StateError, match="'b'"):
        router.restore({**before, "providers": {"b": [1]}})


def test_the_state_follows_the_providers(make: Any) -> None:
    """Restoring leaves out removed providers, and starts new providers without observations."""
    snapshot = json.loads(json.dumps(after_a_call(make, ["gone", "b"]).snapshot()))
    copied = copy.deepcopy(snapshot)
    snapshot["providers"]["gone"] = "damaged"
    router = make(["new", "b"])
    router.restore(snapshot)
    assert router.snapshot()["providers"]["b"] == copied["providers"]["b"]
    assert list(router.snapshot()["providers"]) == ["new", "b"]
    fresh = make(["new", "b"]).snapshot()
    assert router.snapshot()["providers"]["new"] == fresh["providers"]["new"]
    router.record(Observation(provider="b", success=True, latency_seconds=0.1))
    assert snapshot["providers"]["b"] == copied["providers"]["b"]
    for nothing in (None, {}):
        router.restore(nothing)
        assert router.snapshot() == fresh


def test_orders_are_copies(make: Any) -> None:
    """A change of a returned order changes no later one."""
    router = make(["a", "b", "c"])
    router.order().clear()
    assert len(router.order()) == 3


def test_a_single_provider_is_first(make: Any) -> None:
    """The order of a single provider stays the same after its failure."""
    router = make(["only"])
    router.record(Observation(provider="only", success=False, latency_seconds=9.0))
    assert router.order() == ["only"]


@pytest.mark.parametrize("providers", [[], "ab", ["a", "a"], ["a", "  "], ["a", None]])
def test_bad_provider_names_are_refused(make: Any, providers: Any) -> None:
    """No provider, a repeated one and a blank or missing name raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"^Expected (a list|at least one|the name|every provider)"):
        make(providers)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (EMARouter, {"alpha": 0.0}, "alpha in"),
        (EMARouter, {"reorder_interval": -1}, "reorder_interval to be a whole number of at least 0"),
        (ThompsonRouter, {"decay": 0.0}, r"decay in \(0, 1\]"),
        (BanditRouter, {"alpha": -0.1}, "alpha in"),
        (BanditRouter, {"dim": 2.5}, "dim to be a whole number"),
        (BanditRouter, {"dim": 1025}, r"dim to be a whole number in \[1, 1024\]"),
        (BanditRouter, {"cost_weight": -1.0}, "cost_weight in"),
        (BanditRouter, {"decay_factor": 0.0}, "decay_factor in"),
        (CascadeRouter, {"cost_tiers": ["a", "a"]}, "a more than once"),
        (CascadeRouter, {"quality_threshold": 1.1}, "quality_threshold in"),
        (CascadeRouter, {"max_escalations": None}, "max_escalations to be a whole number"),
        (CascadeRouter, {"max_cascade_tokens": 0}, "max_cascade_tokens to be a whole number of at least 1"),
        (CascadeRouter, {"window_size": 3}, "window_size to be a whole number of at least 4"),
        (CascadeRouter, {"classifier_mode": "oracle"}, "classifier_mode to be 'heuristic' or 'judge'"),
        (TriageRouter, {"tiers": {}}, "at least one of the tiers"),
        (TriageRouter, {"tiers": {"hard": "a"}}, "got hard"),
        (TriageRouter, {"tiers": {"simple": "a"}, "context_windows": {"a": 0}}, "the context window of 'a'"),
    ],
    ids=str,
)
def test_bad_options_are_refused(kind: Any, options: dict[str, Any], message: str) -> None:
    """A wrong option raises ConfigurationError with its name."""
    with pytest.raises(ConfigurationError, match=message):
        kind(["a", "b"], **options)


@pytest.mark.parametrize("options", [{"dim": "9" * 5000}, {"alpha": "9" * 5000}, {"alpha": -(10**4000)}])
def test_long_values_are_cut_in_messages(options: dict[str, Any]) -> None:
    """A message shows the beginning of a value, and stays readable."""
    with pytest.raises(ConfigurationError) as caught:
        BanditRouter(["a", "b"], **options)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (TaskRouter, {"tasks": None}),
        (TaskRouter, {"tasks": {"t": "cc"}}),
        *((CascadeRouter, {"costs": costs}) for costs in ([("a", 1)], {"cc": 1}, {"a": -1}, {"a": "1"})),
        (BanditRouter, {"costs": "a"}),
        (CascadeRouter, {"cost_tiers": ["cc"]}),
        (TriageRouter, {"tiers": None}),
        (TriageRouter, {"tiers": [("simple", "a")]}),
        (TriageRouter, {"tiers": {"simple": "cc"}}),
        (TriageRouter, {"tiers": {"simple": "a"}, "context_windows": [("a", 1)]}),
        (TriageRouter, {"tiers": {"simple": "a"}, "context_windows": {"cc": 1}}),
    ],
    ids=str,
)
def test_bad_tables_are_refused(kind: Any, options: dict[str, Any]) -> None:
    """A wrong table raises ConfigurationError with the option or the unknown provider."""
    option = list(options)[-1]
    with pytest.raises(
        ConfigurationError, match=f"^Expected ({option} to (be a table|.*a, b, got cc)|the cost of 'a')"
    ):
        kind(["a", "b"], **options)


def test_the_doubled_providers_are_named() -> None:
    """Repeated provider names raise ConfigurationError with each name once."""
    with pytest.raises(ConfigurationError, match="got a, b more than once"):
        EMARouter(["b", "a", "b", "a", "c", "a"])


GOOD: dict[str, Any] = {"provider": "a", "success": True, "latency_seconds": 0.0}


@pytest.mark.parametrize(
    "change",
    [
        *({"latency_seconds": value} for value in (-0.1, math.nan, math.inf, None, "1", [1.0])),
        *({"quality": 1.1}, {"cost": -1e-9}, {"penalty": None}),
        *({"success": value} for value in (None, "no", 2, [True])),
        {"rate_limited": "yes", "success": False},
        {"recovered": None},
        *({"latency_seconds": value} for value in (True, 10**400, Decimal(1), np.array([0.1]))),
        {"success": True, "rate_limited": True},
        {"provider": None},
    ],
    ids=str,
)
def test_an_observation_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    """An observation's value that is out of range or no number raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        Observation(**GOOD | change)


@pytest.mark.parametrize(
    "change",
    [
        {"quality": 0.0, "cost": 0.0, "penalty": 0.0},
        {"quality": 1.0, "penalty": 1.0},
        {"quality": np.float32(0.5), "latency_seconds": np.float64(3.0), "cost": np.int64(2)},
        {"success": False, "rate_limited": True},
        {"latency_seconds": 1e300},
    ],
)
def test_range_ends_are_accepted(change: dict[str, Any]) -> None:
    """Both ends of every range are accepted in an observation, also as numpy's numbers."""
    made = Observation(**GOOD | change)
    assert {name: getattr(made, name) for name in change} == change


def test_an_observation_holds_plain_numbers() -> None:
    """An observation turns numbers into floats, truth values into bools, and a bool quality into 1 or 0."""
    made = Observation(
        provider="a",
        success=NO,  # type: ignore[arg-type]
        latency_seconds=2,
        rate_limited=1,  # type: ignore[arg-type]
        quality=YES,  # type: ignore[arg-type]
        cost=np.float32(0.5),  # type: ignore[arg-type]
        penalty=np.int8(1),  # type: ignore[arg-type]
    )
    assert (made.success, made.rate_limited, made.recovered) == (False, True, False)
    numbers = (made.latency_seconds, made.quality, made.cost, made.penalty)
    assert numbers == (2.0, 1.0, 0.5, 1.0)
    assert {type(number) for number in numbers} == {float}
    assert {type(flag) for flag in (made.success, made.rate_limited, made.recovered)} == {bool}


answers = st.lists(
    st.tuples(st.none() | st.sampled_from([-1.0, -0.3, 0.0, 0.2, 0.4, 0.5, 0.6, 1.0]), st.integers(0, 50)),
    min_size=1,
    max_size=8,
)


@given(
    answers=answers,
    threshold=st.sampled_from([-0.5, 0.0, 0.5, 0.55, 1.0]),
    escalations=st.none() | st.integers(0, 4),
    tokens=st.none() | st.integers(1, 120),
)
def test_ladders_end_with_the_best_answer(
    answers: list[tuple[float | None, int]], threshold: float, escalations: int | None, tokens: int | None
) -> None:
    """A ladder ends when an answer is accepted or its limits are reached, and keeps the best answer."""
    ladder = Ladder(threshold=threshold, max_escalations=escalations, max_tokens=tokens)
    judged: list[float | None] = []
    used, ended = 0, False
    for quality, size in answers:
        ended = ladder.ends_with(quality, tokens=size)
        judged.append(quality)
        used += size
        good = quality is None or quality >= threshold
        out_of_steps = escalations is not None and len(judged) > escalations
        out_of_tokens = tokens is not None and used >= tokens
        assert ladder.accepted == good
        assert ended == (good or out_of_steps or out_of_tokens)
        worth = [math.inf if one is None else one for one in judged]
        assert ladder.best == (len(judged) - 1 if good else worth.index(max(worth)))
        if ended:
            break
    rejections = len(judged) - ended
    assert escalations is None or rejections <= escalations


def test_unused_ladder_has_no_answer() -> None:
    """A ladder without answers has no best answer."""
    ladder = Ladder(threshold=0.5)
    assert ladder.best is None
    assert not ladder.accepted
