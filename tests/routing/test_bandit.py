"""Tests of the bandit strategy: learning, order and stored state."""

from __future__ import annotations

import base64
import copy
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrant.core import ConfigurationError, StateError
from calibrant.routing import BanditRouter, Observation, RoutingRequest

NAMES = ("cheap", "middle", "dear")
EAST, NORTH = np.array([1.0, 0.0]), np.array([0.0, 1.0])


def bandit(**settings: Any) -> BanditRouter:
    """Return a bandit router of two dimensions, whose cost weight is 0 by default."""
    return BanditRouter(NAMES, **{"dim": 2, "cost_weight": 0.0, **settings})


def answered(provider: str, quality: float | None, context: Any = EAST, **more: Any) -> Observation:
    """Return the observation of an answer with this quality."""
    return Observation(
        provider=provider, success=True, latency_seconds=0.1, quality=quality, context=context, **more
    )


def failed(provider: str, context: Any = EAST, *, limited: bool = False) -> Observation:
    """Return the observation of a failed call."""
    return Observation(
        provider=provider, success=False, latency_seconds=0.1, rate_limited=limited, context=context
    )


def asked(router: BanditRouter, context: Any = EAST) -> list[str]:
    """Return the order for a request with an embedding."""
    return router.order(RoutingRequest(embedding=context))


def value(router: BanditRouter, provider: str, name: str) -> float:
    """Return one number of a provider's standing."""
    (standing,) = (found for found in router.standings() if found.provider == provider)
    return standing.values[name]


