"""What strategies would have done: on invented providers, and on recorded outcomes.

A strategy's first provider is asked, its fallbacks are not: one request, one outcome. All strategies of a run
meet the same requests and the same outcomes, so that their differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core import ConfigurationError
from calibrant.metrics._validation import check_count, check_number
from calibrant.routing._protocol import Observation, Router, RoutingRequest
from routing_simulation._recording import Recording

__all__ = ["Replay", "RouterFactory", "SimulatedRuns", "World", "replay", "simulate"]

Array = NDArray[np.float64]

RouterFactory = Callable[[np.random.Generator], Router]
"""Makes the router of one run from the run's randomness."""


class World(Protocol):
    """Where outcomes come from: a `Scenario`, or a `Recording`."""

    def draw(self, requests: int | None, rng: np.random.Generator) -> Recording:
        """Return the outcomes of every provider on the requests of one run."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedRuns:
    """What one strategy did in every run.

    Attributes
    ----------
    providers : sequence of str
        Whom it chose from.
    regret : ndarray of shape (runs, requests)
        Cumulative: what the best choices would have earned more, up to and including each request. Best is
        the provider with the highest expected reward for each request where expectations are known
        (pseudo-regret, never falls), else the one provider that earned most in the run (may be negative).
    reward, cost, latency_seconds : ndarray of shape (runs,)
        Means per request; the cost in US dollars, 0 where no price is known.
    shares : ndarray of shape (runs, providers)
        Share of the requests that went to each provider.
    """

    providers: Sequence[str]
    regret: Array
    reward: Array
    cost: Array
    latency_seconds: Array
    shares: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """What one strategy would have earned, estimated from requests that went to one provider each.

    Attributes
    ----------
    reward : float or None
        Mean reward of the matched requests; None without any.
    standard_error : float or None
        Of that mean; None with fewer than two.
    matched : int
        Requests at which the strategy chose the provider that was asked; it learns from these only.
    events : int
        Requests in the log.
    shares : ndarray of shape (providers,)
        Share of all requests for which the strategy chose each provider.
    """

    reward: float | None
    standard_error: float | None
    matched: int
    events: int
    shares: Array


def simulate(  # noqa: PLR0913 (keyword-only options)
    world: World,
    routers: Mapping[str, RouterFactory],
    *,
    requests: int | None = None,
    runs: int = 1,
    cost_weight: float = 0.0,
    quality_threshold: float | None = None,
    rng: np.random.Generator | int | None = None,
) -> dict[str, SimulatedRuns]:
    """Run strategies on the same outcomes and measure what each falls short of the best choices.

    The reward of a call is its quality, 0 if it failed, minus `cost_weight` times its cost. A reward of 0 or 1
    is told as ``Observation(success=bool(reward), quality=reward)``, so that strategies that look at success
    and those that look at quality learn from the same thing.

    Parameters
    ----------
    world : Scenario or Recording
        Outcomes of every provider on every request.
    routers : mapping of str to callable
        Makes a router from the randomness of its run, by name. The routers' providers are the world's.
    requests : int, optional
        Per run, at least 1; a recording has all of its own by default, a scenario 5,000.
    runs : int, default 1
        Independent repetitions, at least 1.
    cost_weight : float, default 0.0
        Reward that one US dollar is worth, finite and at least 0.
    quality_threshold : float, optional
        Answers of lower quality, in [0, 1], are told as failures; by default what is recorded is told.
    rng : Generator or int, optional
        Randomness of outcomes and strategies; a fresh one by default.

    Raises
    ------
    ConfigurationError
        An argument is out of its range, a router has other providers, or an outcome is not known: see `replay`.
    """
    _check_routers(routers, runs=runs, cost_weight=cost_weight)
    collected: dict[str, list[SimulatedRuns]] = {name: [] for name in routers}
    for run in np.random.default_rng(rng).spawn(int(runs)):
        own, *others = run.spawn(1 + len(routers))
        rows = world.draw(requests, own)
        if not rows.known.all():
            raise ConfigurationError(
                "Expected the outcome of every provider on every request, got requests that only some were "
                "asked: use replay."
            )
        told = rows if quality_threshold is None else rows.judged(quality_threshold)
        best = _best(rows, cost_weight)
        for (name, make), randomness in zip(routers.items(), others, strict=True):
            chosen = _play(_checked(name, make(randomness), rows), told)
            collected[name].append(_summary(rows, chosen, best, cost_weight))
    return {name: _stacked(found) for name, found in collected.items()}


def replay(
    log: Recording,
    routers: Mapping[str, RouterFactory],
    *,
    cost_weight: float = 0.0,
    quality_threshold: float | None = None,
    rng: np.random.Generator | int | None = None,
) -> dict[str, Replay]:
    """Estimate what strategies would have earned from a log of one provider per request, by rejection.

    Where a strategy chooses the provider that was asked, it learns the outcome, and the reward counts;
    elsewhere the request is passed over. This is unbiased if the providers in the log were chosen at random,
    all with the same probability [1]_, or with probabilities that are in the log (`Recording.propensity`):
    then matches are kept with a probability in inverse proportion. On a log that a strategy made that
    learnt, the estimate leans towards what that strategy preferred.

    Parameters
    ----------
    log : Recording
        Outcomes, NaN where a provider was not asked, in the order in which they came.
    routers, cost_weight, quality_threshold, rng
        As in `simulate`.

    Raises
    ------
    ConfigurationError
        An argument is out of its range, or a router has other providers.

    References
    ----------
    .. [1] Li, Chu, Langford, Wang (2011), Unbiased offline evaluation of contextual-bandit-based news article
       recommendation algorithms, https://arxiv.org/abs/1003.5956, algorithm 2.
    """
    _check_routers(routers, runs=1, cost_weight=cost_weight)
    own, *others = np.random.default_rng(rng).spawn(1 + len(routers))
    if log.propensity is not None:
        log = replace(log, success=np.where(_kept(log.propensity, own)[:, None], log.success, np.nan))
    told = log if quality_threshold is None else log.judged(quality_threshold)
    rewards = log.rewards(cost_weight)
    found = {}
    for (name, make), randomness in zip(routers.items(), others, strict=True):
        chosen = _play(_checked(name, make(randomness), log), told)
        earned = rewards[np.arange(len(chosen)), chosen]
        earned = earned[~np.isnan(earned)]
        found[name] = Replay(
            reward=float(earned.mean()) if earned.size else None,
            standard_error=float(earned.std(ddof=1) / np.sqrt(earned.size)) if earned.size > 1 else None,
            matched=earned.size,
            events=len(chosen),
            shares=np.bincount(chosen, minlength=len(log.providers)) / len(chosen),
        )
    return found


def _check_routers(routers: Mapping[str, RouterFactory], *, runs: int, cost_weight: float) -> None:
    """Raise for arguments that make no sense."""
    if not routers:
        raise ConfigurationError("Expected at least one strategy to run, got none.")
    check_count("runs", runs, low=1)
    check_number("cost_weight", cost_weight, "[0, inf)")


def _checked(name: str, router: Router, rows: Recording) -> Router:
    """Return a router that knows the providers of the rows."""
    if set(router.providers) != set(rows.providers):
        raise ConfigurationError(
            f"Expected router {name!r} to have the providers {', '.join(rows.providers)}, got "
            f"{', '.join(router.providers)}."
        )
    return router


def _kept(propensity: Array, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which requests to keep so that what is left looks as if all providers had been equally likely."""
    return np.asarray(rng.random(len(propensity)) * propensity <= propensity.min())


