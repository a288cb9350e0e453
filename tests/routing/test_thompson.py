"""Tests of Thompson sampling against integrals, scipy and closed forms."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from calibrant.routing import Observation, ThompsonRouter

NAMES = ["a", "b", "c"]


def seen(provider: str, *, success: bool = True, **more: Any) -> Observation:
    """Return the observation of a call."""
    return Observation(provider=provider, success=success, latency_seconds=0.1, **more)


def parameters(router: ThompsonRouter) -> list[tuple[float, float]]:
    """Return alpha and beta of every provider."""
    return [(one.values["alpha"], one.values["beta"]) for one in router.standings()]


def stored(**pairs: tuple[Any, Any]) -> dict[str, Any]:
    """Return a snapshot with these parameters."""
    return {
        "version": 1,
        "strategy": "thompson",
        "providers": {
            name: {"observations": 1, "alpha": alpha, "beta": beta} for name, (alpha, beta) in pairs.items()
        },
    }


def test_outcomes_add_what_they_should() -> None:
    """A success adds 1 to alpha. To beta a failure adds 1, a rate limit 2, and a penalty its own value."""
    router = ThompsonRouter(NAMES)
    for one in (
        seen("a"),
        seen("a", penalty=0.25),
        seen("b", success=False),
        seen("b", success=False, rate_limited=True),
        seen("b", success=False, penalty=0.5),
    ):
        router.record(one)
    assert parameters(router) == [(3.0, 1.25), (1.0, 5.5), (1.0, 1.0)]
    assert [one.observations for one in router.standings()] == [2, 3, 0]


def test_samples_order_the_whole_chain() -> None:
    """The frequency of every order matches integrals over the three densities."""
    router = ThompsonRouter(NAMES, rng=5)
    pairs = {"a": (4.0, 2.0), "b": (3.0, 3.0), "c": (1.0, 2.0)}
    router.restore(stored(**pairs))
    draws = 20_000
    counts: dict[tuple[str, ...], int] = dict.fromkeys(permutations(NAMES), 0)
    for _ in range(draws):
        counts[tuple(router.order())] += 1
    expected = {}
    for first, second, third in counts:
        high, middle, low = (stats.beta(*pairs[name]) for name in (first, second, third))
        # P(high > middle > low): whatever the middle is, the others lie above and below it.
        expected[first, second, third] = integrate.quad(
            lambda x, high=high, middle=middle, low=low: middle.pdf(x) * high.sf(x) * low.cdf(x), 0, 1
        )[0]
    assert sum(expected.values()) == pytest.approx(1.0)
    observed, wanted = zip(*((counts[order], draws * expected[order]) for order in counts), strict=True)
    assert stats.chisquare(observed, wanted).pvalue > 1e-3


outcomes = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["answer", "failure", "limit"])), max_size=40
)


@given(outcomes=outcomes, decay=st.sampled_from([1.0, 0.99, 0.5]))
def test_parameters_are_discounted_sums(outcomes: list[tuple[int, str]], decay: float) -> None:
    """An outcome t observations ago, of any provider, counts decay to the power of t."""
    router = ThompsonRouter(NAMES, decay=decay)
    for arm, outcome in outcomes:
        router.record(seen(NAMES[arm], success=outcome == "answer", rate_limited=outcome == "limit"))
    ages = range(len(outcomes) - 1, -1, -1)
    weight = {"answer": (1.0, 0.0), "failure": (0.0, 1.0), "limit": (0.0, 2.0)}
    for arm, found in enumerate(parameters(router)):
        own = [
            (decay**age, weight[what]) for age, (who, what) in zip(ages, outcomes, strict=True) if who == arm
        ]
        wanted = [1.0 + sum(share * pair[side] for share, pair in own) for side in (0, 1)]
        assert found == pytest.approx(wanted)


def test_decay_tries_idle_providers_again() -> None:
    """With decay, a provider with a bad record gets requests again while another one answers."""
    found = {}
    for decay in (1.0, 0.98):
        router = ThompsonRouter(["good", "bad"], decay=decay, rng=3)
        for _ in range(60):
            router.record(seen("bad", success=False))
        for _ in range(300):
            router.record(seen("good"))
        found[decay] = sum(router.order()[0] == "bad" for _ in range(2_000))
    assert found[1.0] == 0
    assert found[0.98] > 10


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (46.0, 4.0), (0.5, 0.5), (1e9, 0.5), (3.5, 200.0)])
def test_the_credible_interval_is_that_of_the_distribution(alpha: float, beta: float) -> None:
    """`mean`, `lower` and `upper` equal the mean and the quantiles of scipy's beta distribution."""
    router = ThompsonRouter(["a"])
    router.restore(stored(a=(alpha, beta)))
    found = router.standings()[0].values
    assert list(found) == ["alpha", "beta", "mean", "lower", "upper"]
    lower, upper = stats.beta.ppf([0.025, 0.975], alpha, beta)
    assert found["mean"] == pytest.approx(stats.beta.mean(alpha, beta))
    assert found["lower"] == pytest.approx(lower)
    assert found["upper"] == pytest.approx(upper)


def test_parameters_stay_where_they_can_be_sampled() -> None:
    """Stored and recorded parameters are clipped to [0.5, 1e9], where samples are finite."""
    router = ThompsonRouter(NAMES, rng=0)
    router.restore(stored(a=(1e300, -7), b=(0.5, 10**12), c=(1e9, 1e9)))
    assert parameters(router) == [(1e9, 0.5), (0.5, 1e9), (1e9, 1e9)]
    for name in NAMES:
        router.record(seen(name))
        router.record(seen(name, success=False, rate_limited=True))
    assert parameters(router) == [(1e9, 2.5), (1.5, 1e9), (1e9, 1e9)]
    router.restore(stored(a=(1e9, 0.5), b=(0.5, 1e9), c=(0.5, 0.5)))
    for _ in range(200):
        assert [name for name in router.order() if name != "c"] == ["a", "b"]
