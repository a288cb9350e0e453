"""Tests of scenarios, recordings, regret, and estimates from logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrant.core import ConfigurationError
from calibrant.routing import FixedRouter, Observation, RoutingRequest, ThompsonRouter
from routing_simulation import (
    Change,
    Recording,
    RoundRobin,
    RouterFactory,
    Scenario,
    SimulatedProvider,
    replay,
    simulate,
)

NAMES = ("a", "b", "c")
NAN = math.nan


def providers(*success: Any, names: Sequence[str] = NAMES) -> list[SimulatedProvider]:
    """Return providers with probabilities of success."""
    return [SimulatedProvider(name=name, success=own) for name, own in zip(names, success, strict=False)]


def always(name: str, names: Sequence[str] = NAMES) -> RouterFactory:
    """Return a factory of routers that always ask one provider."""
    order = [name, *(one for one in names if one != name)]
    return lambda _: FixedRouter(order)


class Spy(FixedRouter):
    """A router that asks providers in turn and keeps all observations."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self.requests: list[RoutingRequest | None] = []
        self.told: list[Observation] = []

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return the providers, the next one first."""
        first = len(self.requests) % len(self.providers)
        self.requests.append(request)
        return [*self.providers[first:], *self.providers[:first]]

    def record(self, observation: Observation) -> None:
        """Keep the observation."""
        self.told.append(observation)


# What a scenario draws


def test_outcomes_come_as_often_as_stated_and_change_when_stated() -> None:
    """Success rates are the stated ones before and after a change; so are the expected rewards."""
    scenario = Scenario(
        providers=[
            SimulatedProvider(name="a", success=0.9, quality=0.5, latency_seconds=2.0, cost=0.01),
            SimulatedProvider(name="b", success=0.3),
        ],
        changes=[
            Change(at=30_000, provider="b", success=0.6),
            Change(at=20_000, provider="a", success=0.1, cost=0.0),
            Change(at=20_000, provider="b", quality=0.25, latency_seconds=1.0),
        ],
    )
    rows = scenario.draw(40_000, np.random.default_rng(0))
    assert rows.contexts is None
    share = rows.success.reshape(4, 10_000, 2).mean(axis=1)
    assert share == pytest.approx(np.array([[0.9, 0.3], [0.9, 0.3], [0.1, 0.3], [0.1, 0.6]]), abs=0.02)
    assert rows.expected is not None
    assert rows.expected[[0, 19_999, 20_000, 30_000]] == pytest.approx(
        np.array([[0.45, 0.3], [0.45, 0.3], [0.05, 0.075], [0.05, 0.15]])
    )
    assert rows.cells("cost")[[19_999, 20_000]].tolist() == [[0.01, 0.0], [0.0, 0.0]]
    assert rows.latencies()[[19_999, 20_000]].tolist() == [[2.0, 0.5], [2.0, 1.0]]


def test_changes_happen_in_the_order_of_their_requests() -> None:
    """Changes take place in the order of their requests, however they are listed."""
    scenario = Scenario(
        providers=providers((0.9, 0.1)),
        changes=[
            Change(at=60, provider="a", success=(0.2, 0.8)),
            Change(at=30.0, provider="a", success=0.5),  # type: ignore[arg-type]
            Change(at=90, provider="a", quality=0.0),
        ],
        dim=3,
    )
    rows = scenario.draw(100, np.random.default_rng(0))
    assert rows.expected is not None
    assert rows.contexts is not None
    found = rows.expected[:, 0]
    assert set(found[:30]) == {0.9, 0.1}
    assert set(found[30:60]) == {0.5}
    assert set(found[60:90]) == {0.2, 0.8}
    assert set(found[90:]) == {0.0}
    likeness = rows.contexts[60:90] @ rows.contexts[:30].T
    assert ((found[60:90] == 0.2) == (found[likeness.argmax(axis=1)] == 0.9)).all()


def test_providers_answer_independently_of_each_other() -> None:
    """Outcomes of two providers on the same requests are uncorrelated."""
    rows = Scenario(providers=providers(0.5, 0.5)).draw(20_000, np.random.default_rng(1))
    assert abs(np.corrcoef(rows.success.T)[0, 1]) < 0.03


def test_contexts_have_length_one_and_tell_the_kinds_apart() -> None:
    """Contexts have length one, and the nearest neighbour of a request is of its kind."""
    scenario = Scenario(providers=providers((0.9, 0.1, 0.5), (0.2, 0.8, 0.5)), dim=16, noise=0.3)
    assert scenario.kinds == 3
    rows = scenario.draw(600, np.random.default_rng(2))
    assert rows.contexts is not None
    assert rows.expected is not None
    assert rows.contexts.shape == (600, 16)
    assert np.linalg.norm(rows.contexts, axis=1) == pytest.approx(1.0)
    likeness = rows.contexts @ rows.contexts.T
    np.fill_diagonal(likeness, -1.0)
    assert (rows.expected == rows.expected[likeness.argmax(axis=1)]).all()
    kinds, counts = np.unique(rows.expected, axis=0, return_counts=True)
    assert kinds.tolist() == [[0.1, 0.8], [0.5, 0.5], [0.9, 0.2]]
    assert counts.min() > 150


@pytest.mark.parametrize(
    "stated",
    [
        *({"success": value} for value in (1.1, NAN, (), (0.5, 2.0), True, ((0.5,), (0.5,)))),
        {"quality": 1.5},
        {"quality": (0.5, 0.5)},
        {"latency_seconds": math.inf},
        {"cost": -0.1},
        {"cost": None},
    ],
)
def test_a_provider_that_cannot_be_is_refused(stated: dict[str, Any]) -> None:
    """A provider with a number out of range raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        Scenario(providers=[SimulatedProvider(**{"name": "a", "success": 0.5, **stated})])