class TestOrder:
    def test_nothing_learnt_is_the_declared_order(self) -> None:
        """Without observations the declared order holds, with an embedding and without one."""
        assert asked(bandit()) == list(NAMES)
        assert bandit().order() == bandit().order(RoutingRequest()) == list(NAMES)

    def test_ties_stay_as_they_were_declared(self) -> None:
        """Providers with equal bounds keep their declared order."""
        names = [f"provider {number}" for number in range(40)]
        router = BanditRouter(names, dim=2)
        assert asked(router) == names
        router.record(answered(names[7], 1.0))
        router.record(failed(names[3]))
        rest = [name for name in names if name not in {names[7], names[3]}]
        assert router.order() == [names[7], *rest, names[3]]

    def test_tries_every_provider_without_a_warm_up(self) -> None:
        """The first requests go to every provider once, even if all answers are equally good."""
        router = bandit()
        seen = []
        for _ in range(3):
            seen.append(asked(router)[0])
            router.record(answered(seen[-1], 0.5))
        assert set(seen) == set(NAMES)

    def test_learns_which_provider_answers_what(self) -> None:
        """Each of two providers comes first for the kind of request that it answers well."""
        router = bandit()
        worth = {("cheap", 0): 0.9, ("dear", 1): 0.9}
        for number in range(200):
            context = (EAST, NORTH)[number % 2]
            first = asked(router, context)[0]
            router.record(answered(first, worth.get((first, number % 2), 0.2), context))
        assert (asked(router, EAST)[0], asked(router, NORTH)[0]) == ("cheap", "dear")

    def test_longer_embeddings_are_truncated(self) -> None:
        """An embedding is cut to `dim` numbers and scaled, so a longer or larger one teaches the same."""
        plain, odd = bandit(), bandit()
        for number in range(30):
            context = np.array([np.cos(number), np.sin(number)])
            plain.record(answered(NAMES[number % 3], number % 4 / 4, context))
            odd.record(answered(NAMES[number % 3], number % 4 / 4, [*(1e200 * context), np.inf, 3.0]))
        assert odd.snapshot()["providers"]["cheap"]["observations"] == 10
        for record, other in zip(
            plain.snapshot()["providers"].values(), odd.snapshot()["providers"].values(), strict=True
        ):
            np.testing.assert_allclose(
                numbers(record, "gram"), numbers(other, "gram"), rtol=1e-12, atol=1e-15
            )
        assert asked(plain) == asked(odd, [5e-300, 0.0])

    def test_orders_by_the_bound_of_embedding_and_constant(self) -> None:
        """The order follows the bound of ridge regression on all records, with a constant beside `dim`."""
        router = bandit(alpha=0.3, decay_factor=1.0)
        rng = np.random.default_rng(3)
        matrices, vectors = {name: np.eye(3) for name in NAMES}, {name: np.zeros(3) for name in NAMES}
        for number in range(60):
            name, angle, quality = NAMES[number % 3], rng.uniform(0.0, 7.0), float(rng.random())
            x = with_constant([np.cos(angle), np.sin(angle)])
            matrices[name] += np.outer(x, x)
            vectors[name] += quality * x
            router.record(answered(name, quality, 5.0 * x[:2]))
        orders = set()
        for angle in np.linspace(0.0, 2.0 * np.pi, 50):
            x = with_constant([np.cos(angle), np.sin(angle)])
            bounds = {}
            for name in NAMES:
                solution = np.linalg.solve(matrices[name], np.stack([vectors[name], x], axis=1))
                bounds[name] = float(x @ solution[:, 0] + 0.3 * np.sqrt(x @ solution[:, 1]))
            assert asked(router, x[:2]) == sorted(NAMES, key=bounds.__getitem__, reverse=True)
            orders.add(tuple(asked(router, x[:2])))
        assert len(orders) > 1

    def test_mean_reward_decides_without_embedding(self) -> None:
        """A provider with a mean above zero comes first, one below zero last."""
        router = bandit()
        router.record(answered("dear", 0.4))
        router.record(failed("cheap"))
        assert router.order() == ["dear", "middle", "cheap"]

    def test_means_shrink_without_embedding(self) -> None:
        """Means are sums divided by n + 1."""
        router = bandit(decay_factor=1.0)
        router.record(answered("cheap", 1.0))
        for _ in range(10):
            router.record(answered("middle", 0.9))
        assert router.order() == ["middle", "cheap", "dear"]

    def test_a_provider_that_recovers_is_taken_back(self) -> None:
        """A provider is dropped during 300 failures, and comes first again after its recovery."""
        router = bandit()
        worth = {"cheap": 0.9, "middle": 0.6, "dear": 0.5}
        chosen = []
        for number in range(1_500):
            first = asked(router)[0]
            chosen.append(first)
            down = first == "cheap" and 300 <= number < 600
            router.record(failed(first) if down else answered(first, worth[first]))
        assert chosen[250:300].count("cheap") > 40
        assert chosen[500:600].count("cheap") < 20
        assert chosen[1_400:].count("cheap") > 80


