"""Simulated providers, on which tests and benchmarks compare routing strategies; no model is asked.

A scenario draws the outcome of every provider on every request first; all strategies then meet the same table, so that
their differences are paired. A strategy's first provider is asked, its fallbacks are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.routing import Observation, RoutingRequest

Array = NDArray[np.float64]

RouterFactory = Callable[[np.random.Generator], Any]
"""Makes the strategy of one run, with `order` and `record`, from the run's randomness."""


@dataclass(frozen=True, kw_only=True)
class SimulatedProvider:
    """Provider that answers with a probability: one, or one for every kind of request."""

    name: str
    success: float | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Change:
    """Another probability of success of one provider, from the request number `at` on."""

    at: int
    provider: str
    success: float | Sequence[float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcomes:
    """Success (0 or 1) of every provider on every request, and its probability, both of shape (n, k).

    Contexts, of shape (n, d), are the requests' embeddings where there are several kinds of requests.
    """

    providers: tuple[str, ...]
    success: Array
    expected: Array
    contexts: Array | None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Simulated providers and requests.

    Kinds of requests are as many as a provider has probabilities, and equally likely. A request's context is the centre
    of its kind (a direction drawn for every run) plus normal noise in each of `dim` directions, brought to length 1;
    `noise` is the root mean square length of the noise over the length of a centre.
    """

    providers: Sequence[SimulatedProvider]
    changes: Sequence[Change] = ()
    dim: int = 64
    noise: float = 0.5

    def draw(self, requests: int, rng: np.random.Generator) -> Outcomes:
        """Return the outcomes of one run."""
        kinds = max(np.size(provider.success) for provider in self.providers)
        kind = rng.integers(kinds, size=requests)
        names = tuple(provider.name for provider in self.providers)
        expected = np.stack([_by_kind(provider.success, kind) for provider in self.providers], axis=1)
        for change in self.changes:
            later = _by_kind(change.success, kind)[change.at :]
            expected[change.at :, names.index(change.provider)] = later
        success = (rng.random(expected.shape) < expected).astype(np.float64)
        contexts = self._contexts(kind, kinds, rng) if kinds > 1 else None
        return Outcomes(providers=names, success=success, expected=expected, contexts=contexts)

    def _contexts(self, kind: NDArray[np.int64], kinds: int, rng: np.random.Generator) -> Array:
        centres = _unit(rng.normal(size=(kinds, self.dim)))
        noise = rng.normal(size=(len(kind), self.dim)) / np.sqrt(self.dim)
        return _unit(centres[kind] + self.noise * noise)


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedRuns:
    """What one strategy did in every run.

    Regret, of shape (runs, requests), is cumulative pseudo-regret: what the best choices would have earned more in
    expectation, up to and including each request. Shares, of shape (runs, k), are those of the providers.
    """

    regret: Array
    shares: Array


def simulate(
    world: Scenario | Outcomes,
    routers: Mapping[str, RouterFactory],
    *,
    requests: int = 5_000,
    runs: int = 1,
    rng: int | None = None,
) -> dict[str, SimulatedRuns]:
    """Run strategies on the same outcomes, which are drawn anew for every run of a scenario."""
    regret: dict[str, list[Array]] = {name: [] for name in routers}
    shares: dict[str, list[Array]] = {name: [] for name in routers}
    for run in np.random.default_rng(rng).spawn(runs):
        own, *others = run.spawn(1 + len(routers))
        outcomes = world.draw(requests, own) if isinstance(world, Scenario) else world
        best = outcomes.expected.max(axis=1)
        for (name, make), randomness in zip(routers.items(), others, strict=True):
            chosen = _choices(make(randomness), outcomes)
            lost = best - outcomes.expected[np.arange(len(chosen)), chosen]
            regret[name].append(np.cumsum(lost))
            shares[name].append(np.bincount(chosen, minlength=len(outcomes.providers)) / len(chosen))
    return {
        name: SimulatedRuns(regret=np.array(regret[name]), shares=np.array(shares[name])) for name in routers
    }


def _choices(router: Any, outcomes: Outcomes) -> NDArray[np.intp]:
    """Return the provider that a router chose for every request, learning from each outcome, shape (n,)."""
    numbers = {name: number for number, name in enumerate(outcomes.providers)}
    chosen = np.empty(len(outcomes.success), dtype=np.intp)
    # A list: reading one number out of an array takes longer than a decision.
    for row, success in enumerate(outcomes.success.tolist()):
        context = None if outcomes.contexts is None else outcomes.contexts[row]
        request = RoutingRequest(embedding=context)
        provider = router.order(request)[0]
        number = chosen[row] = numbers[provider]
        observation = Observation(
            provider=provider,
            success=bool(success[number]),
            latency_seconds=0.5,
            quality=success[number],
            cost=0.0,
            context=context,
            request=request,
        )
        router.record(observation)
    return chosen


def _by_kind(value: float | Sequence[float], kind: NDArray[np.int64]) -> Array:
    """Return the number of every request, shape (n,)."""
    several = np.atleast_1d(np.asarray(value, dtype=np.float64))
    return several[kind] if several.size > 1 else np.full(len(kind), several[0])


def _unit(vectors: Array) -> Array:
    """Return vectors of length 1, shape (n, d)."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float64)


class RoundRobin:
    """Strategy that asks providers in turn, as a baseline."""

    def __init__(self, providers: Sequence[str]) -> None:
        self._providers = list(providers)
        self._next = 0

    def order(self, _: RoutingRequest | None = None) -> list[str]:
        """Return all providers, from the next one on."""
        first = self._next
        self._next = (first + 1) % len(self._providers)
        return self._providers[first:] + self._providers[:first]

    def record(self, _: Observation) -> None:
        """Learn nothing."""


class EpsilonGreedy:
    """Strategy that asks a random provider with probability `epsilon`, else the best so far, as a baseline.

    Providers that were never asked count as having answered always.
    """

    def __init__(self, providers: Sequence[str], *, epsilon: float = 0.1, rng: np.random.Generator) -> None:
        self._providers = list(providers)
        self._epsilon = epsilon
        self._rng = rng
        self._calls = np.zeros(len(self._providers))
        self._answers = np.zeros(len(self._providers))

    def order(self, _: RoutingRequest | None = None) -> list[str]:
        """Return all providers by their share of answers; now and then a random one first."""
        share = np.where(self._calls > 0, self._answers / np.maximum(self._calls, 1), 1.0)
        numbers = np.argsort(-share, kind="stable").tolist()
        if self._rng.random() < self._epsilon:
            first = int(self._rng.integers(len(numbers)))
            numbers.sort(key=lambda number: number != first)
        return [self._providers[number] for number in numbers]

    def record(self, observation: Observation) -> None:
        """Count a call, and whether an answer came."""
        number = self._providers.index(observation.provider)
        self._calls[number] += 1
        self._answers[number] += observation.success