@pytest.mark.parametrize(
    "options",
    [
        {"providers": []},
        {"providers": providers(0.5, 0.5, names=("a", "a"))},
        {"providers": providers((0.1, 0.2), (0.1, 0.2, 0.3))},
        {"providers": providers((0.5, 0.5)), "changes": [Change(at=1, provider="a", success=(1, 0, 1))]},
        {"changes": [Change(at=3, provider="z")]},
        {"changes": [Change(at=-1, provider="a")]},
        {"changes": [Change(at=1, provider="a", success=7.0)]},
        {"dim": 0},
        {"noise": -1.0},
    ],
)
def test_a_scenario_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    """A scenario whose names, kinds, changes or noise do not fit raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        Scenario(**{"providers": providers(0.5), **options})


# What strategies are told, and what is measured


def test_a_reward_is_told_as_success_and_as_quality() -> None:
    """Observations hold success, quality, cost, latency and the request's context."""
    success = np.array([[1, 0], [1, 0], [0, 1], [1, 1]], dtype=float)
    contexts = np.arange(8.0).reshape(4, 2)
    rows = Recording(
        providers=("a", "b"),
        success=success,
        quality=np.ones((4, 2)),
        cost=[[0.1, NAN]] * 4,  # type: ignore[arg-type]
        latency_seconds=[[3.0, NAN]] * 4,  # type: ignore[arg-type]
        contexts=contexts,
    )
    spy = Spy(("a", "b"))
    simulate(rows, {"spy": lambda _: spy})
    told = [(one.provider, one.success, one.quality, one.cost, one.latency_seconds) for one in spy.told]
    assert told == [
        ("a", True, 1.0, 0.1, 3.0),
        ("b", False, 0.0, None, 0.5),
        ("a", False, 0.0, 0.1, 3.0),
        ("b", True, 1.0, None, 0.5),
    ]
    assert [one.context.tolist() for one in spy.told if one.context is not None] == contexts.tolist()
    asked = [one.embedding.tolist() for one in spy.requests if one and one.embedding is not None]
    assert asked == contexts.tolist()
    assert [one.request for one in spy.told] == spy.requests


def test_unknown_quality_is_told_as_unknown_and_counts_as_one() -> None:
    """Unknown quality is None in the observation, and counts as 1 in the reward."""
    spy = Spy(("a",))
    rows = Recording(providers=("a",), success=[[1], [1], [0]], quality=[[NAN], [0.5], [NAN]])  # type: ignore[arg-type]
    found = simulate(rows, {"spy": lambda _: spy})["spy"]
    assert [one.quality for one in spy.told] == [None, 0.5, None]
    assert [one.context for one in spy.told] == [None] * 3
    assert found.reward.tolist() == [pytest.approx(1.5 / 3)]


