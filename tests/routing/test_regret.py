"""Tests of the regret of strategies on simulated providers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from calibrant.routing import BanditRouter, EMARouter, ThompsonRouter
from simulated_routing import (
    Change,
    EpsilonGreedy,
    RoundRobin,
    RouterFactory,
    Scenario,
    SimulatedProvider,
    SimulatedRuns,
    simulate,
)

FIVE = ("v", "w", "x", "y", "z")


def providers(*success: Any, names: Sequence[str] = FIVE) -> list[SimulatedProvider]:
    """Return providers with these probabilities of success."""
    return [SimulatedProvider(name=name, success=own) for name, own in zip(names, success, strict=True)]


def factories() -> dict[str, RouterFactory]:
    """Return the strategies that are compared."""
    return {
        "thompson": lambda rng: ThompsonRouter(FIVE, rng=rng),
        "ema": lambda rng: EMARouter(FIVE, rng=rng),
        "epsilon-greedy": lambda rng: EpsilonGreedy(FIVE, rng=rng),
        "round-robin": lambda _: RoundRobin(FIVE),
    }


def final(found: dict[str, SimulatedRuns]) -> dict[str, float]:
    """Return each strategy's mean regret after the last request."""
    return {name: float(runs.regret[:, -1].mean()) for name, runs in found.items()}


def test_thompson_makes_the_choices_of_the_textbook() -> None:
    """Thompson sampling has the same regret as a textbook version with the same random numbers."""
    rows = Scenario(providers=providers(0.5, 0.6, 0.7, 0.8, 0.9)).draw(1_500, np.random.default_rng(0))
    found = simulate(rows, {"thompson": lambda _: ThompsonRouter(FIVE, rng=np.random.default_rng(4))})[
        "thompson"
    ]
    rng = np.random.default_rng(4)
    ones, zeros, lost = np.ones(5), np.ones(5), []
    for reward in rows.success:
        arm = rng.beta(ones, zeros).argmax()
        ones[arm] += reward[arm]
        zeros[arm] += 1 - reward[arm]
        lost.append(0.9 - (0.5, 0.6, 0.7, 0.8, 0.9)[arm])
    assert found.regret[0] == pytest.approx(np.cumsum(lost))


@pytest.mark.slow
def test_thompson_loses_least_where_nothing_changes() -> None:
    """Thompson sampling has under 75% of the regret of averages, random exploration and turns."""
    scenario = Scenario(providers=providers(0.7, 0.5, 0.9, 0.6, 0.8))
    found = simulate(scenario, factories(), requests=1_500, runs=20, rng=0)
    regret = final(found)
    assert regret["round-robin"] == pytest.approx(300.0)
    assert regret["thompson"] < 0.75 * min(regret[name] for name in ("ema", "epsilon-greedy", "round-robin"))
    assert (np.diff(found["thompson"].regret, axis=1) >= 0).all()
    assert found["thompson"].shares.mean(axis=0).argmax() == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(Change(at=750, provider="x", success=0.3), id="the best one becomes bad"),
        pytest.param(Change(at=750, provider="w", success=1.0), id="the worst one becomes the best"),
    ],
)
def test_decay_pays_after_a_change(change: Change) -> None:
    """With decay, Thompson sampling has less than 90% of the regret after a provider changes."""
    scenario = Scenario(providers=providers(0.7, 0.4, 0.8, 0.6, 0.5), changes=[change])
    routers: dict[str, RouterFactory] = {
        "thompson": lambda rng: ThompsonRouter(FIVE, rng=rng),
        "decay": lambda rng: ThompsonRouter(FIVE, decay=0.995, rng=rng),
    }
    regret = final(simulate(scenario, routers, requests=1_500, runs=20, rng=0))
    assert regret["decay"] < 0.9 * regret["thompson"]


@pytest.mark.slow
def test_contexts_pay_where_they_matter() -> None:
    """LinUCB has less than half of the regret of the best strategy without contexts."""
    success = np.random.default_rng(5).random((5, 5)).tolist()
    scenario = Scenario(providers=providers(*success), dim=16)
    routers = {**factories(), "linucb": lambda rng: BanditRouter(FIVE, dim=16, rng=rng)}
    regret = final(simulate(scenario, routers, requests=1_500, runs=5, rng=0))
    bandit = regret.pop("linucb")
    assert bandit < 0.5 * min(regret.values())