class TestReward:
    @pytest.mark.parametrize(
        ("observation", "reward"),
        [
            pytest.param(answered("cheap", 0.8), 0.8, id="quality"),
            pytest.param(answered("cheap", 0.0), 0.0, id="worthless"),
            pytest.param(failed("cheap"), -0.5, id="failure"),
            pytest.param(failed("cheap", limited=True), -1.0, id="rate-limit"),
        ],
    )
    def test_of_one_call(self, observation: Observation, reward: float) -> None:
        """The reward is the quality; a failed call gets a lower one, and a rate limit the lowest."""
        router = bandit()
        router.record(observation)
        assert value(router, "cheap", "reward") == reward

    def test_cost_is_relative_to_the_dearest(self) -> None:
        """The reward falls with a call's cost, as a share of the dearest provider's mean cost."""
        router = bandit(cost_weight=0.5, decay_factor=1.0)
        router.record(answered("dear", 0.9, cost=0.03))
        router.record(answered("dear", 0.9, cost=0.01))
        router.record(answered("cheap", 0.9, cost=0.005))
        # The first dear call is the dearest so far; the second is half the mean of both.
        assert value(router, "dear", "reward") == pytest.approx((0.4 + 0.65) / 2)
        assert value(router, "cheap", "reward") == pytest.approx(0.9 - 0.5 * 0.25)
        assert value(router, "dear", "cost") == pytest.approx(0.02)

    def test_failures_ignore_cost_and_quality(self) -> None:
        """Cost and quality of a failed call do not enter the means."""
        router = bandit(cost_weight=0.5)
        router.record(
            Observation(
                provider="cheap", success=False, latency_seconds=1.0, quality=0.3, cost=5.0, context=EAST
            )
        )
        assert router.standings()[0].values.keys() == {"reward", "uncertainty", "unembedded"}
        assert value(router, "cheap", "reward") == -0.5

    def test_is_never_below_minus_one(self) -> None:
        """A large cost weight lowers the reward to -1 at most."""
        router = bandit(cost_weight=50.0)
        router.record(answered("cheap", 0.3, cost=1.0))
        assert value(router, "cheap", "reward") == -1.0

    def test_unpriced_calls_count_as_the_mean(self) -> None:
        """A call without a cost counts with the provider's mean cost, or else with its declared one."""
        router = bandit(cost_weight=0.5, costs={"dear": 8.0, "middle": 2.0})
        router.record(answered("dear", 1.0))
        router.record(answered("middle", 1.0))
        router.record(answered("cheap", 1.0))
        assert [value(router, name, "reward") for name in NAMES] == [1.0, 0.875, 0.5]
        router = bandit(cost_weight=0.5)
        router.record(answered("dear", None, cost=0.02))
        router.record(answered("cheap", None, cost=0.01))
        router.record(answered("cheap", 1.0))
        assert value(router, "cheap", "reward") == 0.75

    def test_free_answers_cost_nothing(self) -> None:
        """Costs of zero cause no division by zero."""
        router = bandit(cost_weight=0.5, costs=dict.fromkeys(NAMES, 0.0))
        router.record(answered("cheap", 0.5))
        router.record(answered("cheap", 0.5, cost=0.0))
        assert value(router, "cheap", "reward") == 0.5

    def test_the_cheaper_of_two_equals_is_preferred(self) -> None:
        """Of two equally good providers the cheaper one comes first."""
        router = BanditRouter(["dear", "cheap"], dim=2, alpha=0.3)
        chosen = []
        for _ in range(300):
            chosen.append(asked(router)[0])
            router.record(answered(chosen[-1], 0.2, cost={"dear": 0.02, "cheap": 0.001}[chosen[-1]]))
        assert chosen[100:].count("cheap") > 150

    def test_may_come_later(self) -> None:
        """An answer without a quality is not learnt; the same answer with a quality is."""
        late, prompt = bandit(), bandit()
        late.record(answered("cheap", None))
        assert asked(late) == list(NAMES)
        assert late.standings()[0].observations == 0
        late.record(answered("cheap", 0.7))
        prompt.record(answered("cheap", 0.7))
        assert late.snapshot() == prompt.snapshot()

    @pytest.mark.parametrize("context", [None, [], np.zeros(2), np.zeros(7)])
    def test_unembedded_requests_train_nothing(self, context: Any) -> None:
        """Calls without an embedding are only counted, as `unembedded`."""
        router = bandit()
        for observation in (answered("cheap", 0.9, context, cost=1.0), failed("cheap", context)):
            router.record(observation)
        assert asked(router) == router.order() == asked(router, context) == list(NAMES)
        assert router.standings()[0].observations == 0
        assert router.standings()[0].values == {"reward": 0.0, "uncertainty": 1.0, "unembedded": 2.0}


def test_standings_say_what_is_known() -> None:
    """Standings hold mean reward, quality and cost; uncertainty falls with every observation."""
    router = bandit(cost_weight=0.1)
    for context in 20 * [EAST, NORTH, -EAST, -NORTH]:
        router.record(answered("middle", 0.6, context, cost=0.02))
    cheap, middle, _ = router.standings()
    assert (cheap.observations, middle.observations) == (0, 80)
    assert middle.values["quality"] == pytest.approx(0.6)
    assert middle.values["cost"] == pytest.approx(0.02)
    assert middle.values["reward"] == pytest.approx(0.5)
    assert middle.values["uncertainty"] < 0.3
    assert cheap.values["uncertainty"] >= 1.0
    assert "quality" not in cheap.values