def test_poor_answers_are_told_as_failures_on_demand_and_rewarded_as_they_are() -> None:
    """With a quality threshold poor answers are observed as failures; their reward stays."""
    rows = Recording(providers=("a",), success=[[1], [1], [1], [0]], quality=[[0.4], [0.5], [NAN], [0.9]])  # type: ignore[arg-type]
    spy = Spy(("a",))
    found = simulate(rows, {"spy": lambda _: spy}, quality_threshold=0.5)["spy"]
    assert [one.success for one in spy.told] == [False, True, True, False]
    assert found.reward.tolist() == [pytest.approx((0.4 + 0.5 + 1.0) / 4)]


def test_regret_is_what_the_best_choices_would_have_earned_more_in_expectation() -> None:
    """Regret equals the sum by hand of the best expected reward minus the chosen one."""
    scenario = Scenario(
        providers=[
            SimulatedProvider(name="a", success=0.5),
            SimulatedProvider(name="b", success=0.9, cost=0.2),
        ],
        changes=[Change(at=2, provider="a", success=0.75)],
    )
    found = simulate(
        scenario, {"a": always("a", "ab"), "b": always("b", "ab")}, requests=4, runs=3, cost_weight=1.0, rng=0
    )
    # Earned per request: a 0.5, then 0.75; b 0.9 - 0.2 = 0.7 all the time.
    assert found["a"].regret == pytest.approx(np.array([[0.2, 0.4, 0.4, 0.4]] * 3))
    assert found["b"].regret == pytest.approx(np.array([[0.0, 0.0, 0.05, 0.1]] * 3))
    assert found["b"].cost.tolist() == [pytest.approx(0.2)] * 3
    assert found["b"].latency_seconds.tolist() == [0.5] * 3
    assert found["b"].shares.tolist() == [[0.0, 1.0]] * 3
    assert found["b"].providers == ("a", "b")


def test_regret_on_a_recording_is_measured_by_the_provider_that_earned_most() -> None:
    """On a recording, regret is measured against the best single provider, and can be negative."""
    rows = Recording(providers=("a", "b"), success=[[1, 0], [0, 1], [1, 0], [1, 1]])  # type: ignore[arg-type]
    found = simulate(rows, {"a": always("a", "ab"), "turns": lambda _: RoundRobin(("a", "b"))})
    assert found["a"].regret.tolist() == [[0, 0, 0, 0]]
    assert found["turns"].regret.tolist() == [[0, -1, -1, -1]]
    assert found["turns"].reward.tolist() == [1.0]


def test_strategies_of_a_run_meet_the_same_outcomes() -> None:
    """Strategies with the same choices earn the same, and further strategies change nothing."""
    scenario = Scenario(providers=providers(0.5, 0.5, 0.5))
    two = {"one": always("a"), "other": always("a")}
    thompson: RouterFactory = lambda rng: ThompsonRouter(NAMES, rng=rng)  # noqa: E731
    found = simulate(scenario, two, requests=200, runs=5, rng=7)
    more = simulate(scenario, {**two, "thompson": thompson, "last": always("b")}, requests=200, runs=5, rng=7)
    assert found["one"].reward.tolist() == found["other"].reward.tolist() == more["one"].reward.tolist()
    assert len(set(found["one"].reward.tolist())) > 1
    again = simulate(scenario, {**two, "thompson": thompson}, requests=200, runs=5, rng=7)
    assert again["thompson"].regret.tolist() == more["thompson"].regret.tolist()


def test_rows_keep_their_order_unless_they_have_none() -> None:
    """A log keeps its order; rows marked as shuffled are shuffled with their contexts."""
    success = np.array([[1.0], [0.0]] * 20)
    log = Recording(providers=("a",), success=success, contexts=np.arange(40.0)[:, None])
    rng = np.random.default_rng(0)
    assert log.draw(7, rng).success.tolist() == success[:7].tolist()
    rows = Recording(providers=("a",), success=success, contexts=np.arange(40.0)[:, None], shuffled=True)
    drawn = rows.draw(None, rng)
    assert drawn.contexts is not None
    assert sorted(drawn.contexts[:, 0]) == list(range(40))
    assert drawn.contexts[:, 0].tolist() != list(range(40))
    assert ((drawn.contexts[:, 0] % 2 == 0) == (drawn.success[:, 0] == 1)).all()
    for count in (0, 1.5, 41):
        with pytest.raises(ConfigurationError, match=r"requests"):
            rows.draw(count, rng)