def _play(router: Router, rows: Recording) -> NDArray[np.intp]:
    """Return whom a router chose for every request; it learns what is known of its choices, shape (n,)."""
    numbers = {name: number for number, name in enumerate(rows.providers)}
    # Lists: reading one number out of an array takes longer than a decision.
    success, quality = rows.success.tolist(), rows.cells("quality").tolist()
    latency, cost = rows.latencies().tolist(), rows.cells("cost").tolist()
    chosen = np.empty(len(success), dtype=np.intp)
    plain = RoutingRequest()
    for row, outcomes in enumerate(success):
        context = None if rows.contexts is None else rows.contexts[row]
        request = plain if context is None else RoutingRequest(embedding=context)
        provider = router.order(request)[0]
        number = chosen[row] = numbers[provider]
        done, worth, price = outcomes[number], quality[row][number], cost[row][number]
        if done != done:  # noqa: PLR0124 (NaN: this provider was not asked)
            continue
        router.record(
            Observation(
                provider=provider,
                success=bool(done),
                latency_seconds=latency[row][number],
                quality=worth * done if worth == worth else None,  # noqa: PLR0124
                cost=price if price == price else None,  # noqa: PLR0124
                context=context,
                request=request,
            )
        )
    return chosen


def _best(rows: Recording, cost_weight: float) -> Array:
    """Return what the best choices earn, shape (n,)."""
    expected = rows.expected_rewards(cost_weight)
    if expected is not None:
        return np.asarray(expected.max(axis=1), dtype=np.float64)
    rewards = rows.rewards(cost_weight)
    return np.asarray(rewards[:, rewards.sum(axis=0).argmax()], dtype=np.float64)


def _summary(rows: Recording, chosen: NDArray[np.intp], best: Array, cost_weight: float) -> SimulatedRuns:
    """Return one run's numbers."""

    def mean(values: ArrayLike) -> Array:
        return np.atleast_1d(np.nan_to_num(values)[index].mean())

    index = np.arange(len(chosen)), chosen
    rewards, expected = rows.rewards(cost_weight), rows.expected_rewards(cost_weight)
    lost = best - (rewards if expected is None else expected)[index]
    return SimulatedRuns(
        providers=rows.providers,
        regret=np.cumsum(lost)[None],
        reward=mean(rewards),
        cost=mean(rows.cells("cost")),
        latency_seconds=mean(rows.latencies()),
        shares=np.bincount(chosen, minlength=len(rows.providers))[None] / len(chosen),
    )


def _stacked(runs: list[SimulatedRuns]) -> SimulatedRuns:
    """Return several runs as one table."""
    columns = ("regret", "reward", "cost", "latency_seconds", "shares")
    joined = {name: np.concatenate([getattr(run, name) for run in runs]) for name in columns}
    return SimulatedRuns(providers=runs[0].providers, **joined)