def test_uncertainty_averages_the_bound() -> None:
    """`uncertainty` is the root mean square of the bound's width over all directions."""
    router = bandit(alpha=2.0, decay_factor=1.0)
    known = np.zeros((3, 3))
    for number in range(25):
        x = with_constant([np.cos(0.1 * number), np.sin(0.1 * number)])
        known += np.outer(x, x)
        router.record(answered("cheap", 0.5, x[:2]))
    angles = np.linspace(0.0, 2.0 * np.pi, 1_000, endpoint=False)
    contexts = [with_constant([np.cos(angle), np.sin(angle)]) for angle in angles]
    squares = [x @ np.linalg.solve(np.eye(3) + known, x) for x in contexts]
    assert value(router, "cheap", "uncertainty") == pytest.approx(2.0 * np.sqrt(np.mean(squares)))


def with_constant(direction: list[float]) -> NDArray[np.float64]:
    """Return a direction and 1, at length 1."""
    return np.array([*direction, 1.0]) / np.sqrt(2.0)


def test_later_calls_count_more_in_the_means() -> None:
    """Means weigh earlier records by the decay."""
    router = bandit(decay_factor=0.5)
    for quality in (0.0, 1.0, 1.0):
        router.record(answered("cheap", quality))
    assert value(router, "cheap", "quality") == pytest.approx((1.0 + 0.5) / (1.0 + 0.5 + 0.25))


class TestBadInput:
    @pytest.mark.parametrize(
        "context",
        [
            [1.0],
            [[1.0, 2.0]],
            [1.0, np.inf],
            ["a", "b"],
            1.0,
            np.array(1.0),
            [[1.0], [1.0, 2.0]],
            [10**400, 1.0],
        ],
        ids=lambda context: f"{context!r:.20}",
    )
    def test_embeddings_of_the_wrong_size_or_not_finite(self, context: Any) -> None:
        """A bad embedding raises ConfigurationError in `order` and `record`, and the state is unchanged."""
        router = bandit()
        with pytest.raises(ConfigurationError, match="embedding"):
            asked(router, context)
        with pytest.raises(ConfigurationError, match="embedding"):
            router.record(answered("cheap", 0.5, context, cost=1.0))
        assert router.snapshot() == bandit().snapshot()


def numbers(record: Mapping[str, Any], key: str) -> NDArray[np.float64]:
    """Return the numbers that a record holds in base64."""
    return np.frombuffer(base64.b64decode(record[key]), dtype="<f8")


def packed(values: Any) -> str:
    """Return the numbers as base64."""
    return base64.b64encode(np.asarray(values, dtype="<f8").tobytes()).decode()


def taught(records: int = 100, **settings: Any) -> BanditRouter:
    """Return a router that has learnt something about every provider."""
    router = bandit(**settings)
    rng = np.random.default_rng(0)
    for number in range(records):
        name, context = NAMES[number % 3], rng.normal(size=router.snapshot()["dim"])
        if number % 7 == 3:
            router.record(failed(name, context))
        else:
            router.record(answered(name, float(rng.random()), context, cost=float(rng.random())))
    router.record(answered("dear", 0.5, None))
    return router


class TestSnapshot:
    def test_restored_bandits_order_alike(self) -> None:
        """A restored router has the same bounds."""
        first, second = taught(), bandit()
        second.restore(first.snapshot())
        for angle in np.linspace(0.0, 6.0, 20):
            context = np.array([np.cos(angle), np.sin(angle)])
            assert asked(second, context) == asked(first, context)
        assert value(second, "dear", "uncertainty") == pytest.approx(value(first, "dear", "uncertainty"))

    def test_is_compact(self) -> None:
        """A record holds half of the symmetric matrix in base64."""
        text = json.dumps(BanditRouter(["a"]).snapshot())
        assert len(text) < 8 * (65 * 66 / 2 + 65) * 4 / 3 + 500

    def test_another_dim_begins_afresh_with_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        """A snapshot with another `dim` logs one warning, and the router begins afresh."""
        router = taught()
        with caplog.at_level(logging.WARNING, logger="calibrant"):
            router.restore(BanditRouter(NAMES, dim=3).snapshot())
        assert router.snapshot() == bandit().snapshot()
        (record,) = caplog.records
        assert "dim 3, not 2" in record.getMessage()