@pytest.mark.parametrize(
    "change",
    [
        {"providers": ("a", "a")},
        {"providers": ("a",)},
        {"success": np.empty((0, 2))},
        {"success": [1, 0]},
        {"success": [[1], [0, 1]]},
        {"success": [["1", "0"], ["0", "1"]]},
        {"success": [[0.5, 1], [0, 1]]},
        {"quality": [[1.5, 0], [0, 0]]},
        {"quality": [[1, 0]]},
        {"latency_seconds": [[math.inf, 0], [0, 0]]},
        {"cost": [[-1, 0], [0, 0]]},
        {"contexts": [1.0, 2.0]},
        {"contexts": [[1.0], [NAN]]},
        {"propensity": [0.5, 0.0]},
        {"propensity": [0.5, 1.1]},
        {"expected": [[0.5, NAN], [0.5, 0.5]]},
        {"expected": [[0.5, 2.0], [0.5, 0.5]]},
    ],
    ids=str,
)
def test_a_recording_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    """A recording with wrong shapes or ranges raises ConfigurationError."""
    given: dict[str, Any] = {"providers": ("a", "b"), "success": [[1, 0], [0, 1]]}
    with pytest.raises(ConfigurationError, match="Expected"):
        Recording(**given | change)


@pytest.mark.parametrize(
    "options",
    [{"runs": 0}, {"cost_weight": -1.0}, {"cost_weight": NAN}, {"quality_threshold": 2.0}, {"requests": 0}],
)
def test_a_simulation_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    """A simulation with arguments out of range raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        simulate(
            Scenario(providers=providers(0.5, 0.5, 0.5)), {"a": always("a")}, **{"requests": 5} | options
        )


def test_routers_with_other_providers_are_refused() -> None:
    """Routers with other providers, and no routers, raise ConfigurationError."""
    rows = Recording(providers=("a", "b"), success=[[1, 0]])  # type: ignore[arg-type]
    for run in (simulate, replay):
        with pytest.raises(ConfigurationError, match="'mine' to have the providers a, b, got a, b, c"):
            run(rows, {"mine": always("a")})
        with pytest.raises(ConfigurationError, match="at least one strategy"):
            run(rows, {})


def test_a_log_with_gaps_is_for_replay() -> None:
    """`simulate` raises ConfigurationError for a log with gaps, and names `replay`."""
    rows = Recording(providers=("a", "b"), success=[[1, NAN]])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="use replay"):
        simulate(rows, {"a": always("a", "ab")})


# Replay of logs with one provider per request


def logged(
    scenario: Scenario,
    chosen: Callable[[Recording, np.random.Generator], NDArray[np.int64]],
    *,
    seed: int,
    n: int,
) -> Recording:
    """Return a log of one provider per request."""
    rng = np.random.default_rng(seed)
    rows = scenario.draw(n, rng)
    asked = np.zeros(rows.success.shape, dtype=bool)
    asked[np.arange(n), chosen(rows, rng)] = True
    return Recording(
        providers=rows.providers, success=np.where(asked, rows.success, NAN), contexts=rows.contexts
    )


def test_a_fixed_choice_is_worth_the_mean_of_its_requests() -> None:
    """A fixed choice is worth the mean reward of its provider's requests, with standard error."""
    log = Recording(
        providers=("a", "b"),
        success=[[1, NAN], [NAN, 0], [0, NAN], [1, NAN]],  # type: ignore[arg-type]
        cost=[[0.5, NAN], [NAN, 0.1], [0.5, NAN], [NAN, NAN]],  # type: ignore[arg-type]
    )
    found = replay(log, {"a": always("a", "ab"), "b": always("b", "ab")}, cost_weight=0.2)
    rewards = np.array([0.9, -0.1, 1.0])
    assert found["a"].reward == pytest.approx(rewards.mean())
    assert found["a"].standard_error == pytest.approx(rewards.std(ddof=1) / math.sqrt(3))
    assert (found["a"].matched, found["a"].events, found["a"].shares.tolist()) == (3, 4, [1.0, 0.0])
    assert (found["b"].reward, found["b"].standard_error, found["b"].matched) == (
        pytest.approx(-0.02),
        None,
        1,
    )


def test_two_matches_have_a_standard_error() -> None:
    """Two matches have a standard error, and poor answers are observed as failures."""
    log = Recording(providers=("a",), success=[[1], [1]], quality=[[0.2], [0.8]])  # type: ignore[arg-type]
    spy = Spy(("a",))
    found = replay(log, {"spy": lambda _: spy}, quality_threshold=0.5)["spy"]
    assert found.reward == pytest.approx(0.5)
    assert found.standard_error == pytest.approx(0.3)
    assert [one.success for one in spy.told] == [False, True]


def test_a_choice_that_never_matches_has_no_estimate() -> None:
    """A choice without a match has None as reward and standard error."""
    log = Recording(providers=("a", "b"), success=[[1, NAN], [0, NAN]])  # type: ignore[arg-type]
    found = replay(log, {"b": always("b", "ab")})["b"]
    assert (found.reward, found.standard_error, found.matched, found.events) == (None, None, 0, 2)


def test_a_strategy_learns_from_matches_only() -> None:
    """A strategy observes only the requests on which the log agrees with its choice."""
    log = Recording(providers=("a", "b"), success=[[1, NAN], [0, NAN], [NAN, 1], [NAN, 0]])  # type: ignore[arg-type]
    spy = Spy(("a", "b"))
    assert replay(log, {"spy": lambda _: spy})["spy"].matched == 2
    assert [(one.provider, one.success) for one in spy.told] == [("a", True), ("b", False)]
    assert len(spy.requests) == 4


def test_on_a_uniform_log_a_learning_strategy_is_estimated_without_bias() -> None:
    """On a uniform log a learning strategy's estimate equals its reward online, on average."""
    scenario = Scenario(providers=providers(0.2, 0.5, 0.8))
    routers: dict[str, RouterFactory] = {"thompson": lambda rng: ThompsonRouter(NAMES, rng=rng)}
    estimates, matches = [], []
    for seed in range(60):
        log = logged(scenario, lambda rows, rng: rng.integers(3, size=len(rows.success)), seed=seed, n=300)
        one = replay(log, routers, rng=seed)["thompson"]
        assert one.reward is not None
        estimates.append(one.reward)
        matches.append(one.matched)
    assert np.mean(matches) == pytest.approx(100, abs=4)
    online = simulate(scenario, routers, requests=100, runs=200, rng=1)["thompson"].reward
    error = math.hypot(np.std(estimates) / math.sqrt(60), online.std() / math.sqrt(200))
    assert abs(np.mean(estimates) - online.mean()) < 3.5 * error


def test_known_probabilities_make_up_for_a_log_that_preferred_somebody() -> None:
    """With propensities the estimate is right on a log that preferred a provider."""
    scenario = Scenario(providers=providers((0.9, 0.1), (0.5, 0.5), names="ab"), dim=4)

    def chance(rows: Recording) -> NDArray[np.float64]:
        assert rows.expected is not None
        return np.where(rows.expected[:, 0] > 0.5, 0.8, 0.2)

    rng = np.random.default_rng(3)
    rows = scenario.draw(20_000, rng)
    first = rng.random(20_000) < chance(rows)
    success = np.where(np.stack([first, ~first], axis=1), rows.success, NAN)
    likely = np.where(first, chance(rows), 1 - chance(rows))
    routers = {"a": always("a", "ab")}
    naive = replay(Recording(providers=("a", "b"), success=success), routers, rng=0)["a"]
    fair = replay(Recording(providers=("a", "b"), success=success, propensity=likely), routers, rng=0)["a"]
    assert naive.reward == pytest.approx(0.74, abs=0.02)
    assert fair.reward == pytest.approx(0.5, abs=0.03)
    assert fair.matched < naive.matched
    assert fair.events == naive.events == 20_000