def change(key: str, new: Any) -> Callable[[dict[str, Any]], None]:
    """Return a function that changes one value of a provider's record."""

    def changed(snapshot: dict[str, Any]) -> None:
        snapshot["providers"]["middle"][key] = new

    return changed


DAMAGE = {
    "dim": lambda snapshot: snapshot.update(dim="2"),
    "fewer observations than the matrix holds": change("observations", 1),
    "reward above one": change("reward", [1.0, 1.5]),
    "reward without weight": change("reward", [0.5]),
    "negative weight": change("reward", [-1.0, 0.5]),
    "negative quality": change("quality", [1.0, -0.1]),
    "negative cost": change("cost", [1.0, -0.1]),
    "ridge of nothing": change("ridge", 0.0),
    "ridge above one": change("ridge", 1.1),
    "stray characters": change("gram", "!" + packed([1.0, 0.0, 0.0, 1.0, 0.0, 1.0])),
    "short gram": change("gram", packed([1.0, 0.0, 1.0])),
    "gram not finite": change("gram", packed([1.0, np.nan, 0.0, 1.0, 0.0, 1.0])),
    "gram with a negative eigenvalue": change("gram", packed([1.0, 1.3, 0.0, 1.0, 0.0, 1.0])),
    "gram with a large negative eigenvalue": change("gram", packed([10.0, 12.0, 0.0, 10.0, 0.0, 10.0])),
    "gram that overflows": change("gram", packed([1e308, 0.0, 0.0, 1e308, 0.0, 1.0])),
    "response beyond all rewards": change("response", packed([1e9, 0.0, 0.0])),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_state_is_refused_and_changes_nothing(damage: Callable[[dict[str, Any]], None]) -> None:
    """One damaged provider raises StateError and leaves the router as it was."""
    snapshot = copy.deepcopy(taught().snapshot())
    damage(snapshot)
    router = taught(31)
    before = router.snapshot()
    with pytest.raises(StateError):
        router.restore(snapshot)
    assert router.snapshot() == before


def test_contexts_that_matter_make_up_for_64_dimensions() -> None:
    """At the defaults, regret after 2,000 requests is under a quarter of the best fixed provider's."""
    rng = np.random.default_rng(8)
    axes = np.linalg.qr(rng.normal(size=(64, 4)))[0]
    contexts = rng.normal(size=(2_000, 4))
    contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
    worth = np.clip(0.5 + 0.5 * contexts @ rng.normal(size=(4, 3)), 0.02, 0.98)
    router = BanditRouter(NAMES)
    regret = 0.0
    for context, means in zip(contexts @ axes.T, worth, strict=True):
        first = asked(router, context)[0]
        mean = means[NAMES.index(first)]
        regret += means.max() - mean
        router.record(answered(first, float(rng.random() < mean), context))
    fixed = (worth.max(axis=1) - worth[:, worth.mean(axis=0).argmax()]).sum()
    assert regret < 0.25 * fixed


def test_best_provider_is_found_for_random_requests() -> None:
    """At the defaults and with unrelated embeddings, regret is under a third of random choice."""
    rng = np.random.default_rng(9)
    worth = np.array([0.4, 0.9, 0.5])
    router = BanditRouter(NAMES)
    regret = 0.0
    for context in rng.normal(size=(1_500, 64)):
        first = asked(router, context)[0]
        mean = worth[NAMES.index(first)]
        regret += 0.9 - mean
        router.record(answered(first, float(rng.random() < mean), context))
    assert regret < 1_500 / 3 * (0.9 - worth.mean())
